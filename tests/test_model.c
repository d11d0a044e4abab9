/* Whole networks: results and gradients of every variant against the oracle in naive.h, whose own
   gradients finite differences confirm; and what sru.h promises of bits, memory, dropout, errors
   and initial weights. */
#include "naive.h"

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif
#ifdef _POSIX_THREADS
#include <pthread.h>
#endif

#define COUNT(a) (sizeof(a)/sizeof((a)[0]))

static char message[SRU_ERROR_SIZE];
static const sru_backend *op;   /* NULL: sru_cpu() */

/* Whether products with SRU_PLAIN weights take bfloat16. */
static int bf16(void) { return op && op != sru_cpu(); }

static sru_context context(int threads)
{
    sru_context c;
    memset(&c, 0, sizeof c);
    c.op = op;
    c.threads = threads;
    c.seed = 11;
    c.step = 22;
    c.error = message;
    return c;
}

/* Whether bits are equal. With SRU_PLAIN weights, cblas_sgemm need not give equal bits. */
static int alike(const float *a, const float *b, size_t n)
{
#ifdef SRU_USE_CBLAS
    return test_error(a, b, n) < 1e-5;
#else
    return !n || !memcmp(a, b, n*sizeof *a);
#endif
}

static float *copy(const float *a, size_t n)
{
    float *b = test_floats(n);
    if (a && n) memcpy(b, a, n*sizeof *a);
    return b;
}

static float *junk(size_t n)
{
    float *a = test_floats(n);
    memset(a, 0xff, n*sizeof *a);
    return a;
}

/* ---- Networks to test ----------------------------------------------------------------------- */

enum { VARIANTS = 32 };

/* Sets configuration i, of which there is one for each kind in the reference; 0 past the last. */
static const char *variant(int i, sru_config *c)
{
    memset(c, 0, sizeof *c);
    c->input_size = 5;
    c->hidden_size = 6;
    switch (i) {
    case 0:
        return "4 matrices";
    case 1:
        c->input_size = 6;
        return "3 matrices";
    case 2:
        c->hidden_size = 4;
        c->bidirectional = 1;
        return "bidirectional, 4 matrices";
    case 3:
        c->input_size = 8;
        c->hidden_size = 4;
        c->bidirectional = 1;
        return "bidirectional, 3 matrices";
    case 4:
        c->projection_size = 3;
        return "projection";
    case 5:
        c->arch = SRU_ARCH_SRU3;
        c->num_layers = 3;
        c->projection_sizes[0] = 2;
        c->projection_sizes[1] = 4;
        c->projection_size = 3;
        return "3.0, a projection for each layer";
    case 6:
        c->projection_size = 5;
        return "projection that 2.x leaves out of the first layer";
    case 7:
        c->arch = SRU_ARCH_SRU3;
        c->projection_size = 7;
        return "3.0, projection wider than the layer";
    case 8:
        c->layer_norm = 1;
        return "layer norm, 4 matrices";
    case 9:
        c->input_size = 6;
        c->layer_norm = 1;
        return "layer norm, 3 matrices";
    case 10:
        c->layer_norm = c->normalize_after = 1;
        return "layer norm after, 4 matrices";
    case 11:
        c->input_size = 6;
        c->layer_norm = c->normalize_after = 1;
        return "layer norm after, 3 matrices";
    case 12:
        c->input_size = 6;
        c->use_tanh = c->rescale = 1;
        c->scale_x = 1.5f;              /* other than that of rescale */
        return "tanh, scale_x";
    case 13:
        c->no_skip_term = 1;
        return "no skip term";
    case 14:
        c->input_size = 6;
        c->no_skip_term = c->rescale = 1;
        return "no skip term, equal sizes, rescale";
    case 15:
        c->input_size = 6;
        c->rescale = 1;
        c->highway_bias = -1.5f;
        return "rescale, 3 matrices";
    case 16:
        c->rescale = 1;
        c->highway_bias = -1.5f;
        return "rescale, 4 matrices";
    case 17:
        c->v1 = 1;
        return "v1";
    case 18:
        c->proj_input_to_hidden_first = 1;
        return "input projected first";
    case 19:
        c->input_size = 6;
        c->proj_input_to_hidden_first = 1;
        return "input that needs no projection first";
    case 20:
        c->hidden_size = 4;
        c->num_layers = 3;
        c->bidirectional = c->proj_input_to_hidden_first = c->rescale = 1;
        c->projection_size = 3;
        c->layer_norm = c->use_tanh = 1;
        c->highway_bias = 0.5f;
        c->nn_rnn_compatible_return = 1;
        return "nearly all at once";
    case 21:
        c->arch = SRU_ARCH_SRU3;
        c->hidden_size = 3;
        c->num_layers = 3;
        c->bidirectional = c->rescale = 1;
        c->projection_size = 4;
        c->layer_norm = c->normalize_after = c->use_tanh = 1;
        c->highway_bias = -0.5f;
        return "3.0, nearly all at once";
    case 22:
        c->input_size = c->hidden_size = c->num_layers = 1;
        return "one unit";
    case 23:
        c->input_size = 3;
        c->hidden_size = 1;
        c->num_layers = 2;
        c->bidirectional = 1;
        return "one unit in each direction";
    case 24:
        c->num_layers = 6;
        return "6 layers";
    case 25:
        c->input_size = 17;
        c->hidden_size = 33;
        c->num_layers = 3;
        return "odd sizes";
    case 26:
        c->arch = SRU_ARCH_SRU3;
        return "3.0, 4 matrices";
    case 27:
        c->arch = SRU_ARCH_SRU3;
        c->input_size = 6;
        c->layer_norm = 1;
        c->projection_size = 3;
        return "3.0, layer norm, projection";
    case 28:
        c->proj_input_to_hidden_first = c->layer_norm = c->bidirectional = 1;
        c->num_layers = 1;
        return "input projected first, one layer, layer norm, bidirectional";
    case 29:
        c->no_skip_term = c->bidirectional = c->v1 = 1;
        c->layer_norm = c->normalize_after = 1;
        return "no skip term, bidirectional, v1, layer norm after";
    case 30:
        c->input_size = 34;
        c->hidden_size = 17;
        c->bidirectional = 1;
        c->projection_size = 16;
        return "bidirectional, odd sizes, projection";
    case 31:
        c->num_layers = SRU_MAX_LAYERS;
        c->hidden_size = 2;
        return "as many layers as can be";
    default:
        return NULL;
    }
}

typedef struct net {
    sru_model m;
    sru_sizes size;
    float    *weights;
    size_t    I, N, S, L, count;    /* count: of the weights */
} net;

/* A network whose weights are all random, even biases and gains. */
static net new_net(const sru_config *config, uint64_t seed)
{
    net n;
    sru_tensor t;
    size_t j;
    int i;
    memset(&n, 0, sizeof n);
    n.m.config = *config;
    sru_size(&n.size, NULL, &n.m, 1, 1);
    n.count = n.size.weights/sizeof(float);
    n.m.weights = n.weights = junk(n.count);
    CHECK(sru_init(n.weights, config, seed) == SRU_OK, "sru_init");
    for (i = 0; sru_get_tensor(&t, &n.m, i); i++) {
        size_t many = t.shape[0]*(t.shape[1] ? t.shape[1] : 1);
        if (config->v1 && strstr(t.name, "weight_c")) continue;
        for (j = 0; j < many; j++) t.data[j] += (float)(0.3*test_random());
    }
    n.I = (size_t)config->input_size;
    n.N = naive_width(config);
    n.L = (size_t)naive_layers(config);
    n.S = n.L*n.N;
    return n;
}

/* A call with everything that it may take; a test sets to NULL the arrays that it does not want. */
typedef struct call {
    sru_io   io;
    size_t   rows, xs, hs, ss, rnn, count;  /* sizes of x, h, state, rnn_dropout_mask, weights */
    float   *x, *dropout, *rnn_dropout, *layer_dropout, *dh;
    uint8_t *pad;
} call;

static float *dropout_mask(size_t n)
{
    float *a = test_floats(n);
    size_t i;
    for (i = 0; i < n; i++) a[i] = test_bits()%4 ? 4.0f/3 : 0;
    return a;
}

static call new_call(const net *n, size_t T, size_t B)
{
    call k;
    size_t i;
    memset(&k, 0, sizeof k);
    k.rows = T*B;
    k.xs = k.rows*n->I;
    k.hs = k.rows*n->N;
    k.ss = B*n->S;
    k.rnn = B*(naive_layer_input(&n->m.config, 0) + (n->L - 1)*n->N);
    k.count = n->count;
    k.io.T = T;
    k.io.B = B;
    k.io.x = k.x = test_floats(k.xs);
    test_fill(k.x, k.xs, 1);
    k.io.h = junk(k.hs);
    k.io.state = test_floats(k.ss);
    test_fill(k.io.state, k.ss, 1);
    k.io.mask_pad = k.pad = (uint8_t *)test_alloc(k.rows);
    for (i = 0; i < k.rows; i++) k.pad[i] = test_bits()%5 == 0;
    k.io.dropout_mask = k.dropout = dropout_mask(k.ss);
    k.io.rnn_dropout_mask = k.rnn_dropout = dropout_mask(k.rnn);
    k.io.layer_dropout_mask = k.layer_dropout = dropout_mask((n->L - 1)*k.hs);
    k.io.dh = k.dh = test_floats(k.hs);
    test_fill(k.dh, k.hs, 1);
    k.io.dx = junk(k.xs);
    k.io.dstate = test_floats(k.ss);
    test_fill(k.io.dstate, k.ss, 1);
    k.io.grads = test_floats(k.count);
    test_fill(k.io.grads, k.count, 0.1);
    return k;
}

/* The same call with results of its own; what is NULL stays NULL. */
static call same_call(const call *from)
{
    call k = *from;
    k.io.h = junk(k.hs);
    if (k.io.state) k.io.state = copy(from->io.state, k.ss);
    if (k.io.dx) k.io.dx = junk(k.xs);
    if (k.io.dstate) k.io.dstate = copy(from->io.dstate, k.ss);
    if (k.io.grads) k.io.grads = copy(from->io.grads, k.count);
    k.io.tape = NULL;
    return k;
}

/* Releases what a call has of its own from same_call(); all: also what it has from new_call(). */
static void end_call(call *k, int all)
{
    free(k->io.h);
    free(k->io.state);
    free(k->io.dx);
    free(k->io.dstate);
    free(k->io.grads);
    free(k->io.tape);
    if (!all) return;
    free(k->x);
    free(k->pad);
    free(k->dropout);
    free(k->rnn_dropout);
    free(k->layer_dropout);
    free(k->dh);
}

/* Forward with a tape, and backward. */
static int train(const net *n, call *k, int threads, const char *what)
{
    sru_context c = context(threads);
    sru_sizes size;
    int ok;
    if (!CHECK(sru_size(&size, &c, &n->m, k->io.T, k->io.B) == SRU_OK, "%s: %s", what, message)) {
        return 0;
    }
    k->io.tape = test_alloc(size.tape);
    memset(k->io.tape, 0xff, size.tape);
    ok = CHECK(sru_forward(&c, &n->m, &k->io) == SRU_OK, "%s: forward: %s", what, message)
      && CHECK(sru_backward(&c, &n->m, &k->io) == SRU_OK, "%s: backward: %s", what, message);
    free(k->io.tape);
    k->io.tape = NULL;
    return ok;
}

/* ---- Results and gradients against the oracle ----------------------------------------------- */

/* The oracle for a call that has not run yet, with copies of all arrays that it takes. */
static naive_net new_oracle(const net *n, const call *k)
{
    naive_net o;
    const sru_io *io = &k->io;
    memset(&o, 0, sizeof o);
    o.model = &n->m;
    o.T = io->T;
    o.B = io->B;
    o.weights = naive_wide(n->weights, n->count);
    o.x = naive_wide(k->x, k->xs);
    o.h = naive_array(k->hs);
    o.state = naive_wide(io->state, k->ss);
    o.mask_pad = io->mask_pad;
    if (io->dropout_mask && n->m.config.dropout > 0) {
        o.dropout_mask = naive_wide(io->dropout_mask, k->ss);
    }
    if (io->rnn_dropout_mask && n->m.config.rnn_dropout > 0) {
        o.rnn_dropout_mask = naive_wide(io->rnn_dropout_mask, k->rnn);
    }
    if (io->layer_dropout_mask && n->m.config.layer_dropout > 0) {
        o.layer_dropout_mask = naive_wide(io->layer_dropout_mask, (n->L - 1)*k->hs);
    }
    o.dh = naive_wide(io->dh, k->hs);
    o.dx = naive_array(k->xs);
    o.dstate = naive_wide(io->dstate, k->ss);
    o.grads = naive_wide(io->grads, k->count);
    return o;
}

static void end_oracle(naive_net *o)
{
    naive_net_free(o);
    free((double *)o->weights);
    free((double *)o->x);
    free((double *)o->dropout_mask);
    free((double *)o->rnn_dropout_mask);
    free((double *)o->layer_dropout_mask);
    free((double *)o->dh);
    free(o->h);
    free(o->state);
    free(o->dx);
    free(o->dstate);
    free(o->grads);
}

/* A network as a function of weights, inputs and state; its loss weighs h and the last state. */
typedef struct problem {
    naive_net *o;
    double    *state, *cot;     /* where it starts; the weight of the last state */
    size_t     hs, ss;
} problem;

static double net_loss(void *arg)
{
    problem *p = (problem *)arg;
    double sum = 0;
    size_t i;
    naive_net_free(p->o);
    memcpy(p->o->state, p->state, p->ss*sizeof(double));
    naive_net_forward(p->o);
    for (i = 0; i < p->hs; i++) sum += p->o->h[i]*p->o->dh[i];
    for (i = 0; i < p->ss; i++) sum += p->o->state[i]*p->cot[i];
    return sum;
}

/* The oracle's gradients against finite differences in double. */
static void test_oracle(void)
{
    sru_config config;
    int i;
    test_random_state = 1;
    for (i = 0; i < VARIANTS; i++) {
        const char *what = variant(i, &config);
        net n = new_net(&config, 1);
        call k = new_call(&n, 4, 2);
        naive_net o;
        naive_variable v[3 + 200];
        problem p;
        sru_tensor t;
        int count = 2, j;
        if (n.count > 5000 || n.L > 6) {    /* has the same equations, and is only larger */
            end_call(&k, 1);
            free(n.weights);
            continue;
        }
        n.m.config.dropout = n.m.config.rnn_dropout = n.m.config.layer_dropout = 0.25f;
        o = new_oracle(&n, &k);
        memset(o.grads, 0, k.count*sizeof(double));
        p.o = &o;
        p.hs = k.hs;
        p.ss = k.ss;
        p.state = naive_wide(k.io.state, k.ss);
        p.cot = naive_wide(k.io.dstate, k.ss);
        net_loss(&p);
        naive_net_backward(&o);
        v[0].name = "x", v[0].value = (double *)o.x, v[0].gradient = o.dx, v[0].n = k.xs;
        v[1].name = "state", v[1].value = p.state, v[1].gradient = o.dstate, v[1].n = k.ss;
        for (j = 0; sru_get_tensor(&t, &n.m, j); j++) {
            ptrdiff_t at = t.data - n.weights;
            if (config.v1 && strstr(t.name, "weight_c")) continue;      /* they stay 0 */
            if (count == (int)COUNT(v)) break;
            v[count].name = j == 0 ? "the first tensor" : "another tensor";
            v[count].value = (double *)o.weights + at;
            v[count].gradient = o.grads + at;
            v[count++].n = t.shape[0]*(t.shape[1] ? t.shape[1] : 1);
        }
        naive_check_gradient(what, net_loss, &p, v, count);
        free(p.state);
        free(p.cot);
        end_oracle(&o);
        end_call(&k, 1);
        free(n.weights);
    }
}

/* Float32 against double: each operation rounds by 6e-8; errors seen here are a few 1e-7 in results
   and 1e-6 in gradients. The deepest network is allowed ten times as much. Products of bfloat16
   round their factors by 4e-3 at most; errors seen are up to 1.3e-2, and 3.8e-2 in all gradients
   together: in single gradients, sums may nearly cancel. (test_operators is as strict with these
   products as with those of floats.) */
static void compare(const net *n, const call *k, const naive_net *o, const char *what,
                    const char *with)
{
    double tol = bf16() ? 2e-2 : n->L > 6 ? 3e-5 : 3e-6, e;
    sru_tensor t;
    int i;
    e = test_error_double(k->io.h, o->h, k->hs);
    CHECK(e <= tol, "%s, %s: h is off by %g", what, with, e);
    e = test_error_double(k->io.dx, o->dx, k->xs);
    CHECK(e <= 3*tol, "%s, %s: dx is off by %g", what, with, e);
    if (k->io.state) {
        e = test_error_double(k->io.state, o->state, k->ss);
        CHECK(e <= tol, "%s, %s: state is off by %g", what, with, e);
    }
    if (k->io.dstate) {
        e = test_error_double(k->io.dstate, o->dstate, k->ss);
        CHECK(e <= 3*tol, "%s, %s: dstate is off by %g", what, with, e);
    }
    e = test_error_double(k->io.grads, o->grads, k->count);
    CHECK(e <= 3*tol, "%s, %s: gradients are off by %g", what, with, e);
    for (i = 0; !bf16() && sru_get_tensor(&t, &n->m, i); i++) {
        ptrdiff_t at = t.data - n->weights;
        size_t many = t.shape[0]*(t.shape[1] ? t.shape[1] : 1);
        e = test_error_double(k->io.grads + at, o->grads + at, many);
        CHECK(e <= 3*tol, "%s, %s: the gradient of %s is off by %g", what, with, t.name, e);
    }
}

/* Every variant, in its plain form and with every option of a call. */
static void test_gradients(void)
{
    static const char *names[] = {"bare", "padding", "state", "dropout masks", "all"};
    sru_config config;
    int i, j;
    test_random_state = 2;
    for (i = 0; i < VARIANTS; i++) {
        const char *what = variant(i, &config);
        net n = new_net(&config, 1);
        for (j = n.L > 6 ? 4 : 0; j < 5; j++) {
            call k = new_call(&n, i%2 ? 7 : 9, 3), other;
            naive_net o;
            int threads;
            if (j != 1 && j != 4) k.io.mask_pad = NULL;
            if (j != 2 && j != 4) {
                free(k.io.state);
                k.io.state = NULL;
            }
            if (j < 2) {                /* it may be wanted without a state, too */
                free(k.io.dstate);
                k.io.dstate = NULL;
            }
            n.m.config = config;
            if (j == 3 || j == 4) {
                n.m.config.dropout = n.m.config.rnn_dropout = n.m.config.layer_dropout = 0.25f;
            } else {
                k.io.dropout_mask = k.io.rnn_dropout_mask = k.io.layer_dropout_mask = NULL;
            }
            o = new_oracle(&n, &k);
            naive_net_forward(&o);
            naive_net_backward(&o);
            other = same_call(&k);
            train(&n, &other, 1, what);
            compare(&n, &other, &o, what, names[j]);
            for (threads = 2; threads <= TEST_THREADS; threads++) {
                call again = same_call(&k);
                train(&n, &again, threads, what);
                CHECK(alike(again.io.h, other.io.h, k.hs) && alike(again.io.dx, other.io.dx, k.xs)
                      && alike(again.io.grads, other.io.grads, k.count),
                      "%s, %s: other bits with %d threads", what, names[j], threads);
                end_call(&again, 0);
            }
            if (j != 3 && j != 4) {     /* without dropout, inference is the same */
                call again = same_call(&k);
                sru_context c = context(1);
                CHECK(sru_forward(&c, &n.m, &again.io) == SRU_OK, "%s: %s", what, message);
                CHECK(alike(again.io.h, other.io.h, k.hs), "%s, %s: other bits without a tape",
                      what, names[j]);
                CHECK(!k.io.state || alike(again.io.state, other.io.state, k.ss),
                      "%s, %s: another state without a tape", what, names[j]);
                end_call(&again, 0);
            }
            {   /* that some gradients are not wanted changes no others */
                call again = same_call(&k);
                free(again.io.grads);
                again.io.grads = NULL;
                train(&n, &again, 1, what);
                CHECK(alike(again.io.dx, other.io.dx, k.xs), "%s: other dx without grads", what);
                end_call(&again, 0);
                again = same_call(&k);
                free(again.io.dx);
                again.io.dx = NULL;
                train(&n, &again, 1, what);
                CHECK(alike(again.io.grads, other.io.grads, k.count), "%s: other grads without dx",
                      what);
                end_call(&again, 0);
            }
            end_oracle(&o);
            end_call(&other, 0);
            end_call(&k, 1);
        }
        free(n.weights);
    }
}

/* Many rows and units, as networks have them: blocks, chunks and threads all take part. */
static void test_large(void)
{
    sru_config config;
    net n;
    call k, one, three;
    naive_net o;
    memset(&config, 0, sizeof config);
    config.input_size = 270;
    config.hidden_size = 70;
    config.num_layers = 2;
    config.layer_norm = 1;
    test_random_state = 3;
    n = new_net(&config, 1);
    k = new_call(&n, 21, 7);
    n.m.config.dropout = n.m.config.rnn_dropout = n.m.config.layer_dropout = 0.25f;
    o = new_oracle(&n, &k);
    naive_net_forward(&o);
    naive_net_backward(&o);
    one = same_call(&k);
    three = same_call(&k);
    train(&n, &one, 1, "large");
    train(&n, &three, 3, "large");
    compare(&n, &one, &o, "large", "all");
    CHECK(alike(three.io.h, one.io.h, k.hs) && alike(three.io.dx, one.io.dx, k.xs)
          && alike(three.io.grads, one.io.grads, k.count)
          && alike(three.io.dstate, one.io.dstate, k.ss), "large: other bits with 3 threads");
    end_oracle(&o);
    end_call(&one, 0);
    end_call(&three, 0);
    end_call(&k, 1);
    free(n.weights);
}

/* If the configuration has no dropout, masks have no effect, even on the tape's length. */
static void test_masks_given(void)
{
    enum { GUARD = 1 << 16 };
    sru_config config;
    int i;
    test_random_state = 12;
    for (i = 0; i < VARIANTS; i++) {
        const char *what = variant(i, &config);
        net n = new_net(&config, 1);
        call k = new_call(&n, 5, 2), other = same_call(&k), bare = k;
        naive_net o;
        sru_context c = context(1);
        unsigned char *tape;
        sru_sizes size;
        size_t j;
        bare.io.dropout_mask = bare.io.rnn_dropout_mask = bare.io.layer_dropout_mask = NULL;
        o = new_oracle(&n, &bare);
        naive_net_forward(&o);
        naive_net_backward(&o);
        CHECK(sru_size(&size, &c, &n.m, 5, 2) == SRU_OK, "%s", message);
        other.io.tape = tape = (unsigned char *)test_alloc(size.tape + GUARD);
        memset(tape + size.tape, 0x55, GUARD);
        CHECK(sru_forward(&c, &n.m, &other.io) == SRU_OK
              && sru_backward(&c, &n.m, &other.io) == SRU_OK, "%s: %s", what, message);
        for (j = GUARD; j > 0 && tape[size.tape + j - 1] == 0x55; j--) continue;
        CHECK(!j, "%s, masks given: %lu bytes past the tape were written", what,
              (unsigned long)j);
        compare(&n, &other, &o, what, "masks given without dropout");
        end_oracle(&o);
        end_call(&other, 0);
        end_call(&k, 1);
        free(n.weights);
    }
}

/* Tokens through an embedding give what the rows that they name give, gradients too, whether the
   first product is of the table, as when that has 3 rows, or of the steps. So also in SRU++. */
static void test_tokens(void)
{
    static const size_t tables[] = {1, 3, 40};
    sru_config config;
    int i, j, masks;
    test_random_state = 13;
    for (i = 0; i <= VARIANTS; i++) {
        const char *what = variant(i, &config);
        const size_t T = 5, B = 4;
        net n;
        if (!what) {
            what = "SRU++";
            config.arch = SRU_ARCH_SRUPP;
            config.projection_size = 4;
            config.num_heads = 2;
        }
        n = new_net(&config, 1);
        for (j = 0; j < 6; j++) {
            const size_t V = tables[j%3];
            float *table = test_floats(V*n.I), *dtable = test_floats(V*n.I), *first, *given;
            int32_t tokens[20];
            call k = new_call(&n, T, B), rows, looked_up;
            sru_context c = context(1);
            sru_sizes size;
            float *saved[SRU_MAX_LAYERS] = {NULL}, *other[SRU_MAX_LAYERS] = {NULL};
            const size_t wide = T*B*(n.I > n.N ? n.I : n.N);
            size_t t, u;
            const double tol = bf16() ? 1e-2 : 3e-6;    /* where sums are rounded, or terms */
            double e;
            test_fill(table, V*n.I, 1);
            test_fill(dtable, V*n.I, 1);
            given = copy(dtable, V*n.I);
            masks = j >= 3;
            n.m.config = config;
            if (masks) n.m.config.dropout = n.m.config.rnn_dropout = 0.25f;
            for (t = 0; t < T*B; t++) {         /* some name no row */
                tokens[t] = (int32_t)(test_bits()%(V + 2)) - 1;
                for (u = 0; u < n.I; u++)
                    k.x[t*n.I + u] = tokens[t] < 0 || tokens[t] >= (int32_t)V ? 0
                                   : table[(size_t)tokens[t]*n.I + u];
            }
            n.m.vocab_size = 0;
            rows = same_call(&k);
            rows.io.saved = saved;
            saved[0] = test_floats(wide);
            train(&n, &rows, 1, what);
            for (t = 0; t < T*B; t++)
                for (u = 0; u < n.I && tokens[t] >= 0 && tokens[t] < (int32_t)V; u++)
                    given[(size_t)tokens[t]*n.I + u] += rows.io.dx[t*n.I + u];

            n.m.vocab_size = V;
            n.m.embedding = table;
            k.io.tokens = tokens;
            k.io.x = NULL;
            CHECK(sru_forward(&c, &n.m, &k.io) == SRU_EINVAL, "%s: dx of tokens", what);
            free(k.io.dx);
            k.io.dx = NULL;
            first = copy(dtable, V*n.I);
            for (c.threads = 1; c.threads <= 3; c.threads += 2) {
                float *d = copy(first, V*n.I);
                looked_up = same_call(&k);
                looked_up.io.dembedding = d;
                train(&n, &looked_up, c.threads, what);
                CHECK(alike(looked_up.io.h, rows.io.h, k.hs)
                      && alike(looked_up.io.state, rows.io.state, k.ss),
                      "%s, %lu rows: tokens give other bits than x", what, (unsigned long)V);
                e = test_error(d, given, V*n.I);
                CHECK(e < tol, "%s, %lu rows: dembedding is off by %g", what, (unsigned long)V, e);
                e = test_error(looked_up.io.grads, rows.io.grads, k.count);
                CHECK(e < tol, "%s, %lu rows: gradients are off by %g", what, (unsigned long)V, e);
                e = test_error(looked_up.io.dstate, rows.io.dstate, k.ss);
                CHECK(e < tol, "%s, %lu rows: dstate is off by %g", what, (unsigned long)V, e);
                if (c.threads == 1) memcpy(dtable, d, V*n.I*sizeof *d);
                else CHECK(alike(d, dtable, V*n.I), "%s, %lu rows: other bits with 3 threads",
                           what, (unsigned long)V);
                free(d);
                d = copy(looked_up.io.grads, k.count);
                end_call(&looked_up, 0);

                looked_up = same_call(&k);          /* now without dembedding */
                train(&n, &looked_up, c.threads, what);
                CHECK(alike(looked_up.io.grads, d, k.count),
                      "%s, %lu rows: other gradients without dembedding", what, (unsigned long)V);
                free(d);
                end_call(&looked_up, 0);

                looked_up = same_call(&k);          /* without grads */
                free(looked_up.io.grads);
                looked_up.io.grads = NULL;
                looked_up.io.dembedding = d = copy(first, V*n.I);
                train(&n, &looked_up, c.threads, what);
                CHECK(alike(d, dtable, V*n.I), "%s, %lu rows: another dembedding without grads",
                      what, (unsigned long)V);
                free(d);
                end_call(&looked_up, 0);
            }
            c.threads = 1;
            looked_up = same_call(&k);              /* in inference */
            CHECK(sru_forward(&c, &n.m, &looked_up.io) == SRU_OK, "%s: %s", what, message);
            CHECK(masks || alike(looked_up.io.h, rows.io.h, k.hs),
                  "%s, %lu rows: other bits without a tape", what, (unsigned long)V);
            end_call(&looked_up, 0);

            looked_up = same_call(&k);              /* in the memory that was told, for less too */
            looked_up.io.dembedding = dtable;
            looked_up.io.saved = other;
            looked_up.io.x = table;                 /* nobody looks at it where there are tokens */
            other[0] = test_floats(wide);
            free(looked_up.io.state);
            looked_up.io.state = NULL;
            CHECK(sru_size(&size, &c, &n.m, T, B) == SRU_OK, "%s: %s", what, message);
            c.work = test_alloc(size.train_work);
            c.work_size = size.train_work;
            looked_up.io.tape = test_alloc(size.tape);
            for (t = T; t > 0; t--) {
                looked_up.io.T = t;
                CHECK(sru_forward(&c, &n.m, &looked_up.io) == SRU_OK
                      && sru_backward(&c, &n.m, &looked_up.io) == SRU_OK,
                      "%s, %lu rows, %lu steps: %s", what, (unsigned long)V, (unsigned long)t,
                      message);
            }
            CHECK(alike(saved[0], other[0], wide), "%s, %lu rows: other inputs saved than with x",
                  what, (unsigned long)V);
            free(saved[0]);
            free(other[0]);
            looked_up.io.saved = NULL;
            looked_up.io.T = T;
            free(looked_up.io.tape);
            free(c.work);
            looked_up.io.tape = NULL;
            c.work = test_alloc(size.work);
            c.work_size = size.work;
            CHECK(sru_forward(&c, &n.m, &looked_up.io) == SRU_OK, "%s: with %lu bytes as told: %s",
                  what, (unsigned long)size.work, message);
            c.work_size--;
            CHECK(sru_forward(&c, &n.m, &looked_up.io) == SRU_ENOMEM, "%s: %lu bytes are enough",
                  what, (unsigned long)c.work_size);
            free(c.work);
            end_call(&looked_up, 0);

            free(table);
            free(dtable);
            free(first);
            free(given);
            end_call(&rows, 0);
            end_call(&k, 1);
        }
        free(n.weights);
    }
}

/* Training a sequence in two halves, which hand over state and gradient, is training the whole. */
static void test_halves(void)
{
    sru_config config;
    int i;
    test_random_state = 4;
    for (i = 0; i < VARIANTS; i++) {
        const char *what = variant(i, &config);
        net n = new_net(&config, 1);
        const size_t T = 10, B = 3, t = 4;
        call whole = new_call(&n, T, B);
        sru_context c = context(1);
        sru_sizes size;
        sru_io a, b;
        float *grads = copy(whole.io.grads, n.count), *state = copy(whole.io.state, whole.ss);
        float *dstate = copy(whole.io.dstate, whole.ss), *h = junk(whole.hs), *dx = junk(whole.xs);
        double e;
        if (config.bidirectional) goto next;    /* a backward direction cannot be halved */
        n.m.config.dropout = n.m.config.rnn_dropout = 0.25f;
        whole.io.layer_dropout_mask = NULL;     /* it is (L-1,T,B,N): the halves' lie apart */
        a = b = whole.io;
        a.T = t, b.T = T - t;
        a.x = whole.io.x, b.x = whole.io.x + t*B*n.I;
        a.h = h, b.h = h + t*B*n.N;
        b.mask_pad = whole.io.mask_pad + t*B;
        b.dh = whole.io.dh + t*B*n.N;
        a.dx = dx, b.dx = dx + t*B*n.I;
        a.grads = b.grads = grads;
        a.state = b.state = state;
        a.dstate = b.dstate = dstate;
        CHECK(sru_size(&size, &c, &n.m, T, B) == SRU_OK, "%s", message);
        a.tape = test_alloc(size.tape);
        b.tape = test_alloc(size.tape);
        CHECK(sru_forward(&c, &n.m, &a) == SRU_OK && sru_forward(&c, &n.m, &b) == SRU_OK
              && sru_backward(&c, &n.m, &b) == SRU_OK && sru_backward(&c, &n.m, &a) == SRU_OK,
              "%s: %s", what, message);
        train(&n, &whole, 1, what);
        CHECK(alike(h, whole.io.h, whole.hs) && alike(state, whole.io.state, whole.ss),
              "%s: halves have other bits", what);
        /* sums of gradients are rounded in another order, here and on the way */
        e = test_error(dx, whole.io.dx, whole.xs);
        CHECK(e <= 1e-5, "%s: dx of the halves is off by %g", what, e);
        e = test_error(grads, whole.io.grads, n.count);
        CHECK(e <= 1e-5, "%s: gradients of the halves are off by %g", what, e);
        e = test_error(dstate, whole.io.dstate, whole.ss);
        CHECK(e <= 1e-5, "%s: dstate of the halves is off by %g", what, e);
        free(a.tape);
        free(b.tape);
    next:
        free(grads);
        free(state);
        free(dstate);
        free(h);
        free(dx);
        end_call(&whole, 1);
        free(n.weights);
    }
}

/* dh may be where h was: backward neither reads h nor writes dh. */
static void test_dh_in_h(void)
{
    sru_config config;
    int i;
    test_random_state = 11;
    for (i = 0; i < VARIANTS; i++) {
        const char *what = variant(i, &config);
        net n = new_net(&config, 1);
        call k = new_call(&n, 9, 3), other = same_call(&k);
        sru_context c = context(2);
        sru_sizes size;
        CHECK(sru_size(&size, &c, &n.m, 9, 3) == SRU_OK, "%s", message);
        other.io.tape = test_alloc(size.tape);
        other.io.dh = other.io.h;
        train(&n, &k, 2, what);
        CHECK(sru_forward(&c, &n.m, &other.io) == SRU_OK, "%s: %s", what, message);
        memcpy(other.io.h, k.io.dh, k.hs*4);
        CHECK(sru_backward(&c, &n.m, &other.io) == SRU_OK, "%s: %s", what, message);
        CHECK(alike(other.io.dx, k.io.dx, k.xs) && alike(other.io.grads, k.io.grads, n.count)
              && alike(other.io.dstate, k.io.dstate, k.ss), "%s: dh in h gives other bits", what);
        CHECK(alike(other.io.h, k.io.dh, k.hs), "%s: backward writes dh", what);
        end_call(&other, 0);
        end_call(&k, 1);
        free(n.weights);
    }
}

/* ---- Bits ----------------------------------------------------------------------------------- */

static const char *type_names[] = {"PLAIN", "F32", "BF16", "Q8"};

/* Makes the network in another form; free its weights. Returns 0 if the form is not offered. */
static int in_form(net *to, const net *from, sru_type type)
{
    sru_context c = context(1);
    sru_model with = from->m;
    *to = *from;
    to->m.type = type;
    if (type != SRU_PLAIN && !sru_cpu()->pack(&c, NULL, type, NULL, 1, 1)) return 0;
    CHECK(sru_size(&to->size, &c, &to->m, 1, 1) == SRU_OK, "%s", message);
    to->weights = (float *)test_alloc(to->size.weights);
    memset(to->weights, 0xff, to->size.weights);
    with.vocab_size = 1;
    with.embedding = from->weights;
    memset(&to->m, 0, sizeof to->m);
    to->m.type = type;
    CHECK(sru_pack(&c, &to->m, to->weights, &with) == SRU_OK, "%s", message);
    CHECK(to->m.weights == to->weights && to->m.type == type && to->m.vocab_size == 1
          && to->m.embedding == with.embedding, "sru_pack has made no model");
    CHECK(type != SRU_PLAIN || !memcmp(to->weights, from->weights, to->size.weights),
          "packed as PLAIN, weights have other bytes");
    to->m.vocab_size = 0;
    return 1;
}

/* Whether h may be x. */
static int in_place(const net *n)
{
    return n->I == n->N && !n->m.config.bidirectional && !n->m.vocab_size;
}

static void run(const net *n, const sru_io *io, int threads, const char *what)
{
    sru_context c = context(threads);
    CHECK(sru_forward(&c, &n->m, io) == SRU_OK, "%s: %s", what, message);
}

/* The part of a call with steps from ... to-1. */
static sru_io steps(const net *n, const sru_io *io, size_t from, size_t to)
{
    sru_io part = *io;
    part.T = to - from;
    part.x += from*io->B*n->I;
    part.h += from*io->B*n->N;
    if (part.mask_pad) part.mask_pad += from*io->B;
    return part;
}

/* Compares sequence b of a call, run alone, with the whole call. */
static int alone(const net *n, const call *whole, const float *start, size_t b, const char *what)
{
    size_t T = whole->io.T, B = whole->io.B, t;
    float *x = test_floats(T*n->I), *h = junk(T*n->N), *state = copy(start + b*n->S, n->S);
    uint8_t *pad = (uint8_t *)test_alloc(T);
    sru_io io;
    int equal;
    memset(&io, 0, sizeof io);
    io.T = T;
    io.B = 1;
    io.x = x;
    io.h = h;
    io.state = state;
    if (whole->io.mask_pad) io.mask_pad = pad;
    for (t = 0; t < T; t++) {
        memcpy(x + t*n->I, whole->x + (t*B + b)*n->I, n->I*sizeof *x);
        if (whole->io.mask_pad) pad[t] = whole->io.mask_pad[t*B + b];
    }
    run(n, &io, 1, what);
    equal = alike(state, whole->io.state + b*n->S, n->S);
    for (t = 0; t < T; t++) {
        equal = equal && alike(h + t*n->N, whole->io.h + (t*B + b)*n->N, n->N);
    }
    free(x);
    free(h);
    free(state);
    free(pad);
    return equal;
}

static void test_bits_of(const sru_config *config, const char *what, size_t T, size_t B)
{
    const size_t chunks[] = {1, 2, 3, 1 + (size_t)(test_bits() % T), 64, 300};
    net plain = new_net(config, 5), n;
    call start = new_call(&plain, T, B), first;
    char name[160];
    int type, threads;
    size_t i, t, b;
    start.io.dropout_mask = start.io.rnn_dropout_mask = start.io.layer_dropout_mask = NULL;
    memset(&first, 0, sizeof first);
    for (type = SRU_PLAIN; type <= SRU_Q8; type++) {
        call whole = same_call(&start), other;
        sprintf(name, "%s, %s, T %lu, B %lu", what, type_names[type], (unsigned long)T,
                (unsigned long)B);
        if (!in_form(&n, &plain, (sru_type)type)) {
            end_call(&whole, 0);
            continue;
        }
        run(&n, &whole.io, 1, name);
        if (type == SRU_PLAIN) {
            first = whole;
        } else if (type == SRU_F32 && !bf16()) {
            CHECK(alike(whole.io.h, first.io.h, whole.hs)
                  && alike(whole.io.state, first.io.state, whole.ss),
                  "%s: other bits than PLAIN", name);
        } else {
            /* these round weights to 1/256 of themselves, or of the largest in their row, which
               loses nothing if the row has only that one */
            double e = test_error(whole.io.h, first.io.h, whole.hs);
            CHECK(e < 0.05 && (e > 1e-6 || config->input_size == 1),
                  "%s: differs from PLAIN by %g", name, e);
        }
        for (threads = 2; threads <= TEST_THREADS; threads++) {
            other = same_call(&start);
            run(&n, &other.io, threads, name);
            CHECK(alike(other.io.h, whole.io.h, whole.hs)
                  && alike(other.io.state, whole.io.state, whole.ss),
                  "%s: other bits with %d threads", name, threads);
            end_call(&other, 0);
        }
        for (threads = 1; threads <= TEST_THREADS && in_place(&n); threads++) {
            other = same_call(&start);
            memcpy(other.io.h, start.io.x, other.hs*sizeof(float));
            other.io.x = other.io.h;
            {                           /* in as much scratch memory as sru_size() says */
                sru_context c = context(threads);
                sru_sizes size;
                CHECK(sru_size(&size, &c, &n.m, T, B) == SRU_OK, "%s: %s", name, message);
                c.work = test_alloc(c.work_size = size.work);
                CHECK(sru_forward(&c, &n.m, &other.io) == SRU_OK, "%s: %s", name, message);
                free(c.work);
            }
            CHECK(alike(other.io.h, whole.io.h, whole.hs)
                  && alike(other.io.state, whole.io.state, whole.ss),
                  "%s: other bits with h in place of x, %d threads", name, threads);
            end_call(&other, 0);
        }
        for (i = 0; i < COUNT(chunks) && !config->bidirectional; i++) {
            if (chunks[i] >= T) continue;
            other = same_call(&start);
            for (t = 0; t < T; t += chunks[i]) {
                sru_io part = steps(&n, &other.io, t, t + chunks[i] < T ? t + chunks[i] : T);
                run(&n, &part, 1, name);
            }
            CHECK(alike(other.io.h, whole.io.h, whole.hs)
                  && alike(other.io.state, whole.io.state, whole.ss),
                  "%s: other bits in chunks of %lu", name, (unsigned long)chunks[i]);
            end_call(&other, 0);
        }
        for (b = 0; b < B; b += B > 2 ? B - 1 : 1) {
            CHECK(alone(&n, &whole, start.io.state, b, name), "%s: sequence %lu has other bits "
                  "alone", name, (unsigned long)b);
        }
        {   /* no state means a state of zeros */
            call none = same_call(&start);
            other = same_call(&start);
            memset(other.io.state, 0, other.ss*sizeof(float));
            run(&n, &other.io, 1, name);
            free(none.io.state);
            none.io.state = NULL;
            run(&n, &none.io, 1, name);
            CHECK(alike(other.io.h, none.io.h, whole.hs), "%s: other bits without a state", name);
            end_call(&other, 0);
            end_call(&none, 0);
        }
        free(n.weights);
        if (type != SRU_PLAIN) end_call(&whole, 0);
    }
    end_call(&first, 0);
    end_call(&start, 1);
    free(plain.weights);
}

static void test_bitwise(void)
{
    sru_config config;
    int i;
    test_random_state = 5;
    for (i = 0; i < VARIANTS; i++) {
        const char *what = variant(i, &config);
        test_bits_of(&config, what, 11, 3);
    }
    /* more rows than are computed at a time, wider than a block of units, deeper than a panel */
    variant(0, &config);
    test_bits_of(&config, "long", test_brief() ? 420 : 4200, 1);
    variant(18, &config);
    test_bits_of(&config, "long, input projected first", 301, 5);
    variant(20, &config);
    test_bits_of(&config, "long, bidirectional", 201, 7);
    variant(10, &config);
    config.input_size = 530;
    config.hidden_size = 80;
    test_bits_of(&config, "wide", 23, 3);
    config.bidirectional = 1;
    test_bits_of(&config, "wide, bidirectional", 11, 3);
    variant(0, &config);
    config.input_size = config.hidden_size = 200;       /* several blocks of units */
    config.num_layers = 1;
    test_bits_of(&config, "wide, one layer", test_brief() ? 7 : 70, 3);
    variant(4, &config);
    config.input_size = 9;
    config.hidden_size = 9;
    test_bits_of(&config, "a large batch", 2, test_brief() ? 110 : 1100);
    for (i = 0; i < test_cases(24); i++) {
        char what[120];
        const int a = 5 + (int)(test_bits() % 86), b = 1 + (int)(test_bits() % 90);
        const size_t T = 1 + (size_t)(test_bits() % 70), B = 1 + (size_t)(test_bits() % 6);
        const char *of = variant((int)(test_bits() % VARIANTS), &config);
        if (config.num_layers > 6) continue;
        config.hidden_size = a;
        config.input_size = b;
        sprintf(what, "%.60s, at random, %d inputs, %d units", of, b, a);
        test_bits_of(&config, what, T, B);
    }
}

/* The inputs of layers are saved alike in training and in inference, which goes through time in
   chunks, of x or of tokens that name the rows of x. */
static void test_saved(void)
{
    enum { T = 2500, B = 2, KINDS = 3 };
    static const int kinds[KINDS] = {0, 5, 18};
    int32_t tokens[T*B];
    int i, l, way;
    for (i = 0; i < T*B; i++) tokens[i] = i;
    for (i = 0; i < KINDS; i++) {
        sru_config config;
        const char *what = variant(kinds[i], &config);
        net n = new_net(&config, 1);
        call k = new_call(&n, T, B);
        sru_context c = context(1);
        sru_sizes size;
        float *saved[3][SRU_MAX_LAYERS];
        CHECK(sru_size(&size, &c, &n.m, T, B) == SRU_OK, "%s", message);
        for (way = 0; way < 3; way++) {
            call other = same_call(&k);
            for (l = 0; l < (int)n.L; l++)
                saved[way][l] = test_floats(T*B*naive_layer_input(&config, l));
            other.io.saved = saved[way];
            if (way == 1) other.io.tape = test_alloc(size.tape);
            if (way == 2) {
                n.m.vocab_size = T*B, n.m.embedding = k.x, other.io.tokens = tokens;
                free(other.io.dx);
                other.io.dx = NULL;
            }
            CHECK(sru_forward(&c, &n.m, &other.io) == SRU_OK, "%s: %s", what, message);
            end_call(&other, 0);
        }
        for (l = 0; l < (int)n.L; l++) {
            for (way = 1; way < 3; way++) {
                CHECK(alike(saved[0][l], saved[way][l], T*B*naive_layer_input(&config, l)),
                      "%s: another input of layer %d is saved with %s", what, l,
                      way == 1 ? "a tape" : "tokens");
                free(saved[way][l]);
            }
            free(saved[0][l]);
        }
        end_call(&k, 1);
        free(n.weights);
    }
}

/* ---- Dropout -------------------------------------------------------------------------------- */

/* One or two layers that pass their input on: c = u0 = x, h = c. */
static net mirror(const sru_config *config, int D)
{
    sru_config c = *config;
    net n;
    sru_tensor t;
    int i, j;
    c.input_size = c.hidden_size = D;
    c.no_skip_term = 1;
    n = new_net(&c, 1);
    for (i = 0; sru_get_tensor(&t, &n.m, i); i++) {
        size_t many = t.shape[0]*(t.shape[1] ? t.shape[1] : 1), k;
        for (k = 0; k < many; k++) t.data[k] = 0;
        if (strstr(t.name, "bias")) {
            for (k = 0; k < many; k++) t.data[k] = k < many/2 ? -200.0f : 200.0f;
        } else if (!strstr(t.name, "weight_c")) {
            for (j = 0; j < D; j++) t.data[j*D + j] = 1;    /* of the first matrix */
        }
    }
    return n;
}

/* The masks that a network draws, seen in its output: 0 or 1/(1-p), as often as they should be; one
   for all steps, or one for each step; and different for each sequence and layer. */
static void test_masks(void)
{
    enum { D = 40, T = 12, B = 9 };
    static const char *names[] = {"dropout", "rnn_dropout", "layer_dropout"};
    int kind;
    for (kind = 0; kind < 3; kind++) {
        const double p = 0.3;
        double kept = 0, repeats = 0, count = kind == 2 ? T*B*D : B*D;
        sru_config config;
        size_t i, strange = 0;
        net n;
        call k;
        memset(&config, 0, sizeof config);
        config.num_layers = kind == 1 ? 1 : 2;
        if (kind == 0) config.dropout = (float)p;
        if (kind == 1) config.rnn_dropout = (float)p;
        if (kind == 2) config.layer_dropout = (float)p;
        n = mirror(&config, D);
        k = new_call(&n, T, B);
        k.io.dropout_mask = k.io.rnn_dropout_mask = k.io.layer_dropout_mask = NULL;
        k.io.mask_pad = NULL;
        for (i = 0; i < k.xs; i++) k.x[i] = 1;
        train(&n, &k, 1, names[kind]);
        for (i = 0; i < k.hs; i++) {
            double m = (double)k.io.h[i];
            if (fabs(m) > 1e-6 && fabs(m*(1 - p) - 1) > 1e-5) strange++;
            if (kind == 2 || i < B*D) kept += m > 0.5;
            if (i >= B*D) repeats += (m > 0.5) == (k.io.h[i - B*D] > 0.5f);
        }
        CHECK(!strange, "%s: %lu factors are neither 0 nor 1/(1 - p)", names[kind],
              (unsigned long)strange);
        CHECK(fabs(kept/count - (1 - p)) < 5*sqrt(p*(1 - p)/count), "%s keeps %g of %g",
              names[kind], kept/count, 1 - p);
        repeats /= (T - 1)*B*D;
        if (kind == 2) {
            CHECK(repeats < 0.7, "%s: %g of the factors are those of the step before",
                  names[kind], repeats);
        } else {
            CHECK(repeats > 0.9999, "%s: only %g of the factors are those of the step before",
                  names[kind], repeats);
        }
        {
            size_t b, differ = 0;
            for (b = 1; b < B; b++) differ += !alike(k.io.h, k.io.h + b*D, D);
            CHECK(differ == B - 1, "%s: sequences share a mask", names[kind]);
        }
        end_call(&k, 1);
        free(n.weights);
    }
}

/* Random dropout of a real network: it can be repeated with any number of threads, differs with
   another seed or step, does not happen without a tape; and backward uses the masks of forward. */
static void test_dropout(void)
{
    int kind;
    test_random_state = 6;
    for (kind = 0; kind < 4; kind++) {
        sru_config config;
        net n;
        call k, one, other;
        sru_context c = context(1);
        sru_sizes size;
        int threads;
        variant(25, &config);
        if (kind == 0 || kind == 3) config.dropout = 0.4f;
        if (kind == 1 || kind == 3) config.rnn_dropout = 0.3f;
        if (kind == 2 || kind == 3) config.layer_dropout = 0.2f;
        n = new_net(&config, 1);
        k = new_call(&n, 40, 5);
        k.io.dropout_mask = k.io.rnn_dropout_mask = k.io.layer_dropout_mask = NULL;
        one = same_call(&k);
        train(&n, &one, 1, "dropout");
        for (threads = 1; threads <= TEST_THREADS; threads++) {
            other = same_call(&k);
            train(&n, &other, threads, "dropout");
            CHECK(alike(other.io.h, one.io.h, k.hs) && alike(other.io.dx, one.io.dx, k.xs)
                  && alike(other.io.grads, one.io.grads, k.count),
                  "dropout %d: other bits with %d threads", kind, threads);
            end_call(&other, 0);
        }
        CHECK(sru_size(&size, &c, &n.m, 40, 5) == SRU_OK, "%s", message);
        for (threads = 0; threads < 2; threads++) {
            other = same_call(&k);
            other.io.tape = test_alloc(size.tape);
            c.seed = threads ? 12 : 11;
            c.step = threads ? 22 : 23;
            CHECK(sru_forward(&c, &n.m, &other.io) == SRU_OK, "%s", message);
            CHECK(test_error(other.io.h, one.io.h, k.hs) > 0.01, "dropout %d: another %s changes "
                  "nothing", kind, threads ? "seed" : "step");
            end_call(&other, 0);
        }
        /* inference: as if the configuration had no dropout, whatever masks are there */
        other = same_call(&k);
        c = context(1);
        other.io.dropout_mask = k.dropout;
        other.io.rnn_dropout_mask = k.rnn_dropout;
        other.io.layer_dropout_mask = k.layer_dropout;
        CHECK(sru_forward(&c, &n.m, &other.io) == SRU_OK, "%s", message);
        {
            net bare = n;
            call third = same_call(&k);
            bare.m.config.dropout = bare.m.config.rnn_dropout = 0;
            bare.m.config.layer_dropout = 0;
            CHECK(sru_forward(&c, &bare.m, &third.io) == SRU_OK, "%s", message);
            CHECK(alike(other.io.h, third.io.h, k.hs), "dropout %d in inference", kind);
            end_call(&third, 0);
        }
        end_call(&other, 0);
        /* backward has the same masks: in a direction d, the loss, which is linear in dh, must
           change as dx says. In float32, with a step of 1/64, rounding and curvature leave 1e-3;
           other masks would give an entirely different number */
        {
            float *d = test_floats(k.xs), *x = copy(k.x, k.xs);
            double slope = 0, up = 0, down = 0, length = 0, e = 1.0/64;
            size_t i;
            int sign;
            test_fill(d, k.xs, 1);
            for (i = 0; i < k.xs; i++) {
                d[i] = one.io.dx[i] + 0.1f*d[i];        /* where it changes most */
                length += (double)d[i]*(double)d[i];
            }
            length = sqrt(length);
            for (i = 0; i < k.xs; i++) d[i] /= (float)length;
            for (i = 0; i < k.xs; i++) slope += (double)d[i]*(double)one.io.dx[i];
            for (sign = -1; sign <= 1; sign += 2) {
                double sum = 0;
                other = same_call(&k);
                other.io.tape = test_alloc(size.tape);
                for (i = 0; i < k.xs; i++) k.x[i] = x[i] + (float)(sign*e)*d[i];
                CHECK(sru_forward(&c, &n.m, &other.io) == SRU_OK, "%s", message);
                for (i = 0; i < k.hs; i++) sum += (double)other.io.h[i]*(double)k.dh[i];
                for (i = 0; i < k.ss; i++) {
                    sum += (double)other.io.state[i]*(double)k.io.dstate[i];
                }
                if (sign > 0) up = sum;
                else down = sum;
                end_call(&other, 0);
            }
            CHECK(fabs((up - down)/(2*e) - slope) < 0.01*fabs(slope), "dropout %d: the slope is "
                  "%g, dx says %g", kind, (up - down)/(2*e), slope);
            free(d);
            free(x);
        }
        end_call(&one, 0);
        end_call(&k, 1);
        free(n.weights);
    }
}

/* ---- Memory --------------------------------------------------------------------------------- */

static void expect(sru_status got, sru_status want, const char *what)
{
    test_status(got, want, message, sizeof message, what);
}

static void test_sizes(void)
{
    enum { SHARES = 20 };
    static const sru_type types[] = {SRU_PLAIN, SRU_F32, SRU_BF16, SRU_Q8};
    sru_config config;
    const size_t rows = sru_cpu()->rows, times = sizeof rows > 4 ? 4096 : 256;
    int i, j, threads;
    test_random_state = 7;
    for (i = 0; i < VARIANTS; i++) {
        const char *what = variant(i, &config);
        net plain = new_net(&config, 1);
        for (j = 0; j < (int)COUNT(types); j++) {
            for (threads = 1; threads <= 3; threads += 2) {
                sru_context c = context(threads);
                call k = new_call(&plain, 6, 5), other;
                sru_sizes size, bare;
                size_t share;
                net n;
                if (!in_form(&n, &plain, types[j])) {
                    end_call(&k, 1);
                    continue;
                }
                k.io.dropout_mask = k.io.rnn_dropout_mask = k.io.layer_dropout_mask = NULL;
                free(k.io.state);
                k.io.state = NULL;      /* what is not given takes scratch memory instead */
                CHECK(sru_size(&size, &c, &n.m, 6, 5) == SRU_OK, "%s: %s", what, message);
                memset(&bare, 0, sizeof bare);
                n.m.weights = NULL;
                CHECK(sru_size(&bare, &c, &n.m, 6, 5) == SRU_OK
                      && !memcmp(&size, &bare, sizeof bare), "%s: other sizes without weights",
                      what);
                n.m.weights = n.weights;
                CHECK(size.state == n.S, "%s: S is %lu", what, (unsigned long)size.state);

                other = same_call(&k);
                CHECK(sru_forward(&c, &n.m, &other.io) == SRU_OK, "%s: %s", what, message);
                c.work = test_alloc(c.work_size = size.work);
                memset(c.work, 0xff, size.work);        /* NaN, wherever nothing was written */
                CHECK(sru_forward(&c, &n.m, &k.io) == SRU_OK, "%s: with %lu bytes as told: %s",
                      what, (unsigned long)size.work, message);
                CHECK(alike(other.io.h, k.io.h, k.hs), "%s: other bits with memory given", what);
                free(c.work);
                if (in_place(&n)) k.io.x = k.io.h;      /* takes the most */
                for (share = 0; share <= SHARES; share++) {     /* too little, up to a byte */
                    c.work_size = (size.work - 1)*share/SHARES;
                    c.work = test_alloc(c.work_size);
                    expect(sru_forward(&c, &n.m, &k.io), SRU_ENOMEM, what);
                    free(c.work);
                }
                k.io.x = k.x;
                end_call(&other, 0);
                if (types[j] == SRU_PLAIN) k.io.tape = test_alloc(size.tape);
                for (share = 0; share <= SHARES && k.io.tape; share++) {
                    sru_status first, second;
                    void *enough = test_alloc(size.train_work);
                    c.work_size = (size.train_work - 1)*share/SHARES;
                    c.work = test_alloc(c.work_size);
                    first = sru_forward(&c, &n.m, &k.io);
                    second = sru_backward(&c, &n.m, &k.io);     /* whatever the tape holds */
                    CHECK((first == SRU_ENOMEM || second == SRU_ENOMEM)
                          && (!first || first == SRU_ENOMEM) && (!second || second == SRU_ENOMEM),
                          "%s: %lu bytes are enough to train, %lu were told", what,
                          (unsigned long)c.work_size, (unsigned long)size.train_work);
                    free(c.work);
                    c.work = enough;
                    c.work_size = size.train_work;
                    CHECK(sru_forward(&c, &n.m, &k.io) == SRU_OK
                          && sru_backward(&c, &n.m, &k.io) == SRU_OK,
                          "%s: training with %lu bytes as told: %s", what,
                          (unsigned long)size.train_work, message);
                    free(enough);
                }
                c.work = NULL;
                if (k.io.tape) {
                    call own = same_call(&k), given = same_call(&k);
                    train(&n, &own, threads, what);
                    given.io.tape = test_alloc(size.tape);
                    c.work = test_alloc(size.train_work);
                    memset(given.io.tape, 0xff, size.tape);
                    memset(c.work, 0xff, size.train_work);
                    CHECK(sru_forward(&c, &n.m, &given.io) == SRU_OK, "%s: %s", what, message);
                    memset(c.work, 0xff, size.train_work);
                    CHECK(sru_backward(&c, &n.m, &given.io) == SRU_OK, "%s: %s", what, message);
                    CHECK(alike(own.io.h, given.io.h, k.hs) && alike(own.io.dx, given.io.dx, k.xs)
                          && alike(own.io.grads, given.io.grads, k.count),
                          "%s: training has other bits with memory given", what);
                    free(c.work);
                    end_call(&own, 0);
                    end_call(&given, 0);
                }
                end_call(&k, 1);

                k = new_call(&plain, 0, 2);     /* no steps, from a state */
                CHECK(sru_size(&size, &c, &n.m, 0, 2) == SRU_OK, "%s: %s", what, message);
                c.work = test_alloc(size.work);
                c.work_size = size.work;
                CHECK(sru_forward(&c, &n.m, &k.io) == SRU_OK, "%s: no steps with %lu bytes as "
                      "told: %s", what, (unsigned long)size.work, message);
                free(c.work);
                end_call(&k, 1);
                free(n.weights);
            }
        }
        free(plain.weights);
    }

    /* longer sequences need no more, unless a direction begins at their end */
    for (i = 0; i < 2; i++) {
        for (j = 0; j < 2; j++) {
            sru_context c = context(2);
            sru_sizes few, many;
            sru_model m;
            memset(&m, 0, sizeof m);
            variant(i ? 2 : 8, &m.config);
            m.type = types[3*j];
            CHECK(sru_size(&few, &c, &m, 64*rows, 1) == SRU_OK, "%s", message);
            CHECK(sru_size(&many, &c, &m, times*rows, 1) == SRU_OK, "%s", message);
            if (i) CHECK(many.work > few.work, "bidirectional needs no memory");
            else CHECK(many.work == few.work, "%s: %lu bytes for %lu steps, %lu for %lu",
                       type_names[m.type], (unsigned long)few.work, (unsigned long)(64*rows),
                       (unsigned long)many.work, (unsigned long)(times*rows));
        }
    }
}

static size_t drawn(size_t least, size_t most)
{
    return least + (size_t)(test_bits() % (most - least + 1));
}

/* Memory for many steps is enough for fewer, for any network. */
static void test_fewer_steps(void)
{
    int i, accepted = 0;
    for (i = 0; i < 40000; i++) {
        sru_context c = context((int)drawn(1, 4));
        const size_t T = drawn(1, i%2 ? 900 : 20), B = drawn(1, 20), fewer = drawn(1, T);
        sru_sizes few, many;
        sru_model m;
        sru_config *f = &m.config;
        memset(&m, 0, sizeof m);
        f->input_size = (int)drawn(1, i%3 ? 3000 : 600);
        f->hidden_size = (int)drawn(1, i%3 ? 3000 : 600);
        f->num_layers = (int)drawn(1, 3);
        f->arch = (sru_arch)drawn(0, 2);
        if (drawn(0, 1) || f->arch == SRU_ARCH_SRUPP) f->projection_size = (int)drawn(1, 1600);
        f->bidirectional = (int)drawn(0, 1);
        f->layer_norm = (int)drawn(0, 1);
        f->normalize_after = (int)drawn(0, 1);
        f->proj_input_to_hidden_first = (int)drawn(0, 1);
        f->causal = (int)drawn(0, 1);
        if (f->arch == SRU_ARCH_SRUPP) f->window = drawn(0, 1) ? (int)drawn(1, 300) : 0;
        m.type = (sru_type)drawn(SRU_PLAIN, SRU_Q8);
        m.vocab_size = drawn(0, 1) ? drawn(1, 2000) : 0;
        if (sru_size(&many, &c, &m, T, B) || sru_size(&few, &c, &m, fewer, B)) continue;
        accepted++;
        CHECK(many.work >= few.work && many.train_work >= few.train_work && many.tape >= few.tape,
              "network %d: %lu, %lu and %lu bytes for %lu steps, %lu, %lu and %lu for %lu", i,
              (unsigned long)many.work, (unsigned long)many.train_work, (unsigned long)many.tape,
              (unsigned long)T, (unsigned long)few.work, (unsigned long)few.train_work,
              (unsigned long)few.tape, (unsigned long)fewer);
    }
    CHECK(accepted > (sizeof(size_t) > 4 ? 30000 : 20000), "only %d of %d networks had a size",
          accepted, i);
}

/* It is also enough for fewer sequences, whose steps are divided otherwise than those of more. */
static void test_fewer_sequences(void)
{
    int i, j;
    for (i = 0; i < test_cases(30); i++) {
        const sru_type type = i%2 ? SRU_PLAIN : SRU_F32;
        const size_t B = drawn(1, 160), T = drawn(1, 30000/B), V = i%4 == 1 ? drawn(1, 300) : 0;
        sru_context c = context((int)drawn(1, 4));
        sru_sizes size;
        sru_config config;
        net n, plain;
        float *table;
        memset(&config, 0, sizeof config);
        config.input_size = config.hidden_size = (int)drawn(1, 12);
        config.num_layers = (int)drawn(1, 2);
        config.projection_size = i%3 ? 0 : (int)drawn(1, 5);
        plain = new_net(&config, 1);
        table = test_floats(300*plain.I);
        if (!in_form(&n, &plain, type)) memset(&n, 0, sizeof n);
        n.m.vocab_size = V;
        n.m.embedding = table;
        CHECK(sru_size(&size, &c, &n.m, T, B) == SRU_OK, "%s", message);
        for (j = 0; j < 6 && n.weights; j++) {
            const size_t fewer = j ? drawn(1, B) : 1, rows = !j && V && V < T ? V : T;
            const size_t t = drawn(0, 3) ? rows : drawn(1, T);
            call k = new_call(&plain, t, fewer);
            int32_t *tokens = (int32_t *)test_alloc(k.rows*4);
            memset(tokens, 0, k.rows*4);
            k.io.tokens = tokens;
            free(k.io.dx);
            free(k.io.state);
            k.io.dx = k.io.state = NULL;
            c.work = test_alloc(size.work);
            c.work_size = size.work;
            CHECK(sru_forward(&c, &n.m, &k.io) == SRU_OK, "network %d, %lu of %lu steps of %lu of "
                  "%lu sequences: %s", i, (unsigned long)t, (unsigned long)T, (unsigned long)fewer,
                  (unsigned long)B, message);
            free(c.work);
            if (type == SRU_PLAIN) {
                c.work = test_alloc(size.train_work);
                c.work_size = size.train_work;
                k.io.tape = test_alloc(size.tape);
                CHECK(sru_forward(&c, &n.m, &k.io) == SRU_OK
                      && sru_backward(&c, &n.m, &k.io) == SRU_OK, "network %d, training %lu of %lu "
                      "steps of %lu of %lu sequences: %s", i, (unsigned long)t, (unsigned long)T,
                      (unsigned long)fewer, (unsigned long)B, message);
                free(c.work);
            }
            free(tokens);
            end_call(&k, 1);
        }
        free(n.weights);
        free(plain.weights);
        free(table);
    }
}

/* Through rings, fewer sequences come in longer pieces, of which four may need the most. */
static void test_sizes_of_pieces(void)
{
    int i;
    for (i = 0; i < 100; i++) {
        const size_t T = drawn(64, 700), B = drawn(5, 12);
        sru_context c = context((int)drawn(4, 16));
        sru_sizes many, few;
        sru_model m;
        memset(&m, 0, sizeof m);
        m.type = i%2 ? SRU_F32 : SRU_BF16;
        m.config.arch = SRU_ARCH_SRUPP;
        m.config.input_size = m.config.hidden_size = 1024;
        m.config.projection_size = i%3 ? 1024 : 256;
        m.config.attention_every_n_layers = 2;
        m.config.window = (int)drawn(1, 60);
        if (!CHECK(!sru_size(&many, &c, &m, T, B) && !sru_size(&few, &c, &m, T, 4), "%s", message))
            continue;
        CHECK(many.work >= few.work, "%d threads, %lu steps: %lu bytes for %lu sequences, %lu for "
              "4", c.threads, (unsigned long)T, (unsigned long)many.work, (unsigned long)B,
              (unsigned long)few.work);
    }
}

/* In a single step, packed weights are read where they are: only plain ones are copied first. */
static void test_sizes_of_steps(void)
{
    static const sru_type types[] = {SRU_F32, SRU_BF16, SRU_Q8};
    const size_t panels = 3*16*128*4;
    int i;
    for (i = 0; i < (int)COUNT(types); i++) {
        sru_context c = context(1);
        sru_sizes plain, packed;
        sru_model m;
        memset(&m, 0, sizeof m);
        m.config.input_size = m.config.hidden_size = 128;
        m.config.num_layers = 2;
        CHECK(!sru_size(&plain, &c, &m, 1, 1) && plain.work > panels, "%s", message);
        m.type = types[i];
        CHECK(!sru_size(&packed, &c, &m, 1, 1) && packed.work < plain.work - panels + 64,
              "type %d: %lu bytes of scratch memory for a step", (int)m.type,
              (unsigned long)packed.work);
    }
}

/* Vectors of thousands of floats do not overlap in packed weights, whose forms pad them. */
static void test_long_vectors(void)
{
    sru_config config;
    sru_context c = context(1);
    net plain, packed;
    memset(&config, 0, sizeof config);
    config.input_size = config.num_layers = 1;
    config.hidden_size = 1040;
    plain = new_net(&config, 1);
    if (in_form(&packed, &plain, SRU_F32)) {
        call k = new_call(&plain, 2, 1), other = same_call(&k);
        CHECK(sru_forward(&c, &plain.m, &k.io) == SRU_OK, "%s", message);
        CHECK(sru_forward(&c, &packed.m, &other.io) == SRU_OK, "%s", message);
        CHECK(alike(k.io.h, other.io.h, k.hs), "1040 units have other bits when packed");
        end_call(&other, 0);
        end_call(&k, 1);
        free(packed.weights);
    }
    free(plain.weights);
}

/* The tensors of a network lie end to end and fill its weights. */
static void test_tensors(void)
{
    sru_config config;
    int i, j, k;
    for (i = 0; i < VARIANTS; i++) {
        const char *what = variant(i, &config);
        net n = new_net(&config, 1);
        const float *end = n.weights;
        sru_tensor t, s;
        for (j = 0; sru_get_tensor(&t, &n.m, j); j++) {
            size_t many = t.shape[0];
            for (k = 1; k < 4 && t.shape[k]; k++) many *= t.shape[k];
            CHECK(t.data == end, "%s: %s does not follow the tensor before it", what, t.name);
            end = t.data + many;
            for (k = 0; k < j && sru_get_tensor(&s, &n.m, k); k++) {
                CHECK(strcmp(s.name, t.name), "%s: %s comes twice", what, t.name);
            }
        }
        CHECK(end == n.weights + n.count, "%s: tensors have %lu of %lu numbers", what,
              (unsigned long)(end - n.weights), (unsigned long)n.count);
        CHECK(!sru_get_tensor(&t, &n.m, j + 1), "%s: there is a tensor past the last", what);
        free(n.weights);
    }
}

/* ---- Errors --------------------------------------------------------------------------------- */

/* Sets a configuration i that no network can have; 0 past the last. */
static const char *bad_config(int i, sru_config *c)
{
    variant(0, c);
    switch (i) {
    case 0:  c->input_size = 0;                     return "input_size 0";
    case 1:  c->input_size = -1;                    return "input_size -1";
    case 2:  c->hidden_size = 0;                    return "hidden_size 0";
    case 3:  c->hidden_size = -5;                   return "hidden_size -5";
    case 4:  c->num_layers = -1;                    return "num_layers -1";
    case 5:  c->num_layers = SRU_MAX_LAYERS + 1;    return "too many layers";
    case 6:  c->projection_size = -1;               return "projection_size -1";
    case 7:  c->projection_sizes[1] = -1;           return "projection_sizes -1";
    case 8:  c->dropout = 1;                        return "dropout 1";
    case 9:  c->dropout = -0.1f;                    return "dropout -0.1";
    case 10: c->rnn_dropout = 1.5f;                 return "rnn_dropout 1.5";
    case 11: c->layer_dropout = -1;                 return "layer_dropout -1";
    case 12: test_make_nan(&c->dropout);            return "dropout NaN";
    case 13: test_make_nan(&c->rnn_dropout);        return "rnn_dropout NaN";
    case 14: test_make_nan(&c->layer_dropout);      return "layer_dropout NaN";
    case 15: test_make_nan(&c->highway_bias);       return "highway_bias NaN";
    case 16: test_make_nan(&c->weight_c_init);      return "weight_c_init NaN";
    case 17: c->highway_bias = -1000;               return "highway_bias -1000";
    case 18: c->highway_bias = 80;                  return "highway_bias 80";
    case 19: c->weight_c_init = -0.5f;              return "weight_c_init -0.5";
    case 20: c->scale_x = -1;                       return "scale_x -1";
    case 21: test_make_nan(&c->scale_x);            return "scale_x NaN";
    case 22: c->window = -1;                        return "window -1";
    case 23: c->attention_every_n_layers = -1;      return "attention_every_n_layers -1";
    case 24: c->attention_last_n_layers = -2;       return "attention_last_n_layers -2";
    /* an SRU has no attention */
    case 25: c->num_heads = 2;                      return "num_heads";
    case 26: c->attention_every_n_layers = 2;       return "attention_every_n_layers";
    case 27: c->attention_last_n_layers = -1;       return "attention_last_n_layers";
    case 28: c->no_attn_layer_norm = 1;             return "no_attn_layer_norm";
    case 29: c->attn_dropout = 0.1f;                return "attn_dropout";
    case 30: c->window = 4;                         return "window";
    case 31:
        memcpy(&c->arch, &i, sizeof c->arch);
        return "arch 31";
    default: return NULL;
    }
}

static void test_errors(void)
{
    const size_t huge = (size_t)-1/8;
    sru_context c = context(1);
    sru_config config;
    sru_tensor t;
    sru_sizes size;
    sru_model m, wrong;
    sru_io io;
    net n, q8;
    call k;
    int i;
    const char *what;
    float some[8];
    const float *memory[SRU_MAX_LAYERS] = {NULL};
    test_random_state = 8;
    memset(message, 0, sizeof message);
    variant(0, &config);
    n = new_net(&config, 1);
    k = new_call(&n, 3, 2);
    for (i = 0; (what = bad_config(i, &config)) != NULL; i++) {
        m = n.m;
        m.config = config;
        expect(sru_size(&size, &c, &m, 1, 1), SRU_EINVAL, what);
        expect(sru_forward(&c, &m, &k.io), SRU_EINVAL, what);
        CHECK(sru_init(some, &config, 1) == SRU_EINVAL, "%s: sru_init", what);
        CHECK(!sru_get_tensor(&t, &m, 0), "%s: a tensor", what);
    }
    m = n.m;
    m.config.input_size = m.config.hidden_size = 0x7fffffff;
    m.config.num_layers = SRU_MAX_LAYERS;
    m.config.bidirectional = 1;
    CHECK(sru_size(&size, &c, &m, 1, 1) == SRU_EINVAL && strstr(message, "machine's memory"),
          "sizes of 2^31: %s", message);
    CHECK(sru_init(some, &m.config, 1) == SRU_EINVAL, "sizes of 2^31: sru_init");
    /* with addresses of 32 bits, a few MB must not be too many for one width, or for many steps */
    for (i = 0; i < 3; i++) {
        m = n.m;
        memset(&m.config, 0, sizeof m.config);
        m.type = SRU_F32;
        m.config.input_size = i == 0 ? 20000 : 1024;
        m.config.hidden_size = i == 0 ? 64 : i == 1 ? 4096 : 1024;
        m.config.num_layers = i == 2 ? 2 : 1;
        CHECK(!sru_size(&size, &c, &m, i == 2 ? 10000 : 10, 1), "%s", message);
        CHECK(size.weights < (size_t)300 << 20 && size.work < (size_t)80 << 20,
              "%lu bytes of weights, %lu of scratch memory", (unsigned long)size.weights,
              (unsigned long)size.work);
    }
    expect(sru_size(&size, &c, &m, (size_t)1 << (sizeof(size_t)*8 - 10), 1), SRU_EINVAL,
           "sizes of 2^31, many steps");
    expect(sru_size(&size, &c, &n.m, huge, 1), SRU_EINVAL, "sru_size: T");
    expect(sru_size(&size, &c, &n.m, 1, huge), SRU_EINVAL, "sru_size: B");
    expect(sru_size(&size, &c, &n.m, (size_t)1 << sizeof(size_t)*4, (size_t)1 << sizeof(size_t)*4),
           SRU_EINVAL, "sru_size: T*B");
    expect(sru_size(NULL, &c, &n.m, 1, 1), SRU_EINVAL, "sru_size: sizes NULL");
    expect(sru_size(&size, &c, NULL, 1, 1), SRU_EINVAL, "sru_size: model NULL");
    CHECK(sru_init(NULL, &n.m.config, 1) == SRU_EINVAL, "sru_init: weights NULL");
    CHECK(sru_init(some, NULL, 1) == SRU_EINVAL, "sru_init: config NULL");

    expect(sru_forward(&c, NULL, &k.io), SRU_EINVAL, "forward: model NULL");
    expect(sru_forward(&c, &n.m, NULL), SRU_EINVAL, "forward: io NULL");
    m = n.m;
    m.weights = NULL;
    expect(sru_forward(&c, &m, &k.io), SRU_EINVAL, "forward: weights NULL");
    m.weights = (const char *)n.m.weights + 1;
    expect(sru_forward(&c, &m, &k.io), SRU_EINVAL, "forward: weights between floats");
    io = k.io;
    io.h = k.x;
    m = n.m;
    m.config.input_size = 2;
    m.config.hidden_size = m.config.bidirectional = 1;
    expect(sru_forward(&c, &m, &io), SRU_EINVAL, "forward: in place in two directions");
    m.config.bidirectional = 0;
    expect(sru_forward(&c, &m, &io), SRU_EINVAL, "forward: in place, of another width");
    m.config.hidden_size = 2;
    CHECK(sru_forward(&c, &m, &io) == SRU_OK, "forward in place: %s", message);
    io.tape = some;
    expect(sru_forward(&c, &m, &io), SRU_EINVAL, "forward: in place with a tape");
    io = k.io;
    io.x = NULL;
    expect(sru_forward(&c, &n.m, &io), SRU_EINVAL, "forward: x NULL");
    io = k.io;
    io.h = NULL;
    expect(sru_forward(&c, &n.m, &io), SRU_EINVAL, "forward: h NULL");
    io = k.io;
    io.attn_mask = some;
    expect(sru_forward(&c, &n.m, &io), SRU_EINVAL, "forward: attn_mask of an SRU");
    io.attn_mask = NULL;
    io.memory = memory;
    CHECK(sru_forward(&c, &n.m, &io) == SRU_OK, "memory of no layer: %s", message);
    io.memory_length = 1;
    expect(sru_forward(&c, &n.m, &io), SRU_EINVAL, "forward: memory of an SRU");
    m = n.m;
    m.vocab_size = 4;
    expect(sru_forward(&c, &m, &k.io), SRU_EINVAL, "forward: embedding NULL");
    m.embedding = k.x;
    expect(sru_forward(&c, &m, &k.io), SRU_EINVAL, "forward: tokens NULL");
    m.vocab_size = huge;
    expect(sru_forward(&c, &m, &k.io), SRU_EINVAL, "forward: vocab_size");
    expect(sru_size(&size, &c, &m, 1, 1), SRU_EINVAL, "sru_size: vocab_size");
    m = n.m;
    m.config.projection_sizes[1] = 1 << 20;
    m.config.arch = SRU_ARCH_SRU3;
    expect(sru_size(&size, &c, &m, (size_t)1 << (sizeof(size_t)*8 - 24), 1), SRU_EINVAL,
           "sru_size: T, one wide projection");
    io = k.io;
    io.T = huge;
    expect(sru_forward(&c, &n.m, &io), SRU_EINVAL, "forward: T");
    expect(sru_backward(&c, NULL, &k.io), SRU_EINVAL, "backward: model NULL");
    expect(sru_backward(&c, &n.m, NULL), SRU_EINVAL, "backward: io NULL");
    expect(sru_backward(&c, &n.m, &k.io), SRU_EINVAL, "backward: no tape");
    k.io.tape = test_alloc(n.size.tape*6 + 4096);
    io = k.io;
    io.dh = NULL;
    expect(sru_backward(&c, &n.m, &io), SRU_EINVAL, "backward: dh NULL");
    for (i = 0; i < 2; i++) {
        io.T = i ? 3 : 0;
        io.B = i ? 0 : 2;
        CHECK(sru_backward(&c, &n.m, &io) == SRU_OK, "backward, nothing to do: %s", message);
    }
    io = k.io;
    io.dh = k.io.h;
    io.dx = k.x;
    expect(sru_backward(&c, &n.m, &io), SRU_EINVAL, "backward: dx is x");
    io.dx = k.io.h;
    expect(sru_backward(&c, &n.m, &io), SRU_EINVAL, "backward: dx is dh");
    io.dx = NULL;
    io.dembedding = k.io.h;
    expect(sru_backward(&c, &n.m, &io), SRU_EINVAL, "backward: dembedding of x");
    if (in_form(&q8, &n, SRU_Q8)) {
        expect(sru_forward(&c, &q8.m, &k.io), SRU_EINVAL, "forward with a tape on Q8");
        expect(sru_backward(&c, &q8.m, &k.io), SRU_EINVAL, "backward on Q8");
        CHECK(!sru_get_tensor(&t, &q8.m, 0), "a tensor of Q8");
        m.type = SRU_Q8;
        expect(sru_pack(&c, &m, some, &q8.m), SRU_EINVAL, "sru_pack from Q8");
        free(q8.weights);
    }
    m.type = SRU_F32;
    expect(sru_pack(&c, NULL, some, &n.m), SRU_EINVAL, "sru_pack: to NULL");
    expect(sru_pack(&c, &m, NULL, &n.m), SRU_EINVAL, "sru_pack: weights NULL");
    expect(sru_pack(&c, &m, some, NULL), SRU_EINVAL, "sru_pack: from NULL");
    expect(sru_pack(&c, &m, (void *)(uintptr_t)n.m.weights, &n.m), SRU_EINVAL, "sru_pack in place");
    {
        sru_context measuring = c;
        sru_model to = m;
        size_t need = 0;
        measuring.measure = &need;
        CHECK(!sru_pack(&measuring, &to, some, &n.m) && !memcmp(&to, &m, sizeof m),
              "sru_pack: a measuring call makes a model");
    }
    wrong = n.m;
    wrong.config.num_layers = SRU_MAX_LAYERS + 1;
    expect(sru_pack(&c, &m, some, &wrong), SRU_EINVAL, "sru_pack: a config that is not valid");
    CHECK(sru_forward(NULL, &n.m, NULL) == SRU_EINVAL, "forward: no context, no io");
    end_call(&k, 1);
    free(n.weights);
}

/* ---- Edges ---------------------------------------------------------------------------------- */

static void test_edges(void)
{
    static const size_t shapes[][2] = {{0, 3}, {3, 0}, {0, 0}, {1, 1}, {1, 7}, {5, 1}};
    sru_config config;
    size_t j;
    int i;
    test_random_state = 9;
    for (i = 0; i < VARIANTS; i++) {
        const char *what = variant(i, &config);
        net n = new_net(&config, 1);
        n.m.config.dropout = n.m.config.rnn_dropout = n.m.config.layer_dropout = 0.25f;
        for (j = 0; j < COUNT(shapes); j++) {
            call k = new_call(&n, shapes[j][0], shapes[j][1]), other;
            naive_net o = new_oracle(&n, &k);
            naive_net_forward(&o);
            naive_net_backward(&o);
            other = same_call(&k);
            train(&n, &other, 2, what);
            compare(&n, &other, &o, what, "edge");
            if (!shapes[j][0] && shapes[j][1]) {
                CHECK(alike(other.io.state, k.io.state, k.ss), "%s: no step changes the state",
                      what);
            }
            end_oracle(&o);
            end_call(&other, 0);
            end_call(&k, 1);
        }
        {   /* no context; and no arrays where there is nothing to compute */
            call k = new_call(&n, 2, 2), other = same_call(&k);
            sru_io none;
            CHECK(sru_forward(NULL, &n.m, &k.io) == SRU_OK, "%s: no context", what);
            run(&n, &other.io, 1, what);
            CHECK(bf16() || alike(k.io.h, other.io.h, k.hs), "%s: other bits without a context",
                  what);
            memset(&none, 0, sizeof none);
            CHECK(sru_forward(NULL, &n.m, &none) == SRU_OK, "%s: T 0, B 0, no arrays", what);
            end_call(&other, 0);
            end_call(&k, 1);
        }
        free(n.weights);
    }
}

/* Where everything is padding, nothing happens. */
static void test_padding(void)
{
    sru_config config;
    int i;
    for (i = 0; i < VARIANTS; i++) {
        const char *what = variant(i, &config);
        net n = new_net(&config, 1);
        call k = new_call(&n, 4, 3), other;
        size_t j, wrong = 0;
        n.m.config.dropout = n.m.config.rnn_dropout = n.m.config.layer_dropout = 0.25f;
        memset(k.pad, 1, k.rows);
        other = same_call(&k);
        train(&n, &other, 1, what);
        CHECK(alike(other.io.state, k.io.state, k.ss), "%s: padding changes the state", what);
        if (!config.normalize_after) {      /* otherwise h is layer norm's bias */
            for (j = 0; j < k.hs; j++) wrong += other.io.h[j] != 0;
            CHECK(!wrong, "%s: padding gives output", what);
            CHECK(alike(other.io.dstate, k.io.dstate, k.ss), "%s: padding changes dstate", what);
        }
        end_call(&other, 0);
        end_call(&k, 1);
        free(n.weights);
    }
}

/* ---- Initial weights ------------------------------------------------------------------------ */

/* Compares initial weights with those of the reference's reset_parameters(), 2.x and 3.0-dev. */
static void check_init(const sru_config *config, const char *what)
{
    const int old = config->arch == SRU_ARCH_SRU;
    size_t N = naive_width(config);
    sru_model m;
    sru_sizes size;
    float *w, *again;
    naive_net o;
    char name[200];
    int l, k, L = naive_layers(config);
    memset(&m, 0, sizeof m);
    memset(&o, 0, sizeof o);
    m.config = *config;
    CHECK(sru_size(&size, NULL, &m, 1, 1) == SRU_OK, "%s", what);
    m.weights = w = (float *)test_alloc(size.weights);
    again = (float *)test_alloc(size.weights);
    memset(w, 0xff, size.weights);
    CHECK(sru_init(w, config, 5) == SRU_OK && sru_init(again, config, 5) == SRU_OK, "%s", what);
    CHECK(!memcmp(w, again, size.weights), "%s: the same seed gives other weights", what);
    CHECK(sru_init(again, config, 6) == SRU_OK, "%s", what);
    o.model = &m;
    if (naive_input_first(config)) {
        ptrdiff_t at = naive_find(&m, -1, "input_to_hidden.weight");
        sprintf(name, "%s: input_to_hidden", what);
        if (CHECK(at >= 0, "%s is missing", name)) {    /* nn.Linear's own: 1/sqrt(in) */
            test_uniform(name, w + at, N*(size_t)config->input_size,
                          1/sqrt((double)config->input_size));
        }
    }
    for (l = 0; l < L; l++) {
        size_t I = naive_layer_input(config, l), P = naive_projection(config, l), in = P ? P : I;
        size_t K = (size_t)naive_matrices(config, l), n = N*in;
        double scale_x = naive_scale_x(config);
        double drop = l < L - 1 ? (double)config->dropout : 0, rnn = (double)config->rnn_dropout;
        ptrdiff_t at;
        o.layer[l].P = P;
        at = naive_find(&m, l, naive_product(&o, l, 1));
        if (!CHECK(at >= 0, "%s: layer %d has no weights", what, l)) continue;
        for (k = 0; k < (int)K; k++) {
            double bound = sqrt(old ? 3/(double)in : 6/((double)in + (double)(K*N)));
            if (old) {
                if (k == 0) bound *= sqrt(1 - drop);
                bound *= sqrt(1 - rnn);
                if (config->layer_norm) bound *= 0.1;
                if (k == 3) bound *= scale_x;
                if ((k == 1 || k == 2) && !config->v1) bound *= sqrt(0.5);
            }
            sprintf(name, "%s: matrix %d of layer %d", what, k, l);
            test_uniform(name, w + at + (size_t)k*n, n, bound);
        }
        {
            double dot = 0, a2 = 0, b2 = 0;
            size_t i;
            for (i = 0; i < n; i++) {
                double a = (double)w[at + (ptrdiff_t)i], b = (double)again[at + (ptrdiff_t)i];
                dot += a*b, a2 += a*a, b2 += b*b;
            }
            CHECK(memcmp(w + at, w + at + n, n*sizeof *w), "%s: matrices are alike", what);
            CHECK(fabs(dot)/sqrt(a2*b2) < 5/sqrt((double)n), "%s: weights of two seeds are alike",
                  what);
        }
        if (P) {
            at = naive_find(&m, l, naive_product(&o, l, 0));
            sprintf(name, "%s: projection of layer %d", what, l);
            if (CHECK(at >= 0, "%s is missing", name)) {
                test_uniform(name, w + at, P*I, sqrt(old ? 3/(double)I : 6/(double)(P + I)));
            }
        }
        at = naive_find(&m, l, "weight_c");
        sprintf(name, "%s: weight_c of layer %d", what, l);
        if (CHECK(at >= 0, "%s is missing", name)) {
            double bound = config->weight_c_init > 0 ? (double)config->weight_c_init
                         : old ? sqrt(1.5) : 1;
            if (config->v1) test_constant(name, w + at, 2*N, 0);
            else test_uniform(name, w + at, 2*N, bound);
        }
        at = naive_find(&m, l, "bias");
        sprintf(name, "%s: bias of layer %d", what, l);
        if (CHECK(at >= 0, "%s is missing", name)) {
            test_constant(name, w + at, N, 0);
            test_constant(name, w + at + N, N, config->highway_bias);
        }
        if (config->layer_norm) {
            size_t width = config->normalize_after ? N : I;
            ptrdiff_t gain = naive_find(&m, l, "layer_norm.weight");
            ptrdiff_t shift = naive_find(&m, l, "layer_norm.bias");
            sprintf(name, "%s: layer norm of layer %d", what, l);
            if (CHECK(gain >= 0 && shift >= 0, "%s is missing", name)) {
                test_constant(name, w + gain, width, 1);
                test_constant(name, w + shift, width, 0);
            }
        }
    }
    naive_check_drawn(what, &m);
    free(w);
    free(again);
}

/* The first and the last weight of tensors that seed 7 gives: a training that is repeated with a
   later version must begin in the same place. */
static void test_seed(void)
{
    static const struct { const char *name; float first, last; int arch; } known[] = {
        { "rnn_lst.0.weight",   -0.234973669f, -0.593421519f, SRU_ARCH_SRU },
        { "rnn_lst.0.weight_c",  0.301656246f,  0.851347387f, SRU_ARCH_SRU },
        { "rnn_lst.1.weight",    0.627903402f,  0.238665029f, SRU_ARCH_SRU },
        { "rnn_lst.1.weight_c",  1.16912985f,  -0.163021609f, SRU_ARCH_SRU },
        { "rnn_lst.0.transform_module.linear1.weight",  0.28271687f,  -0.520093679f,
          SRU_ARCH_SRUPP },
        { "rnn_lst.1.transform_module.linear3.weight",  0.455529034f, -0.285336703f,
          SRU_ARCH_SRUPP },
        { "rnn_lst.1.weight_c",  0.954590559f, -0.133106589f, SRU_ARCH_SRUPP }
    };
    float w[400];
    size_t k;
    for (k = 0; k < COUNT(known); k++) {
        sru_model m;
        sru_sizes n;
        sru_tensor t;
        int i = 0;
        memset(&m, 0, sizeof m);
        m.config.input_size = 7;
        m.config.hidden_size = 5;
        m.config.arch = (sru_arch)known[k].arch;
        m.config.projection_size = known[k].arch == SRU_ARCH_SRUPP ? 4 : 0;
        m.weights = w;
        CHECK(!sru_size(&n, NULL, &m, 1, 1) && n.weights <= sizeof w, "sru_size failed");
        CHECK(sru_init(w, &m.config, 7) == SRU_OK, "sru_init failed");
        while (sru_get_tensor(&t, &m, i) && strcmp(t.name, known[k].name)) i++;
        if (!CHECK(t.data && !strcmp(t.name, known[k].name), "no %s", known[k].name)) continue;
        {
            const size_t count = t.shape[0]*(t.shape[1] ? t.shape[1] : 1);
            const float first = t.data[0], last = t.data[count - 1];
            CHECK(fabsf(first - known[k].first) < 1e-6f && fabsf(last - known[k].last) < 1e-6f,
                  "%s: seed 7 gives %.9g ... %.9g", t.name, (double)first, (double)last);
        }
    }
}

static void test_init(void)
{
    sru_config base, c;
    int arch;
    memset(&base, 0, sizeof base);
    base.input_size = 120;
    base.hidden_size = 90;
    base.num_layers = 3;
    for (arch = 0; arch < 2; arch++) {
        base.arch = arch ? SRU_ARCH_SRU3 : SRU_ARCH_SRU;
        c = base;
        check_init(&c, "plain");
        c.highway_bias = -2;
        c.rescale = 1;
        check_init(&c, "rescale");
        c.layer_norm = 1;
        c.dropout = 0.4f;
        c.rnn_dropout = 0.2f;
        c.layer_dropout = 0.3f;
        c.scale_x = 3;
        check_init(&c, "rescale, layer norm, dropout");
        c = base;
        c.projection_size = 50;
        c.projection_sizes[1] = 40;
        check_init(&c, "projection");
        c.projection_size = c.projection_sizes[1] = 1;
        check_init(&c, "projection of 1");
        c.projection_size = 50;
        c.projection_sizes[1] = 40;
        c.layer_norm = c.normalize_after = c.bidirectional = 1;
        check_init(&c, "projection, layer norm after, bidirectional");
        c = base;
        c.v1 = 1;
        check_init(&c, "v1");
        c = base;
        c.no_skip_term = c.rescale = 1;
        c.weight_c_init = 0.25f;
        check_init(&c, "no skip term, weight_c_init");
        c = base;
        c.proj_input_to_hidden_first = 1;
        check_init(&c, "input projected first");
    }
}

/* ---- One model for many threads ------------------------------------------------------------- */

#ifdef _POSIX_THREADS
typedef struct job {
    const net *n;
    call       k;
    sru_status status;
} job;

static void *serve(void *arg)
{
    job *j = (job *)arg;
    sru_context c;
    size_t t;
    memset(&c, 0, sizeof c);
    c.threads = 1;
    for (t = 0; t < j->k.io.T && !j->status; t++) {
        sru_io part = steps(j->n, &j->k.io, t, t + 1);
        j->status = sru_forward(&c, &j->n->m, &part);
    }
    return NULL;
}

static void test_shared(void)
{
    enum { THREADS = 4 };
    sru_config config;
    net plain, n;
    call start, whole;
    job jobs[THREADS];
    pthread_t threads[THREADS];
    int i, started[THREADS];
    test_random_state = 10;
    variant(25, &config);
    plain = new_net(&config, 1);
    start = new_call(&plain, 50, 2);
    if (!in_form(&n, &plain, SRU_F32)) n = plain;
    whole = same_call(&start);
    run(&n, &whole.io, 1, "shared");
    for (i = 0; i < THREADS; i++) {
        jobs[i].n = &n;
        jobs[i].k = same_call(&start);
        jobs[i].status = SRU_OK;
        started[i] = !pthread_create(&threads[i], NULL, serve, &jobs[i]);
        CHECK(started[i], "thread %d did not start", i);
    }
    for (i = 0; i < THREADS; i++) {
        if (started[i]) pthread_join(threads[i], NULL);
        CHECK(jobs[i].status == SRU_OK, "thread %d: status %d", i, (int)jobs[i].status);
        CHECK(alike(jobs[i].k.io.h, whole.io.h, whole.hs), "thread %d: other bits", i);
        end_call(&jobs[i].k, 0);
    }
    end_call(&whole, 0);
    end_call(&start, 1);
    if (n.weights != plain.weights) free(n.weights);
    free(plain.weights);
}
#else
static void test_shared(void)
{
    printf("skipped: one model in many threads: this system has no POSIX threads\n");
}
#endif

/* ---- All of it for each instruction set ----------------------------------------------------- */

static const char *kernels(void)
{
    return sru_cpu()->name;
}

static void test_networks(void)
{
    test_gradients();
    test_masks_given();
    test_large();
    test_tokens();
    test_halves();
    test_dh_in_h();
    test_bitwise();
    test_saved();
    if (!bf16()) test_masks();          /* these look at single numbers */
    if (!bf16()) test_dropout();
    test_sizes();
    test_fewer_steps();
    test_fewer_sequences();
    test_sizes_of_pieces();
    test_sizes_of_steps();
    test_edges();
    test_padding();
    test_shared();
}

static void test_kernels(void)
{
    op = NULL;
    test_networks();
    op = sru_cpu_bf16();
    if (!bf16()) return;
    printf("%s\n", op->name);
    fflush(stdout);
    test_networks();
    op = NULL;
}

int main(int argc, char **argv)
{
    test_begin(argc, argv,
        "Usage: test_model\n"
        "Compares whole networks of every variant with a naive version in double, whose\n"
        "gradients finite differences confirm, for each instruction set of this machine, or for\n"
        "the one that SRU_ISA names; and tests bits, memory, dropout, initial weights, errors.");
    test_oracle();
    test_long_vectors();
    test_tensors();
    test_init();
    test_seed();
    test_errors();
    test_each_isa(kernels, test_kernels);
    return test_end();
}
