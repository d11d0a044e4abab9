/* How near sru_cuda.cu comes to what this GPU can do: see --help. Each case is launched many times
   in a row between two events; its time is the median over such rows. Scans and layer norms use
   several sets of arrays in turn, so that none is still in the L2 cache; products, layers and
   attention, whose operations are counted, have one set. The floor is the shortest time possible:
   that of moving the bytes as fast as a copy on the same GPU, or that of the chain of dependent
   instructions in all steps, whichever is longer. */
#define SRU_CUDA
#include "../sru.h"
#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <functional>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>

enum { CHAIN = 52, CHAIN_BACKWARD = 8 };        /* a step's cycles that wait for the step before */
static const double LAUNCH = 3;                 /* us until a kernel is under way */
static const char *const maths[] = { "float32", "TF32", "bfloat16", "float16" };

static const sru_backend *ops[4];
static sru_context ctx;
static double      copy_rate, clock_rate;       /* bytes and cycles a second */
static double      seconds = 0.5;
static size_t      cold = (size_t)512 << 20;    /* bytes of all sets, too many to be still in L2 */
static int         json;
static char        error[SRU_ERROR_SIZE];

static void fail(const char *why)
{
    fprintf(stderr, "roofline_cuda: %s\n", why);
    exit(1);
}

static void check(sru_status status)
{
    if (status) fail(error);
}

static void check(cudaError_t e)
{
    if (e != cudaSuccess) fail(cudaGetErrorString(e));
}

static std::vector<void *> arrays;

/* Random numbers between -1 and 1, stored as `storage` says: the same million again and again. */
static float *floats(size_t n, sru_type storage = SRU_PLAIN)
{
    static const size_t many = 1000003;
    static std::vector<float> values(many);
    static std::vector<uint16_t> halves[2];
    const size_t size = storage == SRU_PLAIN ? 4 : 2;
    if (halves[0].empty()) {
        uint32_t random = 1;
        for (auto &half : halves) half.resize(many);
        for (size_t i = 0; i < many; i++) {
            random = random*1664525u + 1013904223u;
            values[i] = (float)(int32_t)random/2147483648.0f;
            const __nv_bfloat16 b = __float2bfloat16(values[i]);
            const __half h = __float2half(values[i]);
            memcpy(&halves[0][i], &b, 2);
            memcpy(&halves[1][i], &h, 2);
        }
    }
    char *p = (char *)ctx.op->alloc(&ctx, n*size);
    if (!p) fail(error);
    arrays.push_back(p);
    const void *from = size == 4 ? (void *)values.data() : halves[storage != SRU_BF16].data();
    for (size_t i = 0; i < n; i += many)
        check(ctx.op->copy(&ctx, p + i*size, from, std::min(many, n - i)*size));
    return (float *)p;
}

static void clear(void)
{
    for (void *p : arrays) ctx.op->release(&ctx, p);
    arrays.clear();
    ctx.work = NULL;
    ctx.work_size = 0;
}

/* Median microseconds of a call: call(0), call(1) ... call(sets - 1), call(0) ... */
static double measure(size_t sets, const std::function<void(size_t)> &call)
{
    cudaEvent_t from, to;
    std::vector<double> times;
    double total = 0;
    size_t at = 0, need = 0;
    ctx.measure = &need;
    call(0);
    ctx.measure = NULL;
    ctx.work_size = need;
    ctx.work = need ? ctx.op->alloc(&ctx, need) : NULL;
    if (need && !ctx.work) fail(error);
    arrays.push_back(ctx.work);
    check(cudaEventCreate(&from));
    check(cudaEventCreate(&to));
    for (int i = 0; i < 2; i++) call(at++%sets);
    int calls = 0;                              /* as many as take 1 ms; 0: a trial, to find out */
    while (times.size() < 21 || (total < seconds*1e6 && times.size() < 1000)) {
        float ms;
        check(cudaEventRecord(from, NULL));
        for (int i = 0; i < std::max(calls, 1); i++) call(at++%sets);
        check(cudaEventRecord(to, NULL));
        check(cudaEventSynchronize(to));
        check(cudaEventElapsedTime(&ms, from, to));
        if (calls) times.push_back(1e3*ms/calls);
        else calls = std::max(1, std::min(10, (int)(1/ms)));
        total += 1e3*ms;
    }
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    std::sort(times.begin(), times.end());
    return times[times.size()/2];
}

static void report(const char *what, const char *math, double us, double bytes, double cycles,
                   double flops)
{
    const double moving = 1e6*bytes/copy_rate, chain = 1e6*cycles/clock_rate;
    const double floor = std::max(moving, chain) + LAUNCH;
    if (json) {
        printf("{\"case\": \"%s\", \"math\": \"%s\", \"us\": %.2f", what, math, us);
        if (bytes > 0) printf(", \"gbytes\": %.1f, \"copy_share\": %.3f, \"floor_us\": %.2f, "
                              "\"binds\": \"%s\"", 1e-3*bytes/us, moving/us, floor,
                              moving > chain ? "bandwidth" : "latency");
        if (flops > 0) printf(", \"gflops\": %.0f", 1e-3*flops/us);
        puts("}");
    } else {
        printf("%-42s %-9s %10.1f us", what, math, us);
        if (bytes > 0) printf("  %7.0f GB/s, %3.0f %% of copying; floor %8.1f us (%s), %3.0f %%",
                              1e-3*bytes/us, 100*moving/us, floor,
                              moving > chain ? "bandwidth" : "latency", 100*floor/us);
        if (flops > 0) printf("  %8.1f TFLOP/s", 1e-6*flops/us);
        putchar('\n');
    }
    fflush(stdout);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void bench_copy(size_t bytes)
{
    float *a = floats(bytes/4), *b = floats(bytes/4);
    const double us = measure(1, [=](size_t) { check(ctx.op->copy(&ctx, b, a, bytes)); });
    copy_rate = 2e6*(double)bytes/us;
    clear();
    report("copy", "", us, 2*(double)bytes, 0, 0);
}

static const struct { sru_type type; const char *name; } storages[] =
    { {SRU_PLAIN, "float32"}, {SRU_BF16, "bfloat16"}, {SRU_F16, "float16"} };

/* The recurrence of one layer. */
static void bench_scan(size_t T, size_t B, size_t D)
{
    for (auto &stored : storages) {
        const size_t n = T*B*D;
        const double bytes = (stored.type == SRU_PLAIN ? 4.0 : 2.0)*(double)n;
        const double chain = (double)T*CHAIN;
        const size_t sets = std::max<size_t>(1, std::min<size_t>(64, cold/(size_t)(5*bytes)));
        char what[100];
        std::vector<sru_scan> s(sets);
        for (auto &p : s) {
            memset(&p, 0, sizeof p);
            p.T = T, p.B = B, p.N = p.A = D, p.K = 3;
            p.storage = stored.type;
            p.u = floats(3*n, stored.type);
            p.x = floats(n, stored.type);
            p.h = floats(n, stored.type);
            p.v = floats(2*D);
            p.bias = floats(2*D);
        }
        auto run = [&](size_t i) { check(ctx.op->scan_forward(&ctx, &s[i])); };
        sprintf(what, "scan (%zu,%zu,%zu), inference", T, B, D);
        report(what, stored.name, measure(sets, run), 5*bytes, chain, 0);
        for (auto &p : s) p.c = floats(n, stored.type);
        sprintf(what, "scan (%zu,%zu,%zu), training", T, B, D);
        report(what, stored.name, measure(sets, run), 6*bytes, chain, 0);
        for (auto &p : s) {
            p.dh = p.h;
            p.du = floats(3*n, stored.type);
            p.dx = floats(n, stored.type);
            p.dv = floats(2*D);
            p.dbias = floats(2*D);
        }
        sprintf(what, "scan (%zu,%zu,%zu), backward", T, B, D);
        report(what, stored.name, measure(sets, [&](size_t i) {
            check(ctx.op->scan_backward(&ctx, &s[i]));
        }), 10*bytes, (double)T*CHAIN_BACKWARD, 0);
        clear();
    }
}

/* The product alone; and the layer including its product, once forward and once forward and
   backward with all gradients. Arrays are float32, or arrays and weights have fewer bits. */
static void bench_layer(size_t T, size_t B, size_t D)
{
    const size_t n = T*B*D;
    const double flops = 6.0*(double)n*(double)D;
    float *v = floats(2*D), *u = floats(3*n);
    for (int k = 0; k < 5; k++) {
        const int math = k < 3 ? k : 0;
        const sru_type type = k < 3 ? SRU_PLAIN : storages[k - 2].type;
        const std::string stored = k < 3 ? "" : std::string(", stored so");
        const char *name = k < 3 ? maths[math] : storages[k - 2].name;
        float *w = floats(3*ctx.op->pack(&ctx, NULL, type, NULL, D, D)/(k < 3 ? 4 : 2), type);
        char what[100];
        sru_scan p;
        memset(&p, 0, sizeof p);
        p.T = T, p.B = B, p.N = p.A = D, p.K = 3;
        p.type = p.storage = type;
        p.a = p.x = floats(n, type);
        p.w = w;
        p.v = p.bias = v;
        p.h = floats(n, type);
        ctx.op = ops[math];
        if (k < 3) {
            sprintf(what, "product (%zu,%zu,%zu)", T*B, 3*D, D);
            report(what, name, measure(1, [&](size_t) {
                check(ctx.op->linear_forward(&ctx, u, p.a, w, SRU_PLAIN, NULL, T*B, 3*D, D));
            }), 0, 0, flops);
        }
        sprintf(what, "layer (%zu,%zu,%zu), inference%s", T, B, D, stored.c_str());
        report(what, name, measure(1, [&](size_t) {
            check(ctx.op->scan_forward(&ctx, &p));
        }), 0, 0, flops);
        p.type = SRU_PLAIN;
        p.w = floats(3*D*D);
        p.u = floats(3*n, type);
        p.c = floats(n, type);
        p.dh = floats(n, type);
        p.du = floats(3*n, type);
        p.da = p.dx = floats(n, type);
        p.dw = floats(3*D*D);
        p.dv = floats(2*D);
        p.dbias = floats(2*D);
        sprintf(what, "layer (%zu,%zu,%zu), training%s", T, B, D, stored.c_str());
        report(what, name, measure(1, [&](size_t) {
            check(ctx.op->scan_forward(&ctx, &p));
            check(ctx.op->scan_backward(&ctx, &p));
        }), 0, 0, 3*flops);
    }
    ctx.op = ops[0];
    clear();
}

/* Causal attention with one head of P columns; only operations of visible pairs are counted. */
static void bench_attention(size_t T, size_t B, size_t P)
{
    const double flops = 2.0*(double)(T*(T + 1))*(double)(B*P);
    const size_t n = T*B*P;
    char what[100];
    sru_attention p;
    memset(&p, 0, sizeof p);
    p.T = T, p.B = B, p.P = P, p.H = 1;
    p.causal = 1;
    p.q = floats(n);
    p.kv = floats(2*n);
    p.o = floats(n);
    p.a = floats(n);
    p.stats = floats(2*T*B);
    p.dout = floats(n);
    p.dq = floats(n);
    p.dkv = floats(2*n);
    for (int math = 0; math < 3; math++) {
        ctx.op = ops[math];
        sprintf(what, "attention (%zu,%zu,%zu)", T, B, P);
        report(what, maths[math], measure(1, [&](size_t) {
            check(ctx.op->attention_forward(&ctx, &p));
        }), 0, 0, flops);
        sprintf(what, "attention (%zu,%zu,%zu), backward", T, B, P);
        report(what, maths[math], measure(1, [&](size_t) {
            check(ctx.op->attention_backward(&ctx, &p));
        }), 0, 0, 2.5*flops);
    }
    ctx.op = ops[0];
    clear();
}

static void bench_layernorm(size_t rows, size_t n)
{
    const size_t sets = std::max<size_t>(1, std::min<size_t>(64, cold/(12*rows*n)));
    const double values = (double)(rows*n);
    std::vector<float *> x(sets), y(sets), dy(sets);
    float *gain = floats(n), *bias = floats(n), *stats = floats(2*rows);
    char what[100];
    for (size_t i = 0; i < sets; i++) {
        x[i] = floats(rows*n);
        y[i] = floats(rows*n);
        dy[i] = floats(rows*n);
    }
    sprintf(what, "layer norm (%zu,%zu)", rows, n);
    report(what, "", measure(sets, [&](size_t i) {
        check(ctx.op->layernorm_forward(&ctx, y[i], stats, x[i], gain, bias, rows, n));
    }), 8*values, 0, 0);
    sprintf(what, "layer norm (%zu,%zu), backward", rows, n);
    report(what, "", measure(sets, [&](size_t i) {
        check(ctx.op->layernorm_backward(&ctx, y[i], gain, bias, dy[i], x[i], gain, stats, 0, rows,
                                         n));
    }), 12*values, 0, 0);
    clear();
}

int main(int argc, char **argv)
{
    static const size_t shapes[][3] = { {512,32,1024}, {1024,8,3072}, {512,8,512}, {4096,1,3072},
                                        {512,1,512} };
    size_t size[3] = { 0, 0, 0 };
    int number = 0, given = 0, khz = 0;
    cudaDeviceProp device;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help"))
            return puts("roofline_cuda [T B D] [--seconds N] [--json]: times a layer's operators "
                        "on the GPU,\nN seconds each (0.5), beside what its bandwidth and latency "
                        "allow: in five shapes,\nor only in the one given.") < 0;
        else if (!strcmp(argv[i], "--json")) json = 1;
        else if (!strcmp(argv[i], "--seconds") && i + 1 < argc) seconds = atof(argv[++i]);
        else if (given < 3 && atol(argv[i]) > 0) size[given++] = (size_t)atol(argv[i]);
        else fail("a wrong argument: see --help");
    }
    if (given && given < 3) fail("a shape has three sizes: see --help");
    for (int math = 0; math < 3; math++) {
        ops[math] = sru_cuda_open(NULL, (sru_cuda_math)math, error);
        if (!ops[math]) fail(error);
    }
    ctx.op = ops[0];
    ctx.error = error;
    check(cudaGetDevice(&number));
    check(cudaGetDeviceProperties(&device, number));
    check(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, number));
    clock_rate = 1e3*khz;
    if (!json) printf("%s, at most %.0f MHz\n", device.name, 1e-6*clock_rate);
    if (given) cold = std::min(cold, 1024*size[0]*size[1]*size[2]);
    bench_copy(given ? cold : (size_t)1 << 30);
    for (auto &shape : shapes) {
        const size_t *n = given ? size : shape;
        bench_scan(n[0], n[1], n[2]);
        bench_layer(n[0], n[1], n[2]);
        if (given) break;
    }
    bench_attention(given ? size[0] : 512, given ? size[1] : 8, given ? size[2] : 768);
    bench_layernorm(given ? size[0]*size[1] : 16384, given ? size[2] : 1024);
    for (const sru_backend *op : ops) sru_cuda_close(op);
    return 0;
}
