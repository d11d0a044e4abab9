/* Prints a network with packed weights as C, to be compiled in: see mcu.c.

       cc pack.c -o pack && ./pack rnn.safetensors q8 > weights.h */
#define SRU_IMPLEMENTATION
#define SRU_NO_BACKWARD         /* nothing is trained: compiles sooner */
#include "../sru.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints what is not 0 in a config, except for what only matters in training. */
static void print_config(const sru_config *f)
{
#define WHOLE(name)  if (f->name) printf("        ." #name " = %d,\n", f->name)
#define NUMBER(name) if (f->name != 0) printf("        ." #name " = %#.9gf,\n", (double)f->name)
    WHOLE(input_size); WHOLE(hidden_size); WHOLE(num_layers); WHOLE(bidirectional);
    if (f->arch) printf("        .arch = (sru_arch)%d,\n", (int)f->arch);
    WHOLE(projection_size);
    for (int l = 0; l < SRU_MAX_LAYERS; l++)
        if (f->projection_sizes[l])
            printf("        .projection_sizes[%d] = %d,\n", l, f->projection_sizes[l]);
    WHOLE(layer_norm); WHOLE(normalize_after); WHOLE(use_tanh); WHOLE(no_skip_term);
    WHOLE(rescale); NUMBER(scale_x); NUMBER(highway_bias); WHOLE(proj_input_to_hidden_first);
    WHOLE(num_heads); WHOLE(attention_every_n_layers); WHOLE(attention_last_n_layers);
    WHOLE(no_attn_layer_norm); WHOLE(causal); WHOLE(window);
}

int main(int argc, char **argv)
{
    static const struct { const char *option, *name; } types[] =
        { { "f32", "SRU_F32" }, { "bf16", "SRU_BF16" }, { "q8", "SRU_Q8" } };
    int type = 2;
    while (argc == 3 && type >= 0 && strcmp(argv[2], types[type].option)) type--;
    if (argc != 3 || type < 0) {
        const int asked = argc == 2 && !strcmp(argv[1], "--help");
        fputs("pack MODEL.safetensors f32|bf16|q8    prints the model as C, for #include\n",
              asked ? stdout : stderr);
        return asked ? 0 : 2;
    }
    char error[SRU_ERROR_SIZE];
    const sru_context ctx = { .error = error };
    sru_sizes n;
    sru_model *rnn = sru_load(argv[1], (sru_type)(SRU_F32 + type), error);
    if (!rnn || sru_size(&n, &ctx, rnn, 1, 1)) return fprintf(stderr, "%s\n", error), 1;

    printf("static const uint32_t rnn_weights[] = {\n");
    const unsigned char *byte = rnn->weights;
    for (size_t i = 0; i < n.weights; i += 4) {
        uint32_t word = 0;
        memcpy(&word, byte + i, n.weights - i < 4 ? n.weights - i : 4);
        printf("0x%08lx,%c", (unsigned long)word, i % 32 == 28 || i + 4 >= n.weights ? '\n' : ' ');
    }
    printf("};\nstatic const sru_model rnn = {\n    .config = {\n");
    print_config(&rnn->config);
    printf("    },\n    .type = %s, .weights = rnn_weights\n};\n", types[type].name);
    printf("enum { RNN_INPUTS = %d, RNN_OUTPUTS = %d, RNN_STATE = %lu };\n",
           rnn->config.input_size, rnn->config.hidden_size * (1 + rnn->config.bidirectional),
           (unsigned long)n.state);
    free(rnn);
    if (fflush(stdout) || ferror(stdout)) return fputs("the model cannot be written\n", stderr), 1;
    return 0;
}
