/* Runs the network that pytorch.py saved, and prints the same numbers.

       cc pytorch.c -o pytorch -lm && ./pytorch rnn.safetensors */
#define SRU_IMPLEMENTATION
#define SRU_NO_BACKWARD         /* nothing is trained: compiles sooner */
#include "../sru.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T = 6, I = 8, N = 16 };

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "examples/rnn.safetensors";
    if (!strcmp(path, "--help")) return puts("pytorch [MODEL.safetensors, from pytorch.py]"), 0;
    if (argc > 2) return fputs("pytorch takes one model: see --help\n", stderr), 2;

    char error[SRU_ERROR_SIZE];
    sru_model *rnn = sru_load(path, SRU_F32, error);
    if (!rnn) return fprintf(stderr, "%s\n", error), 1;
    if (rnn->config.input_size != I || rnn->config.hidden_size != N || rnn->config.bidirectional)
        return fprintf(stderr, "%s is not the network of pytorch.py\n", path), 1;

    float x[T*I], h[T*N];
    for (int i = 0; i < T*I; i++) x[i] = sinf((float)i);

    sru_io io = { .T = T, .B = 1, .x = x, .h = h };
    sru_context ctx = { .error = error };
    if (sru_forward(&ctx, rnn, &io)) return fprintf(stderr, "%s\n", error), 1;

    for (int t = 0; t < T; t++) {
        printf("h[%d] =", t);
        for (int i = 0; i < 6; i++) printf(" %8.5f", h[t*N + i]);
        printf(" ...\n");
    }
    free(rnn);
    return fflush(stdout) ? perror("stdout"), 1 : 0;
}
