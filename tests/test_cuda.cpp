/* Compares the operators of sru_cuda.cu, and networks that run and train, with those on the CPU.
   Linked with the CUDA Toolkit, this runs on a GPU; with -I tests/cuda, on the stand-in. */
#include "test.h"
#define SRU_CUDA
#include "../sru.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <functional>
#include <string>
#include <vector>

typedef std::vector<float> floats;

/* ---- the two sides --------------------------------------------------------------------------- */

/* Where something is computed: on the CPU, or on the GPU with arrays in its memory. */
struct side {
    sru_context ctx;
    std::vector<void *> arrays;
    char error[SRU_ERROR_SIZE];

    explicit side(const sru_backend *op)
    {
        memset(&ctx, 0, sizeof ctx);
        ctx.op = op;
        ctx.error = error;
        ctx.seed = 3;
        ctx.step = 5;
    }
    ~side()
    {
        for (size_t i = arrays.size(); i > 0; i--) ctx.op->release(&ctx, arrays[i - 1]);
    }
    side(const side &) = delete;
    side &operator=(const side &) = delete;

    template <class X> X *put(const std::vector<X> &values)
    {
        X *p = (X *)ctx.op->alloc(&ctx, values.size()*sizeof(X));
        arrays.push_back(p);
        CHECK(!ctx.op->copy(&ctx, p, values.data(), values.size()*sizeof(X)), "%s", error);
        return p;
    }
    float *random(size_t n, double scale = 1)
    {
        floats values(n);
        test_fill(values.data(), n, scale);
        return put(values);
    }
    /* Arrays to be written start as NaN, so that what is left out shows. */
    float *blank(size_t n) { return put(floats(n, NAN)); }

    /* Arrays that a scan has in this form on the GPU; on the CPU, the same values in float32. */
    sru_type storage = SRU_PLAIN;
    bool narrow() const { return storage != SRU_PLAIN && ctx.op != sru_cpu(); }
    float *store(floats values)
    {
        std::vector<uint16_t> halves(values.size());
        for (size_t i = 0; i < values.size(); i++) {
            const __nv_bfloat16 b = __float2bfloat16(values[i]);
            const __half h = __float2half(values[i]);
            if (storage == SRU_BF16) values[i] = __bfloat162float(b);
            if (storage == SRU_F16) values[i] = __half2float(h);
            memcpy(&halves[i], storage == SRU_BF16 ? (const void *)&b : &h, 2);
        }
        return narrow() ? (float *)put(halves) : put(values);
    }
    /* columns: each of so many columns has only one sign. */
    float *random_stored(size_t n, size_t columns = 0)
    {
        floats values(n);
        test_fill(values.data(), n, 1);
        for (size_t i = 0; i < n && columns; i++)
            values[i] = copysignf(0.2f + fabsf(values[i]), i%columns%2 ? -1.0f : 1.0f);
        for (size_t i = 0; i < n && padded.size(); i++)
            if (padded[i/(n/padded.size())]) values[i] = NAN;
        return store(values);
    }
    std::vector<uint8_t> padded;        /* (rows) 1: what random_stored() has there is NaN */
    float *blank_stored(size_t n) { return store(floats(n, NAN)); }
    floats get_stored(const float *p, size_t n)
    {
        if (!narrow()) return get(p, n);
        floats values(n);
        std::vector<uint16_t> halves(n);
        if (p) CHECK(!ctx.op->copy(&ctx, halves.data(), p, 2*n), "%s", error);
        for (size_t i = 0; i < n; i++) {
            __nv_bfloat16 b;
            __half h;
            memcpy(&b, &halves[i], 2);
            memcpy(&h, &halves[i], 2);
            values[i] = storage == SRU_BF16 ? __bfloat162float(b) : __half2float(h);
        }
        return values;
    }

    floats get(const float *p, size_t n)
    {
        floats values(n);
        if (p) CHECK(!ctx.op->copy(&ctx, values.data(), p, n*sizeof(float)), "%s", error);
        return values;
    }

    /* Calls with exactly as much scratch memory as the call asks for, and nothing but NaN in it. */
    sru_status call(const std::function<sru_status(const sru_context *)> &f)
    {
        sru_context c = ctx;
        size_t need = 0;
        c.measure = &need;
        sru_status status = f(&c);
        c.measure = NULL;
        if (!CHECK(!status, "measuring: %s", error)) return status;
        c.work = put(std::vector<unsigned char>(need, 0xff));
        c.work_size = need;
        status = f(&c);
        CHECK(!status, "%s", error);
        return status;
    }
};

struct result { std::string name; floats values; };
typedef std::vector<result> results;
typedef std::function<results(side &)> test;

static const sru_backend *gpu;
static double worst;
static int brief;                   /* 1: fewer cases, 2: only a few of operators */

/* Runs the test on both sides, and again on the GPU, which must give the same bits. If tolerance is
   1, only these bits count. */
static void compare(const char *what, const test &run, double tolerance)
{
    results all[3];
    for (int i = 0; i < 3; i++) {
        side s(i ? gpu : sru_cpu());
        test_random_state = 11;
        all[i] = run(s);
    }
    for (size_t k = 0; k < all[0].size(); k++) {
        const floats &should = all[0][k].values, &is = all[1][k].values, &again = all[2][k].values;
        const double e = test_error(is.data(), should.data(), should.size());
        if (e > worst && tolerance < 1) worst = e;
        CHECK(e <= tolerance, "%s: %s is off by %g of its norm", what, all[0][k].name.c_str(), e);
        CHECK(is.empty() || !memcmp(is.data(), again.data(), is.size()*sizeof(float)),
              "%s: %s comes out with other bits the second time", what, all[0][k].name.c_str());
    }
}

static void report(const char *what)
{
    printf("%-24s largest difference %.1e\n", what, worst);
    fflush(stdout);
    worst = 0;
}

/* ---- operators ------------------------------------------------------------------------------- */

/* bias: with a bias and its gradient; beta is that of the input's gradient. Products for gradients
   take w itself, whatever type the products for the output take. */
static results linear(side &s, size_t rows, size_t n, size_t k, bool bias, float beta,
                      sru_type type)
{
    float *x = s.random(rows*k), *w = s.random(n*k), *b = bias ? s.random(n) : NULL;
    float *y = s.blank(rows*n), *dy = s.random(rows*n), *dx = s.random(rows*k);
    float *dw = s.random(n*k), *db = bias ? s.random(n) : NULL;
    const void *weights = w;
    if (s.ctx.op == sru_cpu() && type == SRU_F16) type = SRU_PLAIN;
    if (type != SRU_PLAIN) {
        const size_t bytes = s.ctx.op->pack(&s.ctx, NULL, type, w, n, k);
        void *packed = s.put(std::vector<char>(bytes));
        s.ctx.op->pack(&s.ctx, packed, type, w, n, k);
        weights = packed;
    }
    s.call([=](const sru_context *c) {
        return c->op->linear_forward(c, y, x, weights, type, b, rows, n, k);
    });
    s.call([=](const sru_context *c) {
        return c->op->linear_backward(c, dx, dw, db, dy, x, w, beta, rows, n, k);
    });
    s.call([=](const sru_context *c) {          /* dx may be x; dw and db are added to */
        return c->op->linear_backward(c, x, dw, db, dy, x, w, 0, rows, n, k);
    });
    return results{ {"y", s.get(y, rows*n)}, {"dx", s.get(dx, rows*k)}, {"dw", s.get(dw, n*k)},
                    {"db", s.get(db, b ? n : 0)}, {"dx in place of x", s.get(x, rows*k)} };
}

static void test_linear(void)
{
    static const size_t shapes[][3] = { {1,1,1}, {3,5,7}, {1,64,33}, {40,33,16}, {270,17,20},
                                        {2,3,0} };
    for (auto &shape : shapes) {
        const size_t rows = shape[0], n = shape[1], k = shape[2];
        if (brief > 1 && rows < 100) continue;
        for (int option = 0; option < 4; option += brief ? 3 : 1)
            compare("linear", [=](side &s) {
                return linear(s, rows, n, k, option & 1, option & 2 ? 1.0f : 0.0f,
                              option & 2 ? SRU_F32 : SRU_PLAIN);
            }, 1e-6);
    }
    report("linear");
}

/* Options that a scan may have, drawn for each case. */
enum { BOTH = 1, TANH = 2, FOUR = 4, STEPS = 8, PADDED = 16, MASK = 32, START = 64, GATES = 128,
       SKIP = 256, SCALE = 512, WIDE = 1024, PRODUCT = 2048, STATE = 4096, INPLACE = 8192,
       ONE = 16384 };      /* gate: SSRU */

static results scan(side &s, size_t T, size_t B, size_t D, size_t A, int has, sru_type type)
{
    const size_t N = has & BOTH ? 2*D : D, K = has & ONE ? 2 : has & FOUR ? 4 : 3, rows = T*B;
    const size_t GN = has & ONE ? N : 2*N;
    sru_scan p;
    memset(&p, 0, sizeof p);
    p.T = T, p.B = B, p.N = N, p.A = A, p.K = (int)K;
    p.bidirectional = has & BOTH ? 1 : 0;
    p.use_tanh = has & TANH && !(has & ONE) ? 1 : 0;
    p.scale_x = has & SCALE ? 1.7f : 0;
    p.ldc = has & WIDE ? N + 5 : 0;
    p.storage = s.narrow() ? s.storage : SRU_PLAIN;
    if (s.ctx.op == sru_cpu() && type == SRU_F16) type = SRU_PLAIN;
    const size_t ldc = p.ldc ? p.ldc : N;
    /* SSRU's gradient jumps where c is 0: what is stored in fewer bits must not change c's sign */
    const bool away = has & ONE && s.storage != SRU_PLAIN;
    if (away) has &= ~(PRODUCT | START);
    if (has & PADDED) {
        std::vector<uint8_t> pad(rows);
        for (auto &one : pad) one = test_random() > 0.4;
        p.mask_pad = s.put(pad);
        if (!(has & PRODUCT)) s.padded = pad;
    }
    float *w = NULL, *u = s.random_stored(rows*K*N, away ? N : 0), *x = s.random_stored(rows*N);
    p.x = has & SKIP ? x : NULL;
    p.v = has & GATES ? s.random(GN) : NULL;
    p.bias = has & GATES ? s.random(GN) : NULL;
    p.vt = has & STEPS ? s.random(rows*GN) : NULL;
    p.mask_c = has & MASK ? s.random(B*N) : NULL;
    p.c0 = has & START ? s.random(B*ldc) : NULL;
    p.cT = has & STATE ? s.blank(B*ldc) : NULL;
    p.u = u;
    if (has & PRODUCT) {
        p.a = s.random_stored(rows*A);
        p.w = w = s.random(K*N*A, 0.5);
        p.u = s.blank_stored(rows*K*N);
    }
    p.h = s.blank_stored(rows*N);
    p.c = s.blank_stored(rows*N);
    s.call([=](const sru_context *c) { return c->op->scan_forward(c, &p); });
    results r{ {"h", s.get_stored(p.h, rows*N)}, {"c", s.get_stored(p.c, rows*N)},
               {"u", s.get_stored(p.u, w ? rows*K*N : 0)} };

    /* inference: no u, no c, packed weights */
    sru_scan q = p;
    q.c = NULL;
    q.h = s.blank_stored(rows*N);
    if (w) q.u = NULL;
    if (w && type != SRU_PLAIN) {
        const size_t groups = K*(has & BOTH ? 2 : 1);
        const size_t bytes = s.ctx.op->pack(&s.ctx, NULL, type, w, D, A);
        char *packed = s.put(std::vector<char>(groups*bytes));
        for (size_t g = 0; g < groups; g++)
            s.ctx.op->pack(&s.ctx, packed + g*bytes, type, w + g*D*A, D, A);
        q.w = packed;
    }
    q.type = type;
    if (has & INPLACE && !(has & BOTH) && p.x && q.x) q.h = x;
    s.call([=](const sru_context *c) { return c->op->scan_forward(c, &q); });
    r.push_back({"h, inference", s.get_stored(q.h, rows*N)});
    if (p.cT) {
        floats state = s.get(p.cT, B*ldc), c;
        for (size_t b = 0; b < B; b++)
            c.insert(c.end(), state.begin() + (long)(b*ldc), state.begin() + (long)(b*ldc + N));
        r.push_back({"cT", c});
    }
    if (q.h == x) return r;                     /* backward would need x */

    p.type = SRU_PLAIN;
    float *dh = s.random_stored(rows*N);
    p.dh = dh;
    p.dc = has & STATE ? s.random(B*ldc) : NULL;
    p.du = has & INPLACE ? p.u : s.blank_stored(rows*K*N);
    p.dx = !p.x || K == 4 ? NULL : has & INPLACE ? dh : s.blank_stored(rows*N);
    p.da = p.w ? s.blank_stored(rows*A) : NULL;
    p.dvt = p.vt ? s.blank(rows*GN) : NULL;
    p.dw = w ? s.random(K*N*A) : NULL;
    p.dv = p.v ? s.random(GN) : NULL;
    p.dbias = p.bias ? s.random(GN) : NULL;
    s.call([=](const sru_context *c) { return c->op->scan_backward(c, &p); });
    r.push_back({"dc", s.get(p.dc, p.dc ? B*ldc : 0)});
    r.push_back({"du", s.get_stored(p.du, rows*K*N)});
    r.push_back({"dx", s.get_stored(p.dx, p.dx ? rows*N : 0)});
    r.push_back({"da", s.get_stored(p.da, p.da ? rows*A : 0)});
    r.push_back({"dvt", s.get(p.dvt, p.dvt ? rows*GN : 0)});
    r.push_back({"dw", s.get(p.dw, p.dw ? K*N*A : 0)});
    r.push_back({"dv", s.get(p.dv, p.dv ? GN : 0)});
    r.push_back({"dbias", s.get(p.dbias, p.dbias ? GN : 0)});
    return r;
}

/* Compared with float32 on the CPU: values stored in fewer bits are off by that rounding. */
static void test_scan(sru_type storage, double tolerance)
{
    static const char *const names[] = { "scan", "", "scan of bfloat16", "", "scan of float16" };
    /* tiles of 48, 24, 16, 8 or 4 steps: none, whole ones, and a rest; blocks of 32 or 64 */
    static const size_t steps[] = { 1, 2, 5, 8, 9, 16, 17, 24, 33, 48, 50, 97 };
    int multiprocessors = 0;
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
    test_random_state = 1;
    for (int i = 0; i < (brief > 1 ? 5 : brief ? 15 : 90); i++) {
        const size_t T = steps[i%12], B = 1 + test_bits()%4;
        const size_t few = 1 + test_bits()%40, many = 96*(size_t)multiprocessors/B + few;
        const size_t D = (i + i/12)%4 == 2 ? many : few;    /* they have other helpers */
        const size_t A = 1 + test_bits()%20;
        const int drawn = (int)(test_bits()%(2*INPLACE)) | (i%5 == 4 ? ONE : 0);
        const int has = D == few ? drawn : drawn & ~PRODUCT;    /* da: long sums, in any order */
        const sru_type packed = storage == SRU_PLAIN ? SRU_F32 : storage;
        const sru_type type = test_bits()%2 ? packed : SRU_PLAIN;
        const uint64_t state = test_random_state;
        char what[100];
        sprintf(what, "%s T %d B %d D %d A %d options %d", names[storage], (int)T, (int)B, (int)D,
                (int)A, has);
        compare(what, [=](side &s) {
            s.storage = storage;
            return scan(s, T, B, D, A, has, type);
        }, tolerance);
        test_random_state = state;
    }
    report(names[storage]);
}

enum {
    CAUSAL = 1, WINDOW = 2, ALPHA = 4, PADS = 8, ADDED = 16, DROPS = 32, MEMORY = 64, CROSS = 128
};

/* The logarithms of sums of exp(score), which do not depend on m; 0 where nothing is seen. */
static floats log_sums(const floats &stats)
{
    floats sums(stats.size()/2);
    for (size_t i = 0; i < sums.size(); i++)
        if (stats[2*i] != 0 || stats[2*i + 1] != 0)
            sums[i] = stats[2*i] - std::log(stats[2*i + 1]);
    return sums;
}

static results attention(side &s, size_t T, size_t B, size_t H, size_t hd, int has)
{
    const size_t P = H*hd, M = has & MEMORY ? 9 : 0;
    const size_t S = has & CROSS ? M : M + T;
    sru_attention p;
    memset(&p, 0, sizeof p);
    p.T = T, p.B = B, p.M = M, p.P = P, p.H = (int)H;
    p.causal = has & CAUSAL ? 1 : 0;
    p.window = has & WINDOW ? 5 : 0;
    p.cross = has & CROSS ? 1 : 0;
    p.q = s.random(T*B*P, 2);
    floats kv(S*B*2*P);
    test_fill(kv.data(), kv.size(), 2);
    p.alpha = has & ALPHA ? s.random(1) : NULL;
    if (has & PADS) {
        std::vector<uint8_t> pad(T*B), memory(M*B);
        for (auto &one : pad) one = test_random() > 0.2;
        for (auto &one : memory) one = test_random() > 0.2;
        for (size_t i = 0; i < (S - M)*B*2*P; i++)  /* what nobody sees may make infinite scores */
            if (pad[i/(2*P)]) kv[M*B*2*P + i] = i % 3 ? 3e38f : -3e38f;
        p.mask_pad = s.put(pad);
        p.memory_mask_pad = s.put(memory);
    }
    p.kv = s.put(kv);
    if (has & ADDED) {
        floats mask(T*S);
        for (auto &one : mask) one = test_random() > 0.5 ? -INFINITY : (float)test_random();
        for (size_t i = 0; i < S; i++) {
            mask[i] = -1e9f;                    /* none is hidden from step 0 */
            mask[S + i] = -2e30f;               /* all are from step 1 */
        }
        p.attn_mask = s.put(mask);
    }
    p.dropout = has & DROPS ? 0.3f : 0;
    p.id = 5;
    p.o = s.blank(T*B*P);
    p.a = s.blank(T*B*P);
    p.stats = s.blank(2*B*H*T);
    s.call([=](const sru_context *c) { return c->op->attention_forward(c, &p); });
    sru_attention brief_one = p;                /* inference: neither a nor stats */
    brief_one.a = brief_one.stats = NULL;
    brief_one.o = s.blank(T*B*P);
    s.call([=](const sru_context *c) { return c->op->attention_forward(c, &brief_one); });
    p.dout = s.random(T*B*P);
    p.dq = s.blank(T*B*P);
    p.dkv = s.blank(S*B*2*P);
    p.dalpha = s.random(1);
    s.call([=](const sru_context *c) { return c->op->attention_backward(c, &p); });
    /* compared together, because some are what is left of sums that nearly cancel */
    floats gradients = s.get(p.dkv, S*B*2*P);
    const floats dq = s.get(p.dq, T*B*P), dalpha = s.get(p.dalpha, p.alpha ? 1 : 0);
    gradients.insert(gradients.end(), dq.begin(), dq.end());
    gradients.insert(gradients.end(), dalpha.begin(), dalpha.end());
    floats sums = log_sums(s.get(p.stats, 2*B*H*T));
    for (size_t i = 0; i < sums.size() && has & ADDED; i += T) sums[i] = 0;     /* else -1e9 */
    return results{ {"o", s.get(p.o, T*B*P)}, {"o, inference", s.get(brief_one.o, T*B*P)},
                    {"a", s.get(p.a, T*B*P)}, {"log of the sum", sums}, {"gradients", gradients} };
}

/* Through rings, in calls of 1, 2, ... steps, after cross-attention to what the rings keep. Then
   they take in the same keys again, without queries, and cross-attention has padded queries, whose
   results it leaves as they are. */
static results rings(side &s, size_t B, size_t H, size_t hd, size_t window, float counters = 0)
{
    const size_t P = H*hd, floats_of = 2 + (window + 128)*(P + H*(hd + 16));
    floats all, sums, start(B*floats_of);
    for (size_t b = 0; b < B; b++) start[b*floats_of] = start[b*floats_of + 1] = counters;
    float *ring = s.put(start), *alpha = s.random(1);
    for (size_t T : {1, 2, 3, 12, 150}) {
        if (brief > 1 && T > 12) break;
        sru_attention p;
        memset(&p, 0, sizeof p);
        p.T = T, p.B = B, p.P = P, p.H = (int)H;
        p.causal = 1;
        p.window = window;
        p.ring = ring;
        p.ld_ring = floats_of;
        p.alpha = alpha;
        p.q = s.random(T*B*P, 2);
        p.kv = s.random(T*B*2*P, 2);
        std::vector<uint8_t> pad(T*B);
        for (auto &one : pad) one = test_random() > 0.7;
        p.mask_pad = s.put(pad);
        p.o = s.put(floats(T*B*P));
        p.a = s.put(floats(T*B*P));
        p.stats = s.put(floats(2*T*B*H));
        sru_attention cross = p, put = p;           /* at first, to an empty ring */
        cross.cross = 1, cross.causal = 0, cross.kv = NULL, cross.mask_pad = NULL;
        cross.o = s.blank(T*B*P), cross.a = s.blank(T*B*P), cross.stats = s.blank(2*T*B*H);
        s.call([=](const sru_context *c) { return c->op->attention_forward(c, &cross); });
        s.call([=](const sru_context *c) { return c->op->attention_forward(c, &p); });
        put.q = put.o = put.a = put.stats = NULL;
        s.call([=](const sru_context *c) { return c->op->attention_forward(c, &put); });
        sru_attention padded = cross;
        padded.mask_pad = p.mask_pad;
        padded.o = s.put(floats(T*B*P, 3)), padded.a = s.put(floats(T*B*P, 2));
        padded.stats = s.put(floats(2*T*B*H, 1));
        s.call([=](const sru_context *c) { return c->op->attention_forward(c, &padded); });
        for (const sru_attention &one : {cross, padded}) {
            for (const float *results : {one.o, one.a}) {
                const floats some = s.get(results, T*B*P);
                all.insert(all.end(), some.begin(), some.end());
            }
            const floats some = log_sums(s.get(one.stats, 2*T*B*H));
            sums.insert(sums.end(), some.begin(), some.end());
        }
        const floats o = s.get(p.o, T*B*P), a = s.get(p.a, T*B*P);
        const floats own = log_sums(s.get(p.stats, 2*T*B*H));
        for (size_t i = 0; i < o.size(); i++) {
            if (pad[i/P]) continue;
            all.push_back(o[i]);
            all.push_back(a[i]);
        }
        for (size_t i = 0; i < T*B*H; i++)                      /* (B,H,T,2) */
            if (!pad[i%T*B + i/(H*T)]) sums.push_back(own[i]);
    }
    return results{ {"o and a", all}, {"log of the sum", sums} };
}

static void test_attention(void)
{
    for (int i = 0; i < (brief > 1 ? 2 : brief ? 6 : 24); i++) {
        const size_t T = 2 + (size_t)i*i%23, B = 1 + (size_t)i%3, H = 1 + (size_t)i%2;
        const int has = i*37%128;
        char what[100];
        sprintf(what, "attention T %d B %d H %d options %d", (int)T, (int)B, (int)H, has);
        compare(what, [=](side &s) { return attention(s, T, B, H, 7 + T%30, has); }, 1e-5);
    }
    static const int options[] = { 0, CAUSAL | ALPHA | DROPS, WINDOW | MEMORY | PADS,
                                   CAUSAL | ALPHA | MEMORY | ADDED };
    for (int has : options) {           /* in several blocks of queries */
        if (brief > 1 && has) continue;
        compare("attention of many steps", [=](side &s) { return attention(s, 70, 2, 2, 5, has); },
                1e-5);
        compare("attention of many sequences",
                [=](side &s) { return attention(s, 25, 5, 2, 5, has); }, 1e-5);
    }
    for (int more : {0, ALPHA | PADS, ADDED | DROPS})
        for (size_t T : {3, 70})
            compare("cross-attention", [=](side &s) {
                return attention(s, T, 2, 2, 5, CROSS | MEMORY | more); }, 1e-5);
    report("attention");
    for (size_t window = 3; window <= (brief > 1 ? 3 : 140); window += brief ? 100 : 46)
        compare("rings", [=](side &s) { return rings(s, 2, 2, window < 90 ? 5 : 96, window); },
                2e-6);
    if (brief < 2)
        compare("rings of wide heads", [](side &s) { return rings(s, 1, 1, 1040, 4); }, 2e-6);
    for (size_t window : {3, 70})
        for (float counters : {1000.0f, -5.0f, NAN})    /* which cannot be: as good as zeros */
            compare("rings of wrong counters",
                    [=](side &s) { return rings(s, 2, 1, 5, window, counters); }, 2e-6);
    report("attention through rings");
}

static void test_rows(void)
{
    static const size_t shapes[][2] = { {1,1}, {5,3}, {2,70}, {5,33}, {33,32}, {270,9}, {7,130},
                                        {2,500}, {2,4500} };
    for (auto &shape : shapes) {
        const size_t rows = shape[0], n = shape[1];
        if (brief && rows > (brief > 1 ? 5 : 100)) continue;
        for (int option = 0; option < 4; option += brief ? 3 : 1) {
            const test norm = [=](side &s) {
                float *x = s.random(rows*n), *gain = s.random(n), *bias = s.random(n);
                float *stats = s.blank(2*rows), *dy = s.random(rows*n);
                float *y = option & 1 ? s.put(s.get(x, rows*n)) : s.blank(rows*n);
                float *dx = option & 2 ? dy : s.random(rows*n), *dgain = s.random(n);
                float *dbias = s.random(n), beta = option == 1 ? 1.0f : 0.0f;
                s.call([=](const sru_context *c) {
                    return c->op->layernorm_forward(c, y, stats, option & 1 ? y : x, gain, bias,
                                                    rows, n);
                });
                s.call([=](const sru_context *c) {
                    return c->op->layernorm_backward(c, dx, dgain, dbias, dy, x, gain, stats, beta,
                                                     rows, n);
                });
                return results{ {"y", s.get(y, rows*n)}, {"stats", s.get(stats, 2*rows)},
                                {"dx", s.get(dx, rows*n)}, {"dgain", s.get(dgain, n)},
                                {"dbias", s.get(dbias, n)} };
            };
            compare("layer norm", [=](side &s) {
                results r = norm(s);
                if (n == 1) r[2].values.clear();    /* dx of one value is rounding alone, */
                return r;
            }, 2e-6);
            if (n == 1) compare("layer norm", norm, 1);     /* which is the same each time */
        }
    }
    report("layer norm");

    for (auto &shape : shapes) {
        const size_t rows = shape[0], n = shape[1], size = 6;
        if (brief && rows > (brief > 1 ? 5 : 100)) continue;
        compare("embedding", [=](side &s) {
            std::vector<int32_t> tokens(rows);
            for (auto &token : tokens) token = (int32_t)(test_bits()%(size + 2)) - 1;
            int32_t *t = s.put(tokens);
            float *e = s.random(size*n), *y = s.blank(rows*n), *dy = s.random(rows*n);
            float *de = s.random(size*n);
            s.call([=](const sru_context *c) {
                return c->op->embedding_forward(c, y, t, e, rows, n, size);
            });
            s.call([=](const sru_context *c) {
                return c->op->embedding_backward(c, de, dy, t, rows, n, size);
            });
            return results{ {"y", s.get(y, rows*n)}, {"de", s.get(de, size*n)} };
        }, 1e-6);

        compare("loss", [=](side &s) {
            std::vector<int32_t> targets(rows);
            for (auto &target : targets) target = (int32_t)(test_bits()%(n + 1)) - 1;
            int32_t *t = s.put(targets);
            float *y = s.random(rows*n, 5), *dy = n%2 ? y : s.blank(rows*n);
            double loss[2] = { NAN, NAN };
            s.call([&, t, y](const sru_context *c) {
                return c->op->softmax_loss(c, &loss[0], NULL, y, t, 0.5f, rows, n);
            });
            s.call([&, t, y, dy](const sru_context *c) {
                return c->op->softmax_loss(c, &loss[1], dy, y, t, 0.5f, rows, n);
            });
            return results{ {"loss", {(float)loss[0], (float)loss[1]}},
                            {"dy", s.get(dy, rows*n)} };
        }, 2e-6);
    }
    report("embedding, loss");
}

static void test_elements(void)
{
    static const size_t shapes[][2] = { {1,1}, {1,700}, {70,33}, {5,300} };
    for (auto &shape : shapes) {
        const size_t T = shape[0], n = shape[1];
        if (brief > 1 && T > 1) continue;
        for (int option = 0; option < 8; option += brief ? 3 : 1)
            compare("dropout", [=](side &s) {
                float *x = option & 1 ? s.random(T*n) : NULL, *y = s.random(T*n);
                float *mask = option & 2 ? s.random(n) : NULL, beta = option & 4 ? 1.0f : 0.0f;
                if (!x && beta != 0) beta = 0;
                s.call([=](const sru_context *c) {
                    return c->op->dropout(c, y, x, mask, 0.3f, 77, beta, T, n);
                });
                return results{ {"y", s.get(y, T*n)} };
            }, 1e-7);
        compare("dropout's bits", [=](side &s) {
            float *y = s.blank(T*n);
            s.call([=](const sru_context *c) {
                return c->op->dropout(c, y, NULL, NULL, 0.3f, 0x80000000u, 0, T, n);
            });
            return results{ {"mask", s.get(y, T*n)} };
        }, 0);
        compare("norm, adamw", [=](side &s) {
            float *p = s.random(T*n), *m = s.random(T*n), *v = s.put(floats(T*n, 0.3f));
            float *g = s.random(T*n);
            double norm = NAN;
            s.call([&, g](const sru_context *c) { return c->op->norm(c, &norm, g, T*n); });
            s.call([=](const sru_context *c) {
                return c->op->adamw(c, p, m, v, g, 0.7f, 0.01f, 0.9f, 0.99f, 1e-8f, 0.1f, 3, T*n);
            });
            return results{ {"norm", {(float)norm}}, {"p", s.get(p, T*n)}, {"m", s.get(m, T*n)},
                            {"v", s.get(v, T*n)}, {"g", s.get(g, T*n)} };
        }, 1e-6);
    }
    compare("norm of many", [=](side &s) {
        const size_t n = 256*256 + 777;         /* more than one value for each thread */
        const float *g = s.random(n);
        double norm = NAN;
        s.call([&, g](const sru_context *c) { return c->op->norm(c, &norm, g, n); });
        return results{ {"norm", {(float)norm}} };
    }, 1e-6);
    compare("adamw of squares that are infinite", [=](side &s) {
        const size_t n = 70;
        float *p = s.random(n), *m = s.put(floats(n, 0)), *v = s.put(floats(n, 0));
        for (uint64_t t = 1; t <= 2; t++) {
            float *g = s.put(floats(n, 1e20f));
            s.call([=](const sru_context *c) {
                return c->op->adamw(c, p, m, v, g, 1, 0.01f, 0.9f, 0.99f, 1e-8f, 0, t, n);
            });
        }
        return results{ {"p", s.get(p, n)}, {"v", s.get(v, n)} };
    }, 1e-6);
    report("dropout, norm, adamw");
}

/* Products in fewer bits, compared with the CPU's in float32: errors must be as stated, and not as
   small as with more bits. */
static void test_math(void)
{
    static const struct { sru_cuda_math math; const char *name; double least, tolerance; } list[] =
        { {SRU_CUDA_TF32, "TF32", 1e-4, 1e-3}, {SRU_CUDA_BF16, "bfloat16", 1e-3, 1e-2},
          {SRU_CUDA_FP16, "float16", 1e-4, 1e-2} };
    static const struct { sru_type type; const char *name; } packed[] =
        { {SRU_BF16, "packed bfloat16"}, {SRU_F16, "packed float16"} };
    const sru_backend *float32 = gpu;
    char error[SRU_ERROR_SIZE];
    for (auto &one : list) {
        gpu = sru_cuda_open(NULL, one.math, error);
        if (!CHECK(gpu, "%s", error)) break;
        {                               /* weights that nothing is multiplied with: not touched */
            side s(gpu);
            sru_scan p;
            memset(&p, 0, sizeof p);
            p.T = 2, p.N = p.A = 4, p.K = 3, p.w = (const float *)64;
            CHECK(!gpu->scan_forward(&s.ctx, &p) && !cudaStreamSynchronize(NULL),
                  "scan_forward, %s, B 0: %s", one.name, s.error);
        }
        compare(one.name, [](side &s) {
            float *x = s.random(40*24), *w = s.random(33*24), *y = s.blank(40*33);
            s.call([=](const sru_context *c) {
                return c->op->linear_forward(c, y, x, w, SRU_PLAIN, NULL, 40, 33, 24);
            });
            return results{ {"y", s.get(y, 40*33)} };
        }, one.tolerance);
#ifdef SRU_STANDIN                              /* a GPU may have more bits than it is asked for */
        CHECK(worst > one.least, "%s: off by only %g", one.name, worst);
#endif
        for (int has = 0; has < 2*BOTH; has++)
            compare(one.name, [=](side &s) {
                results r = scan(s, 20, 3, 17, 24, has | PRODUCT | FOUR*has | GATES | SKIP | START,
                                 SRU_PLAIN);
                for (auto &x : r) x.name = one.name + (" " + x.name);
                return r;
            }, one.tolerance);
        compare(one.name, [=](side &s) { return linear(s, 90, 33, 24, true, 1, SRU_PLAIN); },
                one.tolerance);
        compare(one.name, [](side &s) {         /* gradients may be smaller than float16's range */
            float *dy = s.random(40*33, 1e-9), *w = s.random(33*24), *dx = s.blank(40*24);
            s.call([=](const sru_context *c) {
                return c->op->linear_backward(c, dx, NULL, NULL, dy, NULL, w, 0, 40, 33, 24);
            });
            return results{ {"dx of small dy", s.get(dx, 40*24)} };
        }, one.tolerance);
        report(one.name);
        sru_cuda_close(gpu);
    }
    gpu = float32;
    for (auto &one : packed) {
        compare(one.name, [=](side &s) {
            return scan(s, 20, 3, 17, 24, PRODUCT | GATES | SKIP, one.type);
        }, 1e-2);
        compare(one.name, [=](side &s) { return linear(s, 40, 33, 24, true, 0, one.type); }, 1e-2);
        report(one.name);
    }
}

/* ---- networks -------------------------------------------------------------------------------- */

struct network {
    sru_model m;
    sru_io    io;
    sru_sizes need;
    size_t    T, B, N, n, inputs;
    float    *weights, *grads, *dx;
};

/* Of x, or of tokens of a vocabulary, one in V + 1 of which has no row in the embedding. */
static network make_network(side &s, const sru_config *config, size_t T, size_t B, int tape,
                            size_t vocab = 0)
{
    network net;
    char error[SRU_ERROR_SIZE];
    sru_status status;
    memset(&net, 0, sizeof net);
    net.m.config = *config;
    net.m.vocab_size = vocab;
    net.T = T;
    net.B = B;
    net.N = (size_t)config->hidden_size*(config->bidirectional ? 2 : 1);
    s.ctx.error = error;
    status = sru_size(&net.need, &s.ctx, &net.m, T, B);
    CHECK(!status, "%s", error);
    s.ctx.error = s.error;
    net.n = net.need.weights/sizeof(float);
    floats weights(net.n);
    CHECK(!sru_init(weights.data(), config, 9), "sru_init() fails");
    net.m.weights = net.weights = s.put(weights);
    net.grads = s.put(floats(net.n));
    net.io.T = T;
    net.io.B = B;
    net.inputs = (vocab ? vocab : T*B)*(size_t)config->input_size;
    if (vocab) {
        std::vector<int32_t> tokens(T*B);
        for (size_t i = 0; i < T*B; i++) tokens[i] = (int32_t)(test_bits()%(vocab + 1));
        net.io.tokens = s.put(tokens);
        net.m.embedding = s.random(net.inputs);
    } else {
        net.io.x = s.random(net.inputs);
    }
    net.io.h = s.blank(T*B*net.N);
    net.io.state = s.put(floats(B*net.need.state));     /* rings must start as zeros */
    if (!config->window) net.io.state = s.random(B*net.need.state, 0.5);
    if (!tape) return net;
    net.io.tape = s.put(std::vector<char>(net.need.tape, (char)0xff));
    net.io.dh = s.random(T*B*net.N);
    if (vocab) net.io.dembedding = net.dx = s.random(net.inputs);
    else net.io.dx = net.dx = s.blank(net.inputs);
    net.io.dstate = s.random(B*net.need.state);
    net.io.grads = net.grads;
    return net;
}

static sru_config config_of(int kind)
{
    sru_config f;
    memset(&f, 0, sizeof f);
    f.input_size = kind & 1 ? 9 : 12;
    f.hidden_size = 12;
    f.num_layers = 3;
    f.bidirectional = kind & 2 ? 1 : 0;
    f.layer_norm = kind & 4 ? 1 : 0;
    f.normalize_after = kind & 8 ? 1 : 0;
    f.projection_size = kind & 16 ? 7 : 0;
    f.proj_input_to_hidden_first = kind & 32 ? 1 : 0;
    f.use_tanh = kind & 1 ? 1 : 0;
    f.dropout = kind & 4 ? 0.3f : 0;
    f.rnn_dropout = kind & 2 ? 0.2f : 0;
    f.layer_dropout = kind & 8 ? 0.1f : 0;
    if (kind & 64) {
        f.arch = SRU_ARCH_SRUPP;
        f.projection_size = 8;
        f.num_heads = 2;
        f.attn_dropout = 0.2f;
        f.window = kind & 2 ? 0 : 6;
    }
    return f;
}

static void test_networks(void)
{
    static const size_t vocabularies[] = { 0, 5, 40 };
    for (int kind = 0; kind < 128; kind += brief ? 42 : 9) {
        const sru_config f = config_of(kind);
        const size_t vocab = vocabularies[kind/(brief ? 42 : 9)%3];
        char what[40];
        sprintf(what, "network %d", kind);
        compare(what, [=](side &s) {
            network net = make_network(s, &f, 11, 2, 1, vocab);
            const size_t S = net.B*net.need.state;
            s.call([&](const sru_context *c) { return sru_forward(c, &net.m, &net.io); });
            s.call([&](const sru_context *c) { return sru_backward(c, &net.m, &net.io); });
            return results{ {"h", s.get(net.io.h, net.T*net.B*net.N)},
                            {"state", s.get(net.io.state, f.window ? 0 : S)},
                            {vocab ? "dembedding" : "dx", s.get(net.dx, net.inputs)},
                            {"dstate", s.get(net.io.dstate, f.window ? 0 : S)},
                            {"grads", s.get(net.grads, net.n)} };
        }, 1e-5);
        compare(what, [=](side &s) {
            network net = make_network(s, &f, 11, 2, 0, vocab);
            sru_model packed = net.m;
            sru_sizes need;
            packed.type = SRU_F32;
            CHECK(!sru_size(&need, &s.ctx, &packed, 1, 1), "%s", s.error);
            char *weights = s.put(std::vector<char>(need.weights));
            floats h;
            for (int form = 0; form < 2; form++) {
                if (form) CHECK(!sru_pack(&s.ctx, &packed, weights, &net.m), "%s", s.error);
                net.io.state = NULL;
                s.call([&](const sru_context *c) {
                    return sru_forward(c, form ? &packed : &net.m, &net.io);
                });
                const floats more = s.get(net.io.h, net.T*net.B*net.N);
                h.insert(h.end(), more.begin(), more.end());
            }
            return results{ {"h, inference", h} };
        }, 2e-6);
    }
    report("networks");
}

/* Compares the GPU's gradients along a direction with differences of its losses. */
static void test_differences(void)
{
    const sru_config f = config_of(1 + 4 + 16);
    const double step = 1e-3;
    double sum = 0, loss[2] = { 0, 0 };
    side s(gpu);
    test_random_state = 21;
    network net = make_network(s, &f, 6, 2, 1);
    const floats weights = s.get(net.weights, net.n), dh = s.get(net.io.dh, net.T*net.B*net.N);
    const floats state = s.get(net.io.state, net.B*net.need.state);
    floats direction(net.n), moved(net.n);
    test_fill(direction.data(), net.n, 1);
    net.io.dstate = NULL;
    s.call([&](const sru_context *c) { return sru_forward(c, &net.m, &net.io); });
    s.call([&](const sru_context *c) { return sru_backward(c, &net.m, &net.io); });
    const floats grads = s.get(net.grads, net.n);
    for (size_t i = 0; i < net.n; i++) sum += (double)grads[i]*(double)direction[i];
    for (int side_of = 0; side_of < 2; side_of++) {
        for (size_t i = 0; i < net.n; i++)
            moved[i] = weights[i] + (float)(side_of ? step : -step)*direction[i];
        s.ctx.op->copy(&s.ctx, net.weights, moved.data(), net.need.weights);
        s.ctx.op->copy(&s.ctx, net.io.state, state.data(), state.size()*sizeof(float));
        s.call([&](const sru_context *c) { return sru_forward(c, &net.m, &net.io); });
        const floats h = s.get(net.io.h, net.T*net.B*net.N);
        for (size_t i = 0; i < h.size(); i++) loss[side_of] += (double)h[i]*(double)dh[i];
    }
    const double difference = (loss[1] - loss[0])/(2*step);
    CHECK(fabs(difference - sum) <= 2e-3*fabs(sum), "along a direction the loss changes by %g, and "
          "its gradient says %g", difference, sum);
    printf("%-24s %g, the gradient says %g\n", "differences of losses", difference, sum);
}

/* A call is captured in a graph, which then does the same with new data. */
static void test_capture(void)
{
    const sru_config f = config_of(4 + 8);
    char error[SRU_ERROR_SIZE];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&stream) == cudaSuccess, "no stream");
    const sru_backend *op = sru_cuda_open((void *)stream, SRU_CUDA_FLOAT32, error);
    if (!CHECK(op, "%s", error)) return;
    {
        side s(op);
        network net = make_network(s, &f, 20, 2, 1);
        const size_t S = net.B*net.need.state, H = net.T*net.B*net.N;
        const floats state = s.get(net.io.state, S), dh = s.get(net.io.dh, H);
        const floats dstate = s.get(net.io.dstate, S);
        floats m(net.n), v(net.n);
        double *norm = s.put(std::vector<double>(1));
        std::vector<char> work(net.need.train_work + 100000);
        floats direct[2], replayed[2];
        s.ctx.work = s.put(work);
        s.ctx.work_size = work.size();
        float *moments[2] = { s.put(m), s.put(v) };
        const floats weights = s.get(net.weights, net.n);
        auto calls = [&]() -> sru_status {
            sru_status status = sru_forward(&s.ctx, &net.m, &net.io);
            if (!status) status = sru_backward(&s.ctx, &net.m, &net.io);
            if (!status) status = op->norm(&s.ctx, norm, net.grads, net.n);
            if (status) return status;
            return op->adamw(&s.ctx, net.weights, moments[0], moments[1], net.grads, 1, 0.01f, 0.9f,
                             0.99f, 1e-8f, 0, 1, net.n);
        };
        auto restore = [&] {
            op->copy(&s.ctx, net.weights, weights.data(), net.need.weights);
            op->copy(&s.ctx, net.io.state, state.data(), S*sizeof(float));
            op->copy(&s.ctx, net.io.dstate, dstate.data(), S*sizeof(float));
            for (float *moment : moments) op->copy(&s.ctx, moment, NULL, net.need.weights);
        };
        CHECK(!calls(), "%s", s.error);
        direct[0] = s.get(net.io.h, H);
        direct[1] = s.get(net.weights, net.n);
        restore();
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess, "begin");
        CHECK(!calls(), "while capturing: %s", s.error);
        CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess, "the capture failed");
        CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "no graph");
        for (int turn = 0; turn < 2; turn++) {
            restore();
            CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess, "the graph does not run");
            replayed[0] = s.get(net.io.h, H);
            replayed[1] = s.get(net.weights, net.n);
            for (int i = 0; i < 2; i++)
                CHECK(replayed[i] == direct[i], "a graph gives other results than calls");
        }
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    }
    sru_cuda_close(op);
    cudaStreamDestroy(stream);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void expect(sru_status is, sru_status should, const char *error, const char *sentence)
{
    CHECK(is == should && strstr(error, sentence), "the status is %d, not %d; the sentence '%s' "
          "does not hold '%s'", (int)is, (int)should, error, sentence);
}

/* Calls f(p) with each of `count` pointers, in turn, in host memory: it is refused, and named. */
template <class F> static void test_pointers(side &s, const char *name, int count, F f)
{
    float *const there = s.put(floats(8)), here[8] = { 0 };
    for (int i = 0; i < count; i++) {
        std::vector<float *> p((size_t)count, there);
        p[(size_t)i] = here;
        s.error[0] = 0;
        const sru_status status = f(p.data());
        CHECK(status == SRU_EINVAL && strstr(s.error, name) && strstr(s.error, "the GPU can read"),
              "%s, pointer %d: status %d, '%s'", name, i, (int)status, s.error);
    }
}

static void test_host_pointers(void)
{
    side s(gpu);
    const sru_backend *op = gpu;
    const sru_context *c = &s.ctx;
    const auto ints = [](float *p) { return (int32_t *)p; };
    const auto bytes = [](float *p) { return (uint8_t *)p; };
    test_pointers(s, "pack", 2, [=](float **p) {
        return op->pack(c, p[0], SRU_F32, p[1], 1, 1) ? SRU_OK : SRU_EINVAL; });
    test_pointers(s, "linear_forward", 4, [=](float **p) {
        return op->linear_forward(c, p[0], p[1], p[2], SRU_PLAIN, p[3], 1, 1, 1); });
    test_pointers(s, "linear_backward", 6, [=](float **p) {
        return op->linear_backward(c, p[0], p[1], p[2], p[3], p[4], p[5], 0, 1, 1, 1); });
    test_pointers(s, "layernorm_forward", 5, [=](float **p) {
        return op->layernorm_forward(c, p[0], p[1], p[2], p[3], p[4], 1, 1); });
    test_pointers(s, "layernorm_backward", 7, [=](float **p) {
        return op->layernorm_backward(c, p[0], p[1], p[2], p[3], p[4], p[5], p[6], 0, 1, 1); });
    test_pointers(s, "embedding_forward", 3, [=](float **p) {
        return op->embedding_forward(c, p[0], ints(p[1]), p[2], 1, 1, 1); });
    test_pointers(s, "embedding_backward", 3, [=](float **p) {
        return op->embedding_backward(c, p[0], p[1], ints(p[2]), 1, 1, 1); });
    test_pointers(s, "dropout", 3, [=](float **p) {
        return op->dropout(c, p[0], p[1], p[2], 0, 0, 0, 1, 1); });
    test_pointers(s, "softmax_loss", 3, [=](float **p) {
        double loss;
        return op->softmax_loss(c, &loss, p[0], p[1], ints(p[2]), 1, 1, 1); });
    test_pointers(s, "norm", 1, [=](float **p) {
        double norm;
        return op->norm(c, &norm, p[0], 1); });
    test_pointers(s, "norm", 1, [=](float **p) {
        double norm;
        sru_context worked = *c;
        float *const there = (float *)op->alloc(c, 4096);
        worked.work = p[0], worked.work_size = 4096;
        const sru_status status = op->norm(&worked, &norm, there, 1);
        op->release(c, there);
        return status; });
    test_pointers(s, "adamw", 4, [=](float **p) {
        return op->adamw(c, p[0], p[1], p[2], p[3], 1, 1, 0, 0, 1, 0, 1, 1); });

    sru_scan one;
    memset(&one, 0, sizeof one);
    one.T = one.B = one.N = one.A = 1, one.K = 3;
    const auto scan_of = [=](float **p) {
        sru_scan k = one;
        k.w = p[0], k.v = p[1], k.bias = p[2], k.mask_c = p[3], k.c0 = p[4], k.cT = p[5];
        k.a = p[6], k.u = p[7], k.x = p[8], k.vt = p[9], k.mask_pad = bytes(p[10]), k.h = p[11];
        k.c = p[12];
        return k;
    };
    test_pointers(s, "scan_forward", 13, [=](float **p) {
        const sru_scan k = scan_of(p);
        return op->scan_forward(c, &k); });
    test_pointers(s, "scan_backward", 22, [=](float **p) {
        sru_scan k = scan_of(p);
        k.dh = p[13], k.dc = p[14], k.du = p[15], k.dx = p[16], k.da = p[17], k.dvt = p[18];
        k.dw = p[19], k.dv = p[20], k.dbias = p[21];
        return op->scan_backward(c, &k); });

    sru_attention few;
    memset(&few, 0, sizeof few);
    few.T = few.B = few.P = 1, few.H = 1;
    const auto attention_of = [=](float **p) {
        sru_attention k = few;
        k.M = 1;
        k.q = p[0], k.kv = p[1], k.alpha = p[2], k.mask_pad = bytes(p[3]);
        k.memory_mask_pad = bytes(p[4]), k.attn_mask = p[5], k.o = p[6], k.a = p[7], k.stats = p[8];
        return k;
    };
    test_pointers(s, "attention_forward", 9, [=](float **p) {
        const sru_attention k = attention_of(p);
        return op->attention_forward(c, &k); });
    test_pointers(s, "attention_forward", 1, [=](float **p) {
        sru_attention k = few;
        float *const there = (float *)op->alloc(c, 4096);
        k.q = k.kv = k.o = there, k.window = 1, k.ring = p[0], k.ld_ring = 1000;
        const sru_status status = op->attention_forward(c, &k);
        op->release(c, there);
        return status; });
    test_pointers(s, "attention_backward", 13, [=](float **p) {
        sru_attention k = attention_of(p);
        k.dout = p[9], k.dq = p[10], k.dkv = p[11], k.dalpha = p[12];
        return op->attention_backward(c, &k); });
}

static void test_errors(void)
{
    side s(gpu);
    const sru_backend *op = gpu;
    float here[4] = { 1, 2, 3, 4 }, *there = s.put(floats(4)), *far;
    sru_scan p;
    s.error[0] = 0;
    int reads = 0, number = 0;
    cudaGetDevice(&number);
    cudaDeviceGetAttribute(&reads, cudaDevAttrPageableMemoryAccess, number);
    if (reads) printf("skipped: pointers to host memory: this GPU can read them\n");
    else test_host_pointers();
    int count = 0;
    cudaGetDeviceCount(&count);
    if (count > 1) {
        cudaSetDevice((number + 1)%count);
        expect(op->linear_forward(&s.ctx, there, there, there, SRU_PLAIN, NULL, 1, 1, 1),
               SRU_EINVAL, s.error, "is current, but the backend's is");
        expect(op->copy(&s.ctx, here, there, 4), SRU_EINVAL, s.error, "copy: device");
        CHECK(!op->alloc(&s.ctx, 4) && strstr(s.error, "alloc: device"), "alloc: %s", s.error);
        cudaSetDevice(number);
    } else {
        printf("skipped: a call while another GPU is current: there is one\n");
    }
    expect(op->linear_forward(&s.ctx, there, there, there, SRU_Q8, NULL, 2, 2, 2), SRU_EINVAL,
           s.error, "on the GPU there are");
    expect(op->adamw(&s.ctx, there, there, there, there, 1, 1, 1, 1, 1, 1, 0, 4), SRU_EINVAL,
           s.error, "t must be at least 1");
    const size_t huge = (size_t)1 << 62;
    s.error[0] = 0;
    CHECK(!op->pack(&s.ctx, NULL, SRU_F32, NULL, huge, 16) && strstr(s.error, "too large"),
          "pack: sizes that do not fit: '%s'", s.error);
    double nothing = 1;         /* if there are no elements, their arrays are not looked at */
    CHECK(!op->softmax_loss(&s.ctx, &nothing, here, here, (const int32_t *)here, 1, 0, 4)
          && nothing == 0 && !op->norm(&s.ctx, &nothing, here, 0) && nothing == 0
          && !op->adamw(&s.ctx, here, here, here, here, 1, 1, 0, 0, 1, 0, 1, 0)
          && !op->linear_backward(&s.ctx, here, here, here, here, here, here, 0, 0, 2, 2),
          "no rows: '%s'", s.error);
    double norm = 0;
    expect(op->norm(&s.ctx, &norm, there, huge), SRU_EINVAL, s.error, "too large");
    expect(op->adamw(&s.ctx, there, there, there, there, 1, 1, 0, 0, 1, 0, 1, huge), SRU_EINVAL,
           s.error, "too large");
    sru_attention rings;
    memset(&rings, 0, sizeof rings);
    rings.T = 1, rings.B = 4, rings.P = 1, rings.H = 1, rings.window = 3, rings.ld_ring = huge;
    rings.q = there, rings.kv = there, rings.o = there, rings.ring = there;
    expect(op->attention_forward(&s.ctx, &rings), SRU_EINVAL, s.error, "too large");
    rings.ring = NULL, rings.cross = 1;
    expect(op->attention_forward(&s.ctx, &rings), SRU_EINVAL, s.error, "cross-attention wants");
    memset(&p, 0, sizeof p);
    p.T = 1, p.B = 4, p.N = 1, p.K = 3, p.u = p.h = there, p.ldc = huge;
    expect(op->scan_forward(&s.ctx, &p), SRU_EINVAL, s.error, "too large");
    p.T = p.B = 1, p.ldc = 0, p.N = 4, p.K = 5;
    expect(op->scan_forward(&s.ctx, &p), SRU_EINVAL, s.error, "K must be 2, 3 or 4");
    p.K = 3, p.u = p.h = there, p.w = p.a = there, p.type = SRU_F32, p.storage = SRU_BF16;
    expect(op->scan_forward(&s.ctx, &p), SRU_EINVAL, s.error, "must be of one type");
    p.w = NULL, p.storage = SRU_Q8;
    expect(op->scan_forward(&s.ctx, &p), SRU_EINVAL, s.error, "on the GPU there are");
    p.storage = SRU_F16;
    side cpu(sru_cpu());
    expect(sru_cpu()->scan_forward(&cpu.ctx, &p), SRU_EINVAL, cpu.error,
           "on the CPU storage must be SRU_PLAIN");
    expect(sru_cpu()->linear_forward(&cpu.ctx, here, here, here, SRU_F16, NULL, 1, 1, 1),
           SRU_EINVAL, cpu.error, "on the CPU there is no type 4");
    s.ctx.work = there;
    s.ctx.work_size = 4;
    expect(op->norm(&s.ctx, &norm, there, 4), SRU_ENOMEM, s.error, "scratch memory are too few");
    s.ctx.work = NULL;

    sru_model m;
    memset(&m, 0, sizeof m);
    m.config = config_of(0);
    m.weights = s.put(floats(10000));
    sru_model packed = m;
    packed.type = SRU_Q8;
    expect(sru_pack(&s.ctx, &packed, s.put(floats(10000)), &m), SRU_EINVAL, s.error, "SRU_F32");

    far = (float *)op->alloc(&s.ctx, (size_t)1 << 50);
    expect(far ? SRU_OK : SRU_ENOMEM, SRU_ENOMEM, s.error, "out of memory");
    CHECK(!op->copy(&s.ctx, here, there, sizeof here) && here[3] == 0, "a failure is told twice");
    op->release(&s.ctx, NULL);
}

/* The GPU does the same as the CPU with arrays that have no elements or are not wanted. */
static void test_empty(void)
{
    side s(gpu), cpu(sru_cpu());
    const sru_backend *op = gpu;
    float here[4] = { 1, 2, 3, 4 }, *there = s.put(floats(4, 1)), *none = NULL;
    size_t need = 0;
    double loss = 0;
    CHECK(!op->linear_backward(&s.ctx, there, none, none, none, none, none, 1, 2, 0, 2)
          && s.get(there, 4) == floats(4, 1), "linear_backward, n 0, beta 1: %s", s.error);
    CHECK(!op->linear_backward(&s.ctx, there, none, none, none, none, none, 0, 2, 0, 2)
          && s.get(there, 4) == floats(4, 0), "linear_backward, n 0, beta 0: %s", s.error);
    CHECK(!op->linear_backward(&s.ctx, there, none, none, none, none, none, 7, 0, 2, 2),
          "linear_backward, rows 0: %s", s.error);
    CHECK(!op->softmax_loss(&s.ctx, &loss, none, none, s.put(std::vector<int32_t>(3, 1)), 1, 3, 0)
          && loss != loss, "the loss of targets that are no columns is %g", loss);
    CHECK(!op->softmax_loss(&s.ctx, &loss, none, none, s.put(std::vector<int32_t>(3, -1)), 1, 3, 0)
          && loss == 0, "the loss without targets is %g", loss);
    sru_scan p;
    memset(&p, 0, sizeof p);
    p.T = 2, p.N = 3, p.K = 3, p.u = p.h = p.cT = here, p.c0 = here;    /* B 0: not touched */
    CHECK(!op->scan_forward(&s.ctx, &p), "scan_forward, B 0: %s", s.error);
    sru_attention a;
    memset(&a, 0, sizeof a);
    a.T = 2, a.P = 4, a.H = 1, a.window = 3, a.ring = here, a.ld_ring = 4000;
    CHECK(!op->attention_forward(&s.ctx, &a), "attention_forward, B 0: %s", s.error);
    a.T = 0, a.B = 2, a.ring = NULL, a.q = a.kv = a.o = here;
    CHECK(!op->attention_forward(&s.ctx, &a), "attention_forward, T 0: %s", s.error);
    a.T = a.B = 1, a.window = 0, a.q = a.kv = s.put(floats(8)), a.o = s.blank(4);
    a.memory_mask_pad = (const uint8_t *)here;
    CHECK(!op->attention_forward(&s.ctx, &a), "attention_forward, M 0: %s", s.error);
    CHECK(!op->linear_forward(&s.ctx, there, here, here, SRU_PLAIN, NULL, 2, 2, 0)
          && s.get(there, 4) == floats(4, 0), "linear_forward, k 0: %s", s.error);
    CHECK(!op->embedding_forward(&s.ctx, there, s.put(std::vector<int32_t>(2, 0)), here, 2, 2, 0)
          && s.get(there, 4) == floats(4, 0), "embedding_forward, size 0: %s", s.error);
    p.T = p.B = 1, p.K = 4, p.u = s.put(floats(12)), p.h = s.blank(3), p.cT = NULL, p.c0 = NULL;
    p.x = here;
    CHECK(!op->scan_forward(&s.ctx, &p), "scan_forward, K 4, with an x: %s", s.error);
    p.a = here, p.w = here, p.u = NULL;
    CHECK(!op->scan_forward(&s.ctx, &p) && s.get(p.h, 3) == floats(3, 0), "scan_forward, A 0: %s",
          s.error);
    CHECK(!op->linear_backward(&s.ctx, here, here, none, there, here, here, 1, 2, 2, 0),
          "linear_backward, k 0: %s", s.error);
    CHECK(!op->softmax_loss(&s.ctx, &loss, here, here, s.put(std::vector<int32_t>(3, -1)), 1, 3, 0),
          "softmax_loss, n 0: %s", s.error);
    a.T = a.M = 0, a.dkv = here;
    CHECK(!op->attention_backward(&s.ctx, &a), "attention_backward, T 0, M 0: %s", s.error);
    CHECK(!op->embedding_forward(&s.ctx, here, (const int32_t *)here, here, 0, 3, 2),
          "embedding_forward, rows 0: %s", s.error);

    memset(&p, 0, sizeof p);                        /* h on rows of another width */
    p.T = 2, p.B = 1, p.N = 2, p.A = 1, p.K = 3, p.w = there, p.a = p.h = there;
    expect(op->scan_forward(&s.ctx, &p), SRU_EINVAL, s.error, "h may be a in one direction only");
    p.storage = SRU_F32;
    expect(op->scan_forward(&s.ctx, &p), SRU_EINVAL, s.error, "storage must be");
    p.storage = SRU_PLAIN;
    s.ctx.measure = &need;
    CHECK(!op->scan_forward(&s.ctx, &p), "h is a where it is measured: %s", s.error);
    expect(op->layernorm_forward(&s.ctx, none, none, none, none, none, 2, 2), SRU_EINVAL, s.error,
           "must not be NULL");
    expect(op->dropout(&s.ctx, none, none, none, 0.1f, 1, 0, 2, 2), SRU_EINVAL, s.error,
           "must not be NULL");
    s.ctx.measure = NULL;
    CHECK(!op->pack(&s.ctx, there, SRU_F32, NULL, 2, 2) && strstr(s.error, "must not be NULL"),
          "weights that are not there are packed: %s", s.error);

    side *sides[] = { &cpu, &s };                   /* dvt is the gradient of vt 0, too */
    floats dvt[2];
    for (int i = 0; i < 2; i++) {
        side &x = *sides[i];
        const size_t T = 5, N = 3;
        memset(&p, 0, sizeof p);
        test_random_state = 8;
        p.T = T, p.B = 1, p.N = N, p.K = 3;
        p.u = x.random(T*3*N), p.dh = x.random(T*N);
        p.h = x.blank(T*N), p.c = x.blank(T*N), p.du = x.blank(T*3*N), p.dvt = x.blank(T*2*N);
        CHECK(!x.ctx.op->scan_forward(&x.ctx, &p) && !x.ctx.op->scan_backward(&x.ctx, &p), "%s",
              x.error);
        dvt[i] = x.get(p.dvt, T*2*N);
    }
    CHECK(test_error(dvt[1].data(), dvt[0].data(), dvt[0].size()) < 1e-6,
          "dvt without vt is off by %g", test_error(dvt[1].data(), dvt[0].data(), dvt[0].size()));
}

/* Scratch memory for many steps and sequences is enough for fewer. */
static void test_sizes(void)
{
    for (int i = 0; i < 8; i++) {
        side s(gpu);
        sru_model m;
        sru_sizes most, fewer;
        size_t wrong = 0, T = 60, B = 4;
        memset(&m, 0, sizeof m);
        m.config.input_size = i & 1 ? 16 : 9;
        m.config.hidden_size = 16;
        m.config.projection_size = i & 4 ? 4 : 0;
        m.config.arch = i & 4 ? SRU_ARCH_SRUPP : SRU_ARCH_SRU;
        m.config.bidirectional = i/2%2 && !(i & 4);
        m.type = i/2%2 ? SRU_F32 : SRU_PLAIN;
        for (; T; T--) {
            CHECK(!sru_size(&most, &s.ctx, &m, T, B), "%s", s.error);
            for (size_t t = 1; t <= T; t++)
                for (size_t b = 1; b <= B; b++) {
                    CHECK(!sru_size(&fewer, &s.ctx, &m, t, b), "%s", s.error);
                    wrong += fewer.work > most.work || fewer.train_work > most.train_work;
                }
        }
        CHECK(!wrong, "network %d: memory for %zu numbers of steps and sequences is not enough for "
              "fewer", i, wrong);
    }
}

#ifdef SRU_STANDIN
static void test_machines(void)
{
    static const struct { const char *name, *value, *sentence; } machines[] = {
        { "STANDIN_DEVICES", "0", "no CUDA-capable device is detected" },
        { "STANDIN_CAPABILITY", "70", "compute capability is 7.0, and 7.5 is needed" },
        { "STANDIN_MEMORY", "1000", "out of memory" }
    };
    for (auto &machine : machines) {
        char error[SRU_ERROR_SIZE] = "";
        setenv(machine.name, machine.value, 1);
        const sru_backend *op = sru_cuda_open(NULL, SRU_CUDA_FLOAT32, error);
        unsetenv(machine.name);
        CHECK(!op && strstr(error, machine.sentence), "%s=%s: '%s'", machine.name, machine.value,
              error);
    }
    CHECK(standin::allocated == 0, "%zu bytes of device memory leak", standin::allocated);
}
#endif

int main(int argc, char **argv)
{
    char error[SRU_ERROR_SIZE];
    test_begin(argc, argv, "test_cuda [--brief | --few]: tests sru_cuda.cu, or fewer cases of it.");
    if (argc > 1) brief = !strcmp(argv[1], "--brief") ? 1 : !strcmp(argv[1], "--few") ? 2 : 0;
    gpu = sru_cuda_open(NULL, SRU_CUDA_FLOAT32, error);
    if (!gpu) {
        fprintf(stderr, "test_cuda: %s\n", error);
        return 2;
    }
    test_linear();
    test_rows();
    test_elements();
    test_scan(SRU_PLAIN, 2e-6);
    test_scan(SRU_BF16, 8e-3);
    test_scan(SRU_F16, 1e-3);
    test_attention();
    if (brief < 2) {
        test_math();
        test_networks();
        test_differences();
        test_capture();
    }
    test_errors();
    test_empty();
    test_sizes();
    sru_cuda_close(gpu);
#ifdef SRU_STANDIN
    test_machines();
#endif
    return test_end();
}
