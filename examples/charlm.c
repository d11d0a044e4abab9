/* charlm: a language model of characters, trained, evaluated and sampled on any text.

       build/charlm train FILE --seconds 60
       build/charlm sample build/charlm.safetensors --prime "The "

   By hand: cc -O2 -fopenmp charlm.c -o charlm -lm

   Each byte is looked up in an embedding (V,E) and goes through a stack of SRU or SRU++ layers; a
   linear layer turns their D outputs into the probabilities of the V bytes that may come next.

   SRU++ attends to the last `window` bytes. In training these come from the current batch and
   the one before it; in evaluation and sampling they are kept in the rings of the state, and the
   window may be longer. */
#define _POSIX_C_SOURCE 200809L     /* clock_gettime, isatty, popen */
#define SRU_IMPLEMENTATION
#include "../sru.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    V = 256,                /* bytes */
    PIECE = 64,             /* batches that a stream reads in a row in training */
    CHUNK = 1024,           /* characters at a time in evaluation; the result for a whole text does
                               not depend on it */
    PARTS = 16,             /* chunks in a validation during training, spread evenly over its text,
                               because some pages are easier than others */
    BETWEEN = 4*PARTS*CHUNK /* characters of training between validations, at least: they take 12
                               times as long, so that validations take 8 % of the time */
};
static const char COLUMNS[] = "seconds,characters,training,validation\n";   /* of the curve */
static const double GOLDEN = 0.618034;
static const double VALIDATE = 0.05;        /* at most once in this share of the training */
static const int FARTHER = 4;               /* evaluation sees this many times as far as training */
static const float WARM_UP = 0.05f;         /* share of the training in which the rate rises */
static const float CLIP = 1;                /* the gradient's greatest norm */
static const char *const types[] = { "", "f32", "bf16", "q8", "f16", NULL };    /* sru_type */
static const float BETA1 = 0.9f, BETA2 = 0.99f, EPSILON = 1e-8f, DECAY = 0.1f;      /* of AdamW */

typedef struct options {
    const char *command, *file, *text;      /* train FILE, eval FILE TEXT, sample FILE */
    const char *model, *from, *arch, *prime, *type;
    double      seconds, steps, hidden, layers, projection, attention, window, dropout, batch,
                length, lr, seed, threads, temperature;
    int         cuda;
} options;

static char error[SRU_ERROR_SIZE];
static volatile sig_atomic_t interrupted;
static int row;                             /* the cursor stands at the end of a row of progress */

/* ---- Small things --------------------------------------------------------------------------- */

static void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (row) putchar('\n');
    fflush(stdout);
    fputs("charlm: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void check(sru_status status)
{
    if (status) fail("%s", error);
}

/* Writes what was printed and is still in memory. Returns the exit status. */
static int finish(void)
{
    if (fflush(stdout) || ferror(stdout)) fail("what it prints cannot be written");
    return 0;
}

/* Ctrl-C ends a training as if its time were over; a second one ends the program. */
static void on_signal(int number)
{
    interrupted = 1;
    signal(number, SIG_DFL);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9*(double)t.tv_nsec;
}

/* Uniform in [0, 1), by the generator splitmix64. */
static double uniform(uint64_t *random)
{
    uint64_t z = *random += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30))*0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27))*0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11)/9007199254740992.0;      /* 2^53 */
}

/* This processor's operators, or a GPU's. With bf16, products in training are of bfloat16. */
static const sru_backend *operators(int cuda, int bf16)
{
#ifdef SRU_CUDA
    const sru_backend *op = NULL;
    if (cuda) op = sru_cuda_open(NULL, bf16 ? SRU_CUDA_BF16 : SRU_CUDA_FLOAT32, error);
    if (cuda && !op) fail("%s", error);
    if (cuda) return op;
#else
    if (cuda) fail("--cuda: this program was built without it: `make cuda` builds it");
#endif
    return bf16 ? sru_cpu_bf16() : sru_cpu();
}

/* Memory is not released before the program ends. */
static void *allocate(const sru_context *ctx, size_t bytes)
{
    void *memory = ctx->op->alloc(ctx, bytes);
    if (!memory) fail("%zu bytes of memory are not to be had: choose a smaller network, --batch, "
                      "--length or --window", bytes);
    return memory;
}

static float *floats(const sru_context *ctx, size_t n)
{
    return (float *)allocate(ctx, n*sizeof(float));
}

static char *join(const char *a, const char *b)
{
    char *both = (char *)malloc(strlen(a) + strlen(b) + 1);
    if (!both) fail("there is no memory");
    return strcat(strcpy(both, a), b);
}

/* ---- The model ------------------------------------------------------------------------------ */

/* All parameters lie in one array, and so do their gradients and the two moments of AdamW, so that
   one call measures the gradients, and another clips them and updates all parameters. */
typedef struct parameters {
    float *all, *embedding, *stack, *output, *bias;     /* (n) is (V,E), the SRU's, (V,D), (V) */
} parameters;

typedef struct network {
    sru_model   rnn;        /* its weights are p.stack */
    size_t      E, D, n;
    parameters  p, here;    /* here: in this machine's memory; p may be on a GPU */
    const void *output;     /* p.output in the form rnn.type */
} network;

static parameters new_parameters(const sru_context *ctx, const network *net)
{
    parameters p;
    p.all = p.embedding = floats(ctx, net->n);
    p.stack = p.embedding + V*net->E;
    p.bias = p.all + net->n - V;
    p.output = p.bias - V*net->D;
    return p;
}

static network new_network(const sru_context *ctx, const sru_config *config)
{
    network net = {0};
    sru_sizes size;
    net.rnn.config = *config;
    net.rnn.vocab_size = V;
    check(sru_size(&size, ctx, &net.rnn, 1, 1));
    net.E = (size_t)config->input_size;
    net.D = (size_t)config->hidden_size;
    net.n = V*net.E + size.weights/sizeof(float) + V*net.D + V;
    net.p = net.here = new_parameters(ctx, &net);
    if (ctx->op != sru_cpu()) {
        sru_context host = {0};
        host.op = sru_cpu();
        net.here = new_parameters(&host, &net);
    }
    net.rnn.weights = net.p.stack;
    net.rnn.embedding = net.p.embedding;
    net.output = net.p.output;
    return net;
}

/* Fewer than net->n, for zeros follow some of SRU++'s tensors. */
static size_t count_parameters(const network *net)
{
    size_t count = V*net->E + V*net->D + V;
    sru_tensor t;
    for (int i = 0; sru_get_tensor(&t, &net->rnn, i); i++)
        count += t.shape[0]*(t.shape[1] ? t.shape[1] : 1);
    return count;
}

/* What a file holds besides the SRU. */
static void own_tensors(const network *net, sru_tensor own[3])
{
    const sru_tensor list[3] = {
        { "embedding.weight", { V, net->E }, net->here.embedding, 0, 0 },
        { "output.weight",    { V, net->D }, net->here.output,    0, 0 },
        { "output.bias",      { V },         net->here.bias,      0, 0 }
    };
    memcpy(own, list, sizeof list);
}

static void save(const sru_context *ctx, const network *net, const char *path)
{
    sru_model here = net->rnn;
    sru_tensor own[3];
    own_tensors(net, own);
    here.weights = net->here.stack;
    check(ctx->op->copy(ctx, net->here.all, net->p.all, net->n*sizeof(float)));
    check(sru_save(path, &here, "rnn.", own, 3, error));
}

/* Copies what was read or initialised here to where the computing is done. */
static void send(const sru_context *ctx, const network *net)
{
    check(ctx->op->copy(ctx, net->p.all, net->here.all, net->n*sizeof(float)));
}

/* The window is the file's unless another one is given. */
static network load(const sru_context *ctx, const char *path, int window)
{
    network net;
    sru_model rnn = {0};
    sru_tensor own[3];
    size_t size;
    int i;
    void *file = sru_read_file(path, &size, error);
    if (!file) fail("%s", error);
    if (sru_load_bytes(&rnn, NULL, file, size, "rnn.", error))
        fail("%s is not a model that charlm wrote: %s", path, error);
    if (rnn.config.bidirectional) fail("%s: a network that reads backwards cannot foretell", path);
    if (rnn.config.arch == SRU_ARCH_SRUPP) {
        rnn.config.causal = 1;
        if (window) rnn.config.window = window;
        if (!rnn.config.window)
            fail("%s does not say how far it sees: eval and sample take a --window", path);
    } else if (window) fail("%s is an SRU: a --window is for SRU++", path);
    net = new_network(ctx, &rnn.config);
    own_tensors(&net, own);
    if (sru_load_bytes(&net.rnn, net.here.stack, file, size, "rnn.", error))
        fail("%s: %s", path, error);
    for (i = 0; i < 3; i++)
        if (sru_read_tensor(&own[i], file, size, error)) fail("%s: %s", path, error);
    net.rnn.weights = net.p.stack;
    send(ctx, &net);
    free(file);
    return net;
}

/* The same with packed weights: a single step reads all of them, in the order of their packing. */
static network load_packed(const sru_context *ctx, const options *o)
{
    network net = load(ctx, o->file, (int)o->window);
    const sru_model plain = net.rnn;
    sru_type type = SRU_F32;
    sru_sizes size;
    void *output;
    while (strcmp(o->type, types[type])) type = (sru_type)(type + 1);
    net.rnn.type = type;
    check(sru_size(&size, ctx, &net.rnn, 1, 1));
    check(sru_pack(ctx, &net.rnn, allocate(ctx, size.weights), &plain));
    output = allocate(ctx, ctx->op->pack(ctx, NULL, type, net.p.output, V, net.D));
    ctx->op->pack(ctx, output, type, net.p.output, V, net.D);
    net.output = output;
    return net;
}

/* ---- Prediction ----------------------------------------------------------------------------- */

/* What is computed at a time: T steps of B sequences. */
typedef struct batch {
    sru_io   io;
    size_t   rows;              /* T*B */
    size_t   state;             /* floats of io.state */
    int32_t *token, *target;    /* (T,B)   the byte at a place, and the one after it */
    int32_t *tokens, *targets;  /* the same where the computing is done */
    float   *logits, *dh;       /* (T,B,V) (T,B,D) in training */
    float  **before, **now;     /* L of (T,B,E or D), or NULL: see remember() */
} batch;

static batch new_batch(const sru_context *ctx, const network *net, size_t T, size_t B)
{
    batch b = {0};
    sru_sizes size;
    check(sru_size(&size, ctx, &net->rnn, T, B));
    b.rows = T*B;
    b.state = B*size.state;
    b.token = (int32_t *)calloc(2*b.rows, sizeof(int32_t));
    if (!b.token) fail("there is no memory");
    b.target = b.token + b.rows;
    b.tokens = (int32_t *)allocate(ctx, b.rows*sizeof(int32_t));
    b.targets = (int32_t *)allocate(ctx, b.rows*sizeof(int32_t));
    b.logits = floats(ctx, b.rows*V);
    b.io.T = T;
    b.io.B = B;
    b.io.tokens = b.tokens;
    b.io.h = floats(ctx, b.rows*net->D);
    b.io.state = floats(ctx, b.state);
    return b;
}

/* SRU++ remembers the inputs, of E or D numbers, of each layer from the batch before. */
static void new_memory(const sru_context *ctx, const network *net, batch *b)
{
    const size_t width = net->E > net->D ? net->E : net->D;
    const int L = net->rnn.config.num_layers;
    int l;
    b->before = (float **)calloc(2*(size_t)L, sizeof(float *));
    if (!b->before) fail("there is no memory");
    b->now = b->before + L;
    for (l = 0; l < 2*L; l++) b->before[l] = floats(ctx, b->rows*width);
    b->io.saved = b->now;
}

/* The inputs saved from this batch become the memory of the next. */
static void remember(batch *b)
{
    float **saved = b->now;
    b->now = b->before;
    b->before = saved;
    b->io.saved = b->now;
    b->io.memory = (const float *const *)b->before;
    b->io.memory_length = b->io.T;
}

/* From tokens to logits. The next call starts from the state that this one ends in. */
static void predict(const sru_context *ctx, const network *net, batch *b)
{
    check(ctx->op->copy(ctx, b->tokens, b->token, b->rows*sizeof(int32_t)));
    check(sru_forward(ctx, &net->rnn, &b->io));
    check(ctx->op->linear_forward(ctx, b->logits, b->io.h, net->output, net->rnn.type,
                                  net->p.bias, b->rows, V, net->D));
}

/* The sum of -log2 of the probabilities of the targets; dlogits, if not NULL, gets gradients. */
static double compare(const sru_context *ctx, const batch *b, float *dlogits)
{
    double loss = 0;
    check(ctx->op->copy(ctx, b->targets, b->target, b->rows*sizeof(int32_t)));
    check(ctx->op->softmax_loss(ctx, &loss, dlogits, b->logits, b->targets, 1/(float)b->rows,
                                b->rows, V));
    return loss/log(2);
}

/* Bits per character of a text, read as one sequence: all of it with a stride of CHUNK, or with a
   larger one the first CHUNK characters of each stride. If it takes some seconds, a terminal shows
   its progress under the name, unless that is NULL; elsewhere one line says how long it takes. */
static double evaluate(const sru_context *ctx, const network *net, batch *b, const uint8_t *text,
                       size_t n, size_t stride, const char *name)
{
    const int terminal = isatty(STDOUT_FILENO);
    const double start = now();
    double sum = 0, shown = 0;
    size_t at, t, count = 0;
    check(ctx->op->copy(ctx, b->io.state, NULL, b->state*sizeof(float)));
    for (at = 0; at + 1 < n; at += stride) {
        b->rows = b->io.T = n - 1 - at < CHUNK ? n - 1 - at : CHUNK;
        for (t = 0; t < b->rows; t++) {
            b->token[t] = text[at + t];
            b->target[t] = text[at + t + 1];
        }
        predict(ctx, net, b);
        sum += compare(ctx, b, NULL);
        count += b->rows;
        if (name && now() - start > 2 && (terminal ? now() - shown > 0.2 : shown <= 0)) {
            const double share = (double)(at + b->rows)/(double)(n - 1);
            shown = now();
            printf("%s%s %3.0f %%  %.0f s left %s", terminal ? "\r" : "", name, 100*share,
                   (shown - start)*(1 - share)/share, terminal ? "" : "\n");
            fflush(stdout);
            row = terminal;
        }
    }
    if (shown > 0 && terminal) putchar('\r');   /* what is printed next is longer */
    return sum/(double)count;
}

/* ---- Text ----------------------------------------------------------------------------------- */

typedef struct corpus {
    const uint8_t *train, *validation, *test;       /* 90 %, 5 % and 5 % of the file */
    size_t         trains, validations, tests;      /* bytes */
} corpus;

static corpus read_corpus(const char *path)
{
    corpus c;
    size_t size, to90, to95;
    c.train = (const uint8_t *)sru_read_file(path, &size, error);
    if (!c.train) fail("%s", error);
    to90 = size/100*90 + size%100*90/100;
    to95 = size/100*95 + size%100*95/100;
    c.trains = to90;
    c.validation = c.train + to90;
    c.validations = to95 - to90;
    c.test = c.train + to95;
    c.tests = size - to95;
    if (c.validations < 2 || c.tests < 2)
        fail("%s is too short: 5 %% of its %zu bytes are no test", path, size);
    return c;
}

static size_t common_divisor(size_t a, size_t b) { return b ? common_divisor(b, a%b) : a; }

/* Each of B streams reads the text in pieces of up to PIECE batches, and carries its state from
   batch to batch. Each piece lies a golden section of the text behind the one before, so that any
   number of them in a row is spread evenly over the text. With each pass over it, the borders of
   the pieces move. */
static void next_batch(batch *b, const corpus *text, size_t step)
{
    const size_t n = text->trains, T = b->io.T, B = b->io.B;
    const size_t batches = n/(T*B) < PIECE ? n/(T*B) : PIECE, pieces = n/(T*batches);
    size_t stride = 1 + (size_t)(GOLDEN*(double)pieces), t, s;
    while (common_divisor(stride, pieces) > 1) stride++;
    for (s = 0; s < B; s++) {
        const size_t turn = step/batches*B + s, piece = turn%pieces*stride%pieces;
        const size_t moved = turn/pieces*(batches/3 + 1);
        const size_t at = (piece*batches + moved + step%batches)*T%n;
        for (t = 0; t < T; t++) {
            b->token[t*B + s] = text->train[(at + t)%n];
            b->target[t*B + s] = text->train[(at + t + 1)%n];
        }
    }
}

/* ---- Training ------------------------------------------------------------------------------- */

typedef struct trainer {
    sru_context ctx;            /* ctx.step counts the updates */
    const sru_backend *op;      /* computes the updates; ctx.op does all else */
    network     net, far;       /* the same weights; far has the window of evaluation */
    parameters  g;              /* gradients */
    float      *m, *v;          /* (n) moments of AdamW */
    batch       b, validation;

    size_t      first;          /* number of the batch that it begins with */
    double      start, share;   /* when it began; the part of it that is done, 0 ... 1 */
    double      sum, n;         /* of the loss in the n steps since the last validation */
    double      last;           /* share at the last validation, */
    double      bits, best;     /* its result, and the lowest so far */
    int         saved;          /* that one is in the file */
    FILE       *curve;
} trainer;

static sru_config new_config(const options *o)
{
    sru_config config = {0};
    config.input_size = config.hidden_size = (int)o->hidden;
    config.num_layers = (int)o->layers;
    config.layer_norm = config.normalize_after = 1;
    if (!strcmp(o->arch, "srupp")) {
        config.arch = SRU_ARCH_SRUPP;
        config.projection_size = (int)o->projection;
        config.attention_last_n_layers = (int)o->attention;
        config.highway_bias = -2;
        config.causal = 1;
        config.window = (int)o->window*FARTHER;
    }
    return config;
}

static network new_weights(const sru_context *ctx, const sru_config *config, uint64_t random)
{
    const network net = new_network(ctx, config);
    size_t i;
    check(sru_init(net.here.stack, config, random));
    for (i = 0; i < V*net.E; i++) net.here.embedding[i] = (float)(2*uniform(&random) - 1);
    for (i = 0; i < V*net.D; i++)
        net.here.output[i] = (float)((2*uniform(&random) - 1)/sqrt((double)net.D));
    send(ctx, &net);
    return net;
}

static trainer new_trainer(const sru_context *ctx, const options *o)
{
    const sru_config config = new_config(o);
    trainer t = {0};
    sru_sizes size;
    t.ctx = *ctx;
    t.ctx.seed = (uint64_t)o->seed;
    t.op = strcmp(o->type, "bf16") ? ctx->op : operators(o->cuda, 1);
    t.far = o->from ? load(ctx, o->from, 0) : new_weights(ctx, &config, t.ctx.seed);
    t.far.rnn.config.dropout = (float)o->dropout;
    t.net = t.far;
    t.net.rnn.config.window = (t.far.rnn.config.window + FARTHER - 1)/FARTHER;
    t.g = new_parameters(ctx, &t.net);
    t.m = floats(ctx, t.net.n);
    t.v = floats(ctx, t.net.n);

    t.validation = new_batch(ctx, &t.far, CHUNK, 1);
    t.b = new_batch(ctx, &t.net, (size_t)o->length, (size_t)o->batch);
    if (t.net.rnn.config.window) new_memory(ctx, &t.net, &t.b);
    check(sru_size(&size, ctx, &t.net.rnn, t.b.io.T + (t.b.now ? t.b.io.T : 0), t.b.io.B));
    t.b.io.tape = allocate(ctx, size.tape);
    t.b.io.grads = t.g.stack;
    t.b.io.dembedding = t.g.embedding;
    t.b.io.dh = t.b.dh = floats(ctx, t.b.rows*t.net.D);
    t.best = 8;                     /* log2(V): no better than guessing */
    return t;
}

/* One update of all parameters. Returns bits per character before it. */
static double update(trainer *t, double rate)
{
    sru_context with = t->ctx;
    const sru_context *ctx = &with;
    const sru_backend *op = with.op = t->op;
    const network *net = &t->net;
    batch *b = &t->b;
    double bits, norm = 0;

    predict(ctx, net, b);
    bits = compare(ctx, b, b->logits);
    check(op->linear_backward(ctx, b->dh, t->g.output, t->g.bias, b->logits, b->io.h,
                              net->p.output, 0, b->rows, V, net->D));
    check(sru_backward(ctx, &net->rnn, &b->io));

    check(op->norm(ctx, &norm, t->g.all, net->n));
    check(op->adamw(ctx, net->p.all, t->m, t->v, t->g.all, norm > CLIP ? CLIP/(float)norm : 1,
                    (float)rate, BETA1, BETA2, EPSILON, DECAY, ++t->ctx.step, net->n));
    if (b->now) remember(b);
    return bits/(double)b->rows;
}

/* Scratch memory for validations and updates; from the second on, updates of SRU++ have memory. */
static void new_work(trainer *t)
{
    size_t need = 0;
    int i;
    t->ctx.measure = &need;
    for (i = 0; i < 2; i++) update(t, 0);
    predict(&t->ctx, &t->far, &t->validation);
    compare(&t->ctx, &t->validation, NULL);
    t->ctx.measure = NULL;
    t->ctx.step = 0;
    t->b.io.memory = NULL;
    t->b.io.memory_length = 0;
    t->ctx.work = allocate(&t->ctx, need);
    t->ctx.work_size = need;
}

/* Up to 1 in the warm-up, then along a cosine down to 0. */
static double schedule(double share)
{
    if (share < WARM_UP) return share/WARM_UP;
    return 0.5 + 0.5*cos(acos(-1)*(share - WARM_UP)/(1 - WARM_UP));
}

/* A line must fit in a row of 80 columns: \r goes no further back. */
static void show(const trainer *t, int stays)
{
    const double elapsed = now() - t->start, characters = (double)t->ctx.step*(double)t->b.rows;
    const double rate = characters/elapsed, share = t->share;
    const double left = interrupted ? 0 : elapsed*(1 - share)/share;
    printf("%s%3.0f %%  ", row ? "\r" : "", share < 1 ? fmin(99, 100*share) : 100);
    if (stays)
        printf("%.2f M characters, %.0f k/s  training %.3f  validation %.3f  %.0f s left \n",
               1e-6*characters, 1e-3*rate, t->sum/t->n, t->bits, left);
    else
        printf("%.0f characters a second  training %.3f  %.0f s left ", rate, t->sum/t->n, left);
    fflush(stdout);
    row = !stays;
}

/* Bits per character of parts of the validation text. */
static double validate(trainer *t, const corpus *text)
{
    const size_t n = text->validations, stride = (n + PARTS - 1)/PARTS;
    return evaluate(&t->ctx, &t->far, &t->validation, text->validation, n,
                    stride > CHUNK ? stride : CHUNK, NULL);
}

/* Keeps the model if it is the best so far, and adds a line to the loss curve. */
static void keep(trainer *t, const corpus *text, const char *model)
{
    t->last = t->share;
    t->bits = validate(t, text);
    if (t->bits < t->best) {
        t->best = t->bits;
        save(&t->ctx, &t->far, model);
        t->saved = 1;
    }
    fprintf(t->curve, "%.2f,%.0f,%.4f,%.4f\n", now() - t->start,
            (double)t->ctx.step*(double)t->b.rows, t->sum/t->n, t->bits);
    fflush(t->curve);                   /* these lines stay, however the program ends */
}

/* Guessing needs 8 bits. */
static void check_bits(double bits, const options *o)
{
    if (!(bits < 100)) fail("the training diverged: choose an --lr below %g", o->lr);
}

static void run(trainer *t, const corpus *text, const options *o)
{
    const int terminal = isatty(STDOUT_FILENO);
    double loss, shown = 0;
    t->start = now();
    while (t->share < 1 && !interrupted) {
        next_batch(&t->b, text, t->first + (size_t)t->ctx.step);
        loss = update(t, o->lr*schedule(t->share));
        check_bits(loss, o);
        t->sum += loss;
        t->n++;
        t->share = o->steps > 0 ? (double)t->ctx.step/o->steps : (now() - t->start)/o->seconds;
        if (t->share > 1) t->share = 1;

        if (interrupted || t->share >= 1 ||
            (t->share - t->last >= VALIDATE && 1 - t->share >= VALIDATE/2
             && t->n*(double)t->b.rows >= BETWEEN)) {
            keep(t, text, o->model);
            check_bits(t->bits, o);
            show(t, 1);
            t->sum = t->n = 0;
        } else if (terminal && now() - shown > 0.2) {
            show(t, 0);
            shown = now();
        }
    }
}

static void draw(FILE *curve, const char *csv, const char *picture)
{
    FILE *gnuplot = NULL;
    const char *why = "gnuplot cannot draw it";
    const int lost = ferror(curve);
    if (fclose(curve) || lost) why = "which cannot be written";
    else if (strchr(csv, '\'')) why = "not drawn, for its name has a ' in it";
    else if (*csv == '|' || *csv == '<') why = "not drawn, for gnuplot would run its name";
    else if (system("gnuplot --version > /dev/null 2>&1")) why = "install gnuplot to have it drawn";
    else gnuplot = popen("gnuplot 2> /dev/null", "w");
    if (gnuplot)
        fprintf(gnuplot, "set terminal svg size 800,500 background 'white'; set output '%s'\n"
                "set datafile separator ','; set grid\n"
                "set xlabel 'million characters read'; set ylabel 'bits per character'\n"
                "plot '%s' using ($2/1e6):3 with linespoints lw 2 pt 7 ps 0.4 title 'training', "
                "'' using ($2/1e6):4 with linespoints lw 2 pt 7 ps 0.4 title 'validation'\n",
                picture, csv);
    if (gnuplot && !pclose(gnuplot)) printf("loss curve: %s, drawn from %s\n", picture, csv);
    else printf("loss curve: %s (%s)\n", csv, why);
}

static void print_test(const sru_context *ctx, const network *net, const corpus *text)
{
    batch b = new_batch(ctx, net, CHUNK, 1);
    const double bits = evaluate(ctx, net, &b, text->test, text->tests, CHUNK, "test");
    if (!(bits < 1e6)) fail("the model holds numbers that are not finite");
    printf("test %.4f bits per character\n", bits);
}

/* Whether a file is there and has something else than this text behind its first `at` bytes. */
static int is_other(const char *path, long at, const char *text)
{
    struct stat is;
    FILE *f = !stat(path, &is) && S_ISREG(is.st_mode) ? fopen(path, "rb") : NULL;
    int c = 0, other;
    if (!f) return 0;
    if (fseek(f, at, SEEK_SET)) c = EOF;
    while (*text && c != EOF && (c = getc(f)) == (unsigned char)*text) text++;
    other = *text && c != EOF;
    fclose(f);
    return other;
}

/* Whether both names refer to one existing file. */
static int same_file(const char *a, const char *b)
{
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static void train(const sru_context *ctx, const options *o)
{
    const char *csv = join(o->model, ".csv"), *picture = join(o->model, ".svg");
    const char *beside = join(o->model, ".sru_save");   /* the model, until it is complete */
    corpus text = read_corpus(o->file);
    FILE *old = fopen(o->model, "r+b");
    network best;
    trainer t;
    struct stat is;
    if (!old && errno != ENOENT) fail("%s cannot be written: %s", o->model, strerror(errno));
    if (same_file(o->model, o->file) || same_file(csv, o->file) || same_file(picture, o->file)
        || same_file(beside, o->file))
        fail("the --model, or its .csv, .svg or .sru_save, would take the place of the text");
    if (!stat(o->model, &is) && !S_ISREG(is.st_mode)) fail("%s is not a file", o->model);
    if (old) fclose(old);
    if (is_other(o->model, 8, "{")) fail("%s is there, and is no model", o->model);
    if (is_other(csv, 0, COLUMNS))
        fail("%s is there, and is no loss curve: choose another --model", csv);
    if (!stat(picture, &is) && stat(csv, &is))
        fail("%s is there, and not %s, of which it would be a picture: choose another --model",
             picture, csv);
    if (text.trains/(size_t)o->batch <= (size_t)o->length)
        fail("%s is too short: %zu bytes to train on are not %.0f parts longer than %.0f: choose a "
             "smaller --batch or --length", o->file, text.trains, o->batch, o->length);
    t = new_trainer(ctx, o);
    new_work(&t);
    old = fopen(beside, "ab");
    if (!old || fclose(old) || remove(beside))
        fail("%s cannot be written: %s", beside, strerror(errno));
    t.curve = fopen(csv, "w");          /* a folder that cannot be written is noticed here */
    if (!t.curve) fail("%s, of the loss, cannot be written: %s", csv, strerror(errno));
    fputs(COLUMNS, t.curve);

    printf("%zu parameters, %zu characters to learn from, %s\n", count_parameters(&t.net),
           text.trains, t.op->name);
    if (o->from) {                      /* not with what that one began with */
        t.first = (size_t)(fmod(GOLDEN*o->seed, 1)*(double)(text.trains/t.b.rows));
        t.best = validate(&t, &text);
        printf("%s: validation %.3f\n", o->from, t.best);
    }
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
#ifdef SIGXFSZ
    signal(SIGXFSZ, SIG_IGN);           /* a limit on a file's size is reported as a full disk */
#endif
    run(&t, &text, o);
    draw(t.curve, csv, picture);
    if (!t.saved) {                     /* it was never better than at its beginning */
        if (o->from) t.far = load(ctx, o->from, 0);
        save(&t.ctx, &t.far, o->model);
    }
    signal(SIGINT, SIG_DFL);            /* nothing is lost any more */
    signal(SIGTERM, SIG_DFL);

    best = load(ctx, o->model, 0);
    printf("model: %s, validation %.4f bits per character\n", o->model,
           evaluate(ctx, &best, &t.validation, text.validation, text.validations, CHUNK,
                    "validation"));
    print_test(ctx, &best, &text);
}

/* ---- Sampling ------------------------------------------------------------------------------- */

/* Drawn from softmax(logits/temperature); at temperature 0, the most likely. */
static int draw_byte(const float *logits, double temperature, uint64_t *random)
{
    double weight[V], sum = 0;
    int i, best = 0;
    for (i = 0; i < V; i++) {
        if (!isfinite(logits[i])) fail("the model holds numbers that are not finite");
        if (logits[i] > logits[best]) best = i;
    }
    if (temperature <= 0) return best;
    for (i = 0; i < V; i++) sum += weight[i] = exp((logits[i] - logits[best])/temperature);
    sum *= uniform(random);
    for (i = 0; i < V - 1 && sum >= weight[i]; i++) sum -= weight[i];
    return i;
}

static void sample(const sru_context *ctx, const options *o)
{
    network net = load_packed(ctx, o);
    const char *prime = o->prime;
    uint64_t random = (uint64_t)o->seed;
    size_t left = (size_t)o->length;
    float logits[V];
    batch b = new_batch(ctx, &net, 1, 1);
    b.token[0] = '\n';              /* as at the beginning of a line */
    predict(ctx, &net, &b);
    while ((*prime || left) && !ferror(stdout)) {
        if (*prime) b.token[0] = (unsigned char)*prime++;
        else {
            check(ctx->op->copy(ctx, logits, b.logits, sizeof logits));
            b.token[0] = draw_byte(logits, o->temperature, &random);
            left--;
        }
        putchar(b.token[0]);
        predict(ctx, &net, &b);
    }
    putchar('\n');
}

/* ---- Command line --------------------------------------------------------------------------- */

static const char help[] =
"charlm: a language model of the bytes of any text\n"
"\n"
"  charlm train FILE           learn from 90 % of FILE, validate on the next 5 %,\n"
"                              test on the last 5 %\n"
"    --seconds N | --steps N   how long to train (60 seconds), without the test;\n"
"                              Ctrl-C ends it early\n"
"    --model OUT.safetensors   where the best model goes; by default beside this\n"
"                              program, or here, if it was found through PATH\n"
"    --from MODEL              go on with this model, which may be OUT, or adapt\n"
"                              it to another text, often at a lower --lr; --seed\n"
"                              tells where to begin in FILE\n"
"    --hidden D --layers L     units in a layer (192), and number of layers (3)\n"
"    --batch B --length T      sequences in an update (16), and their length (64)\n"
"    --lr R --seed S           highest learning rate (0.012) and seed (1)\n"
"    --dropout P               share of a layer's units to leave out (0)\n"
"    --type f32 | bf16         type of the products (f32): bfloat16 takes 0.7 of\n"
"                              the time where the processor can multiply it;\n"
"                              elsewhere floats are multiplied\n"
"    --arch sru | srupp        SRU, or SRU++, which attends to what came before\n"
"                              (sru)\n"
"    with --arch srupp:\n"
"      --window W              how far it sees (64 characters); evaluation: 4 W\n"
"      --projection P          width of attention (64)\n"
"      --attention N           only the last N layers attend; 0: all do (0)\n"
"  charlm eval MODEL FILE      test on the last 5 % of FILE\n"
"  charlm sample MODEL         write text\n"
"    --prime TEXT --length N   how it begins; how many characters to add (500)\n"
"    --temperature X --seed S  0: the most likely; 1: as learnt (0.7); seed (1)\n"
"  eval and sample:\n"
"    --type f32 | bf16 | q8    weights in float32, bfloat16 or int8 (f32); with\n"
"                              --cuda also f16, but no q8\n"
"    --window W                for SRU++: another window than MODEL's\n"
"  all: --threads N            0, the default: as many as the machine has; while\n"
"                              it has other work, OMP_WAIT_POLICY=passive in the\n"
"                              environment is faster\n"
"       --cuda                 on an NVIDIA GPU, if built by `make cuda`\n"
"       --help                 print this\n";

typedef struct option {
    const char  *name, *commands;       /* t: train takes it, n: not with --from, +: with SRU++;
                                           e: eval, s: sample */
    const char **word;                  /* NULL: it is a number */
    double      *number, usual, least, most;
    int          whole;
} option;

static double read_number(const option *x, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= x->least && value <= x->most) ||
        (x->whole && value != floor(value)))
        fail("%s needs a %snumber from %g to %g, not '%s'", x->name, x->whole ? "whole " : "",
             x->least, x->most, text);
    return value;
}

static void read_options(options *o, int argc, char **argv)
{
    const option list[] = {
        { "--model",       "t",   &o->model, NULL, 0, 0, 0, 0 },
        { "--from",        "t",   &o->from,  NULL, 0, 0, 0, 0 },
        { "--arch",        "tn",  &o->arch,  NULL, 0, 0, 0, 0 },
        { "--prime",       "s",   &o->prime, NULL, 0, 0, 0, 0 },
        { "--type",        "tes", &o->type,  NULL, 0, 0, 0, 0 },
        { "--seconds",     "t",   NULL, &o->seconds,     0,     0.01, 1e7,  0 },
        { "--steps",       "t",   NULL, &o->steps,       0,     1,    1e9,  1 },
        { "--hidden",      "tn",  NULL, &o->hidden,      192,   1,    1e5,  1 },
        { "--layers",      "tn",  NULL, &o->layers,      3,     1,    SRU_MAX_LAYERS, 1 },
        { "--projection",  "t+n", NULL, &o->projection,  64,    1,    1e5,  1 },
        { "--attention",   "t+n", NULL, &o->attention,   0,     0,    SRU_MAX_LAYERS, 1 },
        { "--window",      "t+n", NULL, &o->window,      64,    1,    1e5,  1 },
        { "--window",      "es",  NULL, &o->window,      0,     1,    1e5,  1 },
        { "--batch",       "t",   NULL, &o->batch,       16,    1,    1e5,  1 },
        { "--length",      "t",   NULL, &o->length,      64,    1,    1e9,  1 },
        { "--length",      "s",   NULL, &o->length,      500,   1,    1e9,  1 },
        { "--dropout",     "t",   NULL, &o->dropout,     0,     0,    0.99, 0 },
        { "--lr",          "t",   NULL, &o->lr,          0.012, 1e-9, 1e3,  0 },
        { "--seed",        "ts",  NULL, &o->seed,        1,     0,    1e15, 1 },
        { "--temperature", "s",   NULL, &o->temperature, 0.7,   0,    1e3,  0 },
        { "--threads",     "tes", NULL, &o->threads,     0,     0,    1e3,  1 }
    };
    const size_t count = sizeof list/sizeof *list;
    const char *plus = NULL, *sizes = NULL;
    size_t j;
    int i;
    for (j = 0; j < count; j++)
        if (list[j].number && strchr(list[j].commands, *o->command))
            *list[j].number = list[j].usual;
    for (i = 2; i < argc; i++) {
        if (argv[i][0] != '-' && !o->file) o->file = argv[i];
        else if (argv[i][0] != '-' && !o->text && *o->command == 'e') o->text = argv[i];
        else if (!strcmp(argv[i], "--cuda")) o->cuda = 1;
        else {
            for (j = 0; j < count && (strcmp(argv[i], list[j].name) ||
                                      !strchr(list[j].commands, *o->command)); j++) {}
            if (j == count) fail("%s does not take '%s': see --help", o->command, argv[i]);
            if (strchr(list[j].commands, '+')) plus = list[j].name;
            if (strchr(list[j].commands, 'n')) sizes = list[j].name;
            if (++i == argc) fail("%s needs a value", list[j].name);
            if (list[j].word) *list[j].word = argv[i];
            else *list[j].number = read_number(&list[j], argv[i]);
        }
    }
    if (!o->file || (*o->command == 'e' && !o->text))
        fail("%s needs %s: see --help", o->command,
             *o->command == 't' ? "a FILE" : *o->command == 's' ? "a MODEL" : "a MODEL and a FILE");
    if (strcmp(o->arch, "sru") && strcmp(o->arch, "srupp"))
        fail("--arch needs sru or srupp, not '%s'", o->arch);
    if (sizes && o->from) fail("%s is for a new network: %s has its own", sizes, o->from);
    if (plus && strcmp(o->arch, "srupp")) fail("%s is for --arch srupp", plus);
    for (i = SRU_F32; types[i] && strcmp(o->type, types[i]); i++) {}
    if (!types[i]) fail("--type needs f32, bf16, q8 or, on a GPU, f16, not '%s'", o->type);
    if (*o->command == 't' && i > SRU_BF16) fail("train needs --type f32 or bf16");
    if (i == SRU_Q8 && o->cuda) fail("--type q8 is not offered with --cuda");
    if (i == SRU_F16 && !o->cuda) fail("--type f16 needs --cuda");
    if (o->model && !*o->model) fail("--model needs a name");
    if (o->steps > 0 && o->seconds > 0) fail("--seconds and --steps exclude each other");
    if (o->steps <= 0 && o->seconds <= 0) o->seconds = 60;
}

int main(int argc, char **argv)
{
    options o = {0};
    sru_context ctx = {0};
    int i;
    o.command = argc > 1 ? argv[1] : "";
    o.model = join(argv[0], ".safetensors");
    o.arch = "sru";
    o.type = "f32";
    o.prime = "";
    for (i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help")) return fputs(help, stdout), finish();
    if (strcmp(o.command, "train") && strcmp(o.command, "eval") && strcmp(o.command, "sample"))
        fail("the first argument must be train, eval or sample: see --help");
    read_options(&o, argc, argv);
    ctx.op = operators(o.cuda, 0);
    ctx.threads = (int)o.threads;
    ctx.error = error;

    if (*o.command == 't') train(&ctx, &o);
    else if (*o.command == 's') sample(&ctx, &o);
    else {
        network net = load_packed(&ctx, &o);
        corpus text = read_corpus(o.text);
        print_test(&ctx, &net, &text);
    }
    return finish();
}
