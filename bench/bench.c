/* Measures how fast operators and networks are: see --help. A time is the median over as many calls
   as fit into the time given. Built with SRU_CUDA, as build/bench_cuda, it measures the GPU. */
#define _POSIX_C_SOURCE 200112L         /* clock_gettime, setenv, popen */
#define SRU_IMPLEMENTATION
#include "../sru.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static const char *const help =
    "bench [CASE] [options]   times one case; without CASE, all cases of a set that\n"
    "                         take the options given, and draws these in a file .svg\n"
    "                         beside the program or, if found through PATH, here\n"
    "\n"
    "  linear M N K           y = x W', x (M,K), W (N,K), weights packed beforehand\n"
    "  scan T B D             the elementwise recurrence alone, with U given\n"
    "  layer T B D L          inference over a sequence, in L layers of D units\n"
    "  train T B D L          training of the same network: forward and backward\n"
    "  stream D L             one step of one sequence, in L layers of D units\n"
    "  layernorm ROWS N\n"
    "  attention T B H HD     causal, as in SRU++, with H heads of HD columns\n"
    "  srupp T B D P L        inference of SRU++; --train: forward and backward;\n"
    "                         --heads H; --window W: through rings, which --after N\n"
    "                         calls fill first\n"
    "\n"
#ifdef SRU_CUDA
    "  --threads N            has no effect on a GPU\n"
    "  --isa cuda             likewise\n"
    "  --type NAME            the type of packed weights of linear, layer, stream and\n"
    "                         srupp, and of what products multiply, in training and\n"
    "                         attention too: f32 (default), tf32, bf16, f16\n"
#else
    "  --threads N            default: as many as OpenMP offers, and for the set also\n"
    "                         1. Callers who do not ask get one for small work\n"
    "  --isa NAME             scalar, sse2, avx2, avx512, neon ...; default: the best\n"
    "  --type NAME            the type of packed weights of linear, layer, stream and\n"
    "                         srupp: f32 (default), bf16, q8. In training, bf16 makes\n"
    "                         products multiply bfloat16 if the machine can do that,\n"
    "                         else floats\n"
#endif
    "  --dropout P            in training: of units, projections, attention's weights\n"
    "  --seconds N            time for each case, default 1\n"
    "  --json                 prints a line with an object for each case: case (with\n"
    "                         options), threads, isa, ns (median of a call), ns_min,\n"
    "                         gflops (of products) or gbytes (moved) a second, bytes\n"
    "                         (of memory)\n";

static const char *const set[] = {
    "linear 1024 1536 512", "linear 512 3072 1024", "linear 64 1536 512", "linear 1 1536 512",
    "scan 256 8 512", "layernorm 2048 512", "attention 512 2 4 64",
    "layer 128 8 512 4", "layer 512 1 256 2", "train 64 16 256 4",
    "srupp 256 4 512 128 2", "stream 64 2", "stream 256 2", "stream 512 4"
};
enum { SET = sizeof set / sizeof *set };

static const struct {
    const char *name;
    sru_type    type;
    char        letter;                 /* that stands for it in option.given */
    int         math;                   /* sru_cuda_math */
} types[] = {
#ifdef SRU_CUDA
    { "f32",  SRU_F32,  't', SRU_CUDA_FLOAT32 }, { "tf32", SRU_F32, 't', SRU_CUDA_TF32 },
    { "bf16", SRU_BF16, 't', SRU_CUDA_BF16 },    { "f16",  SRU_F16, 't', SRU_CUDA_FP16 }
#else
    { "f32", SRU_F32, 't', 0 }, { "bf16", SRU_BF16, 't', 0 }, { "q8", SRU_Q8, 'q', 0 }
#endif
};
enum { TYPES = sizeof types / sizeof *types };

static struct {
    double seconds;
    float dropout;
    int threads, json, heads, train, window, after, math;
    sru_type type;
    char given[8], words[128];          /* options that not all cases take: letters; in full */
} option = { .seconds = 1, .heads = 1, .type = SRU_F32 };

static void fail(const char *sentence)
{
    fprintf(stderr, "bench: %s\n", sentence);
    exit(1);
}

/* Fails unless all that was printed can be written. Returns the exit status. */
static int finish(void)
{
    if (fflush(stdout) || ferror(stdout)) fail("what it prints cannot be written");
    return 0;
}

/* ---- what is measured ------------------------------------------------------------------------ */

#ifdef SRU_CUDA
enum { SHORTEST = 1000000 };            /* least ns between two looks at the clock */

static const sru_backend *operators(int training)
{
    static const sru_backend *op;
    static char error[SRU_ERROR_SIZE];
    (void)training;
    if (!op) op = sru_cuda_open(NULL, (sru_cuda_math)option.math, error);
    if (!op) fail(error);
    return op;
}

/* Waits until all calls are done, by reading from `array`, which is on the GPU. */
static void wait_for(const sru_context *ctx, const void *array)
{
    char byte;
    if (ctx->op->copy(ctx, &byte, array, 1)) fail("the GPU failed");
}
#else
enum { SHORTEST = 20000 };

static const sru_backend *operators(int training)
{
    return training && option.type == SRU_BF16 ? sru_cpu_bf16() : sru_cpu();
}

static void wait_for(const sru_context *ctx, const void *array) { (void)ctx, (void)array; }
#endif

static sru_context context(void) { return (sru_context){ .op = operators(0) }; }

/* ---- one case -------------------------------------------------------------------------------- */

/* What a case calls again and again. Networks use model and io, operators the rest. */
typedef struct bench {
    sru_context ctx;
    sru_model   model;
    sru_io      io;
    sru_scan    scan;
    sru_attention attention;
    size_t      m, n, k;
    float      *x, *y, *w, *b;
    void       *packed;
    double      flops, bytes;           /* of one call; one of the two is set */
    sru_status (*call)(struct bench *);
} bench;

static void  *taken[64];
static size_t taken_count, taken_bytes;

static void *take(size_t bytes)
{
    const sru_context ctx = context();
    void *p = taken_count < 64 ? ctx.op->alloc(&ctx, bytes ? bytes : 1) : NULL;
    if (!p) fail("no memory");
    taken_bytes += bytes;
    return taken[taken_count++] = p;
}

static void *allocate(size_t bytes)                     /* to be filled here: see send() */
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) fail("no memory");
    return p;
}

/* Moves what was made here to where the backend computes with it. */
static void *send(void *here, size_t bytes)
{
    const sru_context ctx = context();
    void *p = take(bytes);
    if (ctx.op->copy(&ctx, p, here, bytes)) fail("an array cannot be copied");
    free(here);
    return p;
}

static float *take_random(size_t n, float scale)        /* uniform between -scale and scale */
{
    static uint32_t random = 1;
    float *p = allocate(n * sizeof *p);
    for (size_t i = 0; i < n; i++) {
        random = random * 1664525u + 1013904223u;
        p[i] = scale * ((float)(random >> 8) / 8388608.f - 1);
    }
    return send(p, n * sizeof *p);
}

static sru_status call_linear(bench *c)
{
    return c->ctx.op->linear_forward(&c->ctx, c->y, c->x, c->packed, option.type, NULL,
                                     c->m, c->n, c->k);
}

static sru_status call_layernorm(bench *c)
{
    return c->ctx.op->layernorm_forward(&c->ctx, c->y, NULL, c->x, c->w, c->b, c->m, c->n);
}

static sru_status call_scan(bench *c) { return c->ctx.op->scan_forward(&c->ctx, &c->scan); }

static sru_status call_attention(bench *c)
{
    return c->ctx.op->attention_forward(&c->ctx, &c->attention);
}

static sru_status call_forward(bench *c) { return sru_forward(&c->ctx, &c->model, &c->io); }

static sru_status call_train(bench *c)
{
    const sru_status status = sru_forward(&c->ctx, &c->model, &c->io);
    return status ? status : sru_backward(&c->ctx, &c->model, &c->io);
}

static void make_linear(bench *c, const size_t *dim)
{
    size_t bytes;
    c->m = dim[0], c->n = dim[1], c->k = dim[2];
    c->x = take_random(c->m * c->k, 1);
    c->y = take(c->m * c->n * 4);
    c->w = take_random(c->n * c->k, 0.1f);
    bytes = c->ctx.op->pack(&c->ctx, NULL, option.type, c->w, c->n, c->k);
    if (!bytes) fail("this type of weights is not offered");
    c->packed = take(bytes);
    c->ctx.op->pack(&c->ctx, c->packed, option.type, c->w, c->n, c->k);
    c->flops = 2.0 * (double)c->m * (double)c->n * (double)c->k;
    c->call = call_linear;
}

static void make_layernorm(bench *c, const size_t *dim)
{
    c->m = dim[0], c->n = dim[1];
    c->x = take_random(c->m * c->n, 1);
    c->y = take(c->m * c->n * 4);
    c->w = take_random(c->n, 1);
    c->b = take_random(c->n, 1);
    c->bytes = 8.0 * (double)c->m * (double)c->n;
    c->call = call_layernorm;
}

static void make_scan(bench *c, const size_t *dim)
{
    sru_scan *s = &c->scan;
    const size_t rows = dim[0] * dim[1], N = dim[2];
    s->T = dim[0], s->B = dim[1], s->N = N, s->K = 3;
    s->u    = take_random(rows * 3 * N, 2);
    s->x    = take_random(rows * N, 1);
    s->v    = take_random(2 * N, 1);
    s->bias = take_random(2 * N, 1);
    s->h    = take(rows * N * 4);
    c->bytes = 4.0 * 5 * (double)rows * (double)N;      /* reads 3 u and x, writes h */
    c->call = call_scan;
}

/* Multiplications and additions for a query, on average. It sees its own key and those before it;
   if W is not 0, at most W of them. */
static double attention_flops(size_t T, size_t W, size_t P)
{
    const double t = (double)T, w = (double)(W && W < T ? W : T);
    return 4 * (w - w * (w - 1) / (2 * t)) * (double)P;
}

static void make_attention(bench *c, const size_t *dim)
{
    sru_attention *s = &c->attention;
    const size_t rows = dim[0] * dim[1], P = dim[2] * dim[3];
    s->T = dim[0], s->B = dim[1], s->H = (int)dim[2], s->P = P;
    s->causal = 1;
    s->q     = take_random(rows * P, 1);
    s->kv    = take_random(rows * 2 * P, 1);
    s->alpha = take_random(1, 1);
    s->o     = take(rows * P * 4);
    c->flops = (double)rows * attention_flops(dim[0], 0, P);
    c->call = call_attention;
}

static void make_network(bench *c, sru_config config, size_t T, size_t B, int training)
{
    const size_t D = (size_t)config.hidden_size;
    sru_model plain = { .config = config };
    sru_sizes n;
    float *weights;
    if (training && option.type == SRU_Q8) fail("training takes no --type q8");
    c->ctx.op = operators(training);
    if (sru_size(&n, &c->ctx, &plain, T, B)) fail(c->ctx.error);
    weights = allocate(n.weights);
    if (sru_init(weights, &plain.config, 1)) fail("sru_init() failed");
    plain.weights = send(weights, n.weights);
    c->model = plain;
    if (training) {
        c->io.tape  = take(n.tape);
        c->io.grads = take(n.weights);
        c->io.dh    = take_random(T * B * D, 1e-3f);
        c->io.dx    = take(T * B * D * 4);
    } else {
        c->model.type = option.type;
        if (sru_size(&n, &c->ctx, &c->model, T, B)) fail(c->ctx.error);
        if (sru_pack(&c->ctx, &c->model, take(n.weights), &plain)) fail(c->ctx.error);
    }
    c->io.T = T, c->io.B = B;
    c->io.x = take_random(T * B * D, 1);
    c->io.h = take(T * B * D * 4);
    c->io.state = take(B * n.state * 4);
    c->flops *= (double)(T * B) * config.num_layers * (training ? 3 : 1);
    c->call = training ? call_train : call_forward;
}

static sru_config config_of(size_t D, size_t L)
{
    sru_config config = {0};
    if (D > 1u << 20 || L > SRU_MAX_LAYERS) fail("the network is too large");
    config.input_size = config.hidden_size = (int)D;
    config.num_layers = (int)L;
    config.dropout = option.dropout;
    return config;
}

static void make_sru(bench *c, size_t T, size_t B, size_t D, size_t L, int training)
{
    c->flops = 2.0 * 3 * (double)D * (double)D;         /* of one row in one layer */
    make_network(c, config_of(D, L), T, B, training);
}

static void make_layer (bench *c, const size_t *d) { make_sru(c, d[0], d[1], d[2], d[3], 0); }
static void make_train (bench *c, const size_t *d) { make_sru(c, d[0], d[1], d[2], d[3], 1); }
static void make_stream(bench *c, const size_t *d) { make_sru(c, 1, 1, d[0], d[1], 0); }

static void make_srupp(bench *c, const size_t *d)
{
    const double D = (double)d[2], P = (double)d[3];
    const int ring = option.window && !option.train;
    sru_config config = config_of(d[2], d[4]);
    if (d[3] > 1u << 20) fail("the network is too large");
    config.arch = SRU_ARCH_SRUPP;
    config.projection_size = (int)d[3];
    config.num_heads = option.heads;
    config.attn_dropout = option.dropout;
    config.causal = 1;
    config.window = option.window;
    c->flops = 2*D*P + 2*P*2*P + 2*P*3*D
             + (ring ? 4.0*option.window*P : attention_flops(d[0], (size_t)option.window, d[3]));
    make_network(c, config, d[0], d[1], option.train);
}

typedef struct kind {
    const char *name, *options;         /* letters of option.given that it takes */
    int dims;
    void (*make)(bench *, const size_t *);
} kind;

static const kind kinds[] = {
    { "linear", "tq", 3, make_linear }, { "scan", "", 3, make_scan },
    { "layer", "tq", 4, make_layer }, { "train", "td", 4, make_train },
    { "stream", "tq", 2, make_stream }, { "layernorm", "", 2, make_layernorm },
    { "attention", "", 4, make_attention }, { "srupp", "tqhrwad", 5, make_srupp }
};

/* text: the case with its sizes, "linear 1024 1536 512" */
static const kind *kind_of(const char *text)
{
    const size_t length = strcspn(text, " "), count = sizeof kinds / sizeof *kinds;
    size_t i = 0;
    while (i < count && (strncmp(kinds[i].name, text, length) || kinds[i].name[length])) i++;
    if (i == count) fail("there is no such case: see --help");
    return &kinds[i];
}

static int takes_options(const kind *k)
{
    if (strchr(k->options, 'r') && strchr(option.given, 'd') && !option.train) return 0;
    return !option.given[strspn(option.given, k->options)];
}

/* ---- timing ---------------------------------------------------------------------------------- */

static double now(void)                                 /* ns */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ns[0]: the median time of a call, ns[1]: the shortest. Calls too short for the clock are timed
   several at a time. */
static void measure(bench *c, double ns[2])
{
    enum { MOST = 100000 };
    static double sample[MOST];
    double start, end;
    int n = 0, together = 1;
    for (;;) {
        start = now();
        for (int i = 0; i < together; i++)
            if (c->call(c)) fail(c->ctx.error);
        wait_for(&c->ctx, *taken);
        if (now() - start > SHORTEST || together > 1000000) break;
        together *= 2;
    }
    /* threads may start on one processor: the system takes a tenth of a second to spread them */
    end = now() + (c->ctx.threads > 1 && option.seconds > 0 ? 1e8 : 0);
    while (now() < end) c->call(c);
    end = now() + 1e9 * option.seconds;
    do {
        start = now();
        for (int i = 0; i < together; i++) c->call(c);
        wait_for(&c->ctx, *taken);
        sample[n++] = (now() - start) / together;
    } while (n < MOST && (now() < end || n < 3));
    qsort(sample, (size_t)n, sizeof *sample, ascending);
    ns[0] = n % 2 ? sample[n/2] : (sample[n/2 - 1] + sample[n/2]) / 2;
    ns[1] = sample[0];
}

/* The number of threads to use: as many as were asked for; 0: as many as there are. */
static int offered_threads(int asked)
{
#if defined(_OPENMP) && !defined(SRU_CUDA)
    return asked ? asked : omp_get_max_threads();
#else
    return (void)asked, 1;
#endif
}

static void print_time(double ns)
{
    if (ns < 1e3) printf(" %8.1f ns", ns);
    else if (ns < 1e6) printf(" %8.2f us", ns * 1e-3);
    else printf(" %8.2f ms", ns * 1e-6);
}

/* Times a case, and returns its rate, in 10^9 operations or bytes a second. */
static double run(const char *text, int threads)
{
    const kind *k = kind_of(text);
    char error[SRU_ERROR_SIZE] = "a call failed", label[256], *end = strchr(text, ' ');
    size_t dim[5] = {0}, need = 0;
    double ns[2], rate, all = 1;
    int given = 0;
    bench c = {0};

    for (; end && *end && given < k->dims; given++) {
        const unsigned long long size = strtoull(end, &end, 10);
        if ((*end && *end != ' ') || !size || size > 1u << 30)
            fail("sizes are whole numbers from 1 to 2^30");
        dim[given] = (size_t)size;
        if ((all *= (double)size) > 1e16) fail("no memory");    /* bytes might exceed a size_t */
    }
    if (given < k->dims || *end) {
        snprintf(label, sizeof label, "%s has %d sizes: see --help", k->name, k->dims);
        fail(label);
    }
    if (!takes_options(k)) fail("this case does not take such an option: see --help");
    snprintf(label, sizeof label, "%s%s", text, option.words);
    c.ctx = context();
    c.ctx.threads = offered_threads(threads);
    c.ctx.error = error;
    k->make(&c, dim);
    c.ctx.measure = &need;
    if (c.call(&c)) fail(error);
    c.ctx.measure = NULL;
    c.ctx.work = take(c.ctx.work_size = need);
    for (int call = 0; call < option.after; call++)
        if (c.call(&c)) fail(error);
    measure(&c, ns);
    rate = (c.flops > 0 ? c.flops : c.bytes) / ns[0];   /* in 10^9 a second */

    if (option.json) {
        printf("{\"case\": \"%s\", \"threads\": %d, \"isa\": \"%s\", \"ns\": %.1f, "
               "\"ns_min\": %.1f, \"%s\": %.4g, \"bytes\": %.0f}\n", label, c.ctx.threads,
               c.ctx.op->name, ns[0], ns[1], c.flops > 0 ? "gflops" : "gbytes", rate,
               (double)taken_bytes);
    } else {
        static int headed;
        if (!headed++)
            printf("sru.h %d.%d.%d, %s\n%-32s threads      median     minimum        rate\n",
                   SRU_VERSION / 100, SRU_VERSION / 10 % 10, SRU_VERSION % 10, c.ctx.op->name,
                   "case");
        printf("%-32s %7d", label, c.ctx.threads);
        print_time(ns[0]);
        print_time(ns[1]);
        printf(" %8.1f %s/s\n", rate, c.flops > 0 ? "GFLOP" : "GB");
    }
    fflush(stdout);
    while (taken_count) c.ctx.op->release(&c.ctx, taken[--taken_count]);
    taken_bytes = 0;
    return rate;
}

/* ---- the picture ----------------------------------------------------------------------------- */

static void draw(const char *program, double rates[2][SET], const int threads[2])
{
    FILE *gnuplot = NULL;
    const int there = !strchr(program, '\'') && !system("gnuplot --version > /dev/null 2>&1");
    if (there) gnuplot = popen("gnuplot 2> /dev/null", "w");
    if (gnuplot) {
        fprintf(gnuplot, "set terminal svg size 900,500 background 'white'\nset output '%s.svg'\n"
                "set title 'sru.h, %s%s'\nset ylabel 'GFLOP a second; scan and layernorm: GB'\n"
                "set style data histograms\nset style fill solid 0.8\nset grid y\n"
                "set xtics rotate by 40 right nomirror\nplot [][0:]", program,
                operators(0)->name, option.words);
        for (int k = 0; k < 2; k++)
            if (threads[k])
                fprintf(gnuplot, " '-' using 2:xtic(1) title '%d thread%s',", threads[k],
                        threads[k] > 1 ? "s" : "");
        fputc('\n', gnuplot);
        for (int k = 0; k < 2; k++) {
            for (size_t i = 0; i < SET && threads[k]; i++)
                if (rates[k][i] > 0) fprintf(gnuplot, "\"%s\" %g\n", set[i], rates[k][i]);
            if (threads[k]) fputs("e\n", gnuplot);
        }
    }
    if (gnuplot && !pclose(gnuplot)) printf("picture: %s.svg\n", program);
    else printf("no picture: %s\n", there ? "gnuplot cannot draw it" : "install gnuplot for one");
}

/* ---- the command line ------------------------------------------------------------------------ */

static double number(const char *name, const char *text, double low, double high, int whole)
{
    char *end;
    const double x = text ? strtod(text, &end) : 0;
    if (!text || !*text || *end || !(x >= low && x <= high) || (whole && x != (double)(int)x)) {
        fprintf(stderr, "bench: %s needs a %snumber from %.10g to %.10g\n", name,
                whole ? "whole " : "", low, high);
        exit(1);
    }
    return x;
}

static void add(char line[128], const char *word)
{
    if (strlen(line) + strlen(word) + 2 > 128) fail("too many arguments: see --help");
    strcat(line, " ");
    strcat(line, word);
}

static void set_isa(const char *name)
{
    if (!name) fail("--isa needs a name");
#ifdef SRU_CUDA                         /* --type may still follow: the GPU is not opened yet */
    if (strcmp(name, "cuda")) fail("this program measures the GPU");
#else
#ifdef _WIN32
    _putenv_s("SRU_ISA", name);
#else
    setenv("SRU_ISA", name, 1);
#endif
    if (strcmp(sru_cpu()->name, name)) fail("this machine or build has no such instruction set");
#endif
}

static char set_type(const char *name)
{
    int i = 0;
    while (i < TYPES && name && strcmp(types[i].name, name)) i++;
    if (i == TYPES || !name) fail("--type has another name: see --help");
    option.type = types[i].type;
    option.math = types[i].math;
    return types[i].letter;
}

int main(int argc, char **argv)
{
    char text[128] = "";
    double rates[2][SET] = {{0}};       /* on one thread; on more, or as many as asked for */
    int threads[2];
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help")) return fputs(help, stdout), finish();
    for (int i = 1; i < argc; i++) {
        const char *const name = argv[i];
        const int first = i;
        char letter = 0;                /* of an option that not all cases take */
        if (!strcmp(name, "--json")) option.json = 1;
        else if (!strcmp(name, "--isa")) set_isa(argv[++i]);
        else if (!strcmp(name, "--threads"))
            option.threads = (int)number(name, argv[++i], 1, 1024, 1);
        else if (!strcmp(name, "--seconds"))
            option.seconds = number(name, argv[++i], 0, 1e5, 0);
        else if (!strcmp(name, "--type")) letter = set_type(argv[++i]);
        else if (!strcmp(name, "--heads"))
            letter = 'h', option.heads = (int)number(name, argv[++i], 1, 1024, 1);
        else if (!strcmp(name, "--window"))
            letter = 'w', option.window = (int)number(name, argv[++i], 1, 1 << 20, 1);
        else if (!strcmp(name, "--after"))
            letter = 'a', option.after = (int)number(name, argv[++i], 0, 1e9, 1);
        else if (!strcmp(name, "--dropout"))
            letter = 'd', option.dropout = (float)number(name, argv[++i], 0, 0.99, 0);
        else if (!strcmp(name, "--train")) letter = 'r', option.train = 1;
        else if (*name == '-') fail("there is no such option: see --help");
        else add(text, name);
        if (letter) {
            if (!strchr(option.given, letter)) option.given[strlen(option.given)] = letter;
            for (int k = first; k <= i; k++) add(option.words, argv[k]);
        }
    }
    if (*text) {
        run(text + 1, option.threads);
        return finish();
    }
    threads[0] = option.threads ? 0 : 1;
    threads[1] = offered_threads(option.threads);
    if (threads[0] == threads[1]) threads[1] = 0;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < SET && threads[k]; i++)
            if (takes_options(kind_of(set[i]))) rates[k][i] = run(set[i], threads[k]);
    if (!option.json) draw(argv[0], rates, threads);
    return finish();
}
