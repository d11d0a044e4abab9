/* Prints the packed weights of a model as numbers for a C array: see mcu.c.

       cc pack.c -o pack && ./pack rnn.safetensors q8 > weights.h */
#define SRU_IMPLEMENTATION
#define SRU_NO_BACKWARD         /* nothing is trained: compiles sooner */
#include "../sru.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *types[] = { "f32", "bf16", "q8" };
    int type = 2;
    while (argc == 3 && type >= 0 && strcmp(argv[2], types[type])) type--;
    if (argc != 3 || type < 0) {
        const int asked = argc == 2 && !strcmp(argv[1], "--help");
        fputs("pack MODEL.safetensors f32|bf16|q8    prints 32-bit words for a const array\n",
              asked ? stdout : stderr);
        return asked ? 0 : 2;
    }
    char error[SRU_ERROR_SIZE];
    const sru_context ctx = { .error = error };
    sru_sizes n;
    sru_model *rnn = sru_load(argv[1], (sru_type)(SRU_F32 + type), error);
    if (!rnn || sru_size(&n, &ctx, rnn, 1, 1)) return fprintf(stderr, "%s\n", error), 1;

    if (rnn->config.scale_x > 0)            /* from rounded weights; not in the file's config */
        printf("/* .scale_x = %#.9gf */\n", (double)rnn->config.scale_x);
    const unsigned char *byte = rnn->weights;
    for (size_t i = 0; i < n.weights; i += 4) {
        uint32_t word = 0;
        memcpy(&word, byte + i, n.weights - i < 4 ? n.weights - i : 4);
        printf("0x%08lx,%c", (unsigned long)word, i % 32 == 28 ? '\n' : ' ');
    }
    putchar('\n');
    free(rnn);
    if (fflush(stdout) || ferror(stdout)) return fputs("the words cannot be written\n", stderr), 1;
    return 0;
}
