/* A network in the flash memory of a microcontroller: a const model with int8 weights, printed by
   pack.c; no files, no heap, no start-up. Only printf, which shows the results, needs more.

       ./pack rnn.safetensors q8 > weights.h && cc mcu.c -o mcu && ./mcu */
#define SRU_IMPLEMENTATION
#define SRU_NO_STDIO
#define SRU_NO_BACKWARD
#define SRU_NO_SIMD             /* so that this machine needs no more memory than the board */
#define SRU_MALLOC(n) NULL
#define SRU_FREE(p)   ((void)(p))
#include "../sru.h"
#include "weights.h"            /* rnn, RNN_INPUTS ... */
#include <stdio.h>

static float x[RNN_INPUTS], h[RNN_OUTPUTS], state[RNN_STATE], work[256];
static const sru_context ctx = { .work = work, .work_size = sizeof work };
static const sru_io io = { .T = 1, .B = 1, .x = x, .h = h, .state = state };

int main(int argc, char **argv)         /* on the board main(void), without the next two lines */
{
    if (argc > 1 && !strcmp(argv[1], "--help")) return puts("mcu    runs its own network"), 0;
    if (argc > 1) return fputs("mcu takes no argument: see --help\n", stderr), 2;
    size_t need = 0;                        /* sru_size() allows for calls without a state, too */
    sru_context measuring = ctx;
    measuring.measure = &need;
    if (sru_forward(&measuring, &rnn, &io) || need > sizeof work)
        return fputs("work is too small\n", stderr), 1;
    printf("%u bytes of weights; in RAM %u of state, %u of scratch memory\n",
           (unsigned)sizeof rnn_weights, (unsigned)sizeof state, (unsigned)need);

    for (int t = 0; t < 12; t++) {
        x[0] = t == 0;                                  /* the sensor: an impulse at t = 0 */
        if (sru_forward(&ctx, &rnn, &io)) return fputs("a step failed\n", stderr), 1;
        printf("h[%2d][0] = %9.6f\n", t, h[0]);         /* hello.c prints the same in float32 */
    }
    return fflush(stdout) ? perror("stdout"), 1 : 0;
}
