/* Trains a byte-level language model: embedding, SRU, output layer; truncated back-propagation,
   dropout, AdamW. As short as it can be; charlm.c is the one to use.

       cc -O2 -fopenmp train.c -o train && ./train text lm.safetensors */
#define SRU_IMPLEMENTATION
#include "../sru.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V = 256, D = 128, T = 32, B = 16, ROWS = T*B, STEPS = 300 };
typedef struct { float embedding[V*D], output[V*D], bias[V], rnn[]; } parameters;

static int read_batch(FILE *f, long stream, int step, int32_t *token, int32_t *target)
{
    for (int b = 0; b < B; b++) {                       /* B streams through B parts of the text */
        fseek(f, b * stream + (long)step * T % (stream - T), SEEK_SET);
        for (int t = 0, c = getc(f); t < T; t++) {
            token[t*B + b] = c;
            target[t*B + b] = c = getc(f);
        }
    }
    return !ferror(f) && !feof(f);
}

int main(int argc, char **argv)
{
    const char *text = argc > 1 ? argv[1] : "sru.h", *path = argc > 2 ? argv[2] : NULL;
    if (!strcmp(text, "--help")) return puts("train [TEXT [MODEL.safetensors, to write]]"), 0;
    if (path && (argc > 3 || *path == '-')) return fputs("wrong names: see --help\n", stderr), 2;
    FILE *f = fopen(text, "rb");
    if (!f || fseek(f, 0, SEEK_END)) return perror(text), 1;
    const long stream = ftell(f) / B;
    if (stream <= T) return fprintf(stderr, "%s is too short\n", text), 1;
    FILE *old = path ? fopen(path, "rb") : NULL;        /* only a model may be replaced */
    if (old && (!strcmp(path, text) || fseek(old, 8, SEEK_SET) || getc(old) != '{' || fclose(old)))
        return fprintf(stderr, "%s is there, and not to be replaced\n", path), 1;
    FILE *out = path ? fopen(path, "ab") : NULL;        /* fails here, not after the training */
    if (path && (!out || fclose(out) || (!old && remove(path)))) return perror(path), 1;

    sru_model rnn = { .config = { .input_size = D, .hidden_size = D, .num_layers = 2,
                                  .highway_bias = -1, .dropout = .05f }, .vocab_size = V };
    char error[SRU_ERROR_SIZE];
    sru_context ctx = { .op = sru_cpu(), .seed = 1, .error = error };
    const sru_backend *op = ctx.op;
    sru_sizes n;
    if (sru_size(&n, &ctx, &rnn, T, B)) return fprintf(stderr, "%s\n", error), 1;

    /* parameters, gradients, and the two moments of AdamW: four arrays of the same layout */
    const size_t bytes = sizeof(parameters) + n.weights;
    parameters *p = op->alloc(&ctx, bytes), *g = op->alloc(&ctx, bytes);
    float *m = op->alloc(&ctx, bytes), *v = op->alloc(&ctx, bytes);
    float *h = op->alloc(&ctx, ROWS*D * 4), *dh = op->alloc(&ctx, ROWS*D * 4);
    float *y = op->alloc(&ctx, ROWS*V * 4), *state = op->alloc(&ctx, B * n.state * 4);
    void  *tape = op->alloc(&ctx, n.tape);
    if (!p || !g || !m || !v || !h || !dh || !y || !state || !tape)
        return fprintf(stderr, "no memory\n"), 1;

    for (int i = 0; i < V*D; i++) p->embedding[i] = (float)(rand() % 2001 - 1000) * 1e-3f;
    sru_init(p->rnn, &rnn.config, 1);
    rnn.weights = p->rnn;
    rnn.embedding = p->embedding;

    int32_t token[ROWS], target[ROWS];
    sru_io io = { .T = T, .B = B, .tokens = token, .h = h, .state = state, .tape = tape,
                  .dh = dh, .dembedding = g->embedding, .grads = g->rnn };
    double sum = 0, loss, norm;
    for (int step = 0; step < STEPS; step++) {
        if (!read_batch(f, stream, step, token, target))
            return fprintf(stderr, "%s cannot be read\n", text), 1;

        if (sru_forward        (&ctx, &rnn, &io) ||     /* from the state after the last step */
            op->linear_forward (&ctx, y, h, p->output, SRU_PLAIN, p->bias, ROWS, V, D) ||
            op->softmax_loss   (&ctx, &loss, y, y, target, 1.f / ROWS, ROWS, V) ||

            op->linear_backward(&ctx, dh, g->output, g->bias, y, h, p->output, 0, ROWS, V, D) ||
            sru_backward       (&ctx, &rnn, &io)) return fprintf(stderr, "%s\n", error), 1;

        ctx.step++;     /* to add up gradients, `continue` here, and count t of adamw apart */
        if (op->norm (&ctx, &norm, (float *)g, bytes / 4) ||         /* all parameters at once */
            op->adamw(&ctx, (float *)p, m, v, (float *)g, norm > 1 ? (float)(1 / norm) : 1,
                      3e-3f, .9f, .99f, 1e-8f, .01f, ctx.step, bytes / 4))
            return fprintf(stderr, "%s\n", error), 1;

        sum += loss / ROWS * 1.442695;                  /* in bits */
        if (ctx.step % 30 == 0)
            printf("step %3d   %.3f bits per character\n", (int)ctx.step, sum / 30), sum = 0;
    }
    const sru_tensor own[] = { { "embedding.weight", { V, D }, p->embedding, 0, 0 },
                               { "output.weight",    { V, D }, p->output,    0, 0 },
                               { "output.bias",      { V },    p->bias,      0, 0 } };
    if (path && sru_save(path, &rnn, "rnn.", own, 3, error))
        return fprintf(stderr, "%s\n", error), 1;

    void *all[] = { p, g, m, v, h, dh, y, state, tape };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op->release(&ctx, all[i]);
    fclose(f);
    return fflush(stdout) ? perror("stdout"), 1 : 0;
}
