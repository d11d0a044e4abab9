/* A network in the flash memory of a microcontroller: int8 weights in a const array, printed by
   pack.c; no files, no heap, no start-up. Only printf, which shows the results, needs more.

       ./pack rnn.safetensors q8 > weights.h && cc mcu.c -o mcu && ./mcu */
#define SRU_IMPLEMENTATION
#define SRU_NO_STDIO
#define SRU_NO_BACKWARD
#define SRU_NO_SIMD             /* so that this machine needs no more memory than the board */
#define SRU_MALLOC(n) NULL
#define SRU_FREE(p)   ((void)(p))
#include "../sru.h"
#include <stdio.h>

enum { I = 8, N = 16, L = 2 };

static const uint32_t weights[] = {
#include "weights.h"
};
static const sru_model rnn = {          /* all of the config in rnn.safetensors, and .scale_x if
                                           weights.h names it: the words tell only their size */
    .config = { .input_size = I, .hidden_size = N, .num_layers = L },
    .type = SRU_Q8, .weights = weights
};

static float x[I], h[N], state[L*N], work[256];
static const sru_context ctx = { .work = work, .work_size = sizeof work };
static const sru_io io = { .T = 1, .B = 1, .x = x, .h = h, .state = state };

int main(int argc, char **argv)         /* on the board main(void), without the next two lines */
{
    if (argc > 1 && !strcmp(argv[1], "--help")) return puts("mcu    runs its own network"), 0;
    if (argc > 1) return fputs("mcu takes no argument: see --help\n", stderr), 2;
    sru_sizes n;                            /* do weights.h and the arrays fit the network? */
    if (sru_size(&n, &ctx, &rnn, 1, 1) || n.weights != sizeof weights || n.work > sizeof work)
        return puts("the config is not that of weights.h, or work is too small"), 1;
    printf("%u bytes of weights; in RAM %u of state, %u of scratch memory\n",
           (unsigned)n.weights, (unsigned)sizeof state, (unsigned)n.work);

    for (int t = 0; t < 12; t++) {
        x[0] = t == 0;                                  /* the sensor: an impulse at t = 0 */
        if (sru_forward(&ctx, &rnn, &io)) return puts("work is too small"), 1;
        printf("h[%2d][0] = %9.6f\n", t, h[0]);         /* hello.c prints the same in float32 */
    }
    return fflush(stdout) ? perror("stdout"), 1 : 0;
}
