/* Learns to tell from which of several texts a line is, for example in which language: embedding of
   bytes, SRU in both directions, mean over the line, output layer. Lines differ in length, so
   batches are padded. Every tenth line of a text is kept for the test.

       cc -O2 -fopenmp classify.c -o classify && ./classify english.txt german.txt french.txt

   Without arguments, it takes three files of this repository, from its top folder. */
#define SRU_IMPLEMENTATION
#include "../sru.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V = 256, D = 32, N = 2*D, T = 48, B = 32, MOST = 8, STEPS = 500 };
typedef struct { float embedding[V*D], output[MOST*N], bias[MOST], rnn[]; } parameters;
typedef struct { char *at; int length, text; } line;            /* at most T bytes of it */
typedef struct {
    int32_t token[T*B], text[B];
    uint8_t pad[T*B];                                   /* 1 behind the end of a line */
    float   mean[B*N], dmean[B*N], y[B*MOST], h[T*B*N], dh[T*B*N];
} batch;

static void put_line(batch *k, int b, line l)
{
    for (int t = 0; t < T; t++) {
        k->pad[t*B + b] = t >= l.length;
        k->token[t*B + b] = t < l.length ? (unsigned char)l.at[t] : 0;
    }
    k->text[b] = l.text;
}

/* The mean of h over each line or, backward, dh from the mean's gradient; 0 in padding. */
static void average(batch *k, int backward)
{
    memset(backward ? k->dh : k->mean, 0, backward ? sizeof k->dh : sizeof k->mean);
    for (int b = 0; b < B; b++) {
        int length = 0;
        while (length < T && !k->pad[length*B + b]) length++;
        for (int i = 0; i < length*N; i++) {
            const int at = (i/N*B + b)*N + i%N, of = b*N + i%N;
            if (backward) k->dh[at] = k->dmean[of] / (float)length;
            else          k->mean[of] += k->h[at] / (float)length;
        }
    }
}

int main(int argc, char **argv)
{
    static char *names[] = { "sru.h", "README.md", "bench/peers.py" };
    if (argc == 2 && !strcmp(argv[1], "--help"))
        return puts("classify [TEXT TEXT ..., up to 8]"), 0;
    const size_t given = (size_t)argc - 1, texts = given ? given : 3;
    if (texts < 2 || texts > MOST) return fputs("2 to 8 texts are needed\n", stderr), 2;
    line *lines = NULL;
    int   first[MOST + 1] = { 0 }, count = 0;           /* text i has lines first[i] ... */
    char  error[SRU_ERROR_SIZE], *text[MOST], **name = given ? argv + 1 : names;
    for (size_t i = 0; i < texts; i++, first[i] = count) {
        size_t size;
        if (!(text[i] = sru_read_file(name[i], &size, error)))
            return fprintf(stderr, "%s\n", error), 1;
        char *end = text[i] + size, *next;
        for (char *at = text[i]; at < end; at = next + 1) {
            if (!(next = memchr(at, '\n', (size_t)(end - at)))) next = end;
            if (next - at < 8) continue;                /* too short to tell */
            if (!(count & (count - 1)))                 /* 0, 1, 2, 4 ...: it is full */
                lines = realloc(lines, (count ? 2 * (size_t)count : 1) * sizeof *lines);
            if (!lines) return fputs("no memory\n", stderr), 1;
            lines[count++] = (line){ at, next - at < T ? (int)(next - at) : T, (int)i };
        }
        if (count - first[i] < 10)
            return fprintf(stderr, "%s has fewer than 10 lines of 8 bytes or more\n", name[i]), 1;
    }

    sru_model rnn = { .config = { .input_size = D, .hidden_size = D, .num_layers = 2,
                                  .bidirectional = 1, .dropout = .2f }, .vocab_size = V };
    sru_context ctx = { .op = sru_cpu(), .error = error };
    const sru_backend *op = ctx.op;
    sru_sizes n;
    if (sru_size(&n, &ctx, &rnn, T, B)) return fprintf(stderr, "%s\n", error), 1;
    const size_t bytes = sizeof(parameters) + n.weights;
    parameters *p = op->alloc(&ctx, bytes), *g = op->alloc(&ctx, bytes);
    float *m = op->alloc(&ctx, bytes), *v = op->alloc(&ctx, bytes);
    void  *tape = op->alloc(&ctx, n.tape);
    batch *k = op->alloc(&ctx, sizeof *k);
    if (!p || !g || !m || !v || !tape || !k) return fputs("no memory\n", stderr), 1;
    for (int i = 0; i < V*D; i++) p->embedding[i] = (float)(rand() % 2001 - 1000) * 1e-3f;
    sru_init(p->rnn, &rnn.config, 1);
    rnn.weights = p->rnn;
    rnn.embedding = p->embedding;

    sru_io io = { .T = T, .B = B, .tokens = k->token, .mask_pad = k->pad, .h = k->h, .tape = tape,
                  .dh = k->dh, .dembedding = g->embedding, .grads = g->rnn };
    double sum = 0, loss;
    for (ctx.step = 1; ctx.step <= STEPS; ctx.step++) {
        for (int b = 0; b < B; b++) {                   /* texts in turn, however long they are */
            const int i = b % (int)texts, l = rand() % (first[i + 1] - first[i]);
            put_line(k, b, lines[first[i] + l - (l % 10 == 9)]);    /* not one of the test */
        }
        if (sru_forward(&ctx, &rnn, &io)) return fprintf(stderr, "%s\n", error), 1;
        average(k, 0);
        if (op->linear_forward (&ctx, k->y, k->mean, p->output, SRU_PLAIN, p->bias, B, texts, N) ||
            op->softmax_loss   (&ctx, &loss, k->y, k->y, k->text, 1.f / B, B, texts) ||
            op->linear_backward(&ctx, k->dmean, g->output, g->bias, k->y, k->mean, p->output, 0,
                                B, texts, N)) return fprintf(stderr, "%s\n", error), 1;
        average(k, 1);
        if (sru_backward(&ctx, &rnn, &io) ||
            op->adamw(&ctx, (float *)p, m, v, (float *)g, 1, 3e-3f, .9f, .99f, 1e-8f, .01f,
                      ctx.step, bytes / 4)) return fprintf(stderr, "%s\n", error), 1;
        sum += loss / B;
        if (ctx.step % 50 == 0) printf("step %3d   loss %.3f\n", (int)ctx.step, sum / 50), sum = 0;
    }

    int right[MOST] = { 0 }, asked[MOST] = { 0 };
    io.tape = NULL;                                     /* inference */
    for (int l = 0; l < count;) {
        int b = 0;
        for (; l < count && b < B; l++)
            if ((l - first[lines[l].text]) % 10 == 9) put_line(k, b++, lines[l]);
        if (sru_forward(&ctx, &rnn, &io)) return fprintf(stderr, "%s\n", error), 1;
        average(k, 0);
        if (op->linear_forward(&ctx, k->y, k->mean, p->output, SRU_PLAIN, p->bias, B, texts, N))
            return fprintf(stderr, "%s\n", error), 1;
        while (b--) {
            const float *y = k->y + (size_t)b*texts;
            int best = 0;
            for (int i = 1; i < (int)texts; i++) if (y[i] > y[best]) best = i;
            right[k->text[b]] += best == k->text[b];
            asked[k->text[b]]++;
        }
    }
    for (size_t i = 0; i < texts; i++)
        printf("%5.1f %% of the %d lines of %s are recognised\n", 100. * right[i] / asked[i],
               asked[i], name[i]);
    void *all[] = { p, g, m, v, tape, k };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op->release(&ctx, all[i]);
    for (size_t i = 0; i < texts; i++) free(text[i]);
    free(lines);
    return fflush(stdout) ? perror("stdout"), 1 : 0;
}
