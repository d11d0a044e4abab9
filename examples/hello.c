/* Runs a network that pytorch.py saved, and shows how it responds to an impulse.

       cc hello.c -o hello && ./hello rnn.safetensors */
#define SRU_IMPLEMENTATION
#define SRU_NO_BACKWARD         /* nothing is trained: compiles sooner */
#include "../sru.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "examples/rnn.safetensors";
    if (!strcmp(path, "--help")) return puts("hello [MODEL.safetensors]"), 0;
    if (argc > 2) return fputs("hello takes one model: see --help\n", stderr), 2;

    char error[SRU_ERROR_SIZE];
    sru_model *rnn = sru_load(path, SRU_F32, error);
    if (!rnn) return fprintf(stderr, "%s\n", error), 1;

    const int T = 12, I = rnn->config.input_size;
    const int N = rnn->config.hidden_size * (1 + rnn->config.bidirectional);
    float *x = calloc(T*I, sizeof *x), *h = calloc(T*N, sizeof *h);
    if (!x || !h) return fprintf(stderr, "no memory\n"), 1;

    x[0] = 1;                                           /* an impulse at t = 0 */
    sru_io io = { .T = T, .B = 1, .x = x, .h = h };
    sru_context ctx = { .error = error };
    if (sru_forward(&ctx, rnn, &io)) return fprintf(stderr, "%s\n", error), 1;

    printf("%d inputs, %d outputs. Unit 0 after an impulse, by %s:\n", I, N, sru_cpu()->name);
    for (int t = 0; t < T; t++) printf("h[%2d][0] = %9.6f\n", t, h[t*N]);

    free(rnn), free(x), free(h);
    return fflush(stdout) ? perror("stdout"), 1 : 0;
}
