/* A language model of charlm.c as a WebAssembly module: browser.mjs calls it, and index.html shows
   what it writes. `make browser` compiles it; by hand, with the packages clang, lld, wasi-libc and
   libclang-rt-dev-wasm32 of Debian:

       clang --target=wasm32-wasi -mexec-model=reactor -msimd128 -O2 -DNDEBUG browser.c \
           -o browser.wasm */
#define SRU_IMPLEMENTATION
#define SRU_NO_STDIO            /* so that the module asks nothing of the page */
#define SRU_NO_BACKWARD
#include "../../sru.h"
#include <stdlib.h>

#define EXPORT(name) __attribute__((export_name(#name))) name

enum { V = 256 };               /* bytes */
static char error[SRU_ERROR_SIZE];
static const sru_context ctx = { .error = error };
static sru_model rnn = { .type = SRU_F32 };
static float *h, *state, *output, bias[V], logits[V];      /* output: (V,N), packed */
static size_t N, state_size;

/* Memory for the file of a model, or NULL. */
void *EXPORT(reserve)(size_t bytes) { return malloc(bytes); }

/* Opens the only model of this instance, and frees its file. Returns NULL, or what is wrong. */
const char *EXPORT(open)(void *file, size_t size)
{
    sru_sizes n;
    if (sru_load_bytes(&rnn, NULL, file, size, "rnn.", error)) return error;
    if (rnn.config.bidirectional) return "a network that reads backwards cannot foretell";
    if (rnn.config.arch == SRU_ARCH_SRUPP && !rnn.config.window) return "it sees without a window";
    rnn.config.causal = 1;
    if (sru_size(&n, &ctx, &rnn, 1, 1)) return error;

    const size_t I = (size_t)rnn.config.input_size;
    N = (size_t)rnn.config.hidden_size;
    void *weights = malloc(n.weights);
    float *embedding = malloc(V*I * 4), *plain = malloc(V*N * 4);
    output = malloc(sru_cpu()->pack(&ctx, NULL, SRU_F32, NULL, V, N));
    state = malloc(state_size = n.state * 4);
    h = malloc(N * 4);
    if (!weights || !embedding || !plain || !output || !state || !h) return "no memory";

    sru_tensor own[] = { { "embedding.weight", { V, I }, embedding, 0, 0 },
                         { "output.weight",    { V, N }, plain,     0, 0 },
                         { "output.bias",      { V },    bias,      0, 0 } };
    if (sru_load_bytes(&rnn, weights, file, size, "rnn.", error)) return error;
    for (int i = 0; i < 3; i++) if (sru_read_tensor(&own[i], file, size, error)) return error;
    if (!sru_cpu()->pack(&ctx, output, SRU_F32, plain, V, N)) return error;
    free(plain), free(file);
    rnn.vocab_size = V;
    rnn.embedding = embedding;
    return NULL;
}

/* Begins a new text. */
void EXPORT(restart)(void) { memset(state, 0, state_size); }

/* Reads a byte and returns V logits for the next one; NULL: it failed, and `message` says why. */
const float *EXPORT(next)(int32_t byte)
{
    const sru_io io = { .T = 1, .B = 1, .tokens = &byte, .h = h, .state = state };
    if (sru_forward(&ctx, &rnn, &io)) return NULL;
    if (sru_cpu()->linear_forward(&ctx, logits, h, output, SRU_F32, bias, 1, V, N)) return NULL;
    return logits;
}

const char *EXPORT(message)(void) { return error; }
