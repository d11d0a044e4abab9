/* sru.h - Simple Recurrent Units, SRU and SRU++, in one C header: load from PyTorch, run, train.
   Public domain or MIT, as you like; the licence is at the end.

   In Python, once:
       save_file(rnn.state_dict(), "rnn.safetensors", metadata={"module": "SRU",
                 "config": json.dumps(dict(input_size=64, hidden_size=128, num_layers=2))})

   In one C or C++ file of the program (any others include sru.h without the first line):
       #define SRU_IMPLEMENTATION
       #include "sru.h"

       char error[SRU_ERROR_SIZE];
       sru_model *rnn = sru_load("rnn.safetensors", SRU_F32, error);
       if (!rnn) return puts(error), 1;

       sru_context ctx = {0};             // how to compute. In C++ {} avoids warnings
       ctx.error = error;
       sru_io io = {0};                   // fields left zero take their defaults
       io.T = 100;  io.B = 1;             // 100 time steps of 1 sequence
       io.x = x;    io.h = h;             // (100,1,64) in, (100,1,128) out
       if (sru_forward(&ctx, rnn, &io)) return puts(error), 1;
       free(rnn);

   To stream       give io.state, and one step or more at a time           examples/audio.c
   To serve        share one model; a context, state and io each           examples/server.c
   In flash        a const sru_model on packed bytes, no heap, no files    examples/mcu.c
   To train        sru_init(), io.tape, sru_backward(), the operators      examples/train.c
   To learn        the operators alone                                     examples/teach.c

   CONVENTIONS
   Letters     T time steps, B sequences, L layers, I input width, D hidden units per direction,
               N output width (D; if bidirectional 2 D, [forward | backward]), K matrices of the
               recurrent unit (3; 4 if input and output widths differ and x has a skip term; 2 in
               SSRU), P projection width, H attention heads, M steps of memory, S floats of state
               per sequence, V rows of an embedding.
   Arrays      are float32, row-major, last index fastest: x (T,B,I) is x[(t*B + b)*I + i], as in
               PyTorch without batch_first. What a call writes must not overlap what it reads,
               unless a comment says that one array may be another.
   Gradients   dy has the shape of y. Gradients of parameters are added to what is there, until
               adamw uses and clears them. Gradients of activations overwrite what is there; but
               where a call has a beta, 1 adds and 0 overwrites.
   Memory      is the caller's; sru_size() says how much is needed. A call that is given no scratch
               memory allocates and frees its own.
   Threads     may share a model, for it is const, but not a state or scratch memory. From call to
               call the library remembers only which kernels the processor can run. Built with
               -fopenmp, a call uses as many threads as its context says.
   Results     of CPUs, from finite numbers on one machine and build, are the same bits for any
               number of threads and any other sequences in the batch. They are also the same for
               any division of a sequence into calls, unless the network is bidirectional, or
               attends without a window, to memory, with attn_mask, or in training. (What random
               dropout leaves out depends on places in batch and call.) GPUs give the same bits for
               the same calls; clang for 32-bit x86 needs -msse2 -mfpmath=sse for the same.
   Denormals   (numbers below 1.2e-38) count as 0 on most processors.
   Errors      are returned. Nothing prints, exits or aborts (but OpenMP's library does, if it
               cannot start a thread). After SRU_ENOMEM or SRU_EDEVICE, do not use what the call was
               to write (outputs, state, gradients).

   OPTIONS, defined before sru.h is included, alike in all files
   SRU_IMPLEMENTATION   adds the code: in one file only
   SRU_STATIC           makes everything static: only the file with the code can then call it
   SRUDEF               what precedes each public function, in place of static or extern; in a
                        shared library of several files, __attribute__((visibility("hidden")))
   SRU_MALLOC, SRU_FREE replace malloc and free. Without a heap, define SRU_MALLOC(n) as NULL and
                        SRU_FREE(p) as ((void)(p))
   SRU_ASSERT           replaces assert, which checks what the library itself relies on
   SRU_NO_STDIO         no files and no environment, only memory
   SRU_NO_BACKWARD      inference only: norm, adamw, and operators named _backward are NULL
   SRU_NO_SIMD          scalar kernels only
   SRU_NO_DISPATCH      only kernels for instructions that the compiler's own flags allow
   SRU_CUDA             declares sru_cuda_open(), which is in sru_cuda.cu
   SRU_USE_CBLAS        cblas_sgemm computes products with SRU_PLAIN weights; its bits may vary
   SRU_FILENAME         the name by which this file includes itself; "sru.h" unless defined */

#ifndef SRU__PASS       /* the file includes itself once for each instruction set: see "Kernels" */

#ifndef SRU_H
#define SRU_H

#include <stddef.h>
#include <stdint.h>

#define SRU_VERSION    100     /* 1.0.0 */
#define SRU_ERROR_SIZE 256     /* bytes of a `char *error`, which may be NULL */
#define SRU_MAX_LAYERS 32

#if !defined(SRUDEF) && defined(SRU_STATIC) && defined(__GNUC__)
#define SRUDEF static __attribute__((__unused__))
#elif !defined(SRUDEF) && defined(SRU_STATIC)
#define SRUDEF static
#elif !defined(SRUDEF)
#define SRUDEF extern
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sru_status {
    SRU_OK     =  0,
    SRU_EINVAL = -1,    /* a size or value is out of range, a pointer is NULL, two arrays are one
                           that must not be, a name is not allowed, or a type is not offered */
    SRU_ENOMEM = -2,    /* ctx->work is too small, SRU_MALLOC failed, or its size overflows */
    SRU_EFILE  = -3,    /* the file is damaged, is not what was expected, or cannot be written */
    SRU_ENOENT = -4,    /* sru_read_tensor(): the file has no tensor of this name */
    SRU_EDEVICE = -5    /* sru_cuda.cu: there is no suitable GPU, or it failed */
} sru_status;

typedef enum sru_type { /* the form of a model's weights; packing pads rows to multiples of 16 */
    SRU_PLAIN = 0,      /* float32 arrays, see sru_get_tensor(): to initialise, train, load, save */
    SRU_F32,            /* packed float32, for inference: the same bits as SRU_PLAIN, faster */
    SRU_BF16,           /* packed bfloat16: half the bytes */
    SRU_Q8,             /* packed int8 with a float32 scale for each unit's row: a quarter */
    SRU_F16             /* packed float16, on GPUs only: half the bytes */
} sru_type;

/* ---- Networks -------------------------------------------------------------------------------- */

typedef enum sru_arch {
    SRU_ARCH_SRU = 0,   /* SRU, initialised and stored as in 2.x of the reference, package sru */
    SRU_ARCH_SRU3,      /* SRU, initialised and stored as in its 3.0-dev version */
    SRU_ARCH_SRUPP      /* SRU++, of 3.0-dev */
} sru_arch;

/* The arguments of the reference's constructor, under their names; 0 is the reference's default,
   except for highway_bias of SRU++. A layer is: layer norm of its input, rnn_dropout, projection or
   SRU++'s attention, recurrence (see sru_scan), layer norm of its output, layer_dropout. */
typedef struct sru_config {
    int      input_size, hidden_size;       /* I, D: required */
    int      num_layers;                    /* L, at most SRU_MAX_LAYERS; 0 means 2 */
    sru_arch arch;
    int      bidirectional;                 /* 1: N = 2 D */
    int      projection_size;               /* P > 0: W of a layer is W1 W0, through P units (in 2.x
                                               only if input and output are both wider). SRU++:
                                               required, the width of attention (its proj_size) */
    int      projection_sizes[SRU_MAX_LAYERS]; /* P of each layer; 0 means projection_size */
    int      layer_norm;                    /* 1: of the input of each layer's product, so not of
                                               the skip term unless the product makes it (K = 4) */
    int      normalize_after;               /* 1: if layer_norm is 1, of the outputs instead */
    int      use_tanh;                      /* 1: g = tanh, otherwise g(c) = c */
    int      no_skip_term;                  /* 1: has_skip_term=False, h = r*g(c) */
    int      rescale;                       /* 1: scale_x = sqrt(1 + 2 exp(highway_bias)), else 1 */
    float    scale_x;                       /* 0: what rescale says. Loading a file sets it if the
                                               file's own value was rounded */
    int      v1;                            /* 1: v starts at 0 and gets no gradient */
    int      proj_input_to_hidden_first;    /* 1: if I != N, a product I -> N comes first */
    int      nn_rnn_compatible_return;      /* the reference's order of c, kept for sru_save(); for
                                               the order here see sru_io.state */
    float    highway_bias;                  /* initial bias of the reset gate, above -1000 and up to
                                               80; in SRU++ the reference's default is -2 */
    float    weight_c_init;                 /* initial v is uniform within +- this. 0, in a file,
                                               too, means sqrt(3/2) in 2.x, 1 in 3.0-dev */
    float    dropout;                       /* of c (see mask_c in sru_scan), one mask for all time
                                               steps, in all layers but the last. SRU++: also of the
                                               input to each layer's last product, elementwise */
    float    rnn_dropout;                   /* of the input to each layer's product, one mask for
                                               all time steps */
    float    layer_dropout;                 /* of the outputs between layers, elementwise (the
                                               reference has no such argument) */
    int      num_heads;                     /* H; 0 means 1.  From here on: SRU++ only; an SRU
                                               ignores causal and refuses the others */
    int      attention_every_n_layers;      /* n: in layers n, 2n, ... counted from 1; 0 means 1 */
    int      attention_last_n_layers;       /* n > 0: in the last n layers instead; -1: in none (the
                                               reference's 0, whose -1 is 0 here) */
    int      no_attn_layer_norm;            /* 1: attn_layer_norm=False */
    float    attn_dropout;                  /* of the attention's weights */
    int      causal;                        /* 1: no step attends to later ones */
    int      window;                        /* W > 0: causal, and a step attends to the last W,
                                               including itself; at most 2^23. In inference this
                                               goes on across calls: state holds keys and values.
                                               Padded steps count among the W in training, with
                                               attn_mask and with memory, as in the reference, but
                                               not in other inference: so pad before or after a
                                               sequence */
} sru_config;

typedef struct sru_model {
    sru_config  config;
    sru_type    type;                       /* SRU_PLAIN to train, any other to run fast */
    const void *weights;                    /* sru_sizes.weights bytes, aligned for float: on the
                                               heap, mapped, or in flash */
    size_t      vocab_size;                 /* V > 0: the input is tokens; 0: it is x */
    const float *embedding;                 /* (V,I); tokens are the numbers of its rows */
} sru_model;

/* ---- How to compute -------------------------------------------------------------------------- */

typedef struct sru_backend sru_backend;

typedef struct sru_context {    /* NULL in place of a context means one of all zeros */
    const sru_backend *op;      /* the operators. NULL: each call asks sru_cpu(), which reads the
                                   environment; so set op if other threads may change that */
    int       threads;          /* the most to use. 0: as many as OpenMP offers, but only one for
                                   work of about 0.1 ms or less, such as a step of 512 units */
    uint64_t  seed, step;       /* key of dropout. Count step up after each backward, or the next
                                   one leaves out the same units. So do several networks, workers,
                                   or calls before one update, unless each has a seed of its own */
    void     *work;             /* scratch memory; NULL: each call allocates and frees its own */
    size_t    work_size;        /* its size in bytes */
    size_t    work_used;        /* how much of it outer calls use: set it to 0 */
    size_t   *measure;          /* not NULL: calls check their arguments and compute nothing, but
                                   raise *measure to bytes of work that are enough for them. Only
                                   arrays of pointers are read; others may be at any address, but
                                   h at that of x, or not, as it will be */
    char     *error;            /* SRU_ERROR_SIZE bytes for a sentence when a call fails, or NULL */
} sru_context;

/* This CPU's operators. ->name says which kernels they use: "scalar", "sse2", "avx2", "avx512",
   "neon" ...; SRU_ISA=NAME in the environment asks for lower ones. Use scalar when you look for
   arrays that are too short: an address sanitizer does not see all that other kernels touch. */
SRUDEF const sru_backend *sru_cpu(void);

/* The same, but products with SRU_PLAIN weights, forward and backward, round their factors to
   bfloat16 and sum in float32. All else stays float32. On Zen 4 and 5, training takes 0.55 to 0.7
   of the time. For processors with AVX512_BF16 (->name is "avx512_bf16"); others get sru_cpu(). */
SRUDEF const sru_backend *sru_cpu_bf16(void);

/* ---- Running --------------------------------------------------------------------------------- */

typedef struct sru_io {
    size_t         T, B;            /* required; if either is 0, there is nothing to do */
    const float   *x;               /* (T,B,I) input */
    const int32_t *tokens;          /* (T,B) instead of x, if the model has an embedding: x is then
                                       its row of this number, or 0 if there is none */
    float         *h;               /* (T,B,N) output of the last layer; may be x in inference of an
                                       SRU (not SRU++) in one direction with N = I */
    float         *state;           /* (B,S) in and out. Each sequence has c (L,N) and, with a
                                       window, rings of keys and values behind it. Zeros are the
                                       start: memset(state + b*S, 0, S*4) restarts sequence b. NULL:
                                       starts from zeros, not kept. In a backward direction, it is
                                       taken before step T-1 and left after step 0. The reference's
                                       c, (L,B,N) or with nn_rnn_compatible_return (2 L,B,D), has
                                       the same order within a sequence */
    const uint8_t *mask_pad;        /* (T,B) 1: padding. State stays, h is 0, dh does not count, no
                                       step attends to it. x, and what is computed from it, must
                                       still be finite. With layer norm of the outputs, h is 0 only
                                       before it, and dh should be 0 there. NULL: no padding */

    size_t         memory_length;   /* M, in all layers.  From here on: SRU++; with an SRU,
                                       memory_length must be 0 and attn_mask NULL */
    const float *const *memory;     /* L pointers to (M,B,width): earlier inputs of each layer, to
                                       attend to; each call computes their keys and values. NULL, or
                                       any of them NULL: none; but unless memory itself is NULL,
                                       rings are left alone. width is N; in layer 0 I, unless
                                       proj_input_to_hidden_first. Layer norm before the product
                                       applies to what rings keep but, as in the reference, not to
                                       memory: set normalize_after to train with memory and stream
                                       with rings */
    const uint8_t *memory_mask_pad; /* (M,B) 1: no step attends to it; or NULL */
    const float   *attn_mask;       /* (T,M+T) added to the scores, or NULL. -inf, and what makes a
                                       score less than -1e30, hides its key. If M > 0, each layer
                                       that attends must have memory then. Rings are left alone */
    float *const  *saved;           /* L pointers to (T,B,width), out: the inputs of each layer (of
                                       an SRU, too), for the memory of a later call, not that of
                                       this one. NULL, or any of them NULL: not wanted */

    void          *tape;            /* not NULL: training, so dropout is on, and of state only c is
                                       used. sru_sizes.tape bytes, of sru_size() for T + M steps:
                                       forward leaves there what backward needs and uses up. Between
                                       the two, weights, context, x or tokens, masks and memory must
                                       not change. Nobody can check this: too small a tape is
                                       overrun, a second backward on one gives wrong gradients */
    const float   *dropout_mask;    /* (L,B,N) factors of c, used instead of random ones if dropout
                                       in the config is not 0; or NULL. The last layer has no random
                                       ones: fill in 1 */
    const float   *rnn_dropout_mask;   /* (B,width) of layer 0's input, (B,N) of the others';
                                       likewise if rnn_dropout is not 0 */
    const float   *layer_dropout_mask; /* (L-1,T,B,N); likewise if layer_dropout is not 0 */

    const float   *dh;              /* (T,B,N), zeros if only the state counts; may be h.  From
                                       here on: backward */
    float         *dx;              /* (T,B,I) out; must be neither dh nor x. NULL: not wanted.
                                       With tokens it must be NULL */
    float         *dembedding;      /* (V,I) added to. NULL: not wanted. With x it must be NULL */
    float         *dstate;          /* (B,S) in: of c after, out: of c before; rings have none.
                                       NULL: 0 in, none out: truncated back-propagation */
    float *const  *dmemory;         /* as memory, out: an array for each layer, even if layers share
                                       one memory. NULL, or any of them NULL: not wanted. No
                                       backward takes gradients of saved: it counts as constant */
    float         *grads;           /* as SRU_PLAIN weights, added to; NULL: not wanted */
} sru_io;

SRUDEF sru_status sru_forward (const sru_context *, const sru_model *, const sru_io *);
#ifndef SRU_NO_BACKWARD
SRUDEF sru_status sru_backward(const sru_context *, const sru_model *, const sru_io *);
#endif

typedef struct sru_sizes {
    size_t weights;     /* bytes, in the form model->type; if SRU_PLAIN, also of gradients. Zeros
                           follow SRU++'s alpha */
    size_t state;       /* S, in floats */
    size_t work;        /* bytes of scratch memory in inference, also without a state: less is
                           enough if ctx->measure says so of the call itself. Other instruction
                           sets, or more threads, may need more. From a few thousand rows (t,b) on
                           they do not grow with T, unless the network is bidirectional or attends
                           without a window */
    size_t train_work;  /* the same for forward with a tape, and backward; 0 unless SRU_PLAIN */
    size_t tape;        /* bytes, enough for fewer steps and sequences, too; 0 unless SRU_PLAIN */
} sru_sizes;

/* What calls with up to T steps of up to B sequences need on ctx->threads threads (0: as many as
   OpenMP offers this thread now; later, or in other threads, that may differ). T must include the
   steps of memory. Weights need not be there yet. Two things may need more scratch memory, and
   ctx->measure tells how much: inference with a window and yet memory or attn_mask, and an output
   layer or another operator that you call with the same scratch memory. */
SRUDEF sru_status sru_size(sru_sizes *, const sru_context *, const sru_model *, size_t T, size_t B);

/* Initial SRU_PLAIN weights, drawn as in the reference. As there, SRU++'s alpha is 0: attention
   has no effect before training. If the result is SRU_EINVAL, sru_size() says why. */
SRUDEF sru_status sru_init(float *weights, const sru_config *, uint64_t seed);

/* Writes the weights of `from` (SRU_PLAIN) in the form to->type and makes `to` a model on them; if
   it fails, `to` is left alone. Packed bytes hold no pointers and are the same for all instruction
   sets of one byte order: they can be saved, mapped, or compiled into another program. */
SRUDEF sru_status sru_pack(const sru_context *, sru_model *to, void *weights,
                           const sru_model *from);

/* ---- Files: safetensors, with the names and layouts of the reference, 2.x and 3.0-dev -------- */

typedef struct sru_tensor {
    char   name[128];
    size_t shape[4];                /* as in files and the reference; ends at the first 0 */
    float *data;
    int    interleave, transpose;   /* 0 in yours; in those of a network, how the file's order
                                       differs from data's */
} sru_tensor;

/* Loads the network in a file as one block, to be released with SRU_FREE (by default free). NULL:
   failed. SRU_PLAIN weights may be changed through (float *)m->weights, as training does. The names
   of its tensors may have a prefix such as "encoder.", of up to 80 bytes; tensors without it are
   ignored. If a file holds two networks, sru_load_bytes() loads either; the metadata are of one,
   so give it the other's m->config. */
#ifndef SRU_NO_STDIO
SRUDEF sru_model *sru_load(const char *path, sru_type, char *error);
#endif

/* The same from a file in memory, in the form m->type. If it fails, m and weights are left alone.
   weights NULL: sets m->config only, for sru_size(), which tells how large weights must be. prefix:
   with its '.', or ""; NULL: what stands before "rnn_lst.", if that is the same throughout. If
   m->config.input_size is not 0, m->config replaces the file's metadata, and the tensors must agree
   with it (their names alone tell SRU from SRU3): so clear m before another file. */
SRUDEF sru_status sru_load_bytes(sru_model *m, void *weights, const void *file, size_t size,
                                 const char *prefix, char *error);

/* Reads the tensor t->name, of floats of 16 to 64 bits or integers of 8, into t->data; t->shape
   must be the file's. data NULL: only sets t->shape, which may be any: look at all four numbers. If
   all are 0, the tensor is a single value. */
SRUDEF sru_status sru_read_tensor(sru_tensor *t, const void *file, size_t size, char *error);

/* Tensor i of SRU_PLAIN weights, or of gradients laid out like them. Returns 1; or 0 past the last,
   if the model is packed, and if its config is invalid. Whatever the shape in files, data lies as
   operators take it: a layer's last matrix as (K,N,A), see sru_scan; others as (n,k), see
   linear_forward. Under another name, without "rnn_lst.", t may be one of your own tensors in
   sru_save(), and sru_read_tensor() reads it back into a tensor of a network of the same config:
   so one file can hold a second network. */
SRUDEF int sru_get_tensor(sru_tensor *t, const sru_model *, int i);

/* Writes the network (SRU_PLAIN), under names that start with prefix, and n tensors of your own,
   such as its embedding. For another network see sru_get_tensor(). prefix: NULL, "", or up to 80
   bytes that end with '.', without "rnn_lst.". Names are UTF-8. Those of your own tensors must not
   start with the prefix (which cannot be empty then), for loading refuses tensors that do and are
   not the network's; nor contain "rnn_lst.", where sru_load() would see another network.
   The file is named path.sru_save until it is complete, so that an older one at path stays whole.
   Then, as a new file, it replaces what is at path, even a link or a device. So no two calls may
   save to one path at a time; and if others put a link at path.sru_save, it is followed.
   What the reference has no arguments for stands beside config in the metadata, for sru_load()
   only: scale_x, layer_dropout, causal; for SRU++ also window, use_tanh, no_skip_term, v1,
   rnn_dropout. A network of different projection_sizes loads there only as SRU of 3.0-dev. */
#ifndef SRU_NO_STDIO
SRUDEF sru_status sru_save(const char *path, const sru_model *, const char *prefix,
                           const sru_tensor *own, int n, char *error);

/* A whole file in memory, to be released with SRU_FREE. NULL: failed. */
SRUDEF void *sru_read_file(const char *path, size_t *size, char *error);
#endif

/* =================================================================================================
   Stop here if you only want to run networks. What follows are the operators that they are made of,
   for loss and update in training, for teaching, and for layers of your own. They keep nothing from
   call to call, and take raw pointers.

   The recurrence of one layer over whole sequences. If w is given, it includes the product before
   it, together or apart as the backend finds best. a is x, or what layer norm, dropout and
   projection made of it.                                          Lei et al. 2018, section 3

       u[t] = W a[t]                                       [candidate | forget | reset | skip]
       f[t] = sigmoid(u1[t] + (vf + vt0[t])*c[t-1] + bf)   forget gate
       r[t] = sigmoid(u2[t] + (vr + vt1[t])*c[t-1] + br)   reset gate
       c[t] = f[t]*c[t-1] + (1 - f[t])*u0[t]               internal state
       s[t] = scale_x*x[t]                                 skip term; 0 without x; if K = 4, u3[t]
       h[t] = r[t]*mask_c*(g(c[t]) - s[t]) + s[t]          output; g(c) = c, or tanh(c) if use_tanh

   Backward goes from T-1 down to 0. dc[t] starts as what the last line made of it at step t+1; zf
   and zr are the arguments of the sigmoids of f and r:

       dc[t]  += dh[t]*r[t]*mask_c*g'(c[t])
       dzf[t]  = dc[t]*(c[t-1] - u0[t])*f[t]*(1 - f[t])
       dzr[t]  = dh[t]*mask_c*(g(c[t]) - s[t])*r[t]*(1 - r[t])
       du0[t]  = dc[t]*(1 - f[t])      du1[t] = dzf[t]     du2[t] = dzr[t]
       ds[t]   = dh[t]*(1 - r[t]*mask_c)                   dx[t] = scale_x*ds[t]; if K = 4, du3 = ds
       dc[t-1] = dc[t]*f[t] + dzf[t]*(vf + vt0[t]) + dzr[t]*(vr + vt1[t])

   dvt[t] is [dzf[t]*c[t-1] | dzr[t]*c[t-1]], dv the sum of all these, dbias that of dzf and dzr.

   K = 2 is SSRU: u is [candidate | forget], and h[t] = mask_c*g(c[t]) + s[t] with g(c) = max(c, 0)
   and g'(0) = 0, so that ds[t] = dh[t]. G, the number of gates, is 1 here, else 2.  Kim et al. 2019

   In padded steps c[t] = c[t-1] and h[t] = 0, whatever u, x, vt and dh are there; du, dx and dvt
   are 0. If bidirectional, columns N/2 ... N-1 go from T-1 down to 0, and each direction's skip
   term is its own half of x. In one direction, if neither u nor c is wanted, h may be x, and also a
   if A is N. */
typedef struct sru_scan {
    size_t         T, B, N, A;              /* A: width of a (I, P or N), without a default */
    int            K;                       /* 2, 3 or 4 */
    int            bidirectional, use_tanh; /* 0 or 1; if K = 2, use_tanh must be 0 */
    float          scale_x;                 /* 0 means 1 */
    const float   *a;                       /* (T,B,A) */
    const void    *w;                       /* (K,N,A) in the form type; NULL: u is given */
    sru_type       type;                    /* if packed: K groups for each direction, see pack */
    sru_type       storage;                 /* of the arrays a, u, x, h, c and their gradients:
                                               SRU_PLAIN; on GPUs also SRU_BF16, SRU_F16 */
    float         *u;                       /* (T,B,K,N) in; if w is given: out, NULL: not wanted */
    const float   *x;                       /* (T,B,N) */
    const float   *v, *bias;                /* (G,N) [forget | reset]; NULL: 0 */
    const float   *vt;                      /* (T,B,G,N), or NULL */
    const float   *mask_c;                  /* (B,N), or NULL */
    const uint8_t *mask_pad;                /* (T,B), or NULL */
    const float   *c0;                      /* (B,N) c before the first step, for backward, too;
                                               NULL: 0 */
    float         *cT;                      /* (B,N) c after the last step; may be c0 unless a
                                               backward needs c0; NULL: not wanted */
    size_t         ldc;                     /* floats from sequence to sequence in c0, cT and dc; 0
                                               means N */
    float         *h;                       /* (T,B,N) */
    float         *c;                       /* (T,B,N) every c, for backward; NULL: not wanted */

    const float   *dh;                      /* (T,B,N)   From here on: backward, which
                                               needs dh, du, u, c, and what forward was given */
    float         *dc;                      /* (B,N) in: of cT, out: of c0. NULL: 0 in, none out */
    float         *du;                      /* (T,B,K,N) may be u */
    float         *dx;                      /* (T,B,N) if x is used, else left alone; may be dh;
                                               NULL: not wanted */
    float         *da;                      /* (T,B,A); may be dh, or dx, which is then the sum of
                                               both; NULL: not wanted */
    float         *dvt;                     /* (T,B,G,N), or NULL */
    float         *dw, *dv, *dbias;         /* as w (SRU_PLAIN), v, bias; NULL: not wanted. Without
                                               w, dw and da are left alone */
} sru_scan;

/* Attention of SRU++. Each of H heads has P/H columns of query, key and value.  Lei 2021, section 3

       a[t] = sum over s of softmax_s(q[t].k[s]/sqrt(P/H) + attn_mask[t,s]) v[s]
       o[t] = q[t] + alpha*a[t]

   Where an SRU has u[t] = W x[t], an SRU++ computes q[t] = W1 x[t], [k | v][t] = W2 q[t], o[t], and
   then u[t] = W3 layernorm(o[t]). In files, W1 to W3 are linear1 to linear3; in a layer without
   attention, o = q, and W3 is linear2.

   Keys and values are those of M steps of memory, then those of the T steps of the queries. In
   cross-attention, as from a decoder to an encoder's output, they are those of the memory alone.
   Even what no step sees must be finite. For a step that sees nothing, a and stats are 0. Time
   grows with the number of steps seen, scratch memory with T and M.

   A ring for each sequence keeps the keys and values of its last steps from call to call. It has
   2 + C*(P + H*R) floats: C is window - 1 rounded up to a multiple of 64, plus 64; R is P/H rounded
   up to a multiple of 16. Zeros are the start. The first two floats are counts, and are taken for 0
   if they are none that a ring can have, as in a damaged file. A padded step leaves the ring, and
   its own o, as they are. With rings there must be a window, and no memory, attn_mask, dropout or
   backward.
   In cross-attention, each step sees all that the ring keeps, and leaves it as it is: where a
   decoder goes step by step, this saves preparing the same keys and values in each call. A first
   call, with q NULL and T keys, puts these into a ring of zeros. Its window is one more than the
   keys of the longest sequence; mask_pad leaves out those of shorter ones. All calls on a ring must
   have the same window. */
typedef struct sru_attention {
    size_t         T, B, M, P;
    int            H;
    int            causal;          /* 1: no step sees later ones */
    size_t         window;          /* W > 0: causal, and a step sees the last W, itself included.
                                       In cross-attention: that which the ring was filled with */
    int            cross;           /* 1: cross-attention, to the memory alone or to a ring */
    const float   *q;               /* (T,B,P) NULL: the ring takes in kv, and that is all */
    const float   *kv;              /* (S,B,2,P) [key | value]; S is M + T, or M in cross-attention.
                                       Not used in cross-attention to a ring */
    const float   *alpha;           /* (1) NULL: o = a */
    const uint8_t *mask_pad, *memory_mask_pad;  /* (T,B), (M,B) 1: not seen; or NULL */
    const float   *attn_mask;       /* (T,S), or NULL */
    float          dropout;         /* of the softmax, drawn from (ctx->seed, ctx->step, id) */
    uint32_t       id;              /* below 2^31 */
    float         *ring;            /* (B,ld_ring), M = 0; or NULL */
    size_t         ld_ring;
    float         *o;               /* (T,B,P) */
    float         *a;               /* (T,B,P) for backward; or NULL */
    float         *stats;           /* (B,H,T,2) for backward: m, which is about the highest score,
                                       and 1 / the sum of exp(score - m); or NULL */

    const float   *dout;            /* (T,B,P) of o.  From here on: backward */
    float         *dq, *dkv;        /* as q, kv; not NULL */
    float         *dalpha;          /* (1), added to; or NULL */
} sru_attention;

/* An operator computes with ctx->op, whichever of the CPU's tables it was taken from, or with
   sru_cpu() if ctx or ctx->op is NULL. Those of sru_cuda_open() need their own table as ctx->op. */
struct sru_backend {
    const char *name;
    size_t      rows;       /* rows (t,b) that networks compute at a time in inference, or a few
                               times as many */
    const void *kernels;    /* private */

    /* alloc: gives zeroed memory, aligned to 64 bytes. copy: if `from` is NULL, writes zeros */
    void      *(*alloc)  (const sru_context *, size_t bytes);
    void       (*release)(const sru_context *, void *memory);
    sru_status (*copy)   (const sru_context *, void *to, const void *from, size_t bytes);

    /* Packs w (n,k) into another form, in panels of 16 rows. Returns the bytes of that form, or 0
       if it is not offered; packed NULL: does only that. A layer's (K,N,A) is packed as K groups
       of D rows for each direction, in the order [K][directions] */
    size_t     (*pack)(const sru_context *, void *packed, sru_type type, const float *w,
                       size_t n, size_t k);

    /* y = x w' + b          y (rows,n), not x  x (rows,k)  w (n,k)  b (n) or NULL */
    sru_status (*linear_forward) (const sru_context *, float *y, const float *x, const void *w,
                                  sru_type type, const float *b, size_t rows, size_t n, size_t k);
    /* dx = beta dx + dy w   dw += dy' x   db += sum of dy's rows
       dx, dw, db NULL: not wanted; w is read for dx alone, x for dw alone. dx may be x, but
       not dy */
    sru_status (*linear_backward)(const sru_context *, float *dx, float *dw, float *db,
                                  const float *dy, const float *x, const float *w, float beta,
                                  size_t rows, size_t n, size_t k);

    sru_status (*scan_forward) (const sru_context *, const sru_scan *);
    sru_status (*scan_backward)(const sru_context *, const sru_scan *);

    sru_status (*attention_forward) (const sru_context *, const sru_attention *);
    sru_status (*attention_backward)(const sru_context *, const sru_attention *);

    /* y = (x - mean)*rstd*gain + bias, rstd = 1/sqrt(variance + 1e-5)   Ba, Kiros, Hinton 2016
       y, x (rows,n), may be the same  gain, bias (n)
       stats (rows,2) [mean | rstd], for backward, or NULL */
    sru_status (*layernorm_forward) (const sru_context *, float *y, float *stats, const float *x,
                                     const float *gain, const float *bias, size_t rows, size_t n);
    /* dx = beta dx + the gradient of x; may be dy if beta is 0   dgain, dbias: added to
       dx, dgain, dbias may be NULL */
    sru_status (*layernorm_backward)(const sru_context *, float *dx, float *dgain, float *dbias,
                                     const float *dy, const float *x, const float *gain,
                                     const float *stats, float beta, size_t rows, size_t n);

    /* y[i] = table[tokens[i]], 0 for tokens not in 0 ... size-1;   table (size,n)  y (rows,n) */
    sru_status (*embedding_forward) (const sru_context *, float *y, const int32_t *tokens,
                                     const float *table, size_t rows, size_t n, size_t size);
    sru_status (*embedding_backward)(const sru_context *, float *dtable, const float *dy,
                                     const int32_t *tokens, size_t rows, size_t n, size_t size);

    /* y[t] = beta y[t] + x[t]*mask   x, y (T,n), may be the same; x NULL: y[t] = mask; beta 0 or 1
       mask (n), the same for all t. NULL: 0 with probability p, else 1/(1-p), drawn from
       (ctx->seed, ctx->step, id). id: any below 2^31, for networks have those from there on, but
       another one for each use and each attention.
       Backward is the same call on dy. Without a mask, p 0 and beta 1 give y += x */
    sru_status (*dropout)(const sru_context *, float *y, const float *x, const float *mask, float p,
                          uint32_t id, float beta, size_t T, size_t n);

    /* *loss = -sum of log softmax(y)[target], in nats, without the scale
       dy = scale*(softmax(y) - onehot(target))
       y, dy (rows,n), may be the same; dy NULL: not wanted
       targets (rows); < 0: row left out, dy 0; n or more: SRU_EINVAL, on GPUs *loss is NaN */
    sru_status (*softmax_loss)(const sru_context *, double *loss, float *dy, const float *y,
                               const int32_t *targets, float scale, size_t rows, size_t n);

    /* *norm = sqrt(sum of g^2); to clip at 1, give adamw the scale 1/norm if norm > 1 */
    sru_status (*norm)(const sru_context *, double *norm, const float *g, size_t n);

    /* Update number t = 1, 2, ... of p by the gradient scale*g; then sets g = 0. m and v are its
       moments, zeros at first. Tensors may have a call each, with an lr and a decay of their own.
                                                                 Loshchilov and Hutter 2019
       p -= lr*(m1/(sqrt(v1) + eps) + decay*p), with m1 = m/(1 - beta1^t), v1 = v/(1 - beta2^t) */
    sru_status (*adamw)(const sru_context *, float *p, float *m, float *v, float *g, float scale,
                        float lr, float beta1, float beta2, float eps, float decay, uint64_t t,
                        size_t n);
};

/* The operators on an NVIDIA GPU, from sru_cuda.cu, for ctx->op. NULL: failed. Arrays are then in
   device memory, which op->alloc gives; op->copy copies either way. loss and norm may be on either
   side. Work goes onto the stream, a cudaStream_t, and only results in host memory are waited for.
   A backend belongs to the device that is current when it is opened, and that must be current in
   each call; only one thread may use it at a time. Files and sru_init() work on host memory;
   sru_pack() packs weights on the device, as SRU_F32, SRU_BF16 or SRU_F16. Rings in state have an
   order of their own. A target of n or more makes the loss NaN. */
#ifdef SRU_CUDA
typedef enum sru_cuda_math {    /* of products with SRU_PLAIN weights. Those with SRU_F32, and in
                                   attention, are float32 for the first of these, else TF32 */
    SRU_CUDA_FLOAT32 = 0,
    SRU_CUDA_TF32,              /* of float32 with 10 bits of fraction */
    SRU_CUDA_BF16,              /* of bfloat16 */
    SRU_CUDA_FP16               /* of float16: a scan keeps products so, at most 65504, if it
                                   returns no u. In backward of bfloat16, for its range */
} sru_cuda_math;
extern const sru_backend *sru_cuda_open(void *stream, sru_cuda_math, char *error);
extern void sru_cuda_close(const sru_backend *);
#endif

#ifdef __cplusplus
}
#endif
#endif /* SRU_H */

/* =================================================================================================
   Implementation: what all parts share, and then

   operators           check their arguments, divide work among threads, take scratch memory, and
                       call kernels
   instruction sets    kernels for each of them, and the choice
   networks            layers made of operators; initialisation, packing
   files               safetensors, read and written
   kernels             the arithmetic: compiled once for each instruction set

   tests/naive.h has all of it as plain loops, against which it is tested. */

#ifdef SRU_IMPLEMENTATION
#ifndef SRU__IMPLEMENTED
#define SRU__IMPLEMENTED

#include <stdarg.h>
#include <string.h>
#ifndef SRU_NO_STDIO
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#ifndef SRU_FILENAME
#define SRU_FILENAME "sru.h"        /* __FILE__ would not do: it is relative to the compiler */
#endif
#if defined(SRU_MALLOC) != defined(SRU_FREE)
#error "sru.h: define both SRU_MALLOC and SRU_FREE, or neither"
#endif
#ifndef SRU_MALLOC
#include <stdlib.h>
#define SRU_MALLOC(n) malloc(n)
#define SRU_FREE(p)   free(p)
#endif
#ifndef SRU_ASSERT
#include <assert.h>
#define SRU_ASSERT(x) assert(x)
#endif
#ifdef SRU_USE_CBLAS
#include <cblas.h>
#endif

/* Whatever the flags, sums may be fused with products, but nothing else may be rearranged: exp
   rounds by adding a large number, NaN must stay NaN, and -ffast-math would undo both. In clang,
   `on` always fuses within an expression, while `fast` may not in instrumented code. gcc does not
   fuse at -O1 without expensive-optimizations, nor at -O0. */
#ifdef __CUDACC__
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675   /* pragmas for the host's compiler */
#endif
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wignored-pragmas"    /* some targets have no float_control */
#pragma clang diagnostic ignored "-Wunknown-pragmas"    /* nor has clang before 11 */
#pragma float_control(push)
#pragma float_control(precise, on)
#pragma clang diagnostic pop
#pragma clang fp contract(on)
#if __clang_major__ > 12
#pragma clang fp reassociate(off)
#endif
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("no-fast-math", "fp-contract=fast", "expensive-optimizations")
#if __FLT_EVAL_METHOD__ == 0 || __FLT_EVAL_METHOD__ == 16
#elif defined(__x86_64__)           /* -mfpmath=387: its wider numbers do not fit in vectors */
#pragma GCC target("fpmath=sse")
#else                               /* x87: variables are rounded as if stored */
#pragma GCC optimize("float-store")
#endif
#elif defined(_MSC_VER)
#pragma float_control(precise, on, push)
#endif

#if defined(__GNUC__)
#ifdef __clang__
/* checks of undefined behaviour in each operation of unrolled loops take minutes to compile */
#define SRU__INLINE static inline __attribute__((__always_inline__, __no_sanitize__("undefined")))
#define SRU__UNROLL _Pragma("clang loop unroll(full)")
#define SRU__UNROLL_4 _Pragma("clang loop unroll_count(4)")
#else
#define SRU__INLINE static inline __attribute__((__always_inline__))
#if __GNUC__ > 7
#define SRU__UNROLL _Pragma("GCC unroll 64")
#define SRU__UNROLL_4 _Pragma("GCC unroll 4")   /* where the length is known only at the end */
#endif
#if defined(__x86_64__) || defined(__SSE_MATH__)
#define SRU__ROUND(x) __asm__("" : "+v"(x))     /* see sru__rounded() */
#elif defined(__aarch64__)
#define SRU__ROUND(x) __asm__("" : "+w"(x))
#endif
#endif
#define SRU__PREFETCH(at) __builtin_prefetch((const void *)(at), 0, 2)
/* For all the compiler knows, this changes x: it does not keep what depends on the old value. */
#define SRU__ANEW(x) __asm__("" : "+r"(x))
#if (defined(__clang__) || __GNUC__ >= 12) && (defined(__SSE2__) || defined(__ARM_NEON) \
                                               || defined(__wasm_simd128__))
#define SRU__SHUFFLE __builtin_shufflevector
#endif
#else
#if defined(__cplusplus) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 199901L)
#define SRU__INLINE static inline
#else
#define SRU__INLINE static
#endif
#define SRU__PREFETCH(at) ((void)(at))
#define SRU__ANEW(x) ((void)(x))
#endif
#ifndef SRU__UNROLL
#define SRU__UNROLL
#define SRU__UNROLL_4
#endif
#ifndef SRU__ROUND
#define SRU__ROUND(x) ((void)(x))
#endif
#ifdef SRU_NO_BACKWARD
#define SRU__TRAINING(f) NULL
#else
#define SRU__TRAINING(f) f
#endif

/* ---- helpers --------------------------------------------------------------------------------- */

static size_t sru__min(size_t a, size_t b) { return a < b ? a : b; }
static size_t sru__max(size_t a, size_t b) { return a > b ? a : b; }
static size_t sru__ceil(size_t a, size_t b) { return a / b + (a % b != 0); }
static size_t sru__round_up(size_t n, size_t unit) { return sru__ceil(n, unit) * unit; }

/* Whether this many bytes are less than a quarter of the address space. */
static int sru__fits(float bytes) { return bytes < (float)(SIZE_MAX / 4); }

/* Where part i of n things begins; the first n % parts have one more. Divisions are slow. */
static size_t sru__part(size_t n, size_t i, size_t parts)
{
    return parts == 1 ? n * i : n / parts * i + sru__min(i, n % parts);
}

/* The same if parts consist of whole units; only the last unit of all may be smaller. */
static size_t sru__part_of_units(size_t n, size_t unit, size_t i, size_t parts)
{
    return sru__min(n, sru__part(sru__ceil(n, unit), i, parts) * unit);
}

/* a*b, or SIZE_MAX if that overflows. */
static size_t sru__times(size_t a, size_t b) { return b && a > SIZE_MAX / b ? SIZE_MAX : a * b; }

/* Sets a structure to 0. The compiler must not know n, or gcc would replace the call by the
   processor's own loop (rep stos), whose start takes a tenth of a small network's step. */
SRU__INLINE void sru__clear(void *p, size_t n)
{
    SRU__ANEW(n);
    memset(p, 0, n);
}

/* Writes a sentence with %s and %u (size_t). printf may not be available. */
static void sru__say(char *error, const char *format, ...)
{
    size_t n = 0;
    va_list list;
    if (!error) return;
    va_start(list, format);
    for (; *format; format++) {
        char digits[24], *text = digits + sizeof digits - 1;
        const char *from = NULL;
        *text = 0;
        if (*format != '%') *--text = *format;
        else if (*++format == 's') from = va_arg(list, const char *);
        else {
            size_t value = va_arg(list, size_t);
            do *--text = (char)('0' + value % 10);
            while (value /= 10);
        }
        if (!from) from = text;
        while (*from && n < SRU_ERROR_SIZE - 1) error[n++] = *from++;
        if ((*from & 0xc0) == 0x80) {               /* cut within a UTF-8 character: drop it */
            while (n && (error[--n] & 0xc0) == 0x80) continue;
            break;
        }
    }
    va_end(list);
    error[n] = 0;
}

static char *sru__error(const sru_context *ctx) { return ctx ? ctx->error : NULL; }

#define SRU__FAIL(ctx, status, ...) (sru__say(sru__error(ctx), __VA_ARGS__), (status))

static int sru__too_large(const sru_context *ctx, const char *name, size_t rows, size_t n)
{
    if (sru__fits(4.0f * (float)rows * (float)n)) return 0;
    return SRU__FAIL(ctx, 1, "%s: arrays of %u by %u are too large", name, rows, n);
}

/* Whether low <= x < high; false if x is NaN. Some compilers would compare NaN wrongly (see the
   pragmas above), so its bits are tested. */
static int sru__within(double x, double low, double high)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits << 1 <= (uint64_t)0x7ff << 53 && x >= low && x < high;
}

static double sru__dsqrt(double x)
{
    uint64_t bits;
    double y;
    int i;
    if (!(x > 0) || x > 1e308) return x;                /* 0, NaN; in practice, infinity */
    memcpy(&bits, &x, 8);
    bits = (bits >> 1) + ((uint64_t)1023 << 51);        /* halves the exponent */
    memcpy(&y, &bits, 8);
    for (i = 0; i < 5; i++) y = 0.5 * (y + x / y);
    return y;
}

static double sru__dexp(double x)
{
    uint64_t bits;
    double r, term = 1, sum = 1, scale;
    int i, n;
    if (x < -700) return 0;
    n = (int)(x / 0.6931471805599453 + (x < 0 ? -0.5 : 0.5));
    r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;     /* ln 2 in two */
    for (i = 1; i < 20; i++) sum += term *= r / i;
    bits = (uint64_t)(n + 1023) << 52;
    memcpy(&scale, &bits, 8);
    return sum * scale;
}

static double sru__dlog(double x)
{
    uint64_t bits;
    double m, s, z, sum = 0;
    int i, n;
    memcpy(&bits, &x, 8);
    if ((bits >> 52 & 0x7ff) == 0x7ff) return x;        /* infinity, NaN */
    n = (int)(bits >> 52) - 1022;
    bits = (bits & 0xfffffffffffffu) | ((uint64_t)1022 << 52);
    memcpy(&m, &bits, 8);                               /* x = m 2^n, 0.5 <= m < 1 */
    if (m < 0.7071067811865476) {
        m *= 2;
        n--;
    }
    s = (m - 1) / (m + 1);                              /* log m = 2 atanh s, within 1e-12 */
    z = s * s;
    for (i = 13; i >= 1; i -= 2) sum = sum * z + 1.0 / i;
    return 2 * s * sum + n * 0.6931471805599453;
}

/* splitmix64's finaliser (Steele et al. 2014): each bit of z can change any bit of the result. */
static uint64_t sru__mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t sru__key(uint64_t seed, uint64_t step, uint64_t id)
{
    return sru__mix(sru__mix(sru__mix(seed + 0x9e3779b97f4a7c15u) + step) + id);
}

/* A counter-based generator: random number i of a key, uniform in [0,1), a multiple of 2^-24. */
static float sru__uniform(uint64_t key, uint64_t i)
{
    return (float)(sru__mix(key + (i + 1) * 0x9e3779b97f4a7c15u) >> 40) * (1.0f / 16777216.0f);
}

/* ---- scratch memory and threads -------------------------------------------------------------- */

/* The first address from p on that is a multiple of 64. */
static char *sru__aligned(void *p) { return (char *)p + (64 - (uintptr_t)p % 64) % 64; }

/* Takes count floats, aligned to 64 bytes, from the context's scratch memory. A measuring call gets
   a distinct address that must not be used. A function works on a copy of its caller's context, so
   whatever it took is free again when it returns. */
static float *sru__take_floats(sru_context *c, size_t count)
{
    const size_t start = c->work_used;
    if (count > SIZE_MAX / 16 || start > SIZE_MAX / 2) return NULL;
    c->work_used += (count + 15) / 16 * 64;
    if (c->measure) {
        *c->measure = sru__max(*c->measure, c->work_used + 63);
        return (float *)((uintptr_t)256 + start);
    }
    if (!c->work || c->work_used + 63 > c->work_size) return NULL;
    return (float *)(void *)(sru__aligned(c->work) + start);
}

static sru_status sru__no_memory(const sru_context *c)
{
    if (c->measure)                     /* there is enough, but a size overflows */
        return SRU__FAIL(c, SRU_ENOMEM, "scratch memory for these sizes, or so many threads, is "
                         "too large for this machine");
    return SRU__FAIL(c, SRU_ENOMEM, "%u bytes of scratch memory are too few, or work_used is not "
                     "0: sru_size() tells how many a network needs, ctx->measure how many any "
                     "call", c->work_size);
}

/* A copy of the caller's context, with defaults filled in. */
SRU__INLINE sru_context sru__context(const sru_context *ctx)
{
    sru_context c;
    if (ctx) c = *ctx;
    else sru__clear(&c, sizeof c);
    if (!c.op) c.op = sru_cpu();
    return c;
}

/* Runs a call on such a copy, and allocates scratch memory for it if the context has none. */
static sru_status sru__run(const sru_context *ctx, sru_status (*run)(sru_context *, const void *),
                           const void *args)
{
    sru_context c = sru__context(ctx), measuring;
    sru_status status;
    size_t need = 0;
    if (c.measure || c.work) return run(&c, args);
    c.work_used = 0;
    measuring = c;
    measuring.measure = &need;
    status = run(&measuring, args);
    if (status) return status;
    if (need) {
        c.work = c.op->alloc(&c, need);
        c.work_size = need;
        if (!c.work) return SRU__FAIL(ctx, SRU_ENOMEM, "no memory for %u bytes of scratch", need);
    }
    status = run(&c, args);
    if (need) c.op->release(&c, c.work);
    return status;
}

/* As many threads as the context asks for, but no more than there are portions of 1,500,000
   operations, or 10 microseconds of a product: with less to do, a thread costs more than it saves.
   Callers count slower operations as several, and those of a layer in training as half, because
   threads soon read what the others wrote. If the context does not ask, work below 8 portions gets
   one thread: while another program occupies a processor, all threads would wait milliseconds for
   the one that is to run there. */
#ifndef SRU__PORTION
#define SRU__PORTION 1500000
#endif

static int sru__threads(const sru_context *c, double operations)
{
#ifdef _OPENMP
    int n = c->threads;
    if (n <= 0) n = operations < 8.0 * SRU__PORTION ? 1 : omp_get_max_threads();
    if (n > 1024) n = 1024;
    return operations < 1.0 * SRU__PORTION * n ? (int)(operations / SRU__PORTION) + 1 : n;
#else
    (void)c;
    (void)operations;
    return 1;
#endif
}

/* Fewer than 12 rows cost as much as 12, since the time goes into reading the weights. If the
   context does not ask for threads, the limit is 3, as if the weights came from a cache. */
static double sru__rows_at_least(const sru_context *c, size_t rows)
{
    return (double)sru__max(rows, c->threads > 0 ? 12 : 3);
}

/* In training, threads write next to one another. With only a few units of a step each, they would
   wait for the same cache lines; so there are no more threads than shares of this many units. */
#ifndef SRU__SHARE
#define SRU__SHARE 64
#endif

static int sru__at_most(int threads, size_t shares)
{
    return (int)sru__min((size_t)threads, sru__max(1, shares));
}

/* Arithmetic on numbers below 1.2e-38 is up to a hundred times slower than on others, and attention
   is full of them. So while kernels run they count as 0, if the processor offers that; x87, with
   which gcc -m32 computes even if there is SSE, does not. Where they do, kernels also round to the
   nearest, which exp relies on, whatever fesetround() has set in the caller or in OpenMP's threads.
   What is computed around kernels, such as attention's scale, rounds as the caller does. Programs
   that trap overflows and NaN (feenableexcept, -ffpe-trap, Pascal) are not stopped meanwhile:
   values that are computed but not used may hold any. */
#if defined(__GNUC__) && (defined(__SSE_MATH__) || defined(__aarch64__))
enum { SRU__FLUSHES = 1 };
#else
enum { SRU__FLUSHES = 0 };
#endif

static void sru__set_float_mode(uint64_t mode)
{
#if defined(__GNUC__) && defined(__SSE__)
    __builtin_ia32_ldmxcsr((unsigned)mode);
#elif defined(__GNUC__) && defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#endif
    (void)mode;
}

static uint64_t sru__standard_mode(void)
{
    uint64_t mode = 0;
#if defined(__GNUC__) && defined(__SSE__)
    mode = __builtin_ia32_stmxcsr();
    /* results and arguments; all exceptions masked; the two bits of rounding are 0 */
    sru__set_float_mode((mode & ~(uint64_t)0x6000) | 0x9fc0);
#elif defined(__GNUC__) && defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    sru__set_float_mode((mode & ~((uint64_t)3 << 22)) | 1u << 24);
#endif
    return mode;
}

typedef void (*sru__work)(void *job, size_t begin, size_t end, int thread);

/* Work on 0 ... count-1 is cut into one piece for each of n threads. This does that of thread i. */
static void sru__piece(int n, int i, size_t count, sru__work work, void *job)
{
    const size_t begin = sru__part(count, (size_t)i, (size_t)n);
    const size_t end = sru__part(count, (size_t)i + 1, (size_t)n);
    if (begin < end) work(job, begin, end, i);
}

/* Does all of `work`, then all of `next`; either count may be 0. Threads are started only here,
   and kernels run inside. omp_get_thread_num() does not decide who does which piece: if a process
   has both libgomp and LLVM's OpenMP, the one that did not start the threads may answer. */
static void sru__parallel_then(int threads, size_t count, sru__work work, size_t next_count,
                               sru__work next, void *job)
{
    uint64_t mode;
#ifdef _OPENMP
    if (threads > 1 && (count > 1 || next_count > 1)) {
        #pragma omp parallel num_threads(threads)
        {
            const uint64_t own = sru__standard_mode();
            int i;                      /* MSVC wants a signed one */
            #pragma omp for schedule(static, 1) nowait
            for (i = 0; i < threads; i++) sru__piece(threads, i, count, work, job);
            if (count && next_count) {
                #pragma omp barrier
            }
            #pragma omp for schedule(static, 1) nowait
            for (i = 0; i < threads; i++) sru__piece(threads, i, next_count, next, job);
            sru__set_float_mode(own);
        }
        return;
    }
#endif
    (void)threads;
    mode = sru__standard_mode();
    sru__piece(1, 0, count, work, job);
    sru__piece(1, 0, next_count, next, job);
    sru__set_float_mode(mode);
}

static void sru__parallel(int threads, size_t count, sru__work work, void *job)
{
    sru__parallel_then(threads, count, work, 0, work, job);
}

/* ---- what kernels are given ------------------------------------------------------------------ */

#define SRU__PANEL 16       /* units in a panel of packed weights, for every instruction set */
#define SRU__DEPTH 1024     /* values of k (or pairs) that a product takes at a time */
#define SRU__NEAR  16       /* values of k (or pairs) packed of each strip or panel in turn */
#define SRU__STRIDE 32      /* of k in which a tile fetches 8, 16 or 32 lines: 1, 2 or 4 quarters */
#define SRU__PAGE  64       /* values of k whose lines of a panel fill a page of memory */
#define SRU__CACHE 262144   /* floats that the second-level cache is assumed to hold */
#define SRU__AHEAD 4        /* steps by which the scan fetches ahead what it reads and writes */
#define SRU__KEYS  64       /* keys, and queries, that attention takes at a time */
#define SRU__FARTHEST (1 << 23)     /* window: places in a ring are kept as floats */
#define SRU__HIDDEN -1e30f  /* a score this low, or lower, does not count */

/* A block of columns of one sequence. Pointers point to its first step and column. Rows of x, h, c,
   dh and dx are `step` floats apart, those of vt and dvt G*step; `step` is negative if time runs
   backwards. */
typedef struct sru__scan_job {
    size_t T, n;
    size_t u_n;                     /* columns of u that may be read: n, or up to a whole panel */
    int K, use_tanh;
    int distant;                    /* forward fetches x, h and c (and if c is kept, u) ahead */
    float scale_x;
    ptrdiff_t u_step, step, pad_step;
    size_t u_plane, plane;          /* floats between planes of u, du (K); of the others (G) */
    const float *u, *x, *v, *bias, *vt, *mask_c, *c0;
    const uint8_t *pad;
    float *h, *c, *cT;
    const float *dh;
    float *dc, *du, *dx, *dvt, *sums;       /* sums (2,G): dv and dbias of this sequence */
} sru__scan_job;

typedef struct sru__adamw_job {
    float scale, step1, step2, eps, rate, shrink, root_unbias2;     /* steps: 1 - beta */
} sru__adamw_job;

typedef void sru__product(size_t k, const float *a, size_t row, size_t col, int rows,
                          const float *const *b, int panels, float *c, size_t ldc, size_t plane,
                          int add, int mr, int nr, const uintptr_t *ahead, size_t quarters);

/* What is compiled once for each instruction set. The kernels of these names are at the end. */
typedef struct sru__kernels {
    size_t rows, panels;    /* of a full tile of the product */
    size_t columns;         /* of its narrowest tile, half a panel or a whole one */
    size_t block;           /* columns that the scan takes at a time, a multiple of SRU__PANEL */
    sru__product *product;
    sru__product *product_bf16;     /* of pairs; NULL: SRU_PLAIN weights, too, are multiplied as
                                       floats */
    void (*pairs)(float *out, size_t ldo, const float *a, size_t n, size_t row, size_t col,
                  size_t k);
    void (*unpack)(float *out, const void *panel, sru_type type, size_t p0, size_t k);
    void (*row)(size_t k, const float *a, const float *const *b, int panels, sru_type type,
                float *c, int add, int nr);
    void (*scan_forward)(const sru__scan_job *);
    void (*attend)(float *s, size_t n, size_t keys, float *most, float *total, float *sums,
                   size_t wide);
    float (*attended)(float *o, float *a, const float *q, const float *sums, const float *total,
                      float alpha, size_t n);
    void (*add_mask)(float *s, const float *m, size_t n);
    void (*layernorm)(float *y, float *stats, const float *x, const float *gain, const float *bias,
                      size_t rows, size_t n);
    double (*softmax_loss)(float *dy, const float *y, size_t target, float scale, size_t n);
    void (*add)(float *y, const float *x, size_t n);
    void (*scale)(float *y, const float *x, float by, size_t n);
    void (*multiply)(float *y, const float *x, const float *m, float beta, size_t n);
    void (*draw)(float *m, uint64_t key, uint64_t first, float p, size_t n);
    /* from here on NULL with SRU_NO_BACKWARD */
    void (*scan_backward)(const sru__scan_job *);
    void (*attend_backward)(float *s, float *ds, const float *stats, float mean);
    void (*layernorm_backward)(float *dx, float *dgain, float *dbias, const float *dy,
                               const float *x, const float *gain, const float *stats, float beta,
                               size_t rows, size_t n);
    double (*squares)(const float *g, size_t n);
    void (*adamw)(float *p, float *m, float *v, float *g, const sru__adamw_job *, size_t n);
} sru__kernels;

/* How many packed weights a lane of 32 bits holds. */
SRU__INLINE size_t sru__per_lane(sru_type type)
{
    return type == SRU_Q8 ? 4 : type == SRU_BF16 || type == SRU_F16 ? 2 : 1;
}

static const sru__kernels *sru__kern(const sru_context *c)
{
    return (const sru__kernels *)c->op->kernels;
}

/* ---- operators: memory ----------------------------------------------------------------------- */

/* The address returned by SRU_MALLOC is kept just before the aligned block. */
static void *sru__cpu_alloc(const sru_context *ctx, size_t bytes)
{
    char *block, *p;
    (void)ctx;
    if (bytes > SIZE_MAX / 2) return NULL;
    block = (char *)SRU_MALLOC(bytes + 64 + sizeof block);
    if (!block) return NULL;
    p = sru__aligned(block + sizeof block);
    memcpy(p - sizeof block, &block, sizeof block);
    memset(p, 0, bytes);
    return p;
}

static void sru__cpu_release(const sru_context *ctx, void *memory)
{
    char *block;
    (void)ctx;
    if (!memory) return;
    memcpy(&block, (char *)memory - sizeof block, sizeof block);
    SRU_FREE(block);
}

static sru_status sru__cpu_copy(const sru_context *ctx, void *to, const void *from, size_t bytes)
{
    if ((ctx && ctx->measure) || !bytes) return SRU_OK;
    if (!to) return SRU__FAIL(ctx, SRU_EINVAL, "copy: the destination is NULL");
    if (from) memmove(to, from, bytes);
    else memset(to, 0, bytes);
    return SRU_OK;
}

/* ---- weights in memory or in a file ---------------------------------------------------------- */

/* A source of weights to be packed or copied: floats in memory, or a tensor in a file. */
typedef struct sru__source {
    const unsigned char *bytes;
    int dtype;                      /* an index of sru__dtypes, or SRU__NATIVE */
    size_t rows, cols;              /* as used; a file may interleave rows, and be transposed */
    size_t interleave;              /* how many matrices have their rows interleaved, or 0 */
    int transpose;
} sru__source;

enum { SRU__NATIVE = -1 };

/* The first seven can be read: four floats, three small integers. The others are known by size. */
static const struct { const char *name; size_t bytes; } sru__dtypes[] = {
    { "F32", 4 }, { "F16", 2 }, { "BF16", 2 }, { "F64", 8 }, { "U8", 1 }, { "I8", 1 },
    { "BOOL", 1 }, { "I16", 2 }, { "U16", 2 }, { "I32", 4 }, { "U32", 4 }, { "I64", 8 },
    { "U64", 8 }, { "C64", 8 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 }, { "F8_E8M0", 1 }
};
enum { SRU__READABLE = 7, SRU__DTYPES = sizeof sru__dtypes / sizeof *sru__dtypes };

static uint64_t sru__little(const unsigned char *p, size_t n)
{
    uint64_t x = 0;
    while (n--) x = x << 8 | p[n];
    return x;
}

static float sru__from_f16(uint32_t h)
{
    const uint32_t sign = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
    const uint32_t bits = sign | (e == 31 ? 0x7f800000 : (e + 112) << 23) | m << 13;
    float x;
    if (!e) return (sign ? -1.0f : 1.0f) * (float)m / 16777216.0f;      /* zero, or m/2^24 */
    memcpy(&x, &bits, 4);
    return x;
}

static float sru__decode(const unsigned char *p, int dtype)
{
    uint32_t bits;
    float x;
    if (dtype == 3) {                                                   /* F64 */
        const uint64_t wide = sru__little(p, 8);
        double y;
        memcpy(&y, &wide, 8);
        return (float)y;
    }
    if (dtype == 1) return sru__from_f16((uint32_t)sru__little(p, 2));
    if (dtype == 5) return (float)(p[0] < 128 ? p[0] : p[0] - 256);     /* I8 */
    if (dtype >= 4) return (float)p[0];                                 /* U8, BOOL */
    if (dtype == SRU__NATIVE) memcpy(&bits, p, 4);
    else bits = dtype == 2 ? (uint32_t)sru__little(p, 2) << 16 : (uint32_t)sru__little(p, 4);
    memcpy(&x, &bits, 4);
    return x;
}

/* Reads n values of a row, from column `col` on. Row k*m + i is unit i of matrix k, which has m
   units. If the file interleaves rows, it is row i*matrices + k there. */
static void sru__values(float *to, const sru__source *s, size_t row, size_t col, size_t n)
{
    const size_t bytes = s->dtype == SRU__NATIVE ? 4 : sru__dtypes[s->dtype].bytes;
    const size_t step = s->transpose ? bytes * s->rows : bytes;
    const unsigned char *from;
    size_t i;
    if (s->interleave) {
        const size_t m = s->rows / s->interleave;
        row = row % m * s->interleave + row / m;
    }
    from = s->bytes + bytes * (s->transpose ? col * s->rows + row : row * s->cols + col);
    if (s->dtype == SRU__NATIVE && !s->transpose) memcpy(to, from, 4 * n);
    else for (i = 0; i < n; i++, from += step) to[i] = sru__decode(from, s->dtype);
}

/* ---- operators: linear ----------------------------------------------------------------------- */

/* Bytes of a panel. If panels would begin a multiple of a page apart, each has one more line, or
   they would evict one another from the first-level cache. */
static size_t sru__packed_panel(sru_type type, size_t k)
{
    const size_t lines = sru__ceil(k, sru__per_lane(type)) + (type == SRU_Q8);     /* of scales */
    return 64 * (lines + (lines && lines % 64 == 0));
}

/* Whether the CPU offers weights in this form. */
static sru_status sru__check_type(const sru_context *c, const char *name, sru_type type)
{
    if ((unsigned)type <= SRU_Q8) return SRU_OK;
    return SRU__FAIL(c, SRU_EINVAL, "%s: on the CPU there is no type %u", name, (size_t)type);
}

/* The 16 bits that, followed by the bits `below`, form the float nearest to x. If `below` is not 0,
   2^-100 takes the place of 0: 0 followed by other bits would be a denormal, and slow. */
static uint32_t sru__to_bf16(float x, uint32_t below)
{
    uint32_t bits, size, upper;
    memcpy(&bits, &x, 4);
    size = bits & 0x7fffffff;
    if (size >= 0x7f800000) return bits >> 16 | (size > 0x7f800000 ? 64 : 0);   /* infinity, NaN */
    upper = size + 0x8000 < below ? 0 : (size + 0x8000 - below) >> 16;
    upper = (uint32_t)sru__min(sru__max(upper, below ? 0x0d80 : 0), 0x7f7f);
    return (bits >> 31) << 15 | upper;
}

/* The same for a number from -127 to 127, as a byte; below is from 0 to 1. One half, with the sign
   of x, is added without a branch, which no processor could predict. */
static uint32_t sru__to_byte(float x, float below)
{
    uint32_t bits;
    float half;
    x -= below;
    memcpy(&bits, &x, 4);
    bits = (bits & 0x80000000u) | 0x3f000000u;
    memcpy(&half, &bits, 4);
    return x > -129 && x < 128 ? (uint32_t)(int)(x + half) & 255 : 0;
}

/* Packs sru__per_lane(type) values of one row into a lane of 32 bits. They become floats again by
   shifts alone, which leave the bits of earlier values below a value's own. Its own bits allow for
   those, so that it is as exact as if there were none. */
static uint32_t sru__pack_lane(sru_type type, const float *x, float scale)
{
    uint32_t bits = 0;
    float below = 1;                    /* the worth of bit 0 in units of byte i: 256^-i */
    int i;
    if (type == SRU_F32) {
        memcpy(&bits, x, 4);
    } else if (type == SRU_BF16) {
        bits = sru__to_bf16(x[0], 0);
        bits |= sru__to_bf16(x[1], bits) << 16;
    } else {
        for (i = 0; i < 4; i++, below /= 256)
            bits |= sru__to_byte(scale > 0 ? x[i] / scale : 0, (float)bits * below) << 8 * i;
    }
    return bits;
}

/* Packs rows `row` ... row+n-1 of the source into panels of 16, ordered by k. The last panel is
   filled up with zeros. F32: 16 floats for each value of k. BF16: 16 pairs for every two values of
   k. Q8: 16 scales, then 16 quadruples of bytes for every four values of k. Returns their bytes. */
static size_t sru__pack(void *packed, sru_type type, const sru__source *from, size_t row, size_t n)
{
    enum { RUN = 32 };          /* of k at a time: rows of a transposed source share cache lines */
    const size_t k = from->cols, panel = sru__packed_panel(type, k), each = sru__per_lane(type);
    float x[SRU__PANEL][RUN];
    char *out = (char *)packed;
    size_t i, j, p, q, m;
    memset(out, 0, sru__ceil(n, SRU__PANEL) * panel);
    for (i = 0; i < n; i += SRU__PANEL, out += panel) {
        const size_t units = sru__min(SRU__PANEL, n - i);
        float scale[SRU__PANEL] = { 0 };
        char *line = out;
        if (type == SRU_Q8) {
            uint32_t most[SRU__PANEL] = { 0 }, a;       /* the bits of NaN exceed any number's */
            for (p = 0; p < k; p += m)
                for (m = sru__min(RUN, k - p), j = 0; j < units; j++) {
                    sru__values(x[j], from, row + i + j, p, m);
                    for (q = 0; q < m; q++) {
                        memcpy(&a, &x[j][q], 4);
                        a &= 0x7fffffff;
                        if (a > most[j]) most[j] = a;
                    }
                }
            memcpy(scale, most, sizeof scale);
            for (j = 0; j < units; j++) scale[j] /= 127;
            memcpy(line, scale, sizeof scale);
            line += sizeof scale;
        }
        for (p = 0; p < k; p += m) {
            m = sru__min(RUN, k - p);
            for (j = 0; j < units; j++) {
                sru__values(x[j], from, row + i + j, p, m);
                if (m < RUN) memset(x[j] + m, 0, (RUN - m) * 4);
            }
            for (q = 0; q < m; q += each, line += 4 * SRU__PANEL)
                for (j = 0; j < units; j++) {
                    const uint32_t lane = sru__pack_lane(type, x[j] + q, scale[j]);
                    memcpy(line + 4 * j, &lane, 4);
                }
        }
    }
    return (size_t)(out - (char *)packed);
}

static size_t sru__cpu_pack(const sru_context *ctx, void *packed, sru_type type, const float *w,
                            size_t n, size_t k)
{
    const sru__source from = { (const unsigned char *)w, SRU__NATIVE, n, k, 0, 0 };
    if (sru__check_type(ctx, "pack", type)) return 0;
    if (ctx && ctx->measure) packed = NULL;
    if (packed && n && k && !w) return SRU__FAIL(ctx, 0, "pack: w must not be NULL");
    if (!sru__fits(4 * ((float)n + SRU__PANEL) * ((float)k + SRU__PANEL)))
        return SRU__FAIL(ctx, 0, "pack: the sizes %u and %u are too large", n, k);
    if (type == SRU_PLAIN) {
        if (packed && w) memcpy(packed, w, n * k * 4);
        return n * k * 4;
    }
    if (packed) sru__pack(packed, type, &from, 0, n);
    return sru__ceil(n, SRU__PANEL) * sru__packed_panel(type, k);
}

/* Rows p0 ... p0+k-1 of a panel as floats: in place, or unpacked into `scratch`, without the scales
   of Q8. p0 is a multiple of 4. A panel of SRU_PLAIN has been made by sru__interleave(). */
static const float *sru__panel(const sru__kernels *kern, const void *panel, sru_type type,
                               size_t p0, size_t k, float *scratch)
{
    if (type == SRU_F32 || type == SRU_PLAIN) return (const float *)panel + p0 * SRU__PANEL;
    kern->unpack(scratch, panel, type, p0, k);
    return scratch;
}

#define SRU__Q8_UNIT (1.0f / 16777216.0f)   /* unpacked bytes are about 2^24 times their value */

/* Multiplies sums, n columns that come from an unpacked panel of Q8, by the panel's scales. */
static void sru__scale_q8(const sru__kernels *kern, const void *panel, float *c, size_t ldc,
                          size_t rows, size_t n)
{
    float scales[SRU__PANEL];
    size_t i;
    kern->scale(scales, (const float *)panel, SRU__Q8_UNIT, SRU__PANEL);
    for (i = 0; i < rows; i++) kern->multiply(c + i * ldc, c + i * ldc, scales, 0, n);
}

/* How many rows of k values make a lot. They stay in the second-level cache while panels pass by. A
   lot has at least `least` rows, since the panels are read once for each lot. */
static size_t sru__lot(size_t k, size_t least, size_t most)
{
    return sru__min(most, sru__max(least, SRU__CACHE / 2 / sru__max(1, k)));
}

/* Whether weights (n,k), packed in this form, are more than the second-level cache holds. */
static int sru__far(sru_type type, size_t n, size_t k)
{
    return n * k / sru__per_lane(type) > SRU__CACHE;
}

/* Whether rows are multiplied one by one, with weights unpacked on the way for each row. For so few
   rows this takes less time than unpacking into memory, from which a tile would read. With few
   panels the limit is lower, since few sums side by side keep the processor less busy. */
static int sru__singly(sru_type type, size_t rows, size_t panels)
{
    if (type == SRU_PLAIN) return 0;
    return rows <= (type == SRU_F32 ? 1 : panels < 4 ? 2 : type == SRU_BF16 ? 8 : 4);
}

/* While the strips of a product are multiplied by `count` panels of weights outside the cache, the
   panels that come next, at next[j], are prefetched. Returns how many quarters of a panel of floats
   each tile of this strip is to fetch; 0: none. Tile j fetches from address ahead[j] on. Addresses
   are numbers, not pointers, since behind the last panel there is nothing to point to. */
static size_t sru__ahead(const sru__kernels *kern, sru_type type, uintptr_t *ahead,
                         const uintptr_t *next, size_t count, size_t strip, size_t strips,
                         size_t k)
{
    const size_t quarter = k / 4 * SRU__PANEL * sizeof(float);
    const unsigned all = 4 / (unsigned)sru__per_lane(type);     /* fewer for fewer bits */
    const int few = strips < 4 * count;
    unsigned quarters = 1, turn = (unsigned)strip, j;
    if (few && kern->panels == 1) {     /* all tiles of the first strips fetch */
        quarters = strips == 1 ? all : strips < 4 ? (all + 1) / 2 : 1;
        if (turn * quarters >= all) return 0;
        for (j = 0; j < count; j++) ahead[j] = next[j] + turn * quarters * quarter;
        return quarters;
    }
    /* one tile of each strip fetches. With several panels side by side, the processor predicts what
       comes, and for one or two strips does so better */
    if (strips < 3) return 0;
    if (few) quarters = all;
    turn /= (unsigned)count;            /* a 64-bit division may take 90 cycles */
    if (turn * quarters >= all) return 0;
    for (j = 1; j < count; j++) ahead[j] = 0;
    ahead[0] = next[strip - turn * count] + turn * quarter;
    return quarters;
}

/* Rows are multiplied in strips of as many rows as a tile has; the last may have fewer. Rows of A
   are read in place; columns in place or packed, one strip after another: see sru__packs(). */
static int sru__strip_width(size_t full, size_t left)
{
    return (int)sru__min(left <= 4 ? left : full, full);
}

/* Transposes four rows of four values. */
SRU__INLINE void sru__transpose_4(float *out, const float *a, size_t row)
{
    size_t i, j;
#ifdef SRU__SHUFFLE
    typedef float four __attribute__((__vector_size__(16)));
    four r[4], t[4];
    SRU__UNROLL
    for (i = 0; i < 4; i++) memcpy(&r[i], a + i * row, sizeof *r);
    SRU__UNROLL
    for (i = 0, j = 2; i < 2; i++, j++) {
        t[i] = SRU__SHUFFLE(r[i], r[j], 0, 4, 1, 5);
        t[j] = SRU__SHUFFLE(r[i], r[j], 2, 6, 3, 7);
    }
    r[0] = SRU__SHUFFLE(t[0], t[1], 0, 4, 1, 5);
    r[1] = SRU__SHUFFLE(t[0], t[1], 2, 6, 3, 7);
    r[2] = SRU__SHUFFLE(t[2], t[3], 0, 4, 1, 5);
    r[3] = SRU__SHUFFLE(t[2], t[3], 2, 6, 3, 7);
    SRU__UNROLL
    for (i = 0; i < 4; i++) memcpy(out + i * SRU__PANEL, &r[i], sizeof *r);
#else
    for (i = 0; i < 4; i++)
        for (j = 0; j < 4; j++) out[j * SRU__PANEL + i] = a[i * row + j];
#endif
}

/* Transposes n rows, reading a whole cache line of each at a time. If rows lie end to end, those
   behind them are likely to be needed next, and are prefetched. */
SRU__INLINE void sru__transpose(float *out, const float *a, const size_t n, size_t row, size_t k)
{
    size_t i, p, q, end;
    for (p = 0; p < k; p = end) {
        end = sru__min(k, p + 16);
        for (i = 0; i < n && row == k; i++)
            SRU__PREFETCH((uintptr_t)a + ((n + i) * row + p) * sizeof *a);
        for (i = 0; i < n; i += 4)
            for (q = p; q < end; q += 4) {
                size_t r, c;
                if (i + 4 <= n && q + 4 <= end)
                    sru__transpose_4(out + q * SRU__PANEL + i, a + i * row + q, row);
                else for (r = i; r < sru__min(i + 4, n); r++)
                    for (c = q; c < sru__min(q + 4, end); c++)
                        out[c * SRU__PANEL + r] = a[r * row + c];
            }
    }
}

/* Joins k rows of n values that lie `col` apart. A product takes SRU__NEAR such rows of each strip
   or panel, then the next ones. Those after the next are prefetched, because the processor predicts
   little about rows so far apart. */
SRU__INLINE void sru__gather(float *out, const size_t width, const float *a, const size_t n,
                             size_t col, size_t k)
{
    size_t p;
    for (p = 0; p < k; p++, out += width, a += col) {
        SRU__PREFETCH((uintptr_t)a + 2 * SRU__NEAR * col * sizeof *a);
        memcpy(out, a, n * sizeof *a);
    }
}

/* Makes strips of A's columns and panels of B: out[p*width + i] = a[i*row + p*col] for i < n, and 0
   for other i < width. Either row or col is 1; if col is, width is SRU__PANEL. If the compiler
   knows the width, it runs three times as fast. */
static void sru__interleave(float *out, size_t width, const float *a, size_t n, size_t row,
                            size_t col, size_t k)
{
    const size_t known = n < width ? 0 : width;
    if (n < width) memset(out, 0, width * k * sizeof *a);
    if (row == 1) {
        if (known == SRU__PANEL) sru__gather(out, SRU__PANEL, a, SRU__PANEL, col, k);
        else if (known == 8) sru__gather(out, 8, a, 8, col, k);
        else if (known == 6) sru__gather(out, 6, a, 6, col, k);
        else sru__gather(out, width, a, n, col, k);
    }
    else if (known) sru__transpose(out, a, SRU__PANEL, row, k);
    else sru__transpose(out, a, n, row, k);
}

/* C (m,n) = A (m,k) B (k,n) + bias or, if add, C += A B without a bias, 2: by sums of SRU__DEPTH
   values of k (or pairs), which lose fewer digits than a single one. Element (i,p) of A is
   a[i*a_row + p*a_col]; that of B likewise, unless B is packed. */
typedef struct sru__gemm {
    size_t m, n, k;
    const float *a;
    size_t a_row, a_col;
    const void *b;
    sru_type type;
    size_t b_row, b_col;
    const float *bias;
    int add;
    float *c;
    size_t ldc;
    /* from here on: set by sru__gemm_run() */
    const sru__kernels *kern;
    sru__product *product;
    int singly;                     /* see sru__singly() */
    int pairs;                      /* 1: a line of a strip or panel is for two values of k */
    size_t n0, nc, p0, kc, lines;   /* lines: for kc values of k */
    size_t lots, groups, cuts;      /* of rows; of panels; portions of a lot's strips */
    float *strips;                  /* of each thread; NULL: a is read in place */
    float *panels;                  /* all, if packed here; of each thread, if unpacked */
    size_t panel;                   /* bytes from one panel to the next, packed here or before */
    size_t strips_size, panels_size;    /* floats: of a thread; of all, or of a thread */
} sru__gemm;

enum {
    SRU__GROUP = 3,                 /* panels that a task multiplies side by side */
    SRU__LINE = 12,                 /* at most: for a single row, or if k is small */
    SRU__SMALL = 384                /* panels times k that the first-level cache holds */
};

/* How many lines k values take. */
static size_t sru__lines(size_t k, int pairs) { return (k + (size_t)pairs) >> pairs; }

/* Whether columns of A are packed. Their values for different k lie far apart, but can be read in
   place as long as a tile has enough to compute for one k until those for the next arrive. No time
   is then spent on packing, which matters if B has few columns. But values a multiple of 1 KB apart
   would evict one another from the cache, and 8 KB apart they lie in too many pages to track. */
static int sru__packs(const sru__gemm *g, const sru__kernels *kern)
{
    return g->a_col != 1
        && (kern->panels < 3 || g->n > 256 || g->a_col >= 2048 || g->a_col % 256 == 0);
}

/* Prepares columns j0 ... j0+wide-1 of some rows of C for their sums. Returns whether, and how,
   these are to be added to what is there: the bias, or the sums over k so far. */
static int sru__gemm_begin(const sru__gemm *g, float *c, size_t rows, size_t j0, size_t wide)
{
    size_t i;
    if (!g->bias || g->type == SRU_Q8 || g->p0 > 0) return g->add ? g->add : g->p0 > 0;
    for (i = 0; i < rows; i++) memcpy(c + i * g->ldc, g->bias + j0, wide * sizeof *c);
    return 1;
}

/* Completes sums of Q8: multiplies them by scales, unless that has been done, and adds the bias. */
static void sru__gemm_finish(const sru__gemm *g, float *c, size_t rows, size_t j0, size_t wide)
{
    size_t i, j;
    if (g->type != SRU_Q8 || g->p0 + g->kc < g->k) return;
    for (j = 0; j < wide && !g->singly; j += SRU__PANEL)
        sru__scale_q8(g->kern, (const char *)g->b + (j0 + j) / SRU__PANEL * g->panel, c + j,
                      g->ldc, rows, sru__min(SRU__PANEL, wide - j));
    for (i = 0; i < rows && g->bias; i++) g->kern->add(c + i * g->ldc, g->bias + j0, wide);
}

/* Makes a strip or panel as sru__interleave() does, of floats or of pairs; of pairs, at most 16
   lines. If the values of a row lie side by side, so do its pairs, which are then transposed. */
static void sru__gemm_lines(const sru__gemm *g, float *out, size_t width, const float *a, size_t n,
                            size_t row, size_t col, size_t k)
{
    const size_t lines = sru__lines(k, g->pairs);
    float pairs[SRU__PANEL * SRU__NEAR];
    if (g->pairs && col != 1) {
        if (n < width) memset(out, 0, width * lines * sizeof *a);
        g->kern->pairs(out, width, a, n, row, col, k);
        return;
    }
    if (g->pairs) {
        g->kern->pairs(pairs, SRU__NEAR, a, n, row, col, k);
        a = pairs;
        row = SRU__NEAR;
    }
    sru__interleave(out, width, a, n, row, col, lines);
}

/* Packs rows m0 ... m0+m-1 into strips; but pairs of values that lie side by side, into rows. */
static void sru__gemm_strips(const sru__gemm *g, size_t m0, size_t m, float *strips)
{
    const size_t full = g->kern->rows, step = (size_t)SRU__NEAR << g->pairs;
    const float *a = g->a + m0 * g->a_row + g->p0 * g->a_col;
    size_t i, p;
    if (g->a_col == 1) {
        g->kern->pairs(strips, g->lines, a, m, g->a_row, 1, g->kc);
        return;
    }
    for (p = 0; p < g->kc; p += step)
        for (i = 0; i < m; i += full) {
            const size_t width = (size_t)sru__strip_width(full, m - i);
            sru__gemm_lines(g, strips + i * g->lines + (p >> g->pairs) * width, width,
                            a + i * g->a_row + p * g->a_col, sru__min(full, m - i), g->a_row,
                            g->a_col, sru__min(step, g->kc - p));
        }
}

/* Packs groups of panels of plain weights: one panel after another if the values of a column of B
   lie side by side; otherwise a few rows of all panels at a time, since then those of a row do. */
static void sru__gemm_pack_panels(void *job, size_t begin, size_t end, int thread)
{
    const sru__gemm *g = (const sru__gemm *)job;
    const size_t first = sru__part_of_units(g->nc, SRU__PANEL, begin, g->groups);
    const size_t last = sru__part_of_units(g->nc, SRU__PANEL, end, g->groups);
    const size_t step = g->b_row == 1 && !g->pairs ? g->kc : (size_t)SRU__NEAR << g->pairs;
    size_t p, j;
    (void)thread;
    for (p = 0; p < g->kc; p += step)
        for (j = first; j < last; j += SRU__PANEL)
            sru__gemm_lines(g, g->panels + j * g->lines + (p >> g->pairs) * SRU__PANEL, SRU__PANEL,
                            (const float *)g->b + (g->p0 + p) * g->b_row + (g->n0 + j) * g->b_col,
                            sru__min(SRU__PANEL, g->nc - j), g->b_col, g->b_row,
                            sru__min(step, g->kc - p));
}

/* A task is a lot of rows, or one of `cuts` portions of it, times a group of panels. */
static void sru__gemm_tasks(void *job, size_t begin, size_t tasks_end, int thread)
{
    const sru__gemm *g = (const sru__gemm *)job;
    const size_t full = g->kern->rows;
    const int plain = g->type == SRU_PLAIN, distant = !g->singly && sru__far(g->type, g->nc, g->k);
    /* weights packed before cover all k, those packed here only kc */
    const char *first_panel = plain ? (const char *)g->panels : (const char *)g->b;
    const size_t from = plain ? 0 : g->p0 / sru__per_lane(g->type) * 64;
    float *scratch = plain || !g->panels ? NULL : g->panels + (size_t)thread * g->panels_size;
    float *own = g->strips ? g->strips + (size_t)thread * g->strips_size : NULL;
    const size_t lda = own ? g->lines : g->a_row;       /* floats of A for each row */
    const int columns = own && g->a_col != 1;           /* strips are of columns, not of rows */
    size_t task, last_lot = SIZE_MAX, last_group = SIZE_MAX;
    const float *b[SRU__LINE];
    uintptr_t next[SRU__LINE], ahead[SRU__LINE];
    for (task = begin; task < tasks_end; task++) {
        const size_t cut = task % g->cuts, group = task / g->cuts % g->groups;
        const size_t lot = task / g->cuts / g->groups;
        const size_t m0 = sru__part_of_units(g->m, full, lot, g->lots);
        const size_t m = sru__part_of_units(g->m, full, lot + 1, g->lots) - m0;
        const size_t j0 = sru__part_of_units(g->nc, SRU__PANEL, group, g->groups);
        const size_t wide = sru__part_of_units(g->nc, SRU__PANEL, group + 1, g->groups) - j0;
        const size_t strips = sru__ceil(m, full), first = sru__part(strips, cut, g->cuts);
        const size_t end = sru__part(strips, cut + 1, g->cuts);
        const size_t panels = sru__ceil(wide, SRU__PANEL);
        const int nr = (int)(wide - (panels - 1) * SRU__PANEL);         /* of the last panel */
        size_t i, j, strip;
        for (j = 0; j < panels && group != last_group; j++) {
            const char *panel = first_panel + (j0 / SRU__PANEL + j) * g->panel;
            b[j] = (const float *)(const void *)(panel + from);
            if (scratch)
                b[j] = sru__panel(g->kern, panel, g->type, g->p0, g->kc,
                                  scratch + j * SRU__PANEL * g->kc);
            next[j] = (uintptr_t)panel + from + panels * g->panel;
        }
        if (own && lot != last_lot) sru__gemm_strips(g, m0, m, own);
        last_lot = lot;
        last_group = group;
        for (strip = first; i = strip * full, strip < end; strip++) {
            const size_t mr = sru__min(full, m - i);
            const int width = sru__strip_width(full, m - i);
            const size_t row = columns ? 1 : lda, col = columns ? (size_t)width : g->a_col;
            const float *a = own ? own + i * lda : g->a + (m0 + i) * lda + g->p0 * g->a_col;
            float *c = g->c + (m0 + i) * g->ldc + g->n0 + j0;
            const int add = sru__gemm_begin(g, c, mr, g->n0 + j0, wide);
            const size_t quarters = !distant ? 0
                : sru__ahead(g->kern, g->type, ahead, next, panels, strip - first, end - first,
                             g->lines);
            if (!g->singly)
                g->product(g->lines, a, row, col, width, b, (int)panels, c, g->ldc, 0, add,
                           (int)mr, nr, ahead, quarters);
            else for (j = 0; j < mr; j++)
                g->kern->row(g->k, a + j * row, b, (int)panels, g->type, c + j * g->ldc, add, nr);
            sru__gemm_finish(g, c, mr, g->n0 + j0, wide);
        }
    }
}

static sru_status sru__gemm_run(sru_context *c, const void *args)
{
    sru__gemm g = *(const sru__gemm *)args;
    const sru__kernels *kern = sru__kern(c);
    const size_t full = kern->rows;
    const int plain = g.type == SRU_PLAIN, pairs = plain && kern->product_bf16;
    const int packs = pairs || sru__packs(&g, kern);
    const size_t panels = sru__ceil(g.n, SRU__PANEL);
    const int singly = sru__singly(g.type, g.m, panels);
    const int unpacks = !singly && !plain && g.type != SRU_F32;
    const size_t most = singly ? g.k : sru__min(sru__lines(g.k, pairs), SRU__DEPTH);
    const size_t strips = sru__ceil(g.m, full), lot = sru__lot(most, 128, 512);
    const int threads = sru__threads(c, (plain ? 1.0 : 2.0) * sru__rows_at_least(c, g.m)
                                        * (double)g.n * ((double)g.k + 8));
    const size_t team = (size_t)threads;
    const size_t line = singly ? panels / team : SRU__SMALL / sru__max(1, most) / 3 * 3;
    const size_t group = sru__min(SRU__LINE, sru__max(SRU__GROUP, line)), wide = group * SRU__PANEL;
    /* plain weights are packed here, 4 MB at a time */
    const size_t fit = plain ? 4 * SRU__CACHE / sru__max(1, most) / wide * wide : g.n;
    size_t i;
    g.kern = kern;
    g.product = pairs ? kern->product_bf16 : kern->product;
    g.singly = singly;
    g.pairs = pairs;
    /* never less for a larger product, so that memory for many steps is enough for fewer */
    g.panels_size = plain ? sru__min(4 * SRU__CACHE, panels * SRU__PANEL * most)
                          : unpacks ? wide * most : 0;
    g.strips_size = sru__min(strips * full * most, SRU__CACHE / 2 + full * most);
    g.strips = packs ? sru__take_floats(c, team * g.strips_size) : NULL;
    g.panels = g.panels_size ? sru__take_floats(c, (plain ? 1 : team) * g.panels_size) : NULL;
    if ((packs && !g.strips) || (g.panels_size && !g.panels)) return sru__no_memory(c);
    if (c->measure) return SRU_OK;
    for (i = 0; i < g.m && !g.k && !g.add; i++)
        sru__cpu_copy(c, g.c + i * g.ldc, g.bias, g.n * 4);
#ifdef SRU_USE_CBLAS
    if (plain && !pairs && g.k && sru__max(g.m, sru__max(g.n, g.k)) <= 0x7fffffff) {
        const int at = g.a_col != 1 || g.a_row < g.k;   /* both are 1 if k is */
        const int bt = g.b_col != 1 || g.b_row < g.n;
        const float add = sru__gemm_begin(&g, g.c, g.m, 0, g.n) ? 1 : 0;
        cblas_sgemm(CblasRowMajor, at ? CblasTrans : CblasNoTrans, bt ? CblasTrans : CblasNoTrans,
                    (int)g.m, (int)g.n, (int)g.k, 1, g.a, (int)(at ? g.a_col : g.a_row),
                    (const float *)g.b, (int)(bt ? g.b_col : g.b_row), add, g.c, (int)g.ldc);
        return SRU_OK;
    }
#endif
    for (g.n0 = 0; g.n0 < g.n; g.n0 += g.nc) {
        g.nc = sru__min(fit, g.n - g.n0);
        g.groups = sru__ceil(g.nc, wide);
        g.lots = sru__ceil(g.m, lot);
        g.cuts = 1;
        /* threads divide the lots if there are enough, otherwise panels and strips of a lot. Three
           strips for each thread are enough for lots if strips are packed, or if lines of C are
           long: past the end of one the processor would fetch what another thread writes */
        if (packs || (!singly && group > SRU__GROUP) ? strips >= 3 * team : g.lots >= team) {
            g.lots = sru__round_up(g.lots, team);
        } else {
            if (g.groups >= team)
                g.groups = sru__min(sru__round_up(g.groups, team), sru__ceil(g.nc, SRU__PANEL));
            if (g.groups % team)
                g.cuts = sru__min(sru__ceil(strips, g.lots), sru__ceil(4, g.groups) * team);
        }
        for (g.p0 = 0; g.p0 < g.k; g.p0 += g.kc) {
            g.kc = sru__min(most << pairs, g.k - g.p0);
            g.lines = sru__lines(g.kc, pairs);
            g.panel = plain ? g.lines * 64 : sru__packed_panel(g.type, g.k);
            sru__parallel_then(threads, plain ? g.groups : 0, sru__gemm_pack_panels,
                               g.lots * g.groups * g.cuts, sru__gemm_tasks, &g);
        }
    }
    return SRU_OK;
}

static sru_status sru__cpu_linear_forward(const sru_context *ctx, float *y, const float *x,
                                          const void *w, sru_type type, const float *b,
                                          size_t rows, size_t n, size_t k)
{
    sru__gemm g;
    if (sru__too_large(ctx, "linear_forward", rows, n)
        || sru__too_large(ctx, "linear_forward", rows, k)
        || sru__too_large(ctx, "linear_forward", n, k)) return SRU_EINVAL;
    if (!rows || !n) return SRU_OK;
    if (!y || (k && (!x || !w)))
        return SRU__FAIL(ctx, SRU_EINVAL, "linear_forward: y, x and w must not be NULL");
    if (sru__check_type(ctx, "linear_forward", type)) return SRU_EINVAL;
    sru__clear(&g, sizeof g);
    g.m = rows;
    g.n = g.ldc = n;
    g.k = g.a_row = g.b_col = k;
    g.a_col = g.b_row = 1;
    g.a = x;
    g.b = w;
    g.type = type;
    g.bias = b;
    g.c = y;
    return sru__run(ctx, sru__gemm_run, &g);
}

#ifndef SRU_NO_BACKWARD
/* y = x w' + b:  dx = dy w,  dw += dy' x,  db += sum of dy's rows */
typedef struct sru__linear_job {
    float *dx, *dw, *db;
    const float *dy, *x, *w;
    float beta;
    size_t rows, n, k;
    const sru__kernels *kern;
} sru__linear_job;

/* Runs of rows are summed by themselves: one sum over many rows would lose digits. */
static void sru__sum_columns(void *job, size_t begin, size_t end, int thread)
{
    const sru__linear_job *s = (const sru__linear_job *)job;
    enum { RUN = 256, MOST = 256 };
    float sum[MOST];
    size_t run, i, n;
    (void)thread;
    for (; begin < end; begin += n) {
        n = sru__min(MOST, end - begin);
        for (run = 0; run < s->rows; run += RUN) {
            memset(sum, 0, n * sizeof *sum);
            for (i = run; i < sru__min(s->rows, run + RUN); i++)
                s->kern->add(sum, s->dy + i * s->n + begin, n);
            s->kern->add(s->db + begin, sum, n);
        }
    }
}

static sru_status sru__linear_backward_run(sru_context *c, const void *args)
{
    sru__linear_job s = *(const sru__linear_job *)args;
    sru_status status = SRU_OK;
    sru__gemm g;
    s.kern = sru__kern(c);
    sru__clear(&g, sizeof g);
    g.n = g.b_row = g.ldc = s.k;
    g.b_col = 1;
    g.a = s.dy;
    if (s.dw && s.n && s.k && s.rows) {     /* before x, which dx may be, is overwritten */
        g.m = g.a_col = s.n;
        g.k = s.rows;
        g.a_row = 1;
        g.b = s.x;
        g.add = 2;                          /* one chain over many rows would lose digits */
        g.c = s.dw;
        status = sru__run(c, sru__gemm_run, &g);
    }
    if (!status && s.dx && s.rows && s.k) {
        g.m = s.rows;
        g.k = g.a_row = s.n;
        g.a_col = 1;
        g.b = s.w;
        g.add = s.beta != 0;
        g.c = s.dx;
        status = sru__run(c, sru__gemm_run, &g);
    }
    if (!status && s.db && !c->measure)
        sru__parallel(sru__threads(c, 10.0 * (double)s.rows * (double)s.n), s.n, sru__sum_columns,
                      &s);
    return status;
}

static sru_status sru__cpu_linear_backward(const sru_context *ctx, float *dx, float *dw, float *db,
                                           const float *dy, const float *x, const float *w,
                                           float beta, size_t rows, size_t n, size_t k)
{
    const sru__linear_job s = { dx, dw, db, dy, x, w, beta, rows, n, k, NULL };
    if (sru__too_large(ctx, "linear_backward", rows, n)
        || sru__too_large(ctx, "linear_backward", rows, k)
        || sru__too_large(ctx, "linear_backward", n, k)) return SRU_EINVAL;
    if (rows && n && (!dy || (k && ((dw && !x) || (dx && !w)))))
        return SRU__FAIL(ctx, SRU_EINVAL, "linear_backward: dy, x and w must not be NULL");
    if (dx && rows && k && beta != 0 && beta != 1)
        return SRU__FAIL(ctx, SRU_EINVAL, "linear_backward: beta must be 0 or 1");
    return sru__run(ctx, sru__linear_backward_run, &s);
}
#endif

/* ---- operators: scan ------------------------------------------------------------------------- */

/* Units are independent of one another, and so are sequences. So a task is a block of units of one
   direction, for some of the sequences, usually all. For each chunk of time it multiplies by the
   block's panels, which leaves u in the cache, and scans u. */
typedef struct sru__scan_run {
    sru_scan s;
    const sru__kernels *kern;
    size_t dirs, D;                 /* directions, and the units of one */
    size_t blocks, block;           /* blocks of a direction; units of a block */
    size_t parts, part;             /* parts of the batch; sequences of a part */
    size_t from, to, chunk;         /* steps from ... to-1 are done now, a chunk at a time */
    size_t panel, panels;           /* bytes of a packed panel; panels of a group of D units */
    float *copy;                    /* the chunk's rows of a, which h overwrites; or NULL */
    float *own;                     /* of each thread: u of a block, then panels of 16 units */
    size_t own_size, u_size;
    size_t ldcT;                    /* of cT, where c is kept between chunks */
    float *sums;                    /* (B,2,G,N) of v and bias, for backward */
} sru__scan_run;

typedef struct sru__scan_task {
    size_t dir;                     /* 1: backwards in time */
    size_t col, d0, n;              /* first unit, in all and in its direction; their number */
    size_t b0, b1;                  /* sequences b0 ... b1-1 */
} sru__scan_task;

static size_t sru__gates(const sru_scan *s) { return s->K == 2 ? 1 : 2; }

/* All blocks of a part come before the next part. So threads take different sequences, if there are
   enough: what one writes is then further from what another prefetches than if both took units of
   the same rows. */
SRU__INLINE sru__scan_task sru__scan_find(const sru__scan_run *r, size_t task)
{
    const size_t blocks = r->dirs * r->blocks;
    const size_t part = r->parts == 1 ? 0 : task / blocks;      /* divisions are slow */
    const size_t block = task - part * blocks;
    sru__scan_task p;
    p.dir = block >= r->blocks;
    p.d0 = (block - p.dir * r->blocks) * r->block;
    p.n = sru__min(r->block, r->D - p.d0);
    p.col = p.dir * r->D + p.d0;
    p.b0 = part * r->part;
    p.b1 = sru__min(r->s.B, p.b0 + r->part);
    return p;
}

/* Chooses blocks of at most `most` units, and parts of the sequences. Larger blocks and fewer parts
   are better, unless a different choice leaves an eighth less to the thread with the most to do. If
   there is a product, a part is an even number of sequences, or all, and one that is not of whole
   strips counts as a row more. Otherwise threads take sequences one by one. */
static void sru__scan_divide(sru__scan_run *r, size_t most, int product, size_t threads)
{
    const size_t B = r->s.B, units = r->D * r->dirs, few = product ? 2 : 1;
    const size_t first = product ? 1 : B;
    const size_t last = product ? sru__max(1, sru__min(threads, B / few)) : B;
    size_t block, want, best = SIZE_MAX;
    r->block = most;
    r->part = B;
    for (block = most; block >= SRU__PANEL && threads > 1; block -= SRU__PANEL)
        for (want = first; want <= last; want++) {
            const size_t tasks = sru__ceil(r->D, block) * r->dirs;
            const size_t part = sru__min(B, sru__round_up(sru__ceil(B, want), few));
            const size_t each = sru__ceil(tasks * sru__ceil(B, part), threads);
            const size_t cost = (each / tasks * units + sru__min(each % tasks * block, units))
                                * (part + (part < B && part % r->kern->rows > 0));
            if (cost >= best - best / 8) continue;
            best = cost;
            r->block = block;
            r->part = part;
        }
    r->blocks = sru__ceil(r->D, r->block);
    r->parts = r->part == B ? 1 : sru__ceil(B, r->part);
}

/* Sets what is the same for all sequences of a task of T steps, which run backwards if dir is 1. */
SRU__INLINE void sru__scan_begin(sru__scan_job *k, const sru__scan_run *r, const sru__scan_task *p,
                                 size_t T, size_t u_plane)
{
    const sru_scan *s = &r->s;
    const ptrdiff_t row = (p->dir ? -1 : 1) * (ptrdiff_t)s->B;
    sru__clear(k, sizeof *k);
    k->T = T;
    k->n = p->n;
    k->K = s->K;
    k->use_tanh = s->use_tanh;
    k->scale_x = s->scale_x;
    k->pad_step = row;
    k->step = row * (ptrdiff_t)s->N;
    k->u_step = row * (ptrdiff_t)((size_t)s->K * u_plane);
    k->u_plane = u_plane;
    k->plane = s->N;
    k->v = s->v ? s->v + p->col : NULL;
    k->bias = s->bias ? s->bias + p->col : NULL;
}

/* Sets what is not: sequence b, from row (t,b) on. */
SRU__INLINE void sru__scan_sequence(sru__scan_job *k, const sru_scan *s, size_t col, size_t row,
                                    size_t b)
{
    const size_t at = row * s->N + col;
    k->x = s->x ? s->x + at : NULL;
    k->vt = s->vt ? s->vt + row * sru__gates(s) * s->N + col : NULL;
    k->mask_c = s->mask_c ? s->mask_c + b * s->N + col : NULL;
    k->pad = s->mask_pad ? s->mask_pad + row : NULL;
    k->c0 = s->c0 ? s->c0 + b * s->ldc + col : NULL;
    k->h = s->h ? s->h + at : NULL;
    k->c = s->c ? s->c + at : NULL;
}

/* Saves rows of a: h, if it is the same array, would overwrite rows that other tasks need. */
static void sru__scan_copy(void *job, size_t begin, size_t end, int thread)
{
    const sru__scan_run *r = (const sru__scan_run *)job;
    const size_t A = r->s.A;
    (void)thread;
    memcpy(r->copy + begin * A, r->s.a + (r->from * r->s.B + begin) * A, (end - begin) * A * 4);
}

/* Computes a few rows of a thread's own u, one by one. All panels form one line, from byte `of` on,
   since planes lie end to end, and it takes many sums side by side to keep the processor busy. */
static void sru__scan_singly(const sru__scan_run *r, size_t of, size_t panels, size_t rows,
                             const float *a, float *u)
{
    const sru_scan *s = &r->s;
    const size_t all = (size_t)s->K * panels;
    const size_t on = (r->dirs * r->panels - panels) * r->panel;    /* to the next matrix */
    const float *b[SRU__LINE];
    size_t i, j, k, count, turn = 0;
    for (j = 0; j < all; j += count) {
        count = sru__min(SRU__LINE, all - j);
        for (k = 0; k < count; k++, of += r->panel) {
            b[k] = (const float *)(const void *)((const char *)s->w + of);
            if (++turn == panels) of += on, turn = 0;
        }
        for (i = 0; i < rows; i++)
            r->kern->row(s->A, a + i * s->A, b, (int)count, s->type, u + (i * all + j) * SRU__PANEL,
                         0, SRU__PANEL);
    }
}

/* Computes u of a task for T steps from those that a and u point to. Planes of u are u_plane floats
   apart, and rows K*u_plane. The panels of the K matrices for the same units go together. */
static void sru__scan_product(const sru__scan_run *r, const sru__scan_task *p, size_t T,
                              const float *a, float *u, size_t u_plane, float *scratch)
{
    const sru_scan *s = &r->s;
    /* rows of all sequences lie end to end, in one run; those of a part, only within each step */
    const size_t runs = r->parts == 1 ? 1 : T, run = (p->b1 - p->b0) * (r->parts == 1 ? T : 1);
    const size_t full = r->kern->rows, least = r->kern->columns, A = s->A, K = (size_t)s->K;
    const size_t panels = sru__ceil(p->n, SRU__PANEL), ldu = K * u_plane;
    const size_t all_strips = runs * sru__ceil(run, full);
    const int plain = s->type == SRU_PLAIN, distant = !plain && sru__far(s->type, K * s->N, A);
    const size_t matrix = r->dirs * r->panels * r->panel;       /* bytes */
    size_t of = (p->dir * r->panels + p->d0 / SRU__PANEL) * r->panel;
    const float *packed[4], *b[4];
    uintptr_t next[4], ahead[4];
    size_t j, i, k, t, p0, kc, strip;
    a += p->b0 * A;
    u += p->b0 * ldu;
    if (r->parts == 1 && !s->u && sru__singly(s->type, run, K * panels)) {
        sru__scan_singly(r, of, panels, run, a, u);
        return;
    }
    for (j = 0; j < p->n; j += SRU__PANEL, of += r->panel) {
        const size_t units = sru__min(SRU__PANEL, p->n - j);
        /* a thread's own u has room for what is computed beyond the last unit */
        const int nr = s->u ? (int)units : units > least ? SRU__PANEL : (int)least;
        for (k = 0; k < K; k++) {
            float *panel = scratch + k * SRU__PANEL * A;
            if (plain)
                sru__interleave(panel, SRU__PANEL,
                                (const float *)s->w + (k * s->N + p->col + j) * A, units, A, 1, A);
            packed[k] = plain ? panel
                      : (const float *)(const void *)((const char *)s->w + of + k * matrix);
        }
        for (p0 = 0; p0 < A || p0 == 0; p0 += SRU__DEPTH) {
            kc = sru__min(SRU__DEPTH, A - p0);
            for (k = 0; k < K; k++) {
                b[k] = sru__panel(r->kern, packed[k], s->type, p0, kc,
                                  scratch + k * SRU__PANEL * kc);
                next[k] = (uintptr_t)packed[k] + (p0 + kc) / sru__per_lane(s->type) * 64;
            }
            for (t = strip = 0; t < runs; t++)
                for (i = 0; i < run; i += full, strip++) {
                    const size_t m = sru__min(full, run - i), row = t * s->B + i;
                    const float *rows = a + row * A + p0;
                    /* if threads divide the units, several of them wrote the rows that come next.
                       With one prefetch, 64 units on two threads take 0.95 of the time */
                    size_t quarters = 0;
                    if (distant)
                        quarters = sru__ahead(r->kern, s->type, ahead, next, K, strip, all_strips,
                                              kc);
                    else if (r->blocks > 1 && !j && (i + m < run || t + 1 < runs)) {
                        ahead[0] = (uintptr_t)(rows + m * A);
                        for (k = 1; k < K; k++) ahead[k] = 0;
                        quarters = 1;
                    }
                    r->kern->product(kc, rows, A, 1, sru__strip_width(full, run - i), b, s->K,
                                     u + row * ldu + j, ldu, u_plane, p0 > 0, (int)m, nr, ahead,
                                     quarters);
                }
        }
        for (k = 0; k < K && s->type == SRU_Q8; k++)
            for (t = 0; t < runs; t++)
                sru__scale_q8(r->kern, packed[k], u + t * s->B * ldu + k * u_plane + j, ldu, run,
                              (size_t)nr);
    }
}

/* Does tasks begin ... end-1 for the chunk of time that begins after t steps. */
static void sru__scan_chunk(const sru__scan_run *r, size_t t, size_t begin, size_t end, int thread)
{
    const sru_scan *s = &r->s;
    const size_t K = (size_t)s->K, N = s->N, B = s->B, T = sru__min(r->chunk, s->T - t);
    size_t task, b;
    for (task = begin; task < end; task++) {
        const sru__scan_task p = sru__scan_find(r, task);
        const size_t t0 = p.dir ? s->T - t - T : t;     /* one direction begins at the end */
        const size_t start = p.dir ? T - 1 : 0, col = p.col;
        const size_t u_plane = s->u ? N : sru__round_up(p.n, SRU__PANEL);
        float *own = r->own ? r->own + (size_t)thread * r->own_size : NULL;
        float *u = s->u ? s->u + t0 * B * K * N + col : own;
        sru__scan_job k;
        SRU_ASSERT(p.n <= r->block && u);
        if (s->w)
            sru__scan_product(r, &p, T, r->copy ? r->copy : s->a + t0 * B * s->A, u, u_plane,
                              own + r->u_size);
        sru__scan_begin(&k, r, &p, T, u_plane);
        k.distant = s->w || s->c;
        k.u_n = s->u ? p.n : u_plane;
        for (b = p.b0; b < p.b1; b++) {
            const size_t row = start * B + b;               /* within the chunk */
            sru__scan_sequence(&k, s, col, t0 * B + row, b);
            k.u = u + row * K * u_plane;
            k.cT = s->cT + b * r->ldcT + col;
            if (t) k.c0 = k.cT;
            r->kern->scan_forward(&k);
        }
    }
}

/* Tasks do not depend on one another, so no thread waits for others between chunks. */
static void sru__scan_tasks(void *job, size_t begin, size_t end, int thread)
{
    const sru__scan_run *r = (const sru__scan_run *)job;
    size_t t;
    for (t = r->from; t < r->to; t += r->chunk) sru__scan_chunk(r, t, begin, end, thread);
}

/* Copies and checks a scan's arguments, and replaces 0 by defaults. */
static sru_status sru__scan_open(sru__scan_run *r, const sru_context *c, const void *args,
                                 const char *name)
{
    sru_scan *s = &r->s;
    if (!args) return SRU__FAIL(c, SRU_EINVAL, "%s: the scan is NULL", name);
    sru__clear(r, sizeof *r);
    *s = *(const sru_scan *)args;
    if (s->K < 2 || s->K > 4)
        return SRU__FAIL(c, SRU_EINVAL, "%s: K must be 2, 3 or 4", name);
    if (s->K == 2 && s->use_tanh)
        return SRU__FAIL(c, SRU_EINVAL, "%s: with K = 2 use_tanh must be 0", name);
    if (s->bidirectional && s->N % 2)
        return SRU__FAIL(c, SRU_EINVAL, "%s: N is %u, but bidirectional wants it even", name, s->N);
    if (s->N > SIZE_MAX / 128 || s->A > SIZE_MAX / 128
        || !sru__fits(4.0f * ((float)s->T + 1) * (float)s->B * (float)sru__max(s->A, 4 * s->N))
        || !sru__fits(4.0f * (float)s->K * (float)s->N * (float)s->A)
        || !sru__fits(4.0f * (float)s->B * (float)s->ldc))
        return SRU__FAIL(c, SRU_EINVAL, "%s: T %u, B %u, N %u, A %u, ldc %u are too large", name,
                         s->T, s->B, s->N, s->A, s->ldc);
    if (sru__check_type(c, name, s->type)) return SRU_EINVAL;
    if (s->storage != SRU_PLAIN)
        return SRU__FAIL(c, SRU_EINVAL, "%s: on the CPU storage must be SRU_PLAIN", name);
    if (s->ldc && s->ldc < s->N)
        return SRU__FAIL(c, SRU_EINVAL, "%s: ldc %u is less than N %u", name, s->ldc, s->N);
    if (s->T && s->B && s->N) {
        if (s->w && !s->a)
            return SRU__FAIL(c, SRU_EINVAL, "%s: with w, a must not be NULL", name);
        if (!s->w && !s->u)
            return SRU__FAIL(c, SRU_EINVAL, "%s: u and w must not both be NULL", name);
    }
    if (s->scale_x == 0) s->scale_x = 1;
    if (!s->ldc) s->ldc = s->N;
    if (s->K == 4) s->x = NULL;
    r->kern = sru__kern(c);
    r->dirs = s->bidirectional ? 2 : 1;
    r->D = s->N / r->dirs;
    return SRU_OK;
}

/* Rows (t,b) that a layer computes at a time: few, so that u stays in the cache; more with plain
   weights, since these are packed again each time. */
static size_t sru__rows(const sru_context *c, sru_type type)
{
    return c->op->rows * (type == SRU_PLAIN ? 4 : 1);
}

/* How many steps of B sequences make up this many rows: rounded down, but up if memory is measured,
   so that it is enough for fewer sequences, too. */
static size_t sru__steps(const sru_context *c, size_t T, size_t B, size_t rows)
{
    const size_t most = c->measure ? sru__ceil(rows, sru__max(1, B)) : rows / sru__max(1, B);
    return sru__min(T, sru__max(1, most));
}

/* Of how many values of k a thread makes panels before it multiplies them: sru__scan_product(). */
static size_t sru__panel_depth(const sru_scan *s)
{
    if (s->type == SRU_PLAIN) return s->A;
    if (s->type == SRU_F32 || (s->T * s->B <= 1 && !s->u)) return 0;    /* read where they are */
    return sru__min(s->A, SRU__DEPTH);
}

static sru_status sru__scan_forward_run(sru_context *c, const void *args)
{
    sru__scan_run r;
    const sru_scan *s = &r.s;
    const sru__kernels *kern = sru__kern(c);
    size_t rows, b, wide, step, most;
    sru_status status;
    double work;
    int threads, in_place;
#ifdef SRU_USE_CBLAS
    const int whole = 1;
#else
    const int whole = kern->product_bf16 != NULL;   /* sru__scan_product() multiplies only floats */
#endif
    status = sru__scan_open(&r, c, args, "scan_forward");
    if (status) return status;
    if (!s->B || !s->N) return SRU_OK;              /* if N is 0, T*B may overflow */
    if (s->T && !s->h) return SRU__FAIL(c, SRU_EINVAL, "scan_forward: h must not be NULL");
    in_place = s->T && s->w && s->a == s->h;
    if (in_place && !c->measure && (s->bidirectional || s->A != s->N))
        return SRU__FAIL(c, SRU_EINVAL, "scan_forward: h may be a in one direction only, and where "
                         "A %u is N %u", s->A, s->N);
    r.panel = sru__packed_panel(s->type, s->A);
    r.panels = sru__ceil(r.D, SRU__PANEL);
    work = (double)s->T * (double)s->B * 80;
    if (s->w) work = sru__rows_at_least(c, s->T * s->B) * (80 + 2.0 * s->K * (double)s->A);
    threads = sru__threads(c, work * (double)s->N / (s->w && s->u ? 2 : 1));
    if (s->w && s->u)
        threads = sru__at_most(threads, sru__max(sru__ceil(s->N, SRU__SHARE), s->B / kern->rows));
    wide = r.panels * SRU__PANEL;
    step = sru__min(4 * kern->block, wide);
    most = sru__min(kern->block, wide);
    r.chunk = s->T;
    if (s->w && s->T > 1) {             /* a single step is one chunk */
        rows = sru__rows(c, s->type);
        if (s->type != SRU_PLAIN) rows = sru__lot(s->A, 128, rows);
        r.chunk = sru__steps(c, s->T, s->B, rows);
    }
    rows = r.chunk * s->B;
    sru__scan_divide(&r, s->T * s->B == 1 ? step : most, s->w != NULL, (size_t)threads);
    r.ldcT = s->cT ? s->ldc : s->N;
    if (!s->cT) r.s.cT = sru__take_floats(c, s->B * s->N);
    if (!s->cT) return sru__no_memory(c);
    if (s->w && s->type == SRU_PLAIN && whole) {    /* the whole product first */
        const size_t n = (size_t)s->K * s->N;
        if (!s->u) r.s.u = sru__take_floats(c, s->T * s->B * n);
        if (!s->u) return sru__no_memory(c);
        status = sru__cpu_linear_forward(c, s->u, s->a, s->w, s->type, NULL, s->T * s->B, n, s->A);
        if (status) return status;
        r.s.w = NULL;
        in_place = 0;
        r.chunk = s->T;
    }
    if (s->w) {
        r.u_size = s->u ? 0 : (size_t)s->K * sru__max(rows * most, step);
        r.own_size = r.u_size + (size_t)s->K * SRU__PANEL * sru__panel_depth(s);
        r.copy = in_place ? sru__take_floats(c, rows * s->A) : NULL;
        r.own = sru__take_floats(c, sru__times((size_t)threads, r.own_size));
        if ((in_place && !r.copy) || !r.own) return sru__no_memory(c);
    }
    if (c->measure) return SRU_OK;
    for (b = 0; b < s->B && !s->T; b++)
        sru__cpu_copy(c, s->cT + b * r.ldcT, s->c0 ? s->c0 + b * s->ldc : NULL, s->N * 4);
    for (; r.from < s->T; r.from = r.to) {
        r.to = in_place ? sru__min(r.from + r.chunk, s->T) : s->T;
        sru__parallel_then(threads, in_place ? (r.to - r.from) * s->B : 0, sru__scan_copy,
                           r.dirs * r.blocks * r.parts, sru__scan_tasks, &r);
    }
    return SRU_OK;
}

static sru_status sru__cpu_scan_forward(const sru_context *ctx, const sru_scan *s)
{
    return sru__run(ctx, sru__scan_forward_run, s);
}

#ifndef SRU_NO_BACKWARD
static void sru__scan_backward_tasks(void *job, size_t begin, size_t end, int thread)
{
    const sru__scan_run *r = (const sru__scan_run *)job;
    const sru_scan *s = &r->s;
    const size_t K = (size_t)s->K, N = s->N, B = s->B;
    size_t task, b;
    (void)thread;
    for (task = begin; task < end; task++) {
        const sru__scan_task p = sru__scan_find(r, task);
        const size_t start = p.dir ? s->T - 1 : 0;
        sru__scan_job k;
        sru__scan_begin(&k, r, &p, s->T, N);
        for (b = p.b0; b < p.b1; b++) {
            const size_t row = start * B + b;
            sru__scan_sequence(&k, s, p.col, row, b);
            k.u = s->u + row * K * N + p.col;
            k.dh = s->dh + row * N + p.col;
            k.dc = s->dc ? s->dc + b * s->ldc + p.col : NULL;
            k.du = s->du + row * K * N + p.col;
            k.dx = s->x && s->dx ? s->dx + row * N + p.col : NULL;
            k.dvt = s->dvt ? s->dvt + row * sru__gates(s) * N + p.col : NULL;
            k.sums = r->sums + b * 2 * sru__gates(s) * N + p.col;
            r->kern->scan_backward(&k);
        }
    }
}

/* Adds the sums of the sequences, in their order, to dv and dbias. */
static void sru__scan_reduce(void *job, size_t begin, size_t end, int thread)
{
    const sru__scan_run *r = (const sru__scan_run *)job;
    const sru_scan *s = &r->s;
    const size_t gates = sru__gates(s);
    size_t plane, b;
    (void)thread;
    for (plane = 0; plane < 2 * gates; plane++) {
        float *to = plane < gates ? s->dv : s->dbias;
        for (b = 0; b < s->B && to; b++)
            r->kern->add(to + plane % gates * s->N + begin,
                         r->sums + (b * 2 * gates + plane) * s->N + begin, end - begin);
    }
}

static sru_status sru__scan_backward_run(sru_context *c, const void *args)
{
    sru__scan_run r;
    const sru_scan *s = &r.s;
    sru_status status = sru__scan_open(&r, c, args, "scan_backward");
    if (status) return status;
    if (s->w && s->type != SRU_PLAIN)
        return SRU__FAIL(c, SRU_EINVAL, "scan_backward: w must be SRU_PLAIN");
    if (s->T && s->B && s->N) {
        sru_context inner = *c;
        int threads = sru__threads(c, (double)s->T * (double)s->B * (double)s->N * 80);
        if (!s->u || !s->du || !s->c || !s->dh)
            return SRU__FAIL(c, SRU_EINVAL, "scan_backward: u, du, c and dh must not be NULL");
        /* there are more arrays than in forward */
        threads = sru__at_most(threads, s->B * s->N / (3 * SRU__SHARE));
        sru__scan_divide(&r, r.kern->block, 0, (size_t)threads);
        r.sums = sru__take_floats(&inner, s->B * 2 * sru__gates(s) * s->N);
        if (!r.sums) return sru__no_memory(c);
        if (!c->measure)
            sru__parallel_then(threads, r.dirs * r.blocks * r.parts, sru__scan_backward_tasks,
                               s->N, sru__scan_reduce, &r);
    }
    if (!s->w) return SRU_OK;
    /* forward: u = a w' */
    return sru__cpu_linear_backward(c, s->da, s->dw, NULL, s->du, s->a, (const float *)s->w,
                                    s->da && s->da == s->dx && s->x ? 1.0f : 0.0f, s->T * s->B,
                                    (size_t)s->K * s->N, s->A);
}

static sru_status sru__cpu_scan_backward(const sru_context *ctx, const sru_scan *s)
{
    return sru__run(ctx, sru__scan_backward_run, s);
}
#endif

/* ---- operators: attention -------------------------------------------------------------------- */

/* Keys are grouped into blocks of 64 by their place, counted from the start of the sequence, and
   each block is summed in a fixed order: so a query gets the same bits whether it comes alone or in
   a long sequence. Keys are stored in panels of 16 keys for the product with the queries, values in
   panels of 16 columns for the product with the weights. A ring stores them in this form, too, so
   that nothing is packed twice. */

/* Up to 64 queries of one head. Query i is that of step t[i], at place + i*apart among the keys,
   which begin at place `start`. Block g, keys g*64 and on, lies at keys + g % blocks * stride. */
typedef struct sru__queries {
    size_t head, n, t[SRU__KEYS], place, apart, start;
    const float *keys;
    size_t from, to;                /* only in blocks from ... to-1 do they see keys */
    size_t low, high;               /* each of them sees all keys low ... high-1 */
} sru__queries;

typedef struct sru__attend_run {
    sru_attention s;
    const sru__kernels *kern;
    size_t hd, wide;                /* columns of a head; these rounded up to whole panels */
    size_t S;                       /* number of keys; a ring has no end: SIZE_MAX */
    size_t seen;                    /* keys that one query sees at most */
    size_t blocks, block, stride;   /* blocks of keys; floats in one; floats from one to the next */
    size_t first;                   /* the first head being computed; head (b,h) is b*H + h */
    size_t tasks;                   /* blocks of queries in a head */
    float scale;
    uint64_t key;                   /* of dropout's random numbers */
    float *keys;                    /* packed blocks of the heads being computed */
    float *scratch;
    size_t scratch_size;            /* floats of scratch memory for each thread */
    size_t room;                    /* in forward: how many queries it has room for */
    int threads;                    /* threads that share one head of a ring, */
    const sru__queries *q;          /* its queries, */
    float *scores;                  /* and their scores for all blocks of keys */
    double *dalpha;                 /* (B*H) each head's part of dalpha */
    size_t parts;                   /* parts of a head's keys; each has its own sums for dq: */
    float *dq;                      /* (heads,parts,tasks*64,wide) */
} sru__attend_run;

/* The index of step t of a head in an array (T,B,width); width is P, or 2 P in kv. */
static size_t sru__head_at(const sru__attend_run *r, size_t head, size_t t, size_t width)
{
    const size_t H = (size_t)r->s.H;
    return (t * r->s.B + head / H) * width + head % H * r->hd;
}

static size_t sru__block_floats(size_t hd)
{
    return SRU__KEYS * (hd + sru__round_up(hd, SRU__PANEL));
}

/* Blocks in a ring: room for the window without the query itself, and the block being filled. */
static size_t sru__ring_blocks(size_t window) { return sru__ceil(window - 1, SRU__KEYS) + 1; }

static size_t sru__ring_floats(size_t window, size_t P, size_t H)
{
    return window ? 2 + sru__ring_blocks(window) * H * sru__block_floats(P / H) : 0;
}

/* Packs n <= 64 rows of a head, `row` floats apart, as panels of 16 rows; or of 16 columns. */
static void sru__row_panels(float *panels, const float *a, size_t row, size_t n, size_t hd)
{
    size_t j;
    for (j = 0; j < n; j += SRU__PANEL)
        sru__interleave(panels + j * hd, SRU__PANEL, a + j * row, sru__min(SRU__PANEL, n - j), row,
                        1, hd);
}

static void sru__column_panels(float *panels, const float *a, size_t row, size_t n, size_t hd)
{
    size_t i, j;
    for (i = 0; i < n; i++, a += row, panels += SRU__PANEL)
        for (j = 0; j < hd; j += SRU__PANEL) {
            float *to = panels + j * SRU__KEYS;
            if (hd - j >= SRU__PANEL) memcpy(to, a + j, SRU__PANEL * sizeof *a);
            else {
                memset(to, 0, SRU__PANEL * sizeof *a);
                memcpy(to, a + j, (hd - j) * sizeof *a);
            }
        }
}

/* Stores key and value j of a block. */
static void sru__put_key(float *block, size_t hd, size_t j, const float *key, const float *value)
{
    float *k = block + j / SRU__PANEL * hd * SRU__PANEL + j % SRU__PANEL;
    size_t i;
    for (i = 0; i < hd; i++) k[i * SRU__PANEL] = key[i];
    sru__column_panels(block + SRU__KEYS * hd + j * SRU__PANEL, value, 0, 1, hd);
}

/* Hides n scores. One at a time, this would take a fifth of attention's time with small heads. */
static void sru__hide_all(float *s, size_t n)
{
    float eight[8];
    int i;
    for (i = 0; i < 8; i++) eight[i] = SRU__HIDDEN;
    for (; n >= 8; n -= 8, s += 8) memcpy(s, eight, sizeof eight);
    while (n) s[--n] = SRU__HIDDEN;
}

/* The numbers, counted from `start`, of the n padded keys among the next 64. A ring has none. */
typedef struct sru__padded {
    size_t n;
    uint8_t key[SRU__KEYS];
} sru__padded;

static void sru__find_padded(sru__padded *p, const sru__attend_run *r, size_t head, size_t start)
{
    const sru_attention *s = &r->s;
    const size_t b = head / (size_t)s->H;
    const size_t end = s->ring ? start : sru__min(start + SRU__KEYS, r->S);
    size_t at;
    p->n = 0;
    for (at = start; at < sru__min(end, s->M) && s->memory_mask_pad; at++)
        if (s->memory_mask_pad[at * s->B + b]) p->key[p->n++] = (uint8_t)(at - start);
    for (at = sru__max(start, s->M); at < end && s->mask_pad; at++)
        if (s->mask_pad[(at - s->M) * s->B + b]) p->key[p->n++] = (uint8_t)(at - start);
}

/* Of the keys from `start` on, the step at place `at` sees keys lo ... hi-1. For a later step,
   neither lo nor hi is less. */
static void sru__seen(const sru__attend_run *r, size_t at, size_t start, size_t *lo, size_t *hi)
{
    const size_t window = r->s.window;
    *lo = window && at + 1 - start > window ? at + 1 - window : start;
    *hi = r->s.causal || window ? at + 1 : r->S;
}

/* Adds attn_mask to those scores s of keys first ... end-1 that the step at place `at` sees. Hides
   the others, and those of padded keys. */
static void sru__hide(const sru__attend_run *r, const sru__padded *padded, size_t at, size_t start,
                      float *s, size_t first, size_t end)
{
    size_t lo, hi, i;
    sru__seen(r, at, start, &lo, &hi);
    lo = sru__min(sru__max(lo, first), end);
    hi = sru__min(sru__max(hi, first), end);
    sru__hide_all(s, lo - first);
    sru__hide_all(s + (hi - first), end - hi);
    if (lo < hi && r->s.attn_mask)
        r->kern->add_mask(s + (lo - first), r->s.attn_mask + (at - r->s.M) * r->S + lo, hi - lo);
    for (i = 0; i < padded->n; i++) s[padded->key[i]] = SRU__HIDDEN;
}

/* c (n,16*count) = a times `count` panels, or += if `add`. The panels follow one another; each has
   `deep` rows, of which the first k are used. Element (i,p) of a is a[i*row + p*col]. */
static void sru__times_panels(const sru__kernels *kern, const float *a, size_t row, size_t col,
                              size_t n, size_t k, const float *panels, size_t deep, size_t count,
                              float *c, size_t ldc, int add)
{
    const size_t full = kern->rows;
    const float *b[8];
    size_t i, j, q;
    for (j = 0; j < count; j += 8) {
        const size_t m = sru__min(8, count - j);
        for (q = 0; q < m; q++) b[q] = panels + (j + q) * deep * SRU__PANEL;
        for (i = 0; i < n; i += full)
            kern->product(k, a + i * row, row, col, sru__strip_width(full, n - i), b, (int)m,
                          c + i * ldc + j * SRU__PANEL, ldc, SRU__PANEL, add,
                          (int)sru__min(full, n - i), SRU__PANEL, NULL, 0);
    }
}

static void sru__seen_by_all(const sru__attend_run *r, sru__queries *q)
{
    size_t lo, hi;
    sru__seen(r, q->place, q->start, &lo, &q->high);
    sru__seen(r, q->place + (q->n - 1) * q->apart, q->start, &q->low, &hi);
    q->from = lo / SRU__KEYS;
    q->to = sru__ceil(hi, SRU__KEYS);
}

/* The smallest number of block g's first keys that include all that queries 0 ... i see. */
static size_t sru__seen_of_block(const sru__attend_run *r, const sru__queries *q, size_t g,
                                 size_t i)
{
    const size_t first = g * SRU__KEYS;
    size_t lo, hi;
    sru__seen(r, q->place + i * q->apart, q->start, &lo, &hi);
    return sru__min(sru__max(hi, first) - first, SRU__KEYS);
}

/* The number of keys in block g, rounded up to whole panels: the last block may be shorter. */
static size_t sru__block_keys(const sru__attend_run *r, size_t g)
{
    return sru__round_up(sru__min(SRU__KEYS, r->S - g * SRU__KEYS), SRU__PANEL);
}

/* How many queries to multiply at a time. If some do not see the last keys of block g, only as many
   as a tile has rows: so earlier queries skip keys that they do not see. */
static size_t sru__few(const sru__attend_run *r, const sru__queries *q, size_t g)
{
    return (g + 1) * SRU__KEYS > q->high ? r->kern->rows : q->n;
}

/* Writes the queries, scaled, to queries (n,hd). */
static void sru__attend_queries(const sru__attend_run *r, const sru__queries *q, float *queries)
{
    const float *rows[SRU__KEYS];
    size_t i, j;
    for (i = 0; i < q->n; i++) {
        const size_t at = sru__head_at(r, q->head, q->t[i], r->s.P);
        rows[i] = r->s.q + at;
        for (j = 0; j < r->hd && r->s.B * (size_t)r->s.H > 1; j += 16) {    /* rows are far apart */
            SRU__PREFETCH(r->s.q + at + j);
            SRU__PREFETCH(r->s.o + at + j);
        }
    }
    for (i = 0; i < q->n; i++) r->kern->scale(queries + i * r->hd, rows[i], r->scale, r->hd);
}

/* Writes the queries' scores (n,64) for the keys of block g. */
static void sru__attend_scores(const sru__attend_run *r, const sru__queries *q, size_t g,
                               const float *queries, float *scores)
{
    const size_t start = g * SRU__KEYS, few = sru__few(r, q, g), keys = sru__block_keys(r, g);
    sru__padded padded;
    size_t i, n;
    for (i = 0; i < q->n; i += n) {
        n = sru__min(few, q->n - i);
        sru__times_panels(r->kern, queries + i * r->hd, r->hd, 1, n, r->hd,
                          q->keys + g % r->blocks * r->stride, r->hd,
                          sru__ceil(sru__seen_of_block(r, q, g, i + n - 1), SRU__PANEL),
                          scores + i * SRU__KEYS, SRU__KEYS, 0);
    }
    sru__find_padded(&padded, r, q->head, start);
    if (!r->s.attn_mask && !padded.n && start >= q->low && start + SRU__KEYS <= q->high) return;
    for (i = 0; i < q->n; i++)
        sru__hide(r, &padded, q->place + i * q->apart, q->start, scores + i * SRU__KEYS, start,
                  start + keys);
}

/* Dropout's factors for the weights that step t gives to the 64 keys from `start` on. */
static void sru__attend_mask(const sru__attend_run *r, float mask[SRU__KEYS], size_t head,
                             size_t t, size_t start)
{
    r->kern->draw(mask, r->key, ((uint64_t)head * r->s.T + t) * r->S + start, r->s.dropout,
                  SRU__KEYS);
}

/* Turns the scores of block g into weights, and adds the block's values times these weights to sums
   (n,16*count), in panels of columns first ... first+count-1. Behind the room for sums lie each
   query's highest score and its sum of weights. */
static void sru__attend_values(const sru__attend_run *r, const sru__queries *q, size_t g,
                               float *scores, float *sums, size_t first, size_t count)
{
    const size_t few = sru__few(r, q, g), keys = sru__block_keys(r, g), width = count * SRU__PANEL;
    const float *block = q->keys + g % r->blocks * r->stride;
    float *most = sums + r->room * r->wide, *total = most + SRU__KEYS;
    float mask[SRU__KEYS];
    size_t i, n;
    r->kern->attend(scores, q->n, keys, most, total, sums, width);
    for (i = 0; i < q->n && r->s.dropout > 0; i++) {
        float *score = scores + i * SRU__KEYS;
        sru__attend_mask(r, mask, q->head, q->t[i], g * SRU__KEYS);
        r->kern->multiply(score, score, mask, 0, keys);
    }
    for (i = 0; i < q->n; i += n) {
        n = sru__min(few, q->n - i);
        sru__times_panels(r->kern, scores + i * SRU__KEYS, SRU__KEYS, 1, n,
                          sru__seen_of_block(r, q, g, i + n - 1),
                          block + SRU__KEYS * (r->hd + first * SRU__PANEL), SRU__KEYS, count,
                          sums + i * width, width, 1);
    }
}

/* Computes the queries' results in panels of columns first ... first+count-1. Their scores are
   computed here, too, unless threads share the queries: then r->scores holds them. */
static void sru__attend(const sru__attend_run *r, const sru__queries *q, size_t first, size_t count,
                        int thread)
{
    const sru_attention *s = &r->s;
    const size_t each = q->n * SRU__KEYS, width = count * SRU__PANEL, column = first * SRU__PANEL;
    float *queries = r->scratch + (size_t)thread * r->scratch_size;
    float *scores = queries + r->room * r->wide, *sums = scores + r->room * SRU__KEYS;
    float *most = sums + r->room * r->wide, *total = most + SRU__KEYS;
    size_t i, g;
    if (r->threads == 1) sru__attend_queries(r, q, queries);
    for (i = 0; i < q->n; i++) most[i] = SRU__HIDDEN;
    memset(sums, 0, q->n * width * 4);
    memset(total, 0, q->n * SRU__PANEL * 4);
    for (g = q->from; g < q->to; g++) {
        if (r->threads == 1) sru__attend_scores(r, q, g, queries, scores);
        else memcpy(scores, r->scores + (q->to - 1 - g) * each, each * 4);
        sru__attend_values(r, q, g, scores, sums, first, count);
    }
    for (i = 0; i < q->n; i++) {
        const size_t at = sru__head_at(r, q->head, q->t[i], s->P) + column;
        const float sum = r->kern->attended(s->o + at, s->a ? s->a + at : NULL,
                                            s->alpha ? s->q + at : NULL, sums + i * width,
                                            total + i * SRU__PANEL, s->alpha ? s->alpha[0] : 1,
                                            sru__min(width, r->hd - column));
        if (s->stats && !first) {   /* they are the same in threads that share a query */
            float *stats = s->stats + 2 * (q->head * s->T + q->t[i]);
            stats[0] = sum > 0 ? most[i] : 0;
            stats[1] = sum > 0 ? 1 / sum : 0;
        }
    }
}

/* Where several threads share the queries of one head, each thread first computes the scores for
   some blocks of keys, then the results in some panels of columns. */
static void sru__attend_blocks(void *job, size_t begin, size_t end, int thread)
{
    const sru__attend_run *r = (const sru__attend_run *)job;
    const sru__queries *q = r->q;
    float *queries = r->scratch + (size_t)thread * r->scratch_size;
    sru__attend_queries(r, q, queries);
    for (; begin < end; begin++)    /* newest keys first: they are in the first thread's cache */
        sru__attend_scores(r, q, q->to - 1 - begin, queries, r->scores + begin * q->n * SRU__KEYS);
}

static void sru__attend_columns(void *job, size_t begin, size_t end, int thread)
{
    const sru__attend_run *r = (const sru__attend_run *)job;
    sru__attend(r, r->q, begin, end - begin, thread);
}

static void sru__attend_pack(void *job, size_t begin, size_t end, int thread)
{
    const sru__attend_run *r = (const sru__attend_run *)job;
    const sru_attention *s = &r->s;
    const size_t row = s->B * 2 * s->P;
    size_t task;
    (void)thread;
    for (task = begin; task < end; task++) {
        const size_t head = r->first + task / r->blocks, first = task % r->blocks * SRU__KEYS;
        const size_t n = sru__min(SRU__KEYS, r->S - first);
        const float *key = s->kv + sru__head_at(r, head, first, 2 * s->P);
        float *block = r->keys + task * r->block;
        sru__row_panels(block, key, row, n, r->hd);
        sru__column_panels(block + r->hd * SRU__KEYS, key + s->P, row, n, r->hd);
    }
}

static void sru__attend_tasks(void *job, size_t begin, size_t end, int thread)
{
    const sru__attend_run *r = (const sru__attend_run *)job;
    const sru_attention *s = &r->s;
    sru__queries q;
    size_t task, i;
    for (task = begin; task < end; task++) {
        const size_t head = task / r->tasks, turn = task % r->tasks;
        /* blocks from either end in turn: later queries see more, so threads get equal work */
        const size_t first = SRU__KEYS * (turn % 2 ? r->tasks - 1 - turn / 2 : turn / 2);
        q.head = r->first + head;
        q.n = sru__min(SRU__KEYS, s->T - first);
        for (i = 0; i < q.n; i++) q.t[i] = first + i;
        q.place = s->M + first;
        q.apart = 1;
        q.start = 0;
        q.keys = r->keys + head * r->blocks * r->block;
        sru__seen_by_all(r, &q);
        sru__attend(r, &q, 0, r->wide / SRU__PANEL, thread);
    }
}

/* The same tasks for whole heads, without waiting for other threads: each thread packs the keys of
   its heads for itself, even where two threads share a head. */
static void sru__attend_heads(void *job, size_t begin, size_t end, int thread)
{
    sru__attend_run r = *(const sru__attend_run *)job;
    size_t next;
    r.keys += (size_t)thread * r.blocks * r.block;
    for (; begin < end; begin = next) {
        r.first = begin / r.tasks;
        next = sru__min(end, (r.first + 1) * r.tasks);
        sru__attend_pack(&r, 0, r.blocks, 0);
        sru__attend_tasks(&r, begin - r.first * r.tasks, next - r.first * r.tasks, thread);
    }
}

/* A ring starts with two numbers: the place of the next key, modulo the ring's length, and how many
   keys before it are there. A state may come from anywhere: what is not below `end` counts as 0. */
static size_t sru__ring_count(float x, size_t end)
{
    return sru__within((double)x, 0, (double)end) ? (size_t)x : 0;
}

static void sru__ring_tasks(void *job, size_t begin, size_t end, int thread)
{
    sru__attend_run r = *(const sru__attend_run *)job;
    const sru_attention *s = &r.s;
    const size_t H = (size_t)s->H, length = r.blocks * SRU__KEYS, panels = r.wide / SRU__PANEL;
    sru__queries q;
    size_t step;
    r.q = &q;
    q.apart = !s->cross;            /* in cross-attention, all queries see the same keys */
    for (q.head = begin; q.head < end; q.head++) {
        const size_t b = q.head / H;
        float *state = s->ring + b * s->ld_ring, *keys = state + 2 + q.head % H * r.block;
        /* one length is added, so that no earlier key has a negative place */
        size_t place = sru__ring_count(state[0], length) + length;
        q.start = place - sru__ring_count(state[1], s->window);
        q.keys = keys;
        for (step = 0; step < s->T;) {
            q.place = place - !q.apart; /* of the first query's own key or, across, of the last */
            q.n = 0;
            /* up to a full block: its queries are computed before the next key is stored */
            for (; step < s->T && (!q.n || (s->cross ? q.n : place) % SRU__KEYS); step++) {
                const float *key;
                if (s->mask_pad && s->mask_pad[step * s->B + b]) continue;
                q.t[q.n++] = step;
                if (s->cross) continue;
                key = s->kv + sru__head_at(&r, q.head, step, 2 * s->P);
                sru__put_key(keys + place / SRU__KEYS % r.blocks * r.stride, r.hd,
                             place % SRU__KEYS, key, key + s->P);
                place++;
            }
            if (!q.n) break;
            if (!s->q) continue;
            sru__seen_by_all(&r, &q);
            if (r.threads == 1) sru__attend(&r, &q, 0, panels, thread);
            else sru__parallel_then(r.threads, q.to - q.from, sru__attend_blocks, panels,
                                    sru__attend_columns, &r);
        }
    }
}

static void sru__ring_advance(const sru__attend_run *r)
{
    const sru_attention *s = &r->s;
    const size_t length = r->blocks * SRU__KEYS;
    size_t b, t, n;
    for (b = 0; b < s->B; b++) {
        float *state = s->ring + b * s->ld_ring;
        for (t = n = 0; t < s->T; t++) n += !(s->mask_pad && s->mask_pad[t * s->B + b]);
        state[0] = (float)((sru__ring_count(state[0], length) + n) % length);
        state[1] = (float)sru__min(sru__ring_count(state[1], s->window) + n, s->window - 1);
    }
}

static sru_status sru__attention_check(const sru_context *c, const sru_attention *s,
                                       const char *name)
{
    const size_t H = s ? (size_t)s->H : 0;
    if (!s) return SRU__FAIL(c, SRU_EINVAL, "%s: the attention is NULL", name);
    if (s->H < 1 || s->P % H || !s->P)
        return SRU__FAIL(c, SRU_EINVAL, "%s: H must be at least 1, and P %u a multiple of it", name,
                         s->P);
    if (s->M > SIZE_MAX / 2 || s->T > SIZE_MAX / 4 || s->P > SIZE_MAX / 64
        || s->window > SRU__FARTHEST
        || !sru__fits(8.0f * (float)(s->window + 192) * (float)(s->P + 8 * H))
        || !sru__fits(32.0f * (float)(s->M + s->T + 128) * (float)s->B * (float)(s->P + 16 * H))
        || (s->attn_mask && !sru__fits((float)(s->M + s->T) * (float)s->T))
        || (s->ring && !sru__fits(4.0f * (float)s->B * (float)s->ld_ring)))
        return SRU__FAIL(c, SRU_EINVAL, "%s: T %u, B %u, M %u, P %u, window %u, ld_ring %u are too "
                         "large", name, s->T, s->B, s->M, s->P, s->window, s->ld_ring);
    if (!sru__within((double)s->dropout, 0, 1))
        return SRU__FAIL(c, SRU_EINVAL, "%s: dropout must be from 0 to below 1", name);
    if (s->ring && (!s->window || s->M || s->attn_mask || s->dropout > 0
                    || s->ld_ring < sru__ring_floats(s->window, s->P, H)))
        return SRU__FAIL(c, SRU_EINVAL, "%s: a ring wants a window, ld_ring of at least %u, and no "
                         "memory, attn_mask or dropout", name,
                         sru__ring_floats(s->window, s->P, H));
    if (s->cross && (s->causal || (!s->ring && (s->window || !s->M))))
        return SRU__FAIL(c, SRU_EINVAL, "%s: cross-attention wants memory or a ring, and no "
                         "causal, nor a window without a ring", name);
    /* a ring can do with one of them */
    if (s->T && s->B && !(s->q && s->kv) && !(s->ring && (s->cross ? s->q : s->kv)))
        return SRU__FAIL(c, SRU_EINVAL, "%s: q or kv is NULL; with a ring, kv alone fills it if "
                         "cross is 0, and q alone reads it if cross is 1", name);
    return SRU_OK;
}

static void sru__attend_begin(sru__attend_run *r, const sru_context *c, const sru_attention *s)
{
    sru__clear(r, sizeof *r);
    r->s = *s;
    r->kern = sru__kern(c);
    r->hd = s->P / (size_t)s->H;
    r->wide = sru__round_up(r->hd, SRU__PANEL);
    r->S = s->ring ? SIZE_MAX : s->M + (s->cross ? 0 : s->T);
    r->seen = s->window && s->window < r->S ? s->window : r->S;
    r->blocks = s->ring ? sru__ring_blocks(s->window) : sru__ceil(r->S, SRU__KEYS);
    r->block = sru__block_floats(r->hd);
    r->stride = s->ring ? (size_t)s->H * r->block : r->block;
    r->tasks = sru__ceil(s->T, SRU__KEYS);
    r->scale = (float)(1 / sru__dsqrt((double)r->hd));
    r->key = sru__key(c->seed, c->step, s->id);
}

static sru_status sru__attention_forward_run(sru_context *c, const void *args)
{
    const sru_attention *s = (const sru_attention *)args;
    sru__attend_run r;
    sru_status status = sru__attention_check(c, s, "attention_forward");
    size_t all;
    int threads, shared;
    if (status) return status;
    if (!s->T || !s->B) return SRU_OK;
    if (s->q && !s->o)
        return SRU__FAIL(c, SRU_EINVAL, "attention_forward: o must not be NULL");
    sru__attend_begin(&r, c, s);
    all = s->B * (size_t)s->H;
    threads = sru__threads(c, 4.0 * (double)sru__max(s->T, 16) * (double)s->B * (double)s->P
                              * (double)sru__max(SRU__KEYS, r.seen));
    /* for a block of queries: these, their scores and sums, highest scores and sums of weights */
    r.room = sru__min(SRU__KEYS, s->T);
    r.scratch_size = r.room * (2 * r.wide + SRU__KEYS + SRU__PANEL) + SRU__KEYS;
    r.scratch = sru__take_floats(c, sru__times((size_t)threads, r.scratch_size));
    r.keys = sru__take_floats(c, s->ring ? 0 : sru__min(sru__max(all, 2), (size_t)threads)
                                               * r.blocks * r.block);
    r.threads = s->ring && 2 * all <= (size_t)threads ? threads : 1;
    /* threads share a ring only where there are few rings, so few sequences may need more memory
       than many; what is measured must be enough for fewer sequences, too */
    shared = c->measure ? s->ring && 2 * (size_t)s->H <= (size_t)sru__threads(c, 1e30)
                        : r.threads > 1;
    r.scores = sru__take_floats(c, shared ? r.blocks * SRU__KEYS * r.room : 0);
    if (!r.scratch || !r.keys || !r.scores) return sru__no_memory(c);
    if (c->measure) return SRU_OK;
    if (s->ring) {
        sru__parallel(r.threads > 1 ? 1 : threads, all, sru__ring_tasks, &r);
        if (!s->cross) sru__ring_advance(&r);
        return SRU_OK;
    }
    /* each thread takes the same number of heads, and all threads share each remaining one. But
       two threads divide all heads, sharing one at most: packing its keys twice takes them less
       time than fetching what the other thread has packed */
    r.first = threads == 2 ? all : all / (size_t)threads * (size_t)threads;
    sru__parallel(threads, r.first * r.tasks, sru__attend_heads, &r);
    sru__parallel_then(threads, (all - r.first) * r.blocks, sru__attend_pack,
                       (all - r.first) * r.tasks, sru__attend_tasks, &r);
    return SRU_OK;
}

static sru_status sru__cpu_attention_forward(const sru_context *ctx, const sru_attention *s)
{
    return sru__run(ctx, sru__attention_forward_run, s);
}

#ifndef SRU_NO_BACKWARD
/* Writes a head's scaled queries; its queries and gradients of o in panels; and for each query the
   mean of its weights' gradients dout.v, weighted by the weights p: sum of p*(dout.v) = dout.a
   (alpha is applied at the end). The same kernel computes dout.v and dout.a, so that both are
   rounded alike: where one weight is 1, its gradient minus the mean must be 0. Returns the head's
   part of dalpha. ap and dots are scratch memory. */
static double sru__attend_prepare(const sru__attend_run *r, size_t head, float *qs, float *qp,
                                  float *dap, float *mean, float *ap, float *dots)
{
    const sru_attention *s = &r->s;
    const size_t hd = r->hd, each = SRU__KEYS * hd, panel = SRU__KEYS * r->wide;
    const size_t row = s->B * s->P;
    double dalpha = 0;
    size_t i, j, k;
    for (i = 0; i < r->tasks; i++) {
        const size_t n = sru__min(SRU__KEYS, s->T - i * SRU__KEYS);
        const size_t at = sru__head_at(r, head, i * SRU__KEYS, s->P);
        const float *q = s->q + at, *dout = s->dout + at, *a = s->a + at;
        for (j = 0; j < n; j++)
            r->kern->scale(qs + i * each + j * hd, q + j * row, r->scale, hd);
        sru__column_panels(qp + i * panel, q, row, n, hd);
        sru__column_panels(dap + i * panel, dout, row, n, hd);
        sru__row_panels(ap, a, row, n, hd);
        for (j = 0; j < n; j += SRU__PANEL) {   /* forward: o = q + alpha*a */
            const size_t m = sru__min(SRU__PANEL, n - j);
            sru__times_panels(r->kern, dout + j * row, row, 1, m, hd, ap + j * hd, hd, 1, dots,
                              SRU__PANEL, 0);
            for (k = 0; k < m; k++) {
                mean[i * SRU__KEYS + j + k] = dots[k * SRU__PANEL + k];
                dalpha += (double)dots[k * SRU__PANEL + k];
            }
        }
    }
    return dalpha;
}

/* A task takes a part of a head's blocks of keys, and for each block all queries that see it. */
static void sru__attend_backward_tasks(void *job, size_t begin, size_t end, int thread)
{
    const sru__attend_run *r = (const sru__attend_run *)job;
    const sru_attention *s = &r->s;
    const sru__kernels *kern = r->kern;
    const size_t hd = r->hd, wide = r->wide, tasks = r->tasks;
    const size_t each = SRU__KEYS * hd, panel = SRU__KEYS * wide, row = s->B * 2 * s->P;
    const float alpha = s->alpha ? s->alpha[0] : 1;
    float *qs = r->scratch + (size_t)thread * r->scratch_size;
    float *qp = qs + tasks * each, *dap = qp + tasks * panel;
    float *mean = dap + tasks * panel, *kt = mean + tasks * SRU__KEYS, *vt = kt + each;
    float *kp = vt + each, *dk = kp + panel, *dv = dk + panel;
    float *p = dv + panel, *ds = p + SRU__KEYS * SRU__KEYS;
    sru__queries q;
    sru__padded padded;
    size_t task, g, i, j;
    q.apart = 1;
    q.start = 0;
    for (task = begin; task < end; task++) {
        const size_t head = r->first + task / r->parts, part = task % r->parts;
        size_t step = 2 * (r->parts - part) - 1;    /* to and fro: more queries see earlier keys */
        float *dq = r->dq + task * tasks * panel;
        memset(dq, 0, tasks * panel * 4);
        if (task == begin || !part) {       /* this thread's first task for this head */
            const double dalpha = sru__attend_prepare(r, head, qs, qp, dap, mean, kt, p);
            if (!part) r->dalpha[head] = dalpha;
        }
        for (g = part; g < r->blocks; g += step, step = 2 * r->parts - step) {
            const size_t first = g * SRU__KEYS, keys = sru__min(SRU__KEYS, r->S - first);
            const float *key = s->kv + sru__head_at(r, head, first, 2 * s->P);
            float *dkey = s->dkv + (key - s->kv);
            sru__row_panels(kt, key, row, keys, hd);
            sru__row_panels(vt, key + s->P, row, keys, hd);
            sru__column_panels(kp, key, row, keys, hd);
            memset(dk, 0, 2 * panel * 4);
            sru__find_padded(&padded, r, head, first);
            for (i = 0; i < tasks; i++) {
                const size_t n = sru__min(SRU__KEYS, s->T - i * SRU__KEYS);
                q.n = n;
                q.place = s->M + i * SRU__KEYS;
                sru__seen_by_all(r, &q);
                if (g < q.from || g >= q.to) continue;
                sru__times_panels(kern, qs + i * each, hd, 1, n, hd, kt, hd,
                                  sru__ceil(keys, SRU__PANEL), p, SRU__KEYS, 0);
                sru__times_panels(kern, s->dout + sru__head_at(r, head, i * SRU__KEYS, s->P),
                                  s->B * s->P, 1, n, hd, vt, hd, sru__ceil(keys, SRU__PANEL), ds,
                                  SRU__KEYS, 0);
                for (j = 0; j < n; j++) {
                    const size_t t = i * SRU__KEYS + j;
                    float *score = p + j * SRU__KEYS, *d = ds + j * SRU__KEYS, mask[SRU__KEYS];
                    sru__hide(r, &padded, q.place + j, 0, score, first, first + SRU__KEYS);
                    if (s->dropout > 0) {
                        sru__attend_mask(r, mask, head, t, first);
                        kern->multiply(d, d, mask, 0, SRU__KEYS);
                    }
                    kern->attend_backward(score, d, s->stats + 2 * (head * s->T + t), mean[t]);
                    if (s->dropout > 0) kern->multiply(score, score, mask, 0, SRU__KEYS);
                }
                /* forward: a = p v, scores = q k' */
                sru__times_panels(kern, p, 1, SRU__KEYS, keys, n, dap + i * panel,
                                  SRU__KEYS, wide / SRU__PANEL, dv, wide, 1);
                sru__times_panels(kern, ds, 1, SRU__KEYS, keys, n, qp + i * panel,
                                  SRU__KEYS, wide / SRU__PANEL, dk, wide, 1);
                sru__times_panels(kern, ds, SRU__KEYS, 1, n, keys, kp, SRU__KEYS,
                                  wide / SRU__PANEL, dq + i * panel, wide, 1);
            }
            for (j = 0; j < keys; j++, dkey += row) {
                kern->scale(dkey, dk + j * wide, alpha * r->scale, hd);
                kern->scale(dkey + s->P, dv + j * wide, alpha, hd);
            }
        }
    }
}

/* Computes dq of blocks of queries, by adding the sums of all parts. */
static void sru__attend_backward_sums(void *job, size_t begin, size_t end, int thread)
{
    const sru__attend_run *r = (const sru__attend_run *)job;
    const sru_attention *s = &r->s;
    const size_t row = s->B * s->P, whole = r->tasks * SRU__KEYS * r->wide;
    const float alpha = s->alpha ? s->alpha[0] : 1;
    size_t task, i, part;
    (void)thread;
    for (task = begin; task < end; task++) {
        const size_t head = r->first + task / r->tasks, first = task % r->tasks * SRU__KEYS;
        const size_t n = sru__min(SRU__KEYS, s->T - first);
        const size_t at = sru__head_at(r, head, first, s->P);
        float *sum = r->dq + task / r->tasks * r->parts * whole + first * r->wide;
        for (part = 1; part < r->parts; part++)
            r->kern->add(sum, sum + part * whole, n * r->wide);
        for (i = 0; i < n; i++) {
            float *dq = s->dq + at + i * row;
            r->kern->scale(dq, sum + i * r->wide, alpha * r->scale, r->hd);
            if (s->alpha) r->kern->add(dq, s->dout + at + i * row, r->hd);
        }
    }
}

static sru_status sru__attention_backward_run(sru_context *c, const void *args)
{
    const sru_attention *s = (const sru_attention *)args;
    sru__attend_run r;
    sru_status status = sru__attention_check(c, s, "attention_backward");
    size_t all, most, one, floats, i;
    double dalpha = 0;
    int threads;
    if (status) return status;
    if (!s->T || !s->B)                 /* no query has seen the memory */
        return s->dkv ? sru__cpu_copy(c, s->dkv, NULL, s->M * s->B * 2 * s->P * 4) : SRU_OK;
    if (s->ring || !s->a || !s->stats || !s->dout || !s->dq || !s->dkv)
        return SRU__FAIL(c, SRU_EINVAL, "attention_backward: a, stats, dout, dq and dkv must not "
                         "be NULL, and there is none through a ring");
    sru__attend_begin(&r, c, s);
    all = s->B * (size_t)s->H;
    threads = sru__threads(c, 10.0 * (double)s->T * (double)s->B * (double)s->P
                              * (double)sru__max(SRU__KEYS, r.seen));
    r.parts = sru__min(4, r.blocks);    /* for any number of threads, so that sums are the same */
    threads = sru__at_most(threads, all * r.parts);
    /* for one head: its queries in rows, these and gradients in panels, and what one pair of blocks
       needs. This grows with T, not with its square */
    r.scratch_size = SRU__KEYS * (r.tasks * (r.hd + 2 * r.wide + 1) + 2 * r.hd + 3 * r.wide
                                  + 2 * SRU__KEYS);
    r.scratch = sru__take_floats(c, sru__times((size_t)threads, r.scratch_size));
    /* the sums for dq: of all heads if they are small, else of at least one head per thread */
    one = r.parts * r.tasks * SRU__KEYS * r.wide;
    floats = sru__min(all * one, sru__max(SRU__CACHE, (size_t)threads * one));
    most = floats / one;
    r.dq = sru__take_floats(c, floats);
    r.dalpha = (double *)(void *)sru__take_floats(c, 2 * all);
    if (!r.scratch || !r.dq || !r.dalpha) return sru__no_memory(c);
    if (c->measure) return SRU_OK;
    for (; r.first < all; r.first += most) {
        const size_t heads = sru__min(most, all - r.first);
        sru__parallel_then(threads, heads * r.parts, sru__attend_backward_tasks, heads * r.tasks,
                           sru__attend_backward_sums, &r);
    }
    for (i = 0; i < all; i++) dalpha += r.dalpha[i];
    if (s->dalpha) s->dalpha[0] += (float)dalpha;
    return SRU_OK;
}

static sru_status sru__cpu_attention_backward(const sru_context *ctx, const sru_attention *s)
{
    return sru__run(ctx, sru__attention_backward_run, s);
}
#endif

/* ---- operators: layer norm ------------------------------------------------------------------- */

/* Arguments of this operator and the following ones. */
typedef struct sru__rows_job {
    float *y, *stats, *partial;     /* partial: dgain (parts,n), then dbias (parts,n) */
    float *dgain, *dbias;
    const float *dy, *x, *gain, *bias, *cstats, *mask;
    const int32_t *tokens;
    float beta, scale, p;
    size_t rows, n, size, parts;
    uint64_t key;
    double *sums;
    float *m, *v, *g;               /* of adamw, whose parameters are y */
    sru__adamw_job adamw;
    const sru__kernels *kern;
} sru__rows_job;

/* Sets what most of these operators are given, and all else to 0. */
static void sru__rows_begin(sru__rows_job *s, float *y, const float *x, size_t rows, size_t n)
{
    sru__clear(s, sizeof *s);
    s->y = y;
    s->x = x;
    s->rows = rows;
    s->n = n;
}

/* Runs an operator that needs no scratch memory: its work on `count` parts, by as many threads as
   this number of operations is worth. */
static sru_status sru__share_out(const sru_context *ctx, double operations, size_t count,
                                 sru__work work, sru__rows_job *job)
{
    const sru_context c = sru__context(ctx);
    if (c.measure) return SRU_OK;
    job->kern = sru__kern(&c);
    sru__parallel(sru__threads(&c, operations), count, work, job);
    return SRU_OK;
}

/* Sums over rows are taken in this many parts, whatever the number of threads, and then added up in
   order, so that the result is always the same. */
enum { SRU__PARTS = 32 };

static void sru__layernorm_rows(void *job, size_t begin, size_t end, int thread)
{
    const sru__rows_job *s = (const sru__rows_job *)job;
    (void)thread;
    s->kern->layernorm(s->y + begin * s->n, s->stats ? s->stats + 2 * begin : NULL,
                       s->x + begin * s->n, s->gain, s->bias, end - begin, s->n);
}

static sru_status sru__cpu_layernorm_forward(const sru_context *ctx, float *y, float *stats,
                                             const float *x, const float *gain, const float *bias,
                                             size_t rows, size_t n)
{
    sru__rows_job s;
    if (sru__too_large(ctx, "layernorm_forward", rows, n)) return SRU_EINVAL;
    if (!rows || !n) return SRU_OK;
    if (!y || !x || !gain || !bias)
        return SRU__FAIL(ctx, SRU_EINVAL, "layernorm_forward: y, x, gain, bias must not be NULL");
    sru__rows_begin(&s, y, x, rows, n);
    s.stats = stats;
    s.gain = gain;
    s.bias = bias;
    return sru__share_out(ctx, 40.0 * (double)rows * (double)n, rows, sru__layernorm_rows, &s);
}

#ifndef SRU_NO_BACKWARD
static void sru__layernorm_parts(void *job, size_t begin, size_t end, int thread)
{
    const sru__rows_job *s = (const sru__rows_job *)job;
    size_t part;
    (void)thread;
    for (part = begin; part < end; part++) {
        const size_t row = sru__part(s->rows, part, s->parts), at = row * s->n;
        s->kern->layernorm_backward(s->y ? s->y + at : NULL, s->partial + part * s->n,
                                    s->partial + (s->parts + part) * s->n, s->dy + at, s->x + at,
                                    s->gain, s->cstats + 2 * row, s->beta,
                                    sru__part(s->rows, part + 1, s->parts) - row, s->n);
    }
}

static sru_status sru__layernorm_backward_run(sru_context *c, const void *args)
{
    sru__rows_job s = *(const sru__rows_job *)args;
    size_t part;
    s.kern = sru__kern(c);
    s.parts = sru__min(s.rows, SRU__PARTS);
    s.partial = sru__take_floats(c, 2 * s.parts * s.n);
    if (!s.partial) return sru__no_memory(c);
    if (c->measure) return SRU_OK;
    memset(s.partial, 0, 2 * s.parts * s.n * 4);
    sru__parallel(sru__threads(c, 80.0 * (double)s.rows * (double)s.n), s.parts,
                  sru__layernorm_parts, &s);
    for (part = 0; part < s.parts; part++) {
        if (s.dgain) s.kern->add(s.dgain, s.partial + part * s.n, s.n);
        if (s.dbias) s.kern->add(s.dbias, s.partial + (s.parts + part) * s.n, s.n);
    }
    return SRU_OK;
}

static sru_status sru__cpu_layernorm_backward(const sru_context *ctx, float *dx, float *dgain,
                                              float *dbias, const float *dy, const float *x,
                                              const float *gain, const float *stats, float beta,
                                              size_t rows, size_t n)
{
    sru__rows_job s;
    if (beta != 0 && beta != 1)
        return SRU__FAIL(ctx, SRU_EINVAL, "layernorm_backward: beta must be 0 or 1");
    if (sru__too_large(ctx, "layernorm_backward", sru__max(rows, 2 * SRU__PARTS), n))
        return SRU_EINVAL;
    if (!rows || !n) return SRU_OK;
    if (!dy || !x || !gain || !stats)
        return SRU__FAIL(ctx, SRU_EINVAL, "layernorm_backward: dy, x, gain, stats must be given");
    sru__rows_begin(&s, dx, x, rows, n);
    s.dgain = dgain;
    s.dbias = dbias;
    s.dy = dy;
    s.gain = gain;
    s.cstats = stats;
    s.beta = beta;
    return sru__run(ctx, sru__layernorm_backward_run, &s);
}
#endif

/* ---- operators: embedding -------------------------------------------------------------------- */

static void sru__embedding_rows(void *job, size_t begin, size_t end, int thread)
{
    const sru__rows_job *s = (const sru__rows_job *)job;
    size_t i;
    (void)thread;
    for (i = begin; i < end; i++) {
        const size_t token = (size_t)s->tokens[i];      /* if negative, above any size */
        if (token < s->size) memcpy(s->y + i * s->n, s->x + token * s->n, s->n * 4);
        else memset(s->y + i * s->n, 0, s->n * 4);
    }
}

static sru_status sru__embedding_check(const sru_context *ctx, const char *name, const float *y,
                                       const int32_t *tokens, const float *table, size_t rows,
                                       size_t n, size_t size)
{
    if (sru__too_large(ctx, name, rows, n) || sru__too_large(ctx, name, size, n)) return SRU_EINVAL;
    if (rows && n && (!y || !tokens || (size && !table)))
        return SRU__FAIL(ctx, SRU_EINVAL, "%s: no pointer may be NULL", name);
    return SRU_OK;
}

static sru_status sru__cpu_embedding_forward(const sru_context *ctx, float *y,
                                             const int32_t *tokens, const float *table, size_t rows,
                                             size_t n, size_t size)
{
    sru__rows_job s;
    const sru_status status = sru__embedding_check(ctx, "embedding_forward", y, tokens, table,
                                                   rows, n, size);
    if (status || !rows || !n) return status;
    sru__rows_begin(&s, y, table, rows, n);
    s.tokens = tokens;
    s.size = size;
    return sru__share_out(ctx, 20.0 * (double)rows * (double)n, rows, sru__embedding_rows, &s);
}

#ifndef SRU_NO_BACKWARD
/* Threads divide the columns, so that each sum is taken in the order of the tokens. */
static void sru__embedding_columns(void *job, size_t begin, size_t end, int thread)
{
    const sru__rows_job *s = (const sru__rows_job *)job;
    size_t i;
    (void)thread;
    for (i = 0; i < s->rows; i++) {
        const size_t token = (size_t)s->tokens[i];
        if (token >= s->size) continue;
        s->kern->add(s->y + token * s->n + begin, s->x + i * s->n + begin, end - begin);
    }
}

static sru_status sru__cpu_embedding_backward(const sru_context *ctx, float *dtable,
                                              const float *dy, const int32_t *tokens, size_t rows,
                                              size_t n, size_t size)
{
    sru__rows_job s;
    const sru_status status = sru__embedding_check(ctx, "embedding_backward", dy, tokens, dtable,
                                                   rows, n, size);
    if (status) return status;
    sru__rows_begin(&s, dtable, dy, rows, n);
    s.tokens = tokens;
    s.size = size;
    return sru__share_out(ctx, 20.0 * (double)rows * (double)n, n, sru__embedding_columns, &s);
}
#endif

/* ---- operators: dropout, loss ---------------------------------------------------------------- */

/* A few hundred factors at a time, each used for all T rows. */
static void sru__dropout_columns(void *job, size_t begin, size_t end, int thread)
{
    const sru__rows_job *s = (const sru__rows_job *)job;
    float drawn[256];
    size_t i, t;
    (void)thread;
    begin *= SRU__PANEL;            /* whole vectors: no value's place in one depends on threads */
    end = sru__min(end * SRU__PANEL, s->n);
    for (i = begin; i < end; i += 256) {
        const size_t n = sru__min(256, end - i);
        const float *mask = s->mask ? s->mask + i : drawn;
        if (!s->mask) s->kern->draw(drawn, s->key, i, s->p, n);
        for (t = 0; t < s->rows; t++)
            if (s->x)
                s->kern->multiply(s->y + t * s->n + i, s->x + t * s->n + i, mask, s->beta, n);
            else
                memcpy(s->y + t * s->n + i, mask, n * 4);
    }
}

static sru_status sru__cpu_dropout(const sru_context *ctx, float *y, const float *x,
                                   const float *mask, float p, uint32_t id, float beta, size_t T,
                                   size_t n)
{
    sru__rows_job s;
    if (sru__too_large(ctx, "dropout", T, n)) return SRU_EINVAL;
    if (!mask && p != 1 && !sru__within((double)p, 0, 1))
        return SRU__FAIL(ctx, SRU_EINVAL, "dropout: the probability must be from 0 to 1");
    if (beta != 0 && beta != 1)
        return SRU__FAIL(ctx, SRU_EINVAL, "dropout: beta must be 0 or 1");
    if (!T || !n) return SRU_OK;
    if (!y) return SRU__FAIL(ctx, SRU_EINVAL, "dropout: y must not be NULL");
    sru__rows_begin(&s, y, x, T, n);
    s.mask = mask;
    s.p = p;
    s.beta = beta;
    s.key = ctx ? sru__key(ctx->seed, ctx->step, id) : sru__key(0, 0, id);
    return sru__share_out(ctx, 20.0 * ((double)T + 10) * (double)n, sru__ceil(n, SRU__PANEL),
                          sru__dropout_columns, &s);
}

static void sru__loss_parts(void *job, size_t begin, size_t end, int thread)
{
    const sru__rows_job *s = (const sru__rows_job *)job;
    size_t part, i;
    (void)thread;
    for (part = begin; part < end; part++) {
        const size_t to = sru__part(s->rows, part + 1, s->parts);
        double sum = 0;
        for (i = sru__part(s->rows, part, s->parts); i < to; i++)
            if (s->tokens[i] >= 0)
                sum += s->kern->softmax_loss(s->y ? s->y + i * s->n : NULL, s->x + i * s->n,
                                             (size_t)s->tokens[i], s->scale, s->n);
            else if (s->y)
                memset(s->y + i * s->n, 0, s->n * 4);
        s->sums[part] = sum;
    }
}

static sru_status sru__cpu_softmax_loss(const sru_context *ctx, double *loss, float *dy,
                                        const float *y, const int32_t *targets, float scale,
                                        size_t rows, size_t n)
{
    sru__rows_job s;
    double sums[SRU__PARTS];
    size_t i;
    if (sru__too_large(ctx, "softmax_loss", rows, n)) return SRU_EINVAL;
    if (!loss || (rows && (!targets || (n && !y))))
        return SRU__FAIL(ctx, SRU_EINVAL, "softmax_loss: loss, y and targets must not be NULL");
    if (ctx && ctx->measure) return SRU_OK;
    for (i = 0; i < rows; i++)
        if (targets[i] >= 0 && (size_t)targets[i] >= n)
            return SRU__FAIL(ctx, SRU_EINVAL, "softmax_loss: target %u is not below n %u",
                             (size_t)targets[i], n);
    *loss = 0;
    sru__rows_begin(&s, dy, y, rows, n);
    s.tokens = targets;
    s.scale = scale;
    s.sums = sums;
    s.parts = sru__min(rows, SRU__PARTS);
    sru__share_out(ctx, 80.0 * (double)rows * (double)n, s.parts, sru__loss_parts, &s);
    for (i = 0; i < s.parts; i++) *loss += sums[i];
    return SRU_OK;
}

/* ---- operators: the optimizer ---------------------------------------------------------------- */

#ifndef SRU_NO_BACKWARD
static void sru__norm_parts(void *job, size_t begin, size_t end, int thread)
{
    const sru__rows_job *s = (const sru__rows_job *)job;
    size_t part;
    (void)thread;
    for (part = begin; part < end; part++) {
        const size_t each = s->n / s->parts, from = part * each;
        s->sums[part] = s->kern->squares(s->x + from, part + 1 < s->parts ? each : s->n - from);
    }
}

static sru_status sru__cpu_norm(const sru_context *ctx, double *norm, const float *g, size_t n)
{
    sru__rows_job s;
    double sums[SRU__PARTS], sum = 0;
    size_t i;
    if (!norm || (n && !g))
        return SRU__FAIL(ctx, SRU_EINVAL, "norm: norm and g must not be NULL");
    if (sru__too_large(ctx, "norm", 1, n)) return SRU_EINVAL;
    if (ctx && ctx->measure) return SRU_OK;
    sru__rows_begin(&s, NULL, g, 1, n);
    s.sums = sums;
    s.parts = sru__min(n, SRU__PARTS);
    sru__share_out(ctx, 10.0 * (double)n, s.parts, sru__norm_parts, &s);
    for (i = 0; i < s.parts; i++) sum += sums[i];
    *norm = sru__dsqrt(sum);
    return SRU_OK;
}

static void sru__adamw_range(void *job, size_t begin, size_t end, int thread)
{
    const sru__rows_job *s = (const sru__rows_job *)job;
    (void)thread;
    begin *= SRU__PANEL;            /* whole vectors: no value's place in one depends on threads */
    end = sru__min(end * SRU__PANEL, s->n);
    s->kern->adamw(s->y + begin, s->m + begin, s->v + begin, s->g + begin, &s->adamw, end - begin);
}

static double sru__power(double x, uint64_t n)
{
    double y = 1;
    for (; n; n >>= 1, x *= x)
        if (n & 1) y *= x;
    return y;
}

static sru_status sru__cpu_adamw(const sru_context *ctx, float *p, float *m, float *v, float *g,
                                 float scale, float lr, float beta1, float beta2, float eps,
                                 float decay, uint64_t t, size_t n)
{
    sru__rows_job s;
    if (n && (!p || !m || !v || !g))
        return SRU__FAIL(ctx, SRU_EINVAL, "adamw: no pointer may be NULL");
    if (sru__too_large(ctx, "adamw", 1, n)) return SRU_EINVAL;
    if (!t || !sru__within((double)beta1, 0, 1) || !sru__within((double)beta2, 0, 1))
        return SRU__FAIL(ctx, SRU_EINVAL, "adamw: t must be at least 1, betas from 0 to below 1");
    sru__rows_begin(&s, p, NULL, 1, n);
    s.m = m;
    s.v = v;
    s.g = g;
    s.adamw.scale = scale;
    s.adamw.step1 = 1 - beta1;
    s.adamw.step2 = 1 - beta2;
    s.adamw.eps = eps;
    s.adamw.rate = (float)((double)lr / (1 - sru__power((double)beta1, t)));
    s.adamw.shrink = 1 - lr * decay;
    s.adamw.root_unbias2 = (float)sru__dsqrt(1 / (1 - sru__power((double)beta2, t)));
    return sru__share_out(ctx, 80.0 * (double)n, sru__ceil(n, SRU__PANEL), sru__adamw_range, &s);
}
#endif

/* ---- instruction sets ------------------------------------------------------------------------ */

/* The kernels' body, at the end of this file, is compiled once for each instruction set. On x86-64
   these are four, and the best one that the machine has is chosen at run time. Elsewhere, and with
   SRU_NO_DISPATCH, they are only those that the compiler's flags allow. */
#define SRU__PASS

#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ > 8) && !defined(__TINYC__) \
    && !defined(SRU_NO_SIMD)
#define SRU__VECTORS    /* gcc has these extensions since 9; without them kernels are scalar */
#endif
#if defined(SRU__VECTORS) && defined(__x86_64__) && !defined(__arm64ec__)   /* ARM64EC sets both */
#define SRU__X86
#endif
#if defined(SRU__X86) && !defined(SRU_NO_DISPATCH) && !defined(__SCE__)     /* a console's clang */
#define SRU__DISPATCH
#endif
#ifdef SRU__X86
#include <immintrin.h>  /* for only five things, with AVX2 and AVX-512. Minimum and maximum: vector
                           extensions have no operators for them; with comparisons and masks a scan
                           takes 1.15 to 1.3 times as long. The first n of a vector: if they are
                           copied to and fro, a network of 50 units takes 1.3 times as long. 1/x of
                           16 floats: with divisions a scan takes 1.2 times as long. Moving bytes in
                           AVX2: shifts wait for the unit that multiplies, so a product of SRU_Q8
                           takes 1.2 times as long. Products of bfloat16, and rounding to it */
#endif

/* in loops of sums that gcc vectorises, it rounds products before it adds them, which gives other
   bits than its fused sums */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("no-tree-loop-vectorize")
#if defined(__AVX512F__) && __GNUC__ > 9    /* else 16 sums become one vector: see sru__one_of() */
#pragma GCC target("prefer-vector-width=256")
#endif
#endif
#define SRU__ISA     scalar
#define SRU__W       1
#define SRU__MR      1
#define SRU__NP      1
#define SRU__NP_TWO  1
#define SRU__NP_ONE  1
#include SRU_FILENAME
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

#ifdef SRU__X86
#define SRU__ISA     sse2
#define SRU__FOURS   sru__backend_sse2
#elif defined(SRU__VECTORS) && defined(__wasm_simd128__)
#define SRU__ISA     simd128
#define SRU__FOURS   sru__backend_simd128
#elif defined(SRU__VECTORS) && defined(__riscv_vector)
#define SRU__ISA     rvv
#define SRU__FOURS   sru__backend_rvv
#elif defined(SRU__VECTORS) && (defined(__aarch64__) || defined(__arm64ec__) \
                                || (defined(__ARM_NEON) && defined(__clang__)))
#define SRU__ISA     neon
#define SRU__FOURS   sru__backend_neon  /* gcc for 32-bit ARM adds floats one by one */
#endif
#ifdef SRU__FOURS
#define SRU__W       4
#ifdef SRU__X86                                     /* 16 registers of 4 floats */
#define SRU__MR      2
#else                                               /* 32 such registers */
#define SRU__MR      6
#endif
#define SRU__NP      1
#define SRU__NP_TWO  1
#define SRU__NP_ONE  2
#include SRU_FILENAME
#endif

#if defined(SRU__DISPATCH) || (defined(SRU__X86) && defined(__AVX2__) && defined(__FMA__))
#define SRU__AVX2                                   /* 16 registers of 8 floats */
#ifdef __clang__
#pragma clang attribute push(__attribute__((__target__("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define SRU__ISA     avx2
#define SRU__W       8
#define SRU__MIN     _mm256_min_ps
#define SRU__MAX     _mm256_max_ps
#define SRU__LOAD_PART(p, n) _mm256_maskload_ps(p, (__m256i)sru__fresh_avx2(n))
#define SRU__BYTES(x, which) _mm256_shuffle_epi8((__m256i)(x), (__m256i)(which))
#define SRU__MR      6
#define SRU__NP      1
#define SRU__NP_TWO  2
#ifdef __clang__
#define SRU__NP_ONE  4                              /* with 6, clang keeps words in memory for a
                                                       while: SRU_BF16 takes 1.3 times as long */
#else
#define SRU__NP_ONE  6
#endif
#include SRU_FILENAME
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#if defined(SRU__DISPATCH) || (defined(SRU__X86) && defined(__AVX512F__) && \
    defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__AVX512BW__))
#define SRU__AVX512                                 /* 32 registers of 16 floats */
#if !defined(SRU__DISPATCH) ? defined(__AVX512BF16__) \
    : defined(__clang__) ? __clang_major__ > 10 : __GNUC__ > 10
#define SRU__BF16                                   /* compiled, but the machine may lack it */
#define SRU__AND_BF16 ",avx512bf16"
#define SRU__HALVES(x) _mm512_cvtneps_pbh(x)
#define SRU__DOT(sum, a, b) (sru__vec)_mm512_dpbf16_ps(sum, (__m512bh)(a), (__m512bh)(b))
#else
#define SRU__AND_BF16
#endif
#if defined(__clang__) && __clang_major__ >= 18 && __clang_major__ <= 20
#define SRU__AND_512 ",evex512"                     /* off by default in zig's clang */
#else
#define SRU__AND_512
#endif
/* each compiler must be told not to split vectors of 512 bits */
#ifdef __clang__
#pragma clang attribute push(__attribute__((__target__("avx512f,avx512dq,avx512vl,avx512bw,fma" \
                                                   SRU__AND_BF16 SRU__AND_512))), \
                             apply_to = function)
#pragma clang attribute push(__attribute__((__min_vector_width__(512))), apply_to = function)
#else
#pragma GCC push_options
#ifdef SRU__BF16
#pragma GCC target("avx512bf16")
#endif
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma")
#if __GNUC__ > 9
#pragma GCC target("prefer-vector-width=512")
#endif
#endif
#define SRU__ISA     avx512
#define SRU__W       16
/* the forms with a mask, here of all lanes, because those without one make g++ 12 warn */
#define SRU__MIN(a, x) _mm512_maskz_min_ps(0xffff, a, x)
#define SRU__MAX(a, x) _mm512_maskz_max_ps(0xffff, a, x)
#ifdef __OPTIMIZE__                                 /* Newton's step is exact only if it is fused */
#define SRU__GUESS(x)  _mm512_maskz_rcp14_ps(0xffff, x)
#endif
#define SRU__LOAD_PART(p, n)     _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1), p)
#define SRU__MR      8
#define SRU__NP      3
#define SRU__NP_TWO  3
#define SRU__NP_ONE  6
#include SRU_FILENAME
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#undef SRU__PASS

enum { SRU__ASKED = 1, SRU__HAS_AVX2 = 2, SRU__HAS_AVX512 = 4, SRU__HAS_BF16 = 8 };

/* What the processor has, if the system saves the registers. __builtin_cpu_supports() would not do,
   because zig's library answers no to everything. The result is kept, because on virtual machines
   cpuid takes longer than a step of a small network. */
#ifdef SRU__DISPATCH
static void sru__cpuid(uint32_t leaf, uint32_t part, uint32_t *a, uint32_t *b, uint32_t *c)
{
    __asm__ volatile("cpuid" : "=a"(*a), "=b"(*b), "=c"(*c) : "0"(leaf), "2"(part) : "edx");
}

static int sru__machine(void)
{
    static int kept;
    const uint32_t avx = 1u << 28 | 1u << 27 | 1u << 12;            /* AVX, OSXSAVE, FMA */
    const uint32_t avx2 = 1u << 5;
    const uint32_t avx512 = avx2 | 1u << 31 | 1u << 30 | 1u << 17 | 1u << 16;   /* VL, BW, DQ, F */
    int has = __atomic_load_n(&kept, __ATOMIC_RELAXED);
    uint32_t a, b, c, last, system;
    if (has) return has;
    has = SRU__ASKED;
    sru__cpuid(0, 0, &last, &b, &c);
    sru__cpuid(1, 0, &a, &b, &c);
    if (last >= 7 && (c & avx) == avx) {
        __asm__ volatile("xgetbv" : "=a"(system) : "c"(0) : "edx");
        sru__cpuid(7, 0, &last, &b, &c);
        if ((system & 0x06) == 0x06 && (b & avx2)) has |= SRU__HAS_AVX2;
#ifdef __APPLE__                    /* saves the other registers once they have been used */
        system |= 0xe0;
#endif
        if ((system & 0xe6) == 0xe6 && (b & avx512) == avx512) has |= SRU__HAS_AVX512;
        if (last >= 1 && (has & SRU__HAS_AVX512)) {
            sru__cpuid(7, 1, &a, &b, &c);
            if (a & 1u << 5) has |= SRU__HAS_BF16;
        }
    }
    __atomic_store_n(&kept, has, __ATOMIC_RELAXED);
    return has;
}
#else
static int sru__machine(void) { return ~0; }    /* all that was compiled can run */
#endif

/* From the best down to the lowest, and what each needs. If one runs, all that follow it run. */
static const struct { const sru_backend *op; int needs; } sru__backends[] = {
#ifdef SRU__AVX512
    { &sru__backend_avx512, SRU__HAS_AVX512 },
#endif
#ifdef SRU__AVX2
    { &sru__backend_avx2, SRU__HAS_AVX2 },
#endif
#ifdef SRU__FOURS
    { &SRU__FOURS, 0 },
#endif
    { &sru__backend_scalar, 0 }
};

SRUDEF const sru_backend *sru_cpu(void)
{
    const size_t n = sizeof sru__backends / sizeof *sru__backends;
    const char *wanted = NULL;
    size_t best = 0, i;
#ifndef SRU_NO_STDIO
    wanted = getenv("SRU_ISA");
#endif
    while (sru__backends[best].needs & ~sru__machine()) best++;     /* the last needs nothing */
    for (i = best; wanted && i < n; i++)
        if (!strcmp(wanted, sru__backends[i].op->name)) return sru__backends[i].op;
    return sru__backends[best].op;
}

SRUDEF const sru_backend *sru_cpu_bf16(void)
{
    const sru_backend *op = sru_cpu();
#ifdef SRU__BF16
    if (op == &sru__backend_avx512 && (sru__machine() & SRU__HAS_BF16))
        return &sru__backend_bf16_avx512;
#endif
    return op;
}

/* =================================================================================================
   Networks, which use the operators alone */

/* The tensors of a layer, in the order in which they lie in the weights. */
enum {
    SRU__INPUT,                 /* only of layer 0: the product I -> N before it */
    SRU__PROJECTION, SRU__KEYS_VALUES, SRU__WEIGHT, SRU__WEIGHT_C, SRU__BIAS, SRU__GAIN, SRU__SHIFT,
    SRU__ALPHA, SRU__PROJECTED_GAIN, SRU__PROJECTED_SHIFT, SRU__SLOTS
};

typedef struct sru__slot {
    const char *name;           /* what follows "rnn_lst.I."; of SRU__INPUT the whole name */
    size_t rows, cols;          /* rows is 0 if the layer has no such tensor */
    size_t at;                  /* bytes from the start of the weights */
    size_t groups;              /* each of rows/groups rows, packed by itself; 0: a vector */
    int interleave;             /* number of matrices whose rows the reference interleaves, or 0 */
    int transpose;              /* 1: the reference stores it transposed */
} sru__slot;

/* Dropouts of a layer: of its input, c, its output, what enters its last product, and attention. */
enum { SRU__DROP_X, SRU__DROP_C, SRU__DROP_OUT, SRU__DROP_P, SRU__DROP_ATTENTION, SRU__DROPS };

typedef struct sru__layer {
    const sru_model *m;
    int l;                      /* the layer's number, from 0 on */
    size_t in, N, K, P;         /* P = 0: no projection */
    size_t before;              /* the sum of all earlier layers' `in` */
    int norm;                   /* 0 none, 1 of the input, 2 of the output */
    int skip;                   /* 1: there is a skip term, and it is x (K = 3) */
    int attention, projected_norm;      /* SRU++: has attention; has layer norm before W3 */
    float scale_x;
    float drop[SRU__DROPS];     /* 0 in inference */
    sru__slot slot[SRU__SLOTS + 1];     /* the last is scale_x, which is not in the weights */
    size_t end;                 /* bytes of the weights of this layer and all earlier ones */
    size_t S, ring;             /* floats in a sequence's state, and in it before this ring */
    size_t longest;             /* in forward: steps of the call, which may be done in pieces */
} sru__layer;

/* Where matrices are packed, vectors stay floats, padded to a multiple of 64 bytes. */
static size_t sru__tensor_bytes(sru_type type, const sru__slot *s)
{
    if (type == SRU_PLAIN) return s->rows * s->cols * 4;
    if (!s->groups) return sru__round_up(s->rows * 4, 64);
    return s->groups * sru__ceil(s->rows / s->groups, SRU__PANEL)
           * sru__packed_panel(type, s->cols);
}

static size_t sru__width(const sru_config *f)
{
    return (size_t)f->hidden_size * (f->bidirectional ? 2 : 1);
}

static int sru__layers(const sru_config *f) { return f->num_layers ? f->num_layers : 2; }

static size_t sru__projection(const sru_config *f, int l)
{
    return (size_t)(f->projection_sizes[l] ? f->projection_sizes[l] : f->projection_size);
}

static int sru__attends(const sru_config *f, int l)
{
    const int every = f->attention_every_n_layers ? f->attention_every_n_layers : 1;
    if (f->arch != SRU_ARCH_SRUPP) return 0;
    return f->attention_last_n_layers ? sru__layers(f) - l <= f->attention_last_n_layers
                                      : (l + 1) % every == 0;
}

static size_t sru__heads(const sru_config *f) { return f->num_heads ? (size_t)f->num_heads : 1; }

/* Floats in layer l's ring, which holds its keys and values. */
static size_t sru__ring(const sru_config *f, int l)
{
    return f->window && sru__attends(f, l)
           ? sru__ring_floats((size_t)f->window, sru__projection(f, l), sru__heads(f)) : 0;
}

/* Floats in a sequence's state: c of all layers, then their rings. */
static size_t sru__state_floats(const sru_config *f)
{
    size_t n = (size_t)sru__layers(f) * sru__width(f);
    int l;
    for (l = 0; l < sru__layers(f); l++) n += sru__ring(f, l);
    return n;
}

/* The largest of all widths: those of the input, the layers and the projections. */
static size_t sru__widest(const sru_config *f)
{
    size_t most = sru__max((size_t)f->input_size, sru__width(f));
    int l;
    for (l = 0; l < sru__layers(f); l++) most = sru__max(most, sru__projection(f, l));
    return most;
}

static int sru__input_first(const sru_config *f)
{
    return f->proj_input_to_hidden_first && (size_t)f->input_size != sru__width(f);
}

/* Adds tensor i to a layer. Tensors must be added in the order of their numbers. Zeros follow
   alpha, a single float: without them the matrices of later layers would be misaligned, and
   products with them slow on GPUs. */
static void sru__put_slot(sru__layer *y, int i, const char *name, size_t rows, size_t cols)
{
    const sru_config *f = &y->m->config;
    sru__slot *s = &y->slot[i];
    s->name = name;
    s->rows = rows;
    s->cols = cols;
    s->groups = i < SRU__WEIGHT ? 1 : i > SRU__WEIGHT ? 0 : y->K * (f->bidirectional ? 2 : 1);
    s->interleave = i == SRU__WEIGHT ? (int)y->K : 0;
    s->transpose = f->arch == SRU_ARCH_SRU && i != SRU__INPUT && i <= SRU__WEIGHT;
    s->at = y->end;
    y->end += sru__tensor_bytes(y->m->type, s);
    if (i == SRU__ALPHA) y->end = sru__round_up(y->end, 64);
}

/* Turns the description of layer l-1 (for l = 0, anything) into that of layer l. This is the only
   list of a network's tensors. */
static void sru__next_layer(sru__layer *y, const sru_model *m, int l)
{
    const sru_config *f = &m->config;
    const int old = f->arch == SRU_ARCH_SRU, plus = f->arch == SRU_ARCH_SRUPP;
    if (l == 0) {                       /* scale_x only once: exp is slow on microcontrollers */
        y->end = y->before = 0;
        y->S = sru__state_floats(f);
        y->ring = (size_t)sru__layers(f) * sru__width(f);
        y->scale_x = f->scale_x > 0 ? f->scale_x : !f->rescale || f->no_skip_term ? 1
                   : (float)sru__dsqrt(1 + 2 * sru__dexp((double)f->highway_bias));
    } else {
        y->before += y->in;
        y->ring += sru__ring(f, l - 1);
    }
    sru__clear(y->slot, sizeof y->slot);
    y->m = m;
    y->l = l;
    y->N = sru__width(f);
    y->in = l > 0 || sru__input_first(f) ? y->N : (size_t)f->input_size;
    y->K = !f->no_skip_term && y->in != y->N ? 4 : 3;
    y->skip = y->K == 3 && !f->no_skip_term;
    y->P = sru__projection(f, l);
    if (old && (y->P >= y->in || y->P >= y->N)) y->P = 0;  /* as in 2.x */
    y->norm = !f->layer_norm ? 0 : f->normalize_after ? 2 : 1;
    y->drop[SRU__DROP_X] = f->rnn_dropout;
    y->drop[SRU__DROP_C] = l + 1 < sru__layers(f) ? f->dropout : 0;
    y->drop[SRU__DROP_OUT] = l + 1 < sru__layers(f) ? f->layer_dropout : 0;
    y->drop[SRU__DROP_P] = plus ? f->dropout : 0;
    y->drop[SRU__DROP_ATTENTION] = f->attn_dropout;
    y->attention = sru__attends(f, l);
    y->projected_norm = plus && !f->no_attn_layer_norm;

    if (l == 0 && sru__input_first(f))
        sru__put_slot(y, SRU__INPUT, "input_to_hidden.weight", y->N, (size_t)f->input_size);
    if (y->P)
        sru__put_slot(y, SRU__PROJECTION, old ? "weight_proj"
                      : plus ? "transform_module.linear1.weight" : "transform_module.0.weight",
                      y->P, y->in);
    if (y->attention)
        sru__put_slot(y, SRU__KEYS_VALUES, "transform_module.linear2.weight", 2 * y->P, y->P);
    sru__put_slot(y, SRU__WEIGHT, old ? "weight" : y->attention ? "transform_module.linear3.weight"
                  : plus ? "transform_module.linear2.weight" : y->P ? "transform_module.1.weight"
                  : "transform_module.weight", y->K * y->N, y->P ? y->P : y->in);
    sru__put_slot(y, SRU__WEIGHT_C, "weight_c", 2 * y->N, 1);
    sru__put_slot(y, SRU__BIAS, "bias", 2 * y->N, 1);
    if (y->norm) {
        const size_t n = y->norm == 1 ? y->in : y->N;
        sru__put_slot(y, SRU__GAIN, "layer_norm.weight", n, 1);
        sru__put_slot(y, SRU__SHIFT, "layer_norm.bias", n, 1);
    }
    if (y->attention) sru__put_slot(y, SRU__ALPHA, "transform_module.alpha", 1, 1);
    if (y->projected_norm) {
        sru__put_slot(y, SRU__PROJECTED_GAIN, "transform_module.layer_norm.weight", y->P, 1);
        sru__put_slot(y, SRU__PROJECTED_SHIFT, "transform_module.layer_norm.bias", y->P, 1);
    }
    y->slot[SRU__SLOTS].name = "scale_x";
    y->slot[SRU__SLOTS].rows = y->slot[SRU__SLOTS].cols = 1;
}

static sru__layer sru__layer_at(const sru_model *m, int l)
{
    sru__layer y;
    int i;
    sru__clear(&y, sizeof y);
    for (i = 0; i <= l; i++) sru__next_layer(&y, m, i);
    return y;
}

static size_t sru__weight_bytes(const sru_model *m)
{
    return sru__layer_at(m, sru__layers(&m->config) - 1).end;
}

/* Says what is wrong with a configuration. All sizes derived from a valid one fit into size_t. */
static sru_status sru__check_config(const sru_config *f, char *error)
{
    const char *wrong = NULL;
    float weights = 0, state = 0;       /* upper bounds of their sizes in bytes */
    int l;
    if (f->input_size < 1) wrong = "input_size must be at least 1";
    else if (f->hidden_size < 1) wrong = "hidden_size must be at least 1";
    else if (f->num_layers < 0 || f->num_layers > SRU_MAX_LAYERS)
        wrong = "num_layers must be from 1 to 32";
    else if (f->projection_size < 0) wrong = "projection_size must not be negative";
    else if ((unsigned)f->arch > SRU_ARCH_SRUPP) wrong = "arch is unknown";
    else if (f->attention_every_n_layers < 0 || f->attention_last_n_layers < -1 || f->num_heads < 0)
        wrong = "num_heads, attention_every_n_layers or attention_last_n_layers is out of range";
    else if (f->arch != SRU_ARCH_SRUPP
             && (f->num_heads > 1 || f->attention_every_n_layers > 1 || f->attention_last_n_layers
                 || f->no_attn_layer_norm || f->attn_dropout != 0 || f->window))
        wrong = "num_heads, attention_every_n_layers, attention_last_n_layers, attn_layer_norm, "
                "attn_dropout and window are of SRU++: arch must be SRU_ARCH_SRUPP";
    else if (f->window < 0 || f->window > SRU__FARTHEST)
        wrong = "window must be from 0 to 8388608";
    else if (!sru__within((double)f->attn_dropout, 0, 1))
        wrong = "attn_dropout must be from 0 to below 1";
    else if (!sru__within((double)f->dropout, 0, 1)) wrong = "dropout must be from 0 to below 1";
    else if (!sru__within((double)f->rnn_dropout, 0, 1))
        wrong = "rnn_dropout must be from 0 to below 1";
    else if (!sru__within((double)f->layer_dropout, 0, 1))
        wrong = "layer_dropout must be from 0 to below 1";
    else if (!(f->highway_bias > -1e3f && sru__within((double)f->highway_bias, -1e3, 80)))
        wrong = "highway_bias must be between -1000 and 80";
    else if (!sru__within((double)f->scale_x, 0, 1e30))
        wrong = "scale_x must be a number, not negative";
    else if (!sru__within((double)f->weight_c_init, 0, 1e30))
        wrong = "weight_c_init must be a number, not negative";
    for (l = 0; !wrong && l < sru__layers(f); l++) {
        const size_t P = sru__projection(f, l);
        const float p = (float)P + 64, n = (float)sru__width(f) + 64;
        weights += 4 * ((l ? 0 : (float)f->input_size) + n + p) * (2 * p + 4 * n);
        if (sru__attends(f, l))
            state += 8 * ((float)f->window + 192) * (p + 8 * (float)f->num_heads);
        if (f->projection_sizes[l] < 0) wrong = "projection_sizes must not be negative";
        else if (f->arch == SRU_ARCH_SRUPP && !P) wrong = "SRU++ wants a projection_size";
        else if (sru__attends(f, l) && P % sru__heads(f))
            wrong = "projection_size must be a multiple of num_heads";
        else if (!sru__fits(weights) || !sru__fits(state))
            wrong = "the sizes are too large for this machine's memory";
    }
    if (!wrong) return SRU_OK;
    sru__say(error, "%s", wrong);
    return SRU_EINVAL;
}

/* Tensor i of a layer, in the weights or gradients of the whole network. NULL: there is none. */
static float *sru__tensor(const void *weights, const sru__layer *y, int i)
{
    const sru__slot *s = &y->slot[i];
    return weights && s->rows ? (float *)(uintptr_t)((const char *)weights + s->at) : NULL;
}

static float *sru__weight(const sru__layer *y, int i) { return sru__tensor(y->m->weights, y, i); }

/* The arrays of one layer: in training what forward keeps for backward, in the tape; in inference
   what the layer itself needs, in scratch memory. o is p in inference, and where there is no layer
   norm after the projection; z is o where there is no attention. */
typedef struct sru__kept {
    float *in;              /* (T,B,in) the layer's input, unless that is x */
    float *stats;           /* (T,B,2) of layer norm */
    float *a;               /* (T,B,in) the input after layer norm and dropout; NULL: as it is */
    float *z, *kv;          /* (M+T,B,P) the projected input; (M+T,B,2,P) its keys and values */
    float *o, *attended;    /* (T,B,P) attention's o and a */
    float *softmax;         /* (B,H,T,2) attention's stats */
    float *p_stats;         /* (T,B,2) of layer norm after the projection */
    float *p;               /* (T,B,P) what enters the last product; NULL: a does, or the input */
    float *u, *c;           /* (T,B,K,N), (T,B,N) */
    float *g;               /* (T,B,N) the output before its layer norm; NULL: it has none */
    float *mask_c;          /* (B,N) random; NULL: there is no mask, or the caller's is used */
} sru__kept;

#ifndef SRU_NO_BACKWARD
enum { SRU__KEPT = SRU_MAX_LAYERS };
#else
enum { SRU__KEPT = 2 };     /* inference uses kept[0] only: that saves stack. gcc warns about 1 */
#endif

static size_t sru__memory_length(const sru__layer *y, const sru_io *io)
{
    return y->attention && io->memory && io->memory[y->l] ? io->memory_length : 0;
}

/* Whether attention uses the rings in state: in inference with a window, unless the caller gives
   memory or attn_mask. */
static int sru__through_rings(const sru_config *f, const sru_io *io)
{
    return f->window && !io->tape && !io->memory && !io->attn_mask;
}

static int sru__keep(sru_context *memory, const sru__layer *y, const sru_io *io, sru__kept *k)
{
    const size_t rows = io->T * io->B;
    int ok = 1;
#define SRU__KEEP(field, count) (ok = ok && (k->field = sru__take_floats(memory, count)) != NULL)
    sru__clear(k, sizeof *k);
    if (y->norm == 1 || y->drop[SRU__DROP_X] > 0) SRU__KEEP(a, rows * y->in);
    if (y->P) SRU__KEEP(p, rows * y->P);
    k->o = k->p;
    if (y->projected_norm && io->tape) SRU__KEEP(o, rows * y->P);
    k->z = k->o;
    if (y->attention) {
        const size_t all = rows + sru__memory_length(y, io) * io->B;
        SRU__KEEP(z, all * y->P);
        SRU__KEEP(kv, all * 2 * y->P);
    }
    if (!io->tape) return ok;
    if (y->attention) {
        SRU__KEEP(attended, rows * y->P);
        SRU__KEEP(softmax, rows * 2 * sru__heads(&y->m->config));
    }
    if (y->projected_norm) SRU__KEEP(p_stats, rows * 2);
    if (y->l > 0 || sru__input_first(&y->m->config)) SRU__KEEP(in, rows * y->in);
    if (y->norm) SRU__KEEP(stats, rows * 2);
    SRU__KEEP(u, rows * y->K * y->N);
    SRU__KEEP(c, rows * y->N);
    if (y->norm == 2) SRU__KEEP(g, rows * y->N);
    if (y->drop[SRU__DROP_C] > 0 && !io->dropout_mask) SRU__KEEP(mask_c, io->B * y->N);
#undef SRU__KEEP
    return ok;
}

/* Divides the tape, whose size sru_size() tells, into the state at the start and what each layer
   keeps. In a measuring call, its size goes not to c->measure but to `measure`, unless NULL. */
static sru_status sru__tape(const sru_context *c, size_t *measure, const sru_model *m,
                            const sru_io *io, float **state, sru__kept *kept)
{
    const sru_config *f = &m->config;
    sru_context tape = *c;
    sru__layer y;
    size_t ignored = 0;
    int l, ok;
    if (c->measure) tape.measure = measure ? measure : &ignored;
    tape.work = io->tape;
    tape.work_size = SIZE_MAX / 2;
    tape.work_used = 0;
    *state = sru__take_floats(&tape, io->B * sru__state_floats(f));
    ok = *state != NULL;
    for (l = 0; l < sru__layers(f) && ok; l++) {
        sru__next_layer(&y, m, l);
        ok = sru__keep(&tape, &y, io, &kept[l]);
    }
    return ok ? SRU_OK : sru__no_memory(c);
}

/* The id of a layer's dropout. Unlike ids of the caller's own operators, it has the top bit set. */
static uint32_t sru__id(const sru__layer *y, int kind)
{
    return 0x80000000u | (uint32_t)y->l << 3 | (uint32_t)kind;
}

/* to = beta to + from*mask: one of a layer's dropouts, in forward of values, in backward of their
   gradients. from NULL: to = mask. */
static sru_status sru__drop(const sru_context *c, const sru__layer *y, const sru_io *io, int kind,
                            float *to, const float *from, float beta)
{
    const size_t rows = io->T * io->B;
    const float *mask = NULL;
    size_t T = 1, n = rows * y->P;
    if (kind == SRU__DROP_X) {
        T = io->T;
        n = io->B * y->in;
        if (io->rnn_dropout_mask) mask = io->rnn_dropout_mask + io->B * y->before;
    } else if (kind == SRU__DROP_C) {
        n = io->B * y->N;
    } else if (kind == SRU__DROP_OUT) {
        n = rows * y->N;
        if (io->layer_dropout_mask) mask = io->layer_dropout_mask + (size_t)y->l * n;
    }
    return c->op->dropout(c, to, from, mask, y->drop[kind], sru__id(y, kind), beta, T, n);
}

/* Whether training multiplies the V rows of the embedding by the first layer's matrices and looks u
   up, instead of multiplying T*B rows of x: if V is less, and rows enter the product unchanged. */
static int sru__by_table(const sru__layer *y, const sru_io *io)
{
    const sru_model *m = y->m;
    return y->l == 0 && m->vocab_size && io->tape && m->vocab_size < io->T * io->B && y->norm != 1
        && y->drop[SRU__DROP_X] == 0 && m->config.arch != SRU_ARCH_SRUPP
        && !sru__input_first(&m->config);
}

/* Whether x itself must be looked up. */
static int sru__looks_up_x(const sru_model *m, const sru_io *io)
{
    sru__layer y;
    if (!m->vocab_size) return 0;
    y = sru__layer_at(m, 0);
    return y.skip || !sru__by_table(&y, io);
}

/* a is what enters the layer's first product: T*B rows, or the V rows of the embedding. */
static void sru__fill_scan(sru_scan *s, const sru__layer *y, const sru_io *io, const float *in,
                           const float *a, const float *c0, const sru__kept *k)
{
    sru__clear(s, sizeof *s);
    s->T = io->T;
    s->B = io->B;
    s->N = y->N;
    s->A = y->P ? y->P : y->in;
    s->K = (int)y->K;
    s->bidirectional = y->m->config.bidirectional != 0;
    s->use_tanh = y->m->config.use_tanh != 0;
    s->scale_x = y->scale_x;
    s->a = k->p ? k->p : a;
    s->w = sru__weight(y, SRU__WEIGHT);
    s->type = y->m->type;
    s->u = k->u;
    s->x = y->skip ? in : NULL;
    s->v = sru__weight(y, SRU__WEIGHT_C);
    s->bias = sru__weight(y, SRU__BIAS);
    s->mask_c = io->tape && io->dropout_mask && y->m->config.dropout > 0
              ? io->dropout_mask + (size_t)y->l * io->B * y->N : k->mask_c;
    s->mask_pad = io->mask_pad;
    s->c0 = c0 + (size_t)y->l * y->N;
    s->c = k->c;
    s->ldc = y->S;
}

static void sru__fill_attention(sru_attention *s, const sru__layer *y, const sru_io *io,
                                const sru__kept *k)
{
    sru__clear(s, sizeof *s);
    s->T = io->T;
    s->B = io->B;
    s->M = sru__memory_length(y, io);
    s->P = y->P;
    s->H = (int)sru__heads(&y->m->config);
    s->causal = y->m->config.causal;
    s->window = (size_t)y->m->config.window;
    s->q = k->z + s->M * s->B * s->P;
    s->kv = k->kv;
    s->alpha = sru__weight(y, SRU__ALPHA);
    s->mask_pad = io->mask_pad;
    s->memory_mask_pad = s->M ? io->memory_mask_pad : NULL;
    s->attn_mask = io->attn_mask;
    s->dropout = y->drop[SRU__DROP_ATTENTION];
    s->id = sru__id(y, SRU__DROP_ATTENTION);
    s->ring = sru__through_rings(&y->m->config, io) ? io->state + y->ring : NULL;
    s->ld_ring = y->S;
    s->o = k->o;
    s->a = k->attended;
    s->stats = k->softmax;
}

/* From the layer's input a to k->p, which enters its last product: a W0', and then, in SRU++,
   attention, layer norm and dropout. */
static sru_status sru__project(const sru_context *c, const sru__layer *y, const sru_io *io,
                               size_t rows, const float *a, const sru__kept *k)
{
    const sru_backend *op = c->op;
    const sru_type type = y->m->type;
    const size_t memory = sru__memory_length(y, io) * io->B;
    const float *w = sru__weight(y, SRU__PROJECTION);
    sru_status status = op->linear_forward(c, k->z + memory * y->P, a, w, type, NULL, rows, y->P,
                                           y->in);
    if (!status && memory)
        status = op->linear_forward(c, k->z, io->memory[y->l], w, type, NULL, memory, y->P, y->in);
    if (!status && y->attention) {
        sru_attention s;
        sru__fill_attention(&s, y, io, k);
        /* fewer sequences would come in longer pieces, with more queries at a time */
        if (c->measure && s.ring) s.T = sru__max(s.T, sru__min(SRU__KEYS, y->longest));
        status = op->linear_forward(c, k->kv, k->z, sru__weight(y, SRU__KEYS_VALUES), type, NULL,
                                    memory + rows, 2 * y->P, y->P);
        if (!status) status = op->attention_forward(c, &s);
    }
    if (!status && y->projected_norm)
        status = op->layernorm_forward(c, k->p, k->p_stats, k->o,
                                       sru__weight(y, SRU__PROJECTED_GAIN),
                                       sru__weight(y, SRU__PROJECTED_SHIFT), rows, y->P);
    if (!status && y->drop[SRU__DROP_P] > 0)
        status = sru__drop(c, y, io, SRU__DROP_P, k->p, k->p, 0);
    return status;
}

/* Computes u of the V rows, whose input to the last product is s->a, and looks s->u up there. */
static sru_status sru__look_up_u(sru_context *c, const sru_model *m, const sru_io *io, sru_scan *s)
{
    const size_t n = (size_t)s->K * s->N;
    float *u = sru__take_floats(c, m->vocab_size * n);
    sru_status status;
    if (!u) return sru__no_memory(c);
    status = c->op->linear_forward(c, u, s->a, s->w, m->type, NULL, m->vocab_size, n, s->A);
    s->w = NULL;
    return status ? status : c->op->embedding_forward(c, s->u, io->tokens, u, io->T * io->B, n,
                                                      m->vocab_size);
}

/* One layer, from in to out, which may be in if nothing is kept. c0 is the state at the start, and
   may be io->state. */
static sru_status sru__layer_forward(sru_context *c, const sru__layer *y, const sru_io *io,
                                     const float *in, float *out, const float *c0,
                                     const sru__kept *k)
{
    const sru_backend *op = c->op;
    const sru_model *m = y->m;
    const int by_table = sru__by_table(y, io);
    const size_t rows = io->T * io->B, a_rows = by_table ? m->vocab_size : rows;
    const float *a = by_table ? m->embedding : k->a ? k->a : in;
    const float *gain = sru__weight(y, SRU__GAIN);
    const float *shift = sru__weight(y, SRU__SHIFT);
    sru_status status = SRU_OK;
    sru_scan s;
    if (y->norm == 1)
        status = op->layernorm_forward(c, k->a, k->stats, in, gain, shift, rows, y->in);
    if (!status && y->drop[SRU__DROP_X] > 0)
        status = sru__drop(c, y, io, SRU__DROP_X, k->a, y->norm == 1 ? k->a : in, 0);
    if (!status && y->P) status = sru__project(c, y, io, a_rows, a, k);
    if (!status && k->mask_c) status = sru__drop(c, y, io, SRU__DROP_C, k->mask_c, NULL, 0);
    if (status) return status;
    sru__fill_scan(&s, y, io, in, a, c0, k);
    s.cT = io->state ? io->state + (size_t)y->l * y->N : NULL;
    s.h = k->g ? k->g : out;
    if (by_table) status = sru__look_up_u(c, m, io, &s);
    if (!status) status = op->scan_forward(c, &s);
    if (!status && y->norm == 2)
        status = op->layernorm_forward(c, out, k->stats, s.h, gain, shift, rows, y->N);
    if (!status && y->drop[SRU__DROP_OUT] > 0)
        status = sru__drop(c, y, io, SRU__DROP_OUT, out, out, 0);
    return status;
}

/* Whether h may be x in inference. */
static int sru__in_place(const sru_config *f)
{
    return !f->bidirectional && f->arch != SRU_ARCH_SRUPP && f->hidden_size == f->input_size;
}

static sru_status sru__check_call(const sru_context *c, const sru_model *m, const sru_io *io,
                                  const char *name)
{
    const sru_config *f;
    sru_status status;
    size_t most;
    int l, i;
    if (!m || !io) return SRU__FAIL(c, SRU_EINVAL, "%s: the model or io is NULL", name);
    f = &m->config;
    status = sru__check_config(f, sru__error(c));
    if (status) return status;
    if ((unsigned)m->type > SRU_F16)
        return SRU__FAIL(c, SRU_EINVAL, "%s: there is no type %u", name, (size_t)m->type);
    most = sru__widest(f);
    if (io->T > SIZE_MAX / 4 || io->memory_length > SIZE_MAX / 4
        || !sru__fits(64.0f * (float)(io->T + io->memory_length + 1) * (float)io->B
                      * (float)(most + 16) * (float)(io->tape ? sru__layers(f) + 1 : 1))
        || (f->window && !sru__fits(8.0f * (float)io->B * (float)sru__state_floats(f))))
        return SRU__FAIL(c, SRU_EINVAL, "%s: T %u, B %u, memory_length %u are too large", name,
                         io->T, io->B, io->memory_length);
    if (!m->weights) return SRU__FAIL(c, SRU_EINVAL, "%s: the model has no weights", name);
    if (m->vocab_size && !m->embedding)
        return SRU__FAIL(c, SRU_EINVAL, "%s: the model has no embedding", name);
    if (!sru__fits(32.0f * (float)m->vocab_size * (float)most))
        return SRU__FAIL(c, SRU_EINVAL, "%s: vocab_size %u is too large", name, m->vocab_size);
    if (io->T && io->B && !(m->vocab_size ? (const void *)io->tokens : (const void *)io->x))
        return SRU__FAIL(c, SRU_EINVAL, "%s: %s must not be NULL", name,
                         m->vocab_size ? "tokens" : io->tokens ? "x of a model with vocab_size 0"
                                       : "x");
    if (f->arch != SRU_ARCH_SRUPP && (io->memory_length || io->attn_mask))
        return SRU__FAIL(c, SRU_EINVAL, "%s: memory and attn_mask are for SRU++", name);
    if (io->tape && m->type != SRU_PLAIN)
        return SRU__FAIL(c, SRU_EINVAL, "%s: with a tape, weights must be SRU_PLAIN", name);
#ifdef SRU_NO_BACKWARD
    if (io->tape) return SRU__FAIL(c, SRU_EINVAL, "%s: there is no backward to want a tape", name);
#endif
    if (!c || !c->measure) {
        if ((uintptr_t)m->weights % sizeof(float))
            return SRU__FAIL(c, SRU_EINVAL, "%s: the weights are not aligned for float", name);
        if (io->x && io->x == io->h && !m->vocab_size && (io->tape || !sru__in_place(f)))
            return SRU__FAIL(c, SRU_EINVAL, "%s: h may be x only in inference of an SRU in one "
                             "direction, where N is I", name);
        if (io->dx && (io->dx == io->x || io->dx == io->dh))
            return SRU__FAIL(c, SRU_EINVAL, "%s: dx must be neither x nor dh", name);
        if (m->vocab_size ? io->dx != NULL : io->dembedding != NULL)
            return SRU__FAIL(c, SRU_EINVAL, "%s: dx is for an input x, dembedding for tokens",
                             name);
        for (l = 0; l < sru__layers(f) && io->saved && io->memory; l++)
            if (io->saved[l] && io->saved[l] == io->memory[l])
                return SRU__FAIL(c, SRU_EINVAL, "%s: saved and memory of layer %u are one array",
                                 name, (size_t)l);
        for (l = 1; l < sru__layers(f) && io->dmemory; l++)
            for (i = 0; i < l; i++)
                if (io->dmemory[l] && io->dmemory[l] == io->dmemory[i])
                    return SRU__FAIL(c, SRU_EINVAL, "%s: dmemory of layers %u and %u are one "
                                     "array", name, (size_t)i, (size_t)l);
    }
    for (l = 0; l < sru__layers(f) && io->attn_mask && io->memory_length; l++)
        if (sru__attends(f, l) && !(io->memory && io->memory[l]))
            return SRU__FAIL(c, SRU_EINVAL, "%s: attn_mask is (T,M+T) of layers that have memory; "
                             "layer %u has none", name, (size_t)l);
    return SRU_OK;
}

typedef struct sru__call {
    const sru_model *m;
    const sru_io *io;
} sru__call;

static sru_status sru__forward_run(sru_context *c, const void *args)
{
    const sru_model *m = ((const sru__call *)args)->m;
    const sru_io *io = ((const sru__call *)args)->io;
    const sru_config *f = &m->config;
    const int L = sru__layers(f);
    const size_t N = sru__width(f), B = io->B, wide = (size_t)f->input_size;
    const size_t S = sru__state_floats(f);
    const int first = sru__input_first(f);
    sru__kept kept[SRU__KEPT];
    sru__layer y;
    sru_io part = *io;              /* the steps being computed */
    float *c0, *other = NULL, *x = NULL;
    sru_status status = SRU_OK;
    size_t steps = io->T, t0 = 0;
    int l, whole = io->tape || f->bidirectional;
    /* Inference takes a few rows at a time through all layers, back and forth between h and
       `other`: so scratch memory is small however long the sequence is. A backward direction needs
       the whole sequence, and so does attention without a window. */
    for (l = 0; l < L; l++) whole |= sru__attends(f, l) && !sru__through_rings(f, io);
    if (!whole && steps > 1) {
        const size_t least = sru__rows(c, m->type);
        steps = sru__steps(c, steps, B, sru__lot(N, least, 4 * least));
    }
    if (io->tape) {
        status = sru__tape(c, NULL, m, io, &c0, kept);
        if (!status) status = c->op->copy(c, c0, io->state, B * S * 4);
    } else {
        if (!io->state) {
            part.state = sru__take_floats(c, B * S);
            if (!part.state) return sru__no_memory(c);
            status = c->op->copy(c, part.state, NULL, B * S * 4);
        }
        c0 = part.state;
        other = sru__take_floats(c, L > 1 || first ? steps * B * N : 0);
        if (!other) return sru__no_memory(c);
    }
    if (status) return status;
    if (sru__looks_up_x(m, io)) {
        x = sru__take_floats(c, steps * B * wide);
        if (!x) return sru__no_memory(c);
    }
    do {
        const size_t T = sru__min(steps, io->T - t0), rows = T * B;
        const float *in = x;
        part.T = T;
        if (io->x && !m->vocab_size) in = io->x + t0 * B * wide;
        if (io->tokens) part.tokens = io->tokens + t0 * B;
        if (io->h) part.h = io->h + t0 * B * N;
        if (io->mask_pad) part.mask_pad = io->mask_pad + t0 * B;
        if (x)
            status = c->op->embedding_forward(c, x, part.tokens, m->embedding, rows, wide,
                                              m->vocab_size);
        if (first && !status) {
            float *out = io->tape ? kept[0].in : L % 2 ? other : part.h;
            status = c->op->linear_forward(c, out, in, m->weights, m->type, NULL, rows, N, wide);
            in = out;
        }
        for (l = 0; l < L && !status; l++) {
            sru_context inner = *c;     /* so that layers use the same memory, one after another */
            sru__kept *k = &kept[io->tape ? l : 0];
            float *out = l + 1 < L && io->tape ? k[1].in : (L - 1 - l) % 2 ? other : part.h;
            sru__next_layer(&y, m, l);
            y.longest = io->T;
            if (!io->tape) {
                memset(y.drop, 0, sizeof y.drop);
                if (!sru__keep(&inner, &y, &part, k)) return sru__no_memory(c);
            }
            if (io->saved && io->saved[l])
                status = in ? c->op->copy(c, io->saved[l] + t0 * B * y.in, in, rows * y.in * 4)
                       : c->op->embedding_forward(c, io->saved[l], part.tokens, m->embedding, rows,
                                                  y.in, m->vocab_size);
            if (!status) status = sru__layer_forward(&inner, &y, &part, in, out, c0, k);
            in = out;
        }
        t0 += steps;
    } while (t0 < io->T && B && !c->measure && !status);    /* the first chunk is the longest */
    return status;
}

SRUDEF sru_status sru_forward(const sru_context *ctx, const sru_model *model, const sru_io *io)
{
    const sru__call call = { model, io };
    const sru_status status = sru__check_call(ctx, model, io, "sru_forward");
    if (status) return status;
    if (io->T && io->B && !io->h) return SRU__FAIL(ctx, SRU_EINVAL, "sru_forward: h is NULL");
    return sru__run(ctx, sru__forward_run, &call);
}

#ifndef SRU_NO_BACKWARD
/* Backward of sru__project(): from dp, which is overwritten, to da = beta da + ... NULL: no da. */
static sru_status sru__project_backward(const sru_context *ctx, const sru__layer *y,
                                        const sru_io *io, size_t rows, const float *a, float *da,
                                        float beta, float *dp, const sru__kept *k)
{
    sru_context c = *ctx;
    const sru_backend *op = c.op;
    const size_t memory = sru__memory_length(y, io) * io->B;
    const float *w = sru__weight(y, SRU__PROJECTION);
    float *dw = sru__tensor(io->grads, y, SRU__PROJECTION);
    float *dmemory = io->dmemory ? io->dmemory[y->l] : NULL;
    sru_status status = SRU_OK;
    if (y->drop[SRU__DROP_P] > 0) status = sru__drop(&c, y, io, SRU__DROP_P, dp, dp, 0);
    if (!status && y->projected_norm)
        status = op->layernorm_backward(&c, dp, sru__tensor(io->grads, y, SRU__PROJECTED_GAIN),
                                        sru__tensor(io->grads, y, SRU__PROJECTED_SHIFT), dp, k->o,
                                        sru__weight(y, SRU__PROJECTED_GAIN), k->p_stats, 0, rows,
                                        y->P);
    if (!status && y->attention) {      /* forward: kv = W2 z, o = q + alpha*a; q is the end of z */
        sru_attention s;
        float *dz = sru__take_floats(&c, (memory + rows) * y->P);
        float *dkv = sru__take_floats(&c, (memory + rows) * 2 * y->P);
        if (!dz || !dkv) return sru__no_memory(&c);
        sru__fill_attention(&s, y, io, k);
        s.dout = dp;
        s.dq = dz + memory * y->P;
        s.dkv = dkv;
        s.dalpha = sru__tensor(io->grads, y, SRU__ALPHA);
        status = op->attention_backward(&c, &s);
        if (!status && memory) status = op->copy(&c, dz, NULL, memory * y->P * 4);
        if (!status)
            status = op->linear_backward(&c, dz, sru__tensor(io->grads, y, SRU__KEYS_VALUES), NULL,
                                         dkv, k->z, sru__weight(y, SRU__KEYS_VALUES), 1,
                                         memory + rows, 2 * y->P, y->P);
        if (!status && memory)
            status = op->linear_backward(&c, dmemory, dw, NULL, dz, io->memory[y->l], w, 0, memory,
                                         y->P, y->in);
        dp = dz + memory * y->P;
    }
    if (!status && !memory && dmemory)  /* no step attends to it */
        status = op->copy(&c, dmemory, NULL, io->memory_length * io->B * y->in * 4);
    if (!status)                        /* forward: z = W0 a */
        status = op->linear_backward(&c, da, dw, NULL, dp, a, w, beta, rows, y->P, y->in);
    return status;
}

/* Backward of the scan and product of a layer whose u was looked up: du is summed for each of the V
   rows, and these sums go back through the product, to scan->da (V,A) and scan->dw. */
static sru_status sru__by_table_backward(const sru_context *ctx, const sru_model *m,
                                         const sru_io *io, const sru_scan *scan, float beta)
{
    sru_context c = *ctx;
    const size_t V = m->vocab_size, n = (size_t)scan->K * scan->N;
    float *du = sru__take_floats(&c, V * n);
    sru_scan s = *scan;
    sru_status status;
    if (!du) return sru__no_memory(&c);
    s.w = NULL;                         /* leaves da and dw alone */
    status = c.op->scan_backward(&c, &s);
    if (!status) status = c.op->copy(&c, du, NULL, V * n * 4);
    if (!status)
        status = c.op->embedding_backward(&c, du, s.du, io->tokens, io->T * io->B, n, V);
    if (!status)
        status = c.op->linear_backward(&c, scan->da, scan->dw, NULL, du, scan->a,
                                       (const float *)scan->w, beta, V, n, scan->A);
    return status;
}

/* From dh to dx, which may be dh; NULL: not wanted. dg, which may be dh or dx, takes what dropout
   and layer norm of the output make of dh. */
static sru_status sru__layer_backward(const sru_context *ctx, const sru__layer *y,
                                      const sru_io *io, const float *in, const float *c0,
                                      float *dx, const float *dh, float *dg, const sru__kept *k)
{
    sru_context c = *ctx;
    const sru_backend *op = c.op;
    const sru_model *m = y->m;
    const int by_table = sru__by_table(y, io);
    const size_t rows = io->T * io->B, a_rows = by_table ? m->vocab_size : rows;
    const float *a = by_table ? m->embedding : k->a ? k->a : in;
    const float *gain = sru__weight(y, SRU__GAIN);
    const float highway = y->skip ? 1.0f : 0.0f;    /* 1: dx holds its part, so add to that */
    float *dgain = sru__tensor(io->grads, y, SRU__GAIN);
    float *dshift = sru__tensor(io->grads, y, SRU__SHIFT), *da = by_table ? io->dembedding : dx;
    sru_status status = SRU_OK;
    sru_scan s;
    if (y->drop[SRU__DROP_OUT] > 0) {
        status = sru__drop(&c, y, io, SRU__DROP_OUT, dg, dh, 0);
        dh = dg;
    }
    if (!status && y->norm == 2) {
        status = op->layernorm_backward(&c, dg, dgain, dshift, dh, k->g, gain, k->stats, 0, rows,
                                        y->N);
        dh = dg;
    }
    if (status) return status;

    /* forward: h = scan(x, u = W a); a is x, or what norm, dropout and projection made of x */
    if (k->a && (dx || y->norm == 1)) {
        da = sru__take_floats(&c, rows * y->in);
        if (!da) return sru__no_memory(&c);
    }
    sru__fill_scan(&s, y, io, in, a, c0, k);
    s.dh = dh;
    s.dc = io->dstate ? io->dstate + (size_t)y->l * y->N : NULL;
    s.du = k->u;
    s.dx = y->skip ? dx : NULL;
    s.da = y->P ? sru__take_floats(&c, a_rows * y->P) : da;
    if (y->P && !s.da) return sru__no_memory(&c);
    s.dw = sru__tensor(io->grads, y, SRU__WEIGHT);
    s.dv = m->config.v1 ? NULL : sru__tensor(io->grads, y, SRU__WEIGHT_C);
    s.dbias = sru__tensor(io->grads, y, SRU__BIAS);
    status = by_table ? sru__by_table_backward(&c, m, io, &s, y->P ? 0 : 1)
                      : op->scan_backward(&c, &s);
    if (!status && y->P)
        status = sru__project_backward(&c, y, io, a_rows, a, da,
                                       by_table ? 1 : da == dx ? highway : 0, s.da, k);
    if (!status && da && y->drop[SRU__DROP_X] > 0)
        status = sru__drop(&c, y, io, SRU__DROP_X, y->norm == 1 ? da : dx, da,
                           y->norm == 1 ? 0 : highway);
    if (!status && y->norm == 1)
        status = op->layernorm_backward(&c, dx, dgain, dshift, da, in, gain, k->stats, highway,
                                        rows, y->in);
    return status;
}

static sru_status sru__backward_run(sru_context *c, const void *args)
{
    const sru_model *m = ((const sru__call *)args)->m;
    const sru_io *io = ((const sru__call *)args)->io;
    const sru_config *f = &m->config;
    const int L = sru__layers(f);
    const size_t N = sru__width(f), rows = io->T * io->B, wide = (size_t)f->input_size;
    const int first = sru__input_first(f);
    sru__kept kept[SRU_MAX_LAYERS];
    float *c0 = NULL, *d;           /* d (T,B,N) is handed from layer to layer */
    float *dx = m->vocab_size ? NULL : io->dx;
    const float *x = io->x;
    sru_status status = sru__tape(c, NULL, m, io, &c0, kept);
    int l;
    if (status) return status;
    d = sru__take_floats(c, rows * N);
    if (!d) return sru__no_memory(c);
    if (sru__looks_up_x(m, io)) {
        float *looked_up = sru__take_floats(c, rows * wide);
        dx = io->dembedding ? sru__take_floats(c, rows * wide) : NULL;
        if (!looked_up || (io->dembedding && !dx)) return sru__no_memory(c);
        status = c->op->embedding_forward(c, looked_up, io->tokens, m->embedding, rows, wide,
                                          m->vocab_size);
        x = looked_up;
    }
    for (l = L - 1; l >= 0 && !status; l--) {
        const sru__layer y = sru__layer_at(m, l);
        status = sru__layer_backward(c, &y, io, kept[l].in ? kept[l].in : x, c0,
                                     l > 0 || first ? d : dx, l + 1 < L ? d : io->dh, d, &kept[l]);
    }
    if (first && !status)
        status = c->op->linear_backward(c, dx, io->grads, NULL, d, x, (const float *)m->weights, 0,
                                        rows, N, wide);
    if (m->vocab_size && dx && !status)
        status = c->op->embedding_backward(c, io->dembedding, dx, io->tokens, rows, wide,
                                           m->vocab_size);
    return status;
}

SRUDEF sru_status sru_backward(const sru_context *ctx, const sru_model *model, const sru_io *io)
{
    const sru__call call = { model, io };
    const sru_status status = sru__check_call(ctx, model, io, "sru_backward");
    if (status) return status;
    if (!io->tape) return SRU__FAIL(ctx, SRU_EINVAL, "sru_backward: there is no tape of a forward");
    if (io->T && io->B && !io->dh) return SRU__FAIL(ctx, SRU_EINVAL, "sru_backward: dh is NULL");
    return sru__run(ctx, sru__backward_run, &call);
}
#endif

SRUDEF sru_status sru_size(sru_sizes *n, const sru_context *ctx, const sru_model *model, size_t T,
                           size_t B)
{
    void *const some = (void *)(uintptr_t)64, *const other = (void *)(uintptr_t)128; /* not used */
    sru_context c = sru__context(ctx);
    sru_model m;
    sru_io io;
    sru_status status;
    if (!n || !model) return SRU__FAIL(&c, SRU_EINVAL, "sru_size: a pointer is NULL");
    sru__clear(n, sizeof *n);
    sru__clear(&io, sizeof io);
    m = *model;
    m.weights = some;
    m.embedding = (const float *)some;
    io.T = T;
    io.B = B;
    io.x = (const float *)some;
    io.tokens = (const int32_t *)some;
    /* h is x where it may be, because that takes more memory */
    io.h = (float *)(sru__in_place(&m.config) ? some : other);
    c.work_used = 0;
    c.measure = &n->work;
    status = sru_forward(&c, &m, &io);
    if (status) return status;
    io.h = (float *)other;
    n->weights = sru__weight_bytes(&m);
    n->state = sru__state_floats(&m.config);
#ifndef SRU_NO_BACKWARD
    if (m.type == SRU_PLAIN) {
        float *state;
        sru__kept kept[SRU_MAX_LAYERS];
        io.tape = some;
        io.dh = (const float *)some;
        io.dx = io.dembedding = io.grads = (float *)some;
        c.measure = &n->train_work;
        while (!status) {
            status = sru_forward(&c, &m, &io);
            if (!status) status = sru_backward(&c, &m, &io);
            if (!m.vocab_size || m.vocab_size >= io.T * B) break;
            io.T = sru__ceil(m.vocab_size, B);      /* again, with too few steps to go by table */
            m.vocab_size = io.T * B;
        }
        io.T = T;
        if (!status) status = sru__tape(&c, &n->tape, &m, &io, &state, kept);
    }
#endif
    return status;
}

/* ---- initialisation -------------------------------------------------------------------------- */

static void sru__fill_uniform(float *w, size_t n, double bound, uint64_t seed, int layer, int slot)
{
    const uint64_t after = (uint64_t)1 << 32;           /* all ids of dropout */
    const int id = slot == SRU__INPUT ? SRU_MAX_LAYERS * 256 : layer * 256 + slot - 1;
    const uint64_t key = sru__key(seed, 0, after + (uint64_t)id);
    size_t i;
    for (i = 0; i < n; i++)
        w[i] = (float)((2.0 * (double)sru__uniform(key, i) - 1.0) * bound);
}

static void sru__scale(float *w, size_t n, double by)
{
    size_t i;
    for (i = 0; i < n; i++) w[i] = (float)((double)w[i] * by);
}

static void sru__fill(float *w, size_t n, float value)
{
    size_t i;
    for (i = 0; i < n; i++) w[i] = value;
}

SRUDEF sru_status sru_init(float *weights, const sru_config *f, uint64_t seed)
{
    sru_model m;
    int l, k;
    if (!weights || !f || sru__check_config(f, NULL)) return SRU_EINVAL;
    sru__clear(&m, sizeof m);
    m.config = *f;
    sru__clear(weights, sru__weight_bytes(&m));
    for (l = 0; l < sru__layers(f); l++) {
        const sru__layer y = sru__layer_at(&m, l);
        const int old = f->arch == SRU_ARCH_SRU, plus = f->arch == SRU_ARCH_SRUPP;
        const size_t n = y.slot[SRU__WEIGHT].cols * y.N;    /* values of one of the K matrices */
        float *w[SRU__SLOTS];
        const double c = (double)f->weight_c_init, v = c > 0 ? c : old ? sru__dsqrt(1.5) : 1;
        for (k = 0; k < SRU__SLOTS; k++) w[k] = sru__tensor(weights, &y, k);
        /* the variance is 1/columns in 2.x, 2/(rows + columns) in 3.0-dev (Glorot and Bengio 2010);
           of the product before layer 0, except in SRU++, it is nn.Linear's 1/(3 columns) */
        for (k = 0; k <= SRU__WEIGHT; k++) {
            const size_t rows = y.slot[k].rows, cols = y.slot[k].cols;
            const double n_in = (double)cols, both = (double)rows + n_in;
            const double by = k == SRU__INPUT && !plus ? 1 / n_in : old ? 3 / n_in : 6 / both;
            if (rows) sru__fill_uniform(w[k], rows * cols, sru__dsqrt(by), seed, l, k);
        }
        for (k = 0; old && k < (int)y.K; k++) {     /* so that values keep their variance */
            double by = sru__dsqrt(1 - (double)y.drop[SRU__DROP_X]);
            if (k == 0) by *= sru__dsqrt(1 - (double)y.drop[SRU__DROP_C]);
            if ((k == 1 || k == 2) && !f->v1) by *= sru__dsqrt(0.5);
            if (k == 3) by *= (double)y.scale_x;
            if (y.norm) by *= 0.1;
            sru__scale(w[SRU__WEIGHT] + (size_t)k * n, n, by);
        }
        if (y.drop[SRU__DROP_P] > 0)
            sru__scale(w[SRU__WEIGHT], y.K * n, sru__dsqrt(1 - (double)y.drop[SRU__DROP_P]));
        for (k = SRU__WEIGHT_C; k < SRU__SLOTS; k++)
            sru__fill(w[k], y.slot[k].rows, k == SRU__GAIN || k == SRU__PROJECTED_GAIN);
        if (!f->v1) sru__fill_uniform(w[SRU__WEIGHT_C], 2 * y.N, v, seed, l, SRU__WEIGHT_C);
        sru__fill(w[SRU__BIAS] + y.N, y.N, f->highway_bias);
    }
    return SRU_OK;
}

/* ---- packing --------------------------------------------------------------------------------- */

SRUDEF sru_status sru_pack(const sru_context *ctx, sru_model *to, void *weights,
                           const sru_model *from)
{
    const sru_context c = sru__context(ctx);
    sru_model packed;
    sru_status status;
    sru__layer a, b;
    size_t g;
    int l, i;
    if (!to || !weights || !from || !from->weights || weights == from->weights)
        return SRU__FAIL(&c, SRU_EINVAL, "sru_pack: a pointer is NULL, or weights are from's");
    if (from->type != SRU_PLAIN || (unsigned)to->type > SRU_F16)
        return SRU__FAIL(&c, SRU_EINVAL, "sru_pack: packs SRU_PLAIN weights into another type");
    status = sru__check_config(&from->config, c.error);
    if (status) return status;
    if (!c.op->pack(&c, NULL, to->type, NULL, 1, 1)) return SRU_EINVAL;     /* pack has said why */
    packed = *from;
    packed.type = to->type;
    packed.weights = weights;
    status = c.op->copy(&c, weights, NULL, sru__weight_bytes(&packed));
    for (l = 0; l < sru__layers(&from->config) && !status; l++) {
        sru__next_layer(&a, from, l);
        sru__next_layer(&b, &packed, l);
        for (i = 0; i < SRU__SLOTS && !status; i++) {
            const sru__slot s = a.slot[i];
            const float *w = sru__weight(&a, i);
            char *out = (char *)sru__weight(&b, i);
            if (w && !s.groups) status = c.op->copy(&c, out, w, s.rows * 4);
            for (g = 0; w && g < s.groups; g++) {
                const size_t n = s.rows / s.groups;
                const size_t bytes = c.op->pack(&c, out, to->type, w + g * n * s.cols, n, s.cols);
                if (!bytes) return SRU_EINVAL;
                out += bytes;
            }
        }
    }
    if (!status && !c.measure) *to = packed;
    return status;
}

/* =================================================================================================
   Files: safetensors. A file has eight bytes with the header's length, then the header, then data.
   The header is JSON: {"__metadata__":{"module":"SRU","config":"{...}"},"name":{"dtype":"F32",
   "shape":[2,3],"data_offsets":[0,24]}, ...}. Nothing read from a file is trusted, and reading from
   memory allocates nothing. */

enum {
    SRU__RANK = 8, SRU__NAME = 128, SRU__TEXT = 2049,
    SRU__PREFIX = 80,               /* the rest of a name has up to 45 characters */
    SRU__HEADER = 100000000         /* the format's own limit */
};

typedef struct sru__entry {
    char name[SRU__NAME + 1];       /* longer names are cut off: none of ours is so long */
    char type[16];
    int dtype;                      /* an index of sru__dtypes; SRU__DTYPES: not there */
    size_t rank, shape[SRU__RANK];  /* if rank is larger, only the first SRU__RANK */
    size_t count, begin, end;
    const unsigned char *data;
} sru__entry;

/* ---- JSON: objects of a fixed form, no recursion --------------------------------------------- */

/* A position in a text. A file that sru__open() has accepted is also kept as one, at the start of
   its header. Functions that read the header move a copy of it. */
typedef struct sru__json {
    const char *start, *p, *end;    /* a file's data begin where its header ends */
    const char *what;               /* the sentence on a fault begins with this */
    char *error;
    int bad;                        /* a fault has been found */
    size_t data_size;
    const char *metadata;           /* where the metadata begin; NULL: none so far */
} sru__json;

static sru__json sru__json_of(const char *text, size_t size, const char *what, char *error)
{
    const sru__json j = { text, text, text + size, what, error, 0, 0, NULL };
    return j;
}

static int sru__expected(sru__json *j, const char *what)
{
    if (!j->bad)
        sru__say(j->error, "%s: expected %s at byte %u", j->what, what,
                 (size_t)(j->p - j->start));
    j->bad = 1;
    return 0;
}

/* The next character, or -1 at the end; whether it is a digit; whether it is c, which it passes. */
static int sru__at(const sru__json *j) { return j->p < j->end ? (unsigned char)*j->p : -1; }

static int sru__digit(const sru__json *j) { return sru__at(j) >= '0' && sru__at(j) <= '9'; }

static int sru__pass(sru__json *j, char c)
{
    if (j->bad || sru__at(j) != c) return 0;
    j->p++;
    return 1;
}

/* Passes spaces; returns the next character, or -1 at the end. */
static int sru__peek(sru__json *j)
{
    while (sru__at(j) == ' ' || sru__at(j) == '\t' || sru__at(j) == '\n' || sru__at(j) == '\r')
        j->p++;
    return sru__at(j);
}

static int sru__accept(sru__json *j, char c) { return sru__peek(j), sru__pass(j, c); }

static int sru__expect(sru__json *j, char c)
{
    const char what[] = { '\'', c, '\'', 0 };
    return sru__accept(j, c) || sru__expected(j, what);
}

static int sru__hex4(sru__json *j)
{
    int code = 0, i;
    for (i = 0; i < 4; i++, j->p++) {
        const int c = sru__at(j);
        const int digit = sru__digit(j) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return sru__expected(j, "four hexadecimal digits");
        code = code << 4 | digit;
    }
    return code;
}

/* Reads an escape, after its backslash. Returns the character that it stands for; 0: failed. */
static int sru__escape(sru__json *j)
{
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *e = sru__at(j) > 0 ? strchr(escapes, *j->p) : NULL;
    int code, low = 0;
    if (e) return j->p++, meant[e - escapes];
    if (!sru__pass(j, 'u')) return sru__expected(j, "an escape");
    code = sru__hex4(j);
    if (code >= 0xd800 && code < 0xdc00) {
        if (sru__pass(j, '\\') && sru__pass(j, 'u')) low = sru__hex4(j);
        if (low < 0xdc00 || low > 0xdfff)
            return sru__expected(j, "the second half of a surrogate pair");
        return 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
    }
    if (code >= 0xdc00 && code < 0xe000) return sru__expected(j, "a character");
    return j->bad || code ? code : 0xfffd;  /* U+0000 would end the text */
}

/* Decodes a string into text, and cuts off what exceeds size-1 bytes. size 0: passes the string. */
static int sru__string(sru__json *j, char *text, size_t size)
{
    size_t n = 0, i;
    if (!sru__accept(j, '"')) return sru__expected(j, "a string");
    while (j->p < j->end && *j->p != '"') {
        char bytes[4] = { *j->p++ };
        size_t count = 1;
        if ((unsigned char)bytes[0] < 32) return sru__expected(j, "no control character");
        if (bytes[0] == '\\') {         /* as UTF-8 */
            int code = sru__escape(j);
            if (!code) return 0;
            count = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
            for (i = count - 1; i > 0; i--, code >>= 6) bytes[i] = (char)(0x80 | (code & 63));
            bytes[0] = (char)((count > 1 ? 0xf00 >> count & 0xff : 0) | code);
        }
        for (i = 0; i < count; i++)     /* byte by byte: a string that is cut fills its room */
            if (n + 1 < size) text[n++] = bytes[i];
    }
    if (size) text[n] = 0;
    return sru__accept(j, '"') || sru__expected(j, "the end of a string");
}

/* Whether there is an element n, counted from 0, in an array ("[]") or object ("{}") of which the
   elements before n have been read. */
static int sru__element(sru__json *j, size_t n, const char *brackets)
{
    if (n == 0) return sru__expect(j, brackets[0]) && !sru__accept(j, brackets[1]);
    if (sru__accept(j, ',')) return 1;
    sru__expect(j, brackets[1]);
    return 0;
}

/* Reads the key of an object's element n. 0: the object has none, or failed. */
static int sru__member(sru__json *j, size_t n, char *key, size_t size)
{
    return sru__element(j, n, "{}") && sru__string(j, key, size) && sru__expect(j, ':');
}

/* Reads a whole number, without a sign, that fits a size_t. */
static int sru__whole(sru__json *j, size_t *value)
{
    const int zero = sru__accept(j, '0');
    size_t x = 0;
    if (zero && sru__digit(j)) return sru__expected(j, "a number without leading zeros");
    if (!zero && !sru__digit(j)) return sru__expected(j, "a whole number");
    for (; sru__digit(j); j->p++) {
        const size_t digit = (size_t)(*j->p - '0');
        if (x > (SIZE_MAX - digit) / 10) return sru__expected(j, "a smaller number");
        x = x * 10 + digit;
    }
    if (sru__at(j) == '.' || sru__at(j) == 'e' || sru__at(j) == 'E')
        return sru__expected(j, "a whole number");
    *value = x;
    return 1;
}

/* Reads [a, b, ...]. Tells how many numbers there are and their product; keeps the first `most`. */
static int sru__list(sru__json *j, size_t *values, size_t most, size_t *count, size_t *product)
{
    size_t value;
    *product = 1;
    for (*count = 0; sru__element(j, *count, "[]"); ++*count) {
        if (!sru__whole(j, &value)) return 0;
        if (*count < most) values[*count] = value;
        *product = sru__times(*product, value);
    }
    return !j->bad;
}

/* Reads digits; for each of them x becomes x*10 + digit. Returns how many there are. */
static int sru__digits(sru__json *j, double *x)
{
    int n = 0;
    for (; sru__digit(j); j->p++, n++) *x = *x * 10 + (*j->p - '0');
    return n;
}

/* Reads a number in the range of a float. It may have a sign, a fraction and an exponent. */
static int sru__number(sru__json *j, float *value)
{
    const int negative = sru__accept(j, '-');
    const char *const first = j->p;
    double x = 0, e = 0, by = 1;
    int power = 0;
    const int digits = sru__digits(j, &x);
    if (!digits || digits > 300 || (digits > 1 && *first == '0'))
        return sru__expected(j, "a number");
    if (sru__pass(j, '.')) {
        power = -sru__digits(j, &x);
        if (!power || power < -300) return sru__expected(j, "a number");
    }
    if (sru__pass(j, 'e') || sru__pass(j, 'E')) {
        const int minus = sru__pass(j, '-');
        if (!minus) sru__pass(j, '+');
        if (!sru__digits(j, &e)) return sru__expected(j, "a number");
        if (e > 1000) e = 1000;
        power += minus ? -(int)e : (int)e;
    }
    for (; power > 0 && x < 1e38; power--) x *= 10;
    for (; power < 0 && by < 1e300; power++) by *= 10;      /* a single division is most exact */
    x = power < 0 ? 0 : x / by;
    if (!(x < 1e38)) return sru__expected(j, "a smaller number");
    *value = (float)(negative ? -x : x);
    return 1;
}

static int sru__word(sru__json *j, const char *word)
{
    const size_t n = strlen(word);
    sru__peek(j);
    if (j->bad || (size_t)(j->end - j->p) < n || memcmp(j->p, word, n)) return 0;
    j->p += n;
    return 1;
}

/* ---- the container --------------------------------------------------------------------------- */

/* Passes the metadata. If a key is wanted (not NULL), copies its value to text. */
static void sru__read_metadata(sru__json *j, const char *wanted, char *text)
{
    char key[SRU__NAME + 1];
    size_t n;
    for (n = 0; sru__member(j, n, key, sizeof key); n++)
        sru__string(j, text, wanted && !strcmp(key, wanted) ? SRU__TEXT : 0);
}

/* Reads the description of the tensor e->name. */
static int sru__read_entry(sru__json *j, sru__entry *e)
{
    char key[SRU__NAME + 1];
    size_t offsets[2], n_offsets, product, n;
    int seen = 0;                   /* bits: dtype, shape, data_offsets */
    for (n = 0; seen != 7 && sru__member(j, n, key, sizeof key); n++) {
        const int bit = !strcmp(key, "dtype") ? 1 : !strcmp(key, "shape") ? 2
                      : !strcmp(key, "data_offsets") ? 4 : 0;
        if (!bit || seen & bit) break;
        seen |= bit;
        if (bit == 1 && !sru__string(j, e->type, sizeof e->type)) return 0;
        if (bit == 2 && !sru__list(j, e->shape, SRU__RANK, &e->rank, &e->count)) return 0;
        if (bit == 4 && !sru__list(j, offsets, 2, &n_offsets, &product)) return 0;
        if (bit == 4 && n_offsets != 2) return sru__expected(j, "two data_offsets");
    }
    if (seen != 7) return sru__expected(j, "dtype, shape and data_offsets, each once");
    if (!sru__expect(j, '}')) return 0;
    for (e->dtype = 0; e->dtype < SRU__DTYPES; e->dtype++)
        if (!strcmp(e->type, sru__dtypes[e->dtype].name)) break;
    e->begin = offsets[0];
    e->end = offsets[1];
    if (e->begin > e->end || e->end > j->data_size)
        return j->bad = 1, sru__say(j->error, "tensor '%s' lies at bytes %u to %u, but the file "
                                    "has %u bytes of data", e->name, e->begin, e->end,
                                    j->data_size), 0;
    if (e->dtype < SRU__DTYPES
        && sru__times(e->count, sru__dtypes[e->dtype].bytes) != e->end - e->begin)
        return j->bad = 1, sru__say(j->error, "tensor '%s' has %u bytes of data, which its shape "
                                    "does not take up", e->name, e->end - e->begin), 0;
    e->data = (const unsigned char *)j->end + e->begin;
    return 1;
}

/* Reads the header's next tensor. 0: there is none or, if j->bad, failed. */
static int sru__next(sru__json *j, sru__entry *e)
{
    while (sru__member(j, j->p != j->start, e->name, sizeof e->name)) {     /* 0: the first */
        if (strcmp(e->name, "__metadata__")) return sru__read_entry(j, e);
        if (j->metadata && j->metadata != j->p)
            return sru__expected(j, "no second __metadata__");
        j->metadata = j->p;
        sru__read_metadata(j, NULL, NULL);
    }
    if (sru__peek(j) != -1) sru__expected(j, "the end of the header");
    return 0;
}

/* Checks a whole file, so that later readers need not. Without overlaps and gaps each tensor begins
   where another ends, so that hashed ends less hashed beginnings sum to those of the whole data. */
static sru_status sru__open(sru__json *file, const void *bytes, size_t size, char *error)
{
    const unsigned char *p = (const unsigned char *)bytes;
    sru__json j;
    sru__entry e;
    uint64_t n, places = sru__mix(0);
    if (error) error[0] = 0;
    if (!bytes) return sru__say(error, "the file is NULL"), SRU_EINVAL;
    if (size < 8)
        return sru__say(error, "the file has %u bytes, too few for safetensors", size), SRU_EFILE;
    n = sru__little(p, 8);
    if (n > size - 8 && !memcmp(p, "PK\3\4", 4))
        return sru__say(error, "the file looks like a .pt of torch.save(): save it by save_file() "
                        "of safetensors.torch"), SRU_EFILE;
    if (n > size - 8)
        return sru__say(error, "the file is cut short, or not safetensors: its header should have "
                        "more bytes than the %u that follow", size - 8), SRU_EFILE;
    if (n > SRU__HEADER)
        return sru__say(error, "the file's header has more than %u bytes", (size_t)SRU__HEADER),
               SRU_EFILE;
    *file = sru__json_of((const char *)p + 8, (size_t)n, "the file's header is damaged", error);
    file->data_size = size - 8 - (size_t)n;
    for (j = *file; sru__next(&j, &e);) places += sru__mix(e.end) - sru__mix(e.begin);
    if (j.bad) return SRU_EFILE;
    file->metadata = j.metadata;
    if (places != sru__mix(file->data_size))
        return sru__say(error, "the file is damaged: its tensors overlap, or do not take up its %u "
                        "bytes of data", file->data_size), SRU_EFILE;
    return SRU_OK;
}

/* Copies the value of a key of the metadata to text, which is empty if there is no such key. */
static sru_status sru__metadata(const sru__json *file, const char *key, char text[SRU__TEXT])
{
    sru__json j = *file;
    text[0] = 0;
    j.p = file->metadata;
    if (j.p) sru__read_metadata(&j, key, text);
    if (strlen(text) == SRU__TEXT - 1)
        return sru__say(file->error, "the metadata's %s has %u bytes or more", key,
                        (size_t)SRU__TEXT - 1), SRU_EFILE;
    return SRU_OK;
}

/* Writes a shape as "(2,3)" or, if it is long, as "(2,3,...)". */
static const char *sru__shape_text(char text[64], const size_t *shape, size_t rank)
{
    size_t n = 0, i;
    text[n++] = '(';
    for (i = 0; i < rank && i < SRU__RANK && n < 36; i++) {
        sru__say(text + n, i ? ",%u" : "%u", shape[i]);     /* at most 21 characters */
        n += strlen(text + n);
    }
    memcpy(text + n, i < rank ? ",...)" : ")", i < rank ? 6 : 2);
    return text;
}

static size_t sru__rank(const sru_tensor *t)
{
    size_t rank = 0;
    while (rank < 4 && t->shape[rank]) rank++;
    return rank;
}

/* The rows of a matrix in memory; 1 for other tensors; 0 if no file can have it in this order. */
static size_t sru__tensor_rows(const sru_tensor *t)
{
    const size_t rows = t->shape[t->transpose ? 1 : 0];
    if (sru__rank(t) != 2) return !t->interleave && !t->transpose;
    if (!t->interleave) return rows;
    return t->interleave > 0 && rows % (size_t)t->interleave == 0 ? rows : 0;
}

static sru_status sru__check_entry(const sru__json *file, const sru__entry *e, const sru_tensor *t)
{
    char is[64], should[64];
    if (sru__rank(t) != e->rank || memcmp(t->shape, e->shape, e->rank * sizeof *e->shape))
        return sru__say(file->error, "tensor '%s' should have the shape %s, but has %s in the file",
                        e->name, sru__shape_text(should, t->shape, sru__rank(t)),
                        sru__shape_text(is, e->shape, e->rank)), SRU_EFILE;
    if (e->dtype >= SRU__READABLE)
        return sru__say(file->error, "tensor '%s' has the type %s, which cannot be read as float",
                        e->name, e->type), SRU_EFILE;
    return SRU_OK;
}

static sru__source sru__source_of(const sru__entry *e, const sru_tensor *t)
{
    const float one = 1;                /* shows whether the machine has floats as files do */
    const int native = !e->dtype && sru__decode((const unsigned char *)&one, 0) == one;
    const size_t rows = sru__tensor_rows(t);
    const sru__source s = { e->data, native ? SRU__NATIVE : e->dtype, rows, e->count / rows,
                            (size_t)t->interleave, t->transpose };
    return s;
}

static void sru__copy_values(float *to, const sru__source *s)
{
    const size_t most = s->transpose ? 64 : s->cols;
    size_t i, p;
    for (p = 0; p < s->cols; p += most)
        for (i = 0; i < s->rows; i++)
            sru__values(to + i * s->cols + p, s, i, p, sru__min(most, s->cols - p));
}

SRUDEF sru_status sru_read_tensor(sru_tensor *t, const void *bytes, size_t size, char *error)
{
    sru__json file, j;
    sru__entry e, other;
    sru__source from;
    sru_tensor is;
    sru_status status;
    int found = 0;
    if (!t || !memchr(t->name, 0, sizeof t->name))
        return sru__say(error, "the tensor is NULL, or its name has no end"), SRU_EINVAL;
    status = sru__open(&file, bytes, size, error);
    if (status) return status;
    for (j = file; sru__next(&j, &other);) {
        if (strcmp(other.name, t->name)) continue;
        if (found++) return sru__say(error, "the file has two tensors '%s'", t->name), SRU_EFILE;
        e = other;
    }
    if (!found) return sru__say(error, "the file has no tensor '%s'", t->name), SRU_ENOENT;
    is = *t;
    if (!t->data) {
        if (e.rank > 4 || !e.count)
            return sru__say(error, "tensor '%s' is empty, or has more than 4 dimensions", t->name),
                   SRU_EFILE;
        memset(is.shape, 0, sizeof is.shape);
        memcpy(is.shape, e.shape, e.rank * sizeof *e.shape);
    }
    status = sru__check_entry(&file, &e, &is);
    if (status) return status;
    *t = is;
    if (!t->data) return SRU_OK;
    if (!sru__tensor_rows(t))
        return sru__say(error, "tensor '%s' cannot be reordered", t->name), SRU_EINVAL;
    from = sru__source_of(&e, t);
    sru__copy_values(t->data, &from);
    return SRU_OK;
}

/* ---- the configuration ----------------------------------------------------------------------- */

/* The fields of config and of the metadata beside it. `in` says where a field stands, for SRU and
   for SRUpp: c, in config, because it is an argument of the reference; b, beside config, because it
   is none, and SRU(**config) should work; -, nowhere. kind: i, whole number; l, the same or -1; b,
   Boolean; n, Boolean that is negated here; f, number or null; p, projection size or list of them;
   -, without effect on results; 0, only null is understood. */
static const struct { const char *name, *in; char kind; size_t at; } sru__fields[] = {
    { "input_size",                 "cc", 'i', offsetof(sru_config, input_size) },
    { "hidden_size",                "cc", 'i', offsetof(sru_config, hidden_size) },
    { "projection_size",            "c-", 'p', 0 },
    { "proj_size",                  "-c", 'p', 0 },
    { "num_layers",                 "cc", 'i', offsetof(sru_config, num_layers) },
    { "dropout",                    "cc", 'f', offsetof(sru_config, dropout) },
    { "rnn_dropout",                "cb", 'f', offsetof(sru_config, rnn_dropout) },
    { "layer_dropout",              "bb", 'f', offsetof(sru_config, layer_dropout) },
    { "attn_dropout",               "-c", 'f', offsetof(sru_config, attn_dropout) },
    { "num_heads",                  "-c", 'i', offsetof(sru_config, num_heads) },
    { "bidirectional",              "cc", 'b', offsetof(sru_config, bidirectional) },
    { "use_tanh",                   "cb", 'b', offsetof(sru_config, use_tanh) },
    { "layer_norm",                 "cc", 'b', offsetof(sru_config, layer_norm) },
    { "normalize_after",            "cc", 'b', offsetof(sru_config, normalize_after) },
    { "attn_layer_norm",            "-c", 'n', offsetof(sru_config, no_attn_layer_norm) },
    { "highway_bias",               "cc", 'f', offsetof(sru_config, highway_bias) },
    { "attention_every_n_layers",   "-c", 'i', offsetof(sru_config, attention_every_n_layers) },
    { "attention_last_n_layers",    "-c", 'l', offsetof(sru_config, attention_last_n_layers) },
    { "has_skip_term",              "cb", 'n', offsetof(sru_config, no_skip_term) },
    { "rescale",                    "cc", 'b', offsetof(sru_config, rescale) },
    { "scale_x",                    "bb", 'f', offsetof(sru_config, scale_x) },
    { "v1",                         "cb", 'b', offsetof(sru_config, v1) },
    { "causal",                     "bb", 'b', offsetof(sru_config, causal) },
    { "window",                     "-b", 'i', offsetof(sru_config, window) },
    { "nn_rnn_compatible_return",   "cc", 'b', offsetof(sru_config, nn_rnn_compatible_return) },
    { "proj_input_to_hidden_first", "cc", 'b', offsetof(sru_config, proj_input_to_hidden_first) },
    { "weight_c_init",              "cc", 'f', offsetof(sru_config, weight_c_init) },
    { "amp_recurrence_fp16",        "c-", '-', 0 },
    { "custom_m",                   "c-", '0', 0 },
    { "transform_module",           "c-", '0', 0 }
};
enum { SRU__FIELDS = sizeof sru__fields / sizeof *sru__fields };

static char sru__place(const sru_config *f, size_t field)
{
    return sru__fields[field].in[f->arch == SRU_ARCH_SRUPP];
}

static int sru__int(sru__json *j, int *value)
{
    size_t n;
    if (!sru__whole(j, &n)) return 0;
    *value = (int)n;
    return n <= 0x7fffffff || sru__expected(j, "a smaller number");
}

/* Reads the value of a field. null means false for a Boolean, and else the default. */
static int sru__read_field(sru__json *j, sru_config *f, size_t field)
{
    const char kind = sru__fields[field].kind;
    void *const to = (char *)f + sru__fields[field].at;
    int value = 0, negative;
    size_t l;
    if (strchr("bn-", kind)) {
        if (sru__word(j, "true") || sru__word(j, "1")) value = 1;
        else if (!sru__word(j, "false") && !sru__word(j, "0") && !sru__word(j, "null"))
            return sru__expected(j, "true or false");
        if (kind != '-') *(int *)to = value ^ (kind == 'n');
        return 1;
    }
    if (sru__word(j, "null")) return 1;
    switch (kind) {
    case 'i':
        return sru__int(j, (int *)to);
    case 'l':                               /* -1, the default, is 0 here; 0, -2 ... are -1 */
        negative = sru__accept(j, '-');
        if (negative && !sru__digit(j)) return sru__expected(j, "a whole number");
        if (!sru__int(j, &value)) return 0;
        if (negative) value = -value;
        *(int *)to = value > 0 ? value : value == -1 ? 0 : -1;
        return 1;
    case 'p':
        if (sru__peek(j) != '[') return sru__int(j, &f->projection_size);
        for (l = 0; sru__element(j, l, "[]"); l++) {
            if (l == SRU_MAX_LAYERS) return sru__expected(j, "fewer layers");
            if (!sru__int(j, &f->projection_sizes[l])) return 0;
        }
        return !j->bad;
    case 'f':
        return sru__number(j, (float *)to);
    default:
        return sru__expected(j, "null, as a module cannot be read from a file,");
    }
}

static sru_status sru__read_config(const sru__json *file, sru_config *f)
{
    static const char form[] = "the metadata's config is not as json.dumps() writes it";
    char text[SRU__TEXT], name[SRU__NAME], what[SRU_ERROR_SIZE];
    sru__json j;
    size_t i, n;
    sru__clear(f, sizeof *f);
    if (sru__metadata(file, "module", text)) return SRU_EFILE;
    if (!text[0])
        return sru__say(file->error, "the file's metadata has no module: save it with metadata="
                        "{\"module\": \"SRU\", \"config\": json.dumps(dict(input_size=...))}, or "
                        "give a config to sru_load_bytes()"), SRU_EFILE;
    if (!strcmp(text, "SRUpp")) {
        f->arch = SRU_ARCH_SRUPP;
        f->highway_bias = -2;                   /* the reference's default for it */
    } else if (strcmp(text, "SRU")) {
        return sru__say(file->error, "the file holds a module %s: only SRU and SRUpp are supported",
                        text), SRU_EFILE;
    }
    for (i = 0; i < SRU__FIELDS; i++) {
        if (sru__place(f, i) != 'b') continue;
        if (sru__metadata(file, sru__fields[i].name, text)) return SRU_EFILE;
        if (!text[0]) continue;
        sru__say(what, "the metadata's %s is not understood", sru__fields[i].name);
        j = sru__json_of(text, strlen(text), what, file->error);
        if (sru__read_field(&j, f, i) && sru__peek(&j) != -1) sru__expected(&j, "its end");
        if (j.bad) return SRU_EFILE;
    }
    if (sru__metadata(file, "config", text)) return SRU_EFILE;
    if (!text[0])
        return sru__say(file->error, "the file's metadata has no config"), SRU_EFILE;
    j = sru__json_of(text, strlen(text), form, file->error);
    for (n = 0; sru__member(&j, n, name, sizeof name); n++) {
        for (i = 0; i < SRU__FIELDS && strcmp(name, sru__fields[i].name); i++) { }
        if (i == SRU__FIELDS || sru__place(f, i) != 'c')
            return sru__say(file->error, "the config has the argument '%s', which is unknown",
                            name), SRU_EFILE;
        sru__say(what, "the config's %s is not understood", name);
        j.what = what;
        if (!sru__read_field(&j, f, i)) return SRU_EFILE;
        j.what = form;
    }
    if (sru__peek(&j) != -1) sru__expected(&j, "its end");
    f->num_layers = sru__layers(f);
    return j.bad ? SRU_EFILE : SRU_OK;
}

/* ---- the tensors of a network ---------------------------------------------------------------- */

/* A walk through a network's tensors as files have them: each layer's weights, then its scale_x. */
typedef struct sru__walk {
    const sru_model *m;
    const char *prefix;             /* of at most SRU__PREFIX bytes, so that names fit */
    int n;                          /* number of t; tensors that a layer lacks count, too */
    sru__layer y;                   /* t's layer */
    int i;                          /* t's slot there; SRU__SLOTS: scale_x */
    sru_tensor t;                   /* its name is written by sru__name_tensor() */
} sru__walk;

static void sru__start(sru__walk *w, const sru_model *m, const char *prefix)
{
    w->m = m;
    w->prefix = prefix;
    w->n = -1;
}

/* Goes on to the next tensor. 0: there is none. */
static int sru__next_tensor(sru__walk *w)
{
    const sru_config *f = &w->m->config;
    const int slots = SRU__SLOTS + 1;
    const sru__slot *s;
    do {
        if (++w->n == sru__layers(f) * slots) return 0;
        w->i = w->n % slots;
        if (w->i == 0) sru__next_layer(&w->y, w->m, w->n / slots);
        s = &w->y.slot[w->i];
    } while (!s->rows);
    sru__clear(&w->t, sizeof w->t);
    w->t.shape[0] = s->transpose ? s->cols : s->rows;
    if (s->groups) w->t.shape[1] = s->transpose ? s->rows : s->cols;
    w->t.data = w->i == SRU__SLOTS ? &w->y.scale_x : sru__weight(&w->y, w->i);
    w->t.interleave = s->interleave;
    w->t.transpose = s->transpose;
    return 1;
}

static const sru_tensor *sru__name_tensor(sru__walk *w)
{
    const char *name = w->y.slot[w->i].name;
    if (w->i == SRU__INPUT) sru__say(w->t.name, "%s%s", w->prefix, name);
    else sru__say(w->t.name, "%srnn_lst.%u.%s", w->prefix, (size_t)w->y.l, name);
    return &w->t;
}

/* Goes to the tensor of this name. 0: there is none. */
static int sru__find_tensor(sru__walk *w, const char *name)
{
    for (w->n = -1; sru__next_tensor(w);)
        if (!strcmp(sru__name_tensor(w)->name, name)) return 1;
    return 0;
}

SRUDEF int sru_get_tensor(sru_tensor *t, const sru_model *m, int index)
{
    sru__walk w;
    if (!t || !m || index < 0 || m->type != SRU_PLAIN || sru__check_config(&m->config, NULL))
        return 0;
    sru__start(&w, m, "");
    while (sru__next_tensor(&w))
        if (w.i < SRU__SLOTS && !index--) return *t = *sru__name_tensor(&w), 1;
    return 0;
}

/* ---- loading --------------------------------------------------------------------------------- */

static int sru__begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

/* Finds the prefix of "rnn_lst." in the file, which must be the only one. */
static sru_status sru__find_prefix(const sru__json *file, char prefix[SRU__NAME])
{
    sru__json j = *file;
    sru__entry e;
    int found = 0;
    prefix[0] = 0;
    while (sru__next(&j, &e)) {
        char *at, *network = NULL;      /* the last one: a prefix may contain "rnn_lst." */
        for (at = e.name; (at = strstr(at, "rnn_lst.")) != NULL; at++)
            if (at == e.name || at[-1] == '.') network = at;
        if (!network) continue;
        *network = 0;
        if (found && strcmp(prefix, e.name))
            return sru__say(file->error, "the file holds two networks, '%srnn_lst' and '%srnn_lst':"
                            " give sru_load_bytes() the prefix of one", prefix, e.name), SRU_EFILE;
        memcpy(prefix, e.name, SRU__NAME);
        found = 1;
    }
    if (!found)
        return sru__say(file->error, "the file holds no network: no tensor's name has 'rnn_lst.' "
                        "within its first %u bytes", (size_t)SRU__NAME), SRU_EFILE;
    return SRU_OK;
}

/* Checks that the file has each tensor of the network exactly once. */
static sru_status sru__check_names(const sru__json *file, sru__walk *w)
{
    char seen[SRU_MAX_LAYERS * (SRU__SLOTS + 1)] = { 0 }, shape[64];
    sru__json j = *file;
    sru__entry e;
    while (sru__next(&j, &e))
        if (sru__begins(e.name, w->prefix) && sru__find_tensor(w, e.name) && seen[w->n]++)
            return sru__say(file->error, "the file has two tensors '%s'", e.name), SRU_EFILE;
    for (w->n = -1; sru__next_tensor(w);)
        if (!seen[w->n])
            return sru__say(file->error, "tensor '%s' %s is missing", sru__name_tensor(w)->name,
                            sru__shape_text(shape, w->t.shape, sru__rank(&w->t))), SRU_EFILE;
    return SRU_OK;
}

/* scale_x follows from rescale and highway_bias. A file with another value is not of this config;
   rescale=True was the default up to 2.1.4. A value that was once rounded to bfloat16, which has 8
   bits, is used as it is if all layers have the same. Without a skip term nothing uses scale_x. */
static sru_status sru__check_scale(const sru__json *file, const sru__entry *e, const sru__walk *w,
                                   float *all)
{
    const sru_config *f = &w->m->config;
    const double most = f->rescale ? 5e-3 : 1e-5;
    const float x = sru__decode(e->data, e->dtype);
    if (f->no_skip_term) return SRU_OK;
    if (sru__within((double)x / (double)w->y.scale_x - 1, -most, most)) {
        if (f->rescale && *all != 0 && *all != x)
            return sru__say(file->error, "tensor '%s' is not the same in all layers", e->name),
                   SRU_EFILE;
        *all = x;
        return SRU_OK;
    }
    if (!f->rescale && f->scale_x == 0)
        return sru__say(file->error, "tensor '%s' is not 1, as with rescale=True, which the config "
                        "does not say; if it is to run without, set it to 1", e->name), SRU_EFILE;
    return sru__say(file->error, "tensor '%s' does not agree with rescale and highway_bias of the "
                    "config, or its scale_x", e->name), SRU_EFILE;
}

static void sru__load_tensor(const sru__entry *e, const sru__walk *w)
{
    const sru__source from = sru__source_of(e, &w->t);
    const size_t groups = w->y.slot[w->i].groups, n = from.rows / sru__max(1, groups);
    char *out = (char *)w->t.data;
    size_t g;
    if (!groups || w->m->type == SRU_PLAIN) sru__copy_values(w->t.data, &from);
    else for (g = 0; g < groups; g++) out += sru__pack(out, w->m->type, &from, g * n, n);
}

/* Checks all tensors whose names begin with the prefix, in the order of the file. If the model has
   weights, reads the tensors into them. f is the model's config and receives a rounded scale_x. */
static sru_status sru__load_tensors(const sru__json *file, sru__walk *w, sru_config *f)
{
    sru__json j = *file;
    sru__entry e;
    float scale_x = 0;
    while (sru__next(&j, &e)) {
        sru_status status;
        if (!sru__begins(e.name, w->prefix)) continue;
        if (!sru__find_tensor(w, e.name))
            return sru__say(file->error, "tensor '%s' is unexpected: a network of this config "
                            "has none", e.name), SRU_EFILE;
        status = sru__check_entry(file, &e, &w->t);
        if (!status && w->i == SRU__SLOTS) status = sru__check_scale(file, &e, w, &scale_x);
        if (status) return status;
        if (w->i < SRU__SLOTS && w->m->weights) sru__load_tensor(&e, w);
    }
    if (scale_x != 0 && f->rescale
        && !sru__within((double)scale_x / (double)w->y.scale_x - 1, -1e-6, 1e-6))
        f->scale_x = scale_x;
    return SRU_OK;
}

SRUDEF sru_status sru_load_bytes(sru_model *m, void *weights, const void *bytes, size_t size,
                                 const char *prefix, char *error)
{
    sru__json file, j;
    sru__entry e;
    sru__walk w;
    sru_model to;
    sru_config *const f = &to.config;
    char found[SRU__NAME], name[SRU__NAME];
    sru_status status;
    if (!m) return sru__say(error, "the model is NULL"), SRU_EINVAL;
    if ((unsigned)m->type > SRU_Q8)
        return sru__say(error, "files are read into SRU_PLAIN, SRU_F32, SRU_BF16 or SRU_Q8, not "
                        "into type %u", (size_t)m->type), SRU_EINVAL;
    status = sru__open(&file, bytes, size, error);
    to = *m;
    to.weights = NULL;
    if (!status && !f->input_size) status = sru__read_config(&file, f);
    if (!status && !prefix) {
        status = sru__find_prefix(&file, found);
        prefix = found;
    }
    if (status) return status;
    if (strlen(prefix) > SRU__PREFIX)
        return sru__say(error, "the prefix '%s' is longer than %u bytes", prefix,
                        (size_t)SRU__PREFIX), SRU_EFILE;
    sru__say(name, "%srnn_lst.0.transform_module.", prefix);
    if (f->arch != SRU_ARCH_SRUPP) f->arch = SRU_ARCH_SRU;
    for (j = file; f->arch == SRU_ARCH_SRU && sru__next(&j, &e);)
        if (sru__begins(e.name, name)) f->arch = SRU_ARCH_SRU3;
    if (sru__check_config(f, error)) return m->config.input_size ? SRU_EINVAL : SRU_EFILE;

    sru__start(&w, &to, prefix);
    status = sru__check_names(&file, &w);
    if (!status) status = sru__load_tensors(&file, &w, f);
    if (!status && weights) {
        to.weights = weights;
        memset(weights, 0, sru__weight_bytes(&to));      /* padding, too */
        status = sru__load_tensors(&file, &w, f);
    }
    if (status) return status;
    m->config = to.config;
    if (weights) m->weights = weights;
    return SRU_OK;
}

#ifndef SRU_NO_STDIO
SRUDEF void *sru_read_file(const char *path, size_t *size, char *error)
{
    FILE *f;
    char *bytes = NULL;
    size_t n = 0, room = 0;
    const size_t first = 1 << 16;
    const int saved = errno;
    int lost = 0;
    if (error) error[0] = 0;
    if (!path || !size)
        return sru__say(error, "the %s is NULL", path ? "size" : "path"), (void *)NULL;
    f = fopen(path, "rb");
    if (!f) return sru__say(error, "cannot open '%s': %s", path, strerror(errno)), (void *)NULL;
    do {                                /* until the file leaves some room unused */
        char *larger;
        long end = 0;
        errno = 0;
        if (n == first && !fseek(f, 0, SEEK_END)) {     /* fails for a pipe */
            end = ftell(f);
            lost = fseek(f, (long)n, SEEK_SET);
        }
        room = end > (long)first ? (size_t)end + 1 : room ? 2 * room : first;
        larger = room > n ? (char *)SRU_MALLOC(room) : NULL;
        if (larger && n) memcpy(larger, bytes, n);
        if (bytes) SRU_FREE(bytes);
        bytes = larger;
        if (bytes && !lost) n += fread(bytes + n, 1, room - n, f);
    } while (bytes && n == room);
    if (!bytes) {
        sru__say(error, "no memory for %u bytes of '%s'", room, path);
    } else if (lost || ferror(f)) {
        sru__say(error, "cannot read '%s': %s", path, strerror(errno));
        SRU_FREE(bytes);
        bytes = NULL;
    }
    fclose(f);
    if (!bytes) return NULL;
    *size = n;
    errno = saved;
    return bytes;
}

SRUDEF sru_model *sru_load(const char *path, sru_type type, char *error)
{
    sru_model m;
    size_t size = 0, need;
    void *file = sru_read_file(path, &size, error);
    char *block = NULL;
    if (!file) return NULL;
    sru__clear(&m, sizeof m);
    m.type = type;
    if (!sru_load_bytes(&m, NULL, file, size, NULL, error)) {
        need = sru__weight_bytes(&m);
        block = (char *)SRU_MALLOC(sizeof m + 63 + need);
        if (!block) sru__say(error, "no memory for %u bytes of weights", need);
    }
    if (block) {                        /* loading what was checked cannot fail */
        sru_load_bytes(&m, sru__aligned(block + sizeof m), file, size, NULL, error);
        memcpy(block, &m, sizeof m);
    } else if (error && strlen(path) + strlen(error) + 2 < SRU_ERROR_SIZE) {
        char why[SRU_ERROR_SIZE];
        memcpy(why, error, sizeof why);
        sru__say(error, "%s: %s", path, why);
    }
    SRU_FREE(file);
    return (sru_model *)(void *)block;
}

/* ---- saving ---------------------------------------------------------------------------------- */

typedef struct sru__writer {
    FILE *f;                        /* NULL: bytes are only counted */
    size_t n;                       /* bytes so far, written or not: the header's padding follows */
} sru__writer;

static void sru__put(sru__writer *w, const void *bytes, size_t n)
{
    w->n += n;
    if (w->f && !ferror(w->f)) fwrite(bytes, 1, n, w->f);
}

static void sru__put_text(sru__writer *w, const char *text) { sru__put(w, text, strlen(text)); }

/* Writes text that is inside a JSON string. */
static void sru__put_escaped(sru__writer *w, const char *text)
{
    char code[8];
    for (; *text; text++) {
        const int c = (unsigned char)*text, quoted = c == '"' || c == '\\';
        snprintf(code, sizeof code, c < 32 ? "\\u%04x" : quoted ? "\\%c" : "%c", c);
        sru__put_text(w, code);
    }
}

/* The shortest decimal number that reads back as x. */
static void sru__number_text(char text[32], float x)
{
    int digits;
    char *point, *rest;
    for (digits = 1; digits < 10; digits++) {
        snprintf(text, 32, "%.*g", digits, (double)x);
        if ((float)strtod(text, NULL) == x) break;
    }
    point = text + strspn(text, "-+0123456789e");   /* the locale's: one or more bytes */
    if (!*point) return;
    rest = point + strcspn(point, "0123456789");
    *point++ = '.';
    memmove(point, rest, strlen(rest) + 1);
}

/* The value of a field as it is written in its place; "" if it is the default. */
static void sru__field_text(char text[16 * SRU_MAX_LAYERS], const sru_config *f, size_t field)
{
    const void *const at = (const char *)f + sru__fields[field].at;
    const char kind = sru__fields[field].kind, place = sru__place(f, field);
    const int whole = strchr("ilbn", kind) ? *(const int *)at : 0, L = sru__layers(f);
    int l = 1;
    text[0] = 0;
    if (kind == 'f') {
        if (*(const float *)at != 0 || (f->arch == SRU_ARCH_SRUPP && at == &f->highway_bias))
            sru__number_text(text, *(const float *)at);
    } else if (kind == 'p') {
        while (l < L && sru__projection(f, l) == sru__projection(f, 0)) l++;
        if (l == L && sru__projection(f, 0)) sru__say(text, "%u", sru__projection(f, 0));
        if (l == L) return;
        for (l = 0; l < L; l++)
            sru__say(text + strlen(text), l ? ", %u" : "[%u", sru__projection(f, l));
        sru__say(text + strlen(text), "]");
    } else if (!whole || (at == &f->attention_every_n_layers && f->attention_last_n_layers)) {
        return;                         /* "every" has no effect if "last" is given */
    } else if (strchr("bn", kind)) {
        sru__say(text, place == 'b' ? kind == 'b' ? "1" : "0" : kind == 'b' ? "true" : "false");
    } else {
        sru__say(text, "%u", (size_t)(whole < 0 ? 0 : whole));
    }
}

/* Writes the fields of a place: those in config, which is JSON in a JSON string, or beside it. */
static void sru__put_fields(sru__writer *w, const sru_config *f, char place)
{
    const int beside = place == 'b';
    size_t i, n = 0;
    for (i = 0; i < SRU__FIELDS; i++) {
        char text[16 * SRU_MAX_LAYERS] = "";
        if (sru__place(f, i) == place) sru__field_text(text, f, i);
        if (!text[0]) continue;
        sru__put_text(w, beside ? ",\"" : n++ ? ", \\\"" : "\\\"");
        sru__put_text(w, sru__fields[i].name);
        sru__put_text(w, beside ? "\":\"" : "\\\": ");
        sru__put_text(w, text);
        if (beside) sru__put_text(w, "\"");
    }
}

static size_t sru__tensor_count(const sru_tensor *t)
{
    size_t count = 1, i;
    for (i = 0; i < sru__rank(t); i++) count = sru__times(count, t->shape[i]);
    return count;
}

/* Describes a tensor whose values begin *at bytes after the header, and moves *at to their end. */
static void sru__put_entry(sru__writer *w, const sru_tensor *t, size_t *at)
{
    const size_t begin = *at;
    char text[SRU_ERROR_SIZE];
    size_t i;
    *at += 4 * sru__tensor_count(t);
    sru__put_text(w, ",\"");
    sru__put_escaped(w, t->name);
    sru__put_text(w, "\":{\"dtype\":\"F32\",\"shape\":[");
    for (i = 0; i < sru__rank(t); i++) {
        sru__say(text, i ? ",%u" : "%u", t->shape[i]);
        sru__put_text(w, text);
    }
    sru__say(text, "],\"data_offsets\":[%u,%u]}", begin, *at);
    sru__put_text(w, text);
}

static void sru__put_header(sru__writer *w, const sru_model *m, const char *prefix,
                            const sru_tensor *own, int n)
{
    sru__walk net;
    size_t at = 0;
    int k;
    sru__put_text(w, "{\"__metadata__\":{\"module\":\"SRU");
    if (m->config.arch == SRU_ARCH_SRUPP) sru__put_text(w, "pp");
    sru__put_text(w, "\",\"config\":\"{");
    sru__put_fields(w, &m->config, 'c');
    sru__put_text(w, "}\"");
    sru__put_fields(w, &m->config, 'b');
    sru__put_text(w, "}");
    for (sru__start(&net, m, prefix); sru__next_tensor(&net);)
        sru__put_entry(w, sru__name_tensor(&net), &at);
    for (k = 0; k < n; k++) sru__put_entry(w, &own[k], &at);
    sru__put_text(w, "}");
    while (w->n % 8) sru__put_text(w, " ");
}

/* Writes the tensor's values, little-endian, in the order of the file: row after row or, if it is
   transposed, column after column. The file's row i*matrices + k is unit i of matrix k here. */
static void sru__put_tensor(sru__writer *w, const sru_tensor *t)
{
    const size_t rows = sru__tensor_rows(t), cols = sru__tensor_count(t) / rows;
    const size_t matrices = t->interleave ? (size_t)t->interleave : 1, units = rows / matrices;
    unsigned char buffer[4096];
    size_t i, k, n = 0;
    for (i = 0; i < (t->transpose ? cols : rows); i++)
        for (k = 0; k < (t->transpose ? rows : cols); k++) {
            const size_t row = t->transpose ? k : i, col = t->transpose ? i : k;
            uint32_t bits;
            int shift;
            memcpy(&bits, t->data + (row % matrices * units + row / matrices) * cols + col, 4);
            for (shift = 0; shift < 32; shift += 8) buffer[n++] = (unsigned char)(bits >> shift);
            if (n < sizeof buffer) continue;
            sru__put(w, buffer, n);
            n = 0;
        }
    sru__put(w, buffer, n);
}

/* Works as rename() does in POSIX: `to` becomes the new file, or stays as it was. */
#ifdef _WIN32
#ifdef __cplusplus
extern "C"
#endif
__declspec(dllimport) int __stdcall MoveFileExA(const char *, const char *, unsigned long);

static int sru__replace(const char *from, const char *to)
{
    if (MoveFileExA(from, to, 1)) return 0;     /* 1: MOVEFILE_REPLACE_EXISTING */
    errno = EACCES;
    return -1;
}
#else
static int sru__replace(const char *from, const char *to) { return rename(from, to); }
#endif

static sru_status sru__check_own(const sru_tensor *own, int n, const char *prefix, char *error)
{
    size_t total = 0;               /* values so far: places in the file must fit a size_t */
    int k, i;
    for (k = 0; k < n; k++) {
        const sru_tensor *t = &own[k];
        if (!memchr(t->name, 0, sizeof t->name) || !t->name[0])
            return sru__say(error, "sru_save: the name of own tensor %u is empty, or does not end",
                            (size_t)k), SRU_EINVAL;
        if (!strcmp(t->name, "__metadata__") || strstr(t->name, "rnn_lst."))
            return sru__say(error, "sru_save: own tensor '%s' must not be named so: 'rnn_lst.' and "
                            "'__metadata__' have a meaning in the file", t->name), SRU_EINVAL;
        if (!t->data || sru__tensor_count(t) > SIZE_MAX / 8 - total)
            return sru__say(error, "sru_save: own tensor '%s' has no data, or is too large",
                            t->name), SRU_EINVAL;
        total += sru__tensor_count(t);
        if (sru__begins(t->name, prefix))
            return sru__say(error, "sru_save: the network needs a prefix with which own tensor "
                            "'%s' does not begin, not '%s'", t->name, prefix), SRU_EINVAL;
        if (!sru__tensor_rows(t))
            return sru__say(error, "sru_save: own tensor '%s' cannot be reordered", t->name),
                   SRU_EINVAL;
        for (i = 0; i < k; i++)
            if (!strcmp(own[i].name, t->name))
                return sru__say(error, "sru_save: there are two tensors '%s'", t->name), SRU_EINVAL;
    }
    return SRU_OK;
}

SRUDEF sru_status sru_save(const char *path, const sru_model *m, const char *prefix,
                           const sru_tensor *own, int n, char *error)
{
    static const char ending[] = ".sru_save";   /* no other program's files end so */
    sru__writer w = { NULL, 0 };
    sru__walk net;
    unsigned char length[8];
    char *beside;
    size_t i;
    int k, lost, saved = errno;
    sru_status status = SRU_OK;
    if (error) error[0] = 0;
    if (!prefix) prefix = "";
    if (!path || !m || !m->weights || n < 0 || (n && !own))
        return sru__say(error, "sru_save: a pointer is NULL, or n is negative"), SRU_EINVAL;
    if (m->type != SRU_PLAIN)
        return sru__say(error, "sru_save: only SRU_PLAIN weights can be saved"), SRU_EINVAL;
    if (sru__check_config(&m->config, error)) return SRU_EINVAL;
    if (strlen(prefix) > SRU__PREFIX || strstr(prefix, "rnn_lst.")
        || (prefix[0] && prefix[strlen(prefix) - 1] != '.'))
        return sru__say(error, "sru_save: the prefix '%s' is longer than %u bytes, has 'rnn_lst.' "
                        "in it, or does not end with '.'", prefix, (size_t)SRU__PREFIX), SRU_EINVAL;
    if (sru__check_own(own, n, prefix, error)) return SRU_EINVAL;

    sru__put_header(&w, m, prefix, own, n);
    if (w.n > SRU__HEADER)
        return sru__say(error, "sru_save: the file's header would have more than %u bytes",
                        (size_t)SRU__HEADER), SRU_EINVAL;
    i = strlen(path);
    beside = (char *)SRU_MALLOC(i + sizeof ending);
    if (!beside) return sru__say(error, "no memory for a path"), SRU_ENOMEM;
    memcpy(beside, path, i);
    memcpy(beside + i, ending, sizeof ending);
    for (i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)w.n >> 8 * i);
    errno = 0;
    w.f = fopen(beside, "wb");
    if (!w.f) {
        sru__say(error, "cannot write '%s': %s", beside, strerror(errno));
        status = SRU_EFILE;
    } else {
        sru__put(&w, length, 8);
        sru__put_header(&w, m, prefix, own, n);
        for (sru__start(&net, m, prefix); sru__next_tensor(&net) && !ferror(w.f);)
            sru__put_tensor(&w, &net.t);
        for (k = 0; k < n && !ferror(w.f); k++) sru__put_tensor(&w, &own[k]);
        lost = ferror(w.f);
        if (fclose(w.f) || lost || sru__replace(beside, path)) {
            sru__say(error, "cannot write '%s': %s", path, strerror(errno));
            remove(beside);
            status = SRU_EFILE;
        }
    }
    SRU_FREE(beside);
    if (!status) errno = saved;
    return status;
}
#endif

#if defined(__clang__)
#pragma STDC FP_CONTRACT DEFAULT        /* where float_control, and so its pop, is ignored */
#if defined(__FAST_MATH__) && __clang_major__ > 12
#pragma clang fp reassociate(on)
#endif
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wignored-pragmas"
#pragma clang diagnostic ignored "-Wunknown-pragmas"
#pragma float_control(pop)
#pragma clang diagnostic pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#elif defined(_MSC_VER)
#pragma float_control(pop)
#endif
#ifdef __CUDACC__
#pragma nv_diagnostic pop
#endif

#undef SRU__FAIL
#undef SRU__INLINE
#undef SRU__UNROLL
#undef SRU__UNROLL_4
#undef SRU__PREFETCH
#undef SRU__ANEW
#undef SRU__ROUND
#undef SRU__SHUFFLE
#undef SRU__PORTION
#undef SRU__SHARE
#undef SRU__TRAINING
#undef SRU__Q8_UNIT
#undef SRU__PANEL
#undef SRU__DEPTH
#undef SRU__NEAR
#undef SRU__CACHE
#undef SRU__STRIDE
#undef SRU__PAGE
#undef SRU__AHEAD
#undef SRU__KEYS
#undef SRU__FARTHEST
#undef SRU__HIDDEN
#undef SRU__VECTORS
#undef SRU__X86
#undef SRU__DISPATCH
#undef SRU__FOURS
#undef SRU__AVX2
#undef SRU__AVX512
#undef SRU__BF16
#undef SRU__AND_BF16
#undef SRU__AND_512
#endif /* SRU__IMPLEMENTED */
#endif /* SRU_IMPLEMENTATION */

#else /* SRU__PASS */

/* =================================================================================================
   Kernels: arithmetic on one thread, written once and compiled for each instruction set in vectors
   of its own width. Each pass is given SRU__ISA, the name of its set; SRU__W, the floats in a
   vector (1: plain C); SRU__MR rows (1, 2, 6 or 8) and SRU__NP panels (at most 3) of a full tile of
   the product; SRU__NP_TWO and SRU__NP_ONE, the most panels of tiles of two rows and of one row.
   The product says why. SRU__NP_ONE is 1, 2, 4 or 6, one less than a prime. If a full tile has one
   row, SRU__NP_ONE is SRU__NP; if it has two, SRU__NP_TWO is SRU__NP. */

#define SRU__GLUE_(a, b) a##b
#define SRU__GLUE(a, b)  SRU__GLUE_(a, b)
#define SRU__STR_(a)     #a
#define SRU__STR(a)      SRU__STR_(a)
#define SRU__FN(name)    SRU__GLUE(sru__##name##_, SRU__ISA)
#define SRU__VP          (SRU__PANEL / SRU__W)      /* vectors in a row of a panel */
/* columns of the narrowest tile: half a panel, if that is whole vectors. In plain C it is a panel:
   gcc makes vectors of so many sums by itself, but not of fewer */
#define SRU__COLUMNS     (SRU__W == 1 || SRU__W == SRU__PANEL ? SRU__PANEL : SRU__PANEL / 2)
#define SRU__RUN         (SRU__W > 1 ? SRU__W : 4)  /* lines of a panel at a time, for one row */
/* F(x, n) for n from 1 to most, with n as a constant */
#define SRU__KNOWN(F, x, most) \
    ((most) == 1 || n == 1 ? F(x, 1) : (most) == 2 || n == 2 ? F(x, 2) \
     : (most) == 3 || n == 3 ? F(x, 3) : (most) == 4 || n == 4 ? F(x, 4) \
     : n == 5 ? F(x, 5) : F(x, 6))
#define SRU__LOADS       (SRU__W == 16 ? SRU__NP_ONE : 1)   /* of packed words, before sums */
/* i = 0 ... n-1, unrolled. n is known only after inlining, but `most` from the start: without it,
   clang would unroll too late to keep arrays in registers */
#define SRU__EACH(i, n, most) SRU__UNROLL for (i = 0; i < (most); i++) if (i < (n))

/* In this part, sru__vec is a vector of floats, sru__loose a vector at any address in memory, and
   sru__mask the result of comparing two vectors. */
#define sru__vec         SRU__FN(vec)
#define sru__loose       SRU__FN(loose)
#define sru__mask        SRU__FN(mask)
#define sru__bits        SRU__FN(bits)
#define sru__zero        SRU__FN(zero)
#define sru__load        SRU__FN(load)
#define sru__store       SRU__FN(store)
#define sru__load_part   SRU__FN(load_part)
#define sru__store_part  SRU__FN(store_part)
#define sru__to_bits     SRU__FN(to_bits)
#define sru__from_bits   SRU__FN(from_bits)
#define sru__from_ints   SRU__FN(from_ints)
#define sru__select      SRU__FN(select)
#define sru__abs         SRU__FN(abs)
#define sru__inverse     SRU__FN(inverse)
#define sru__rounded     SRU__FN(rounded)
#define sru__one_of      SRU__FN(one_of)
#define sru__sum         SRU__FN(sum)
#define sru__highest     SRU__FN(highest)
#define sru__smaller     SRU__FN(smaller)
#define sru__larger      SRU__FN(larger)
#define sru__exps        SRU__FN(exps)
#define sru__exp         SRU__FN(exp)
#define sru__tanh        SRU__FN(tanh)
#define sru__root        SRU__FN(root)

#if SRU__W > 1
typedef float    sru__vec  __attribute__((__vector_size__(4 * SRU__W)));
typedef float    sru__loose __attribute__((__vector_size__(4 * SRU__W), __aligned__(4),
                                           __may_alias__));
typedef int32_t  sru__mask __attribute__((__vector_size__(4 * SRU__W)));
typedef uint32_t sru__bits __attribute__((__vector_size__(4 * SRU__W)));
SRU__INLINE sru__bits sru__to_bits(sru__vec x) { return (sru__bits)x; }
SRU__INLINE sru__vec sru__from_bits(sru__bits x) { return (sru__vec)x; }
SRU__INLINE sru__vec sru__from_ints(sru__mask x) { return __builtin_convertvector(x, sru__vec); }
SRU__INLINE sru__vec sru__select(sru__mask m, sru__vec a, sru__vec b)
{
    return (sru__vec)(((sru__mask)a & m) | ((sru__mask)b & ~m));
}
#else
typedef float    sru__vec;
typedef float    sru__loose;
typedef int      sru__mask;
typedef uint32_t sru__bits;
SRU__INLINE sru__bits sru__to_bits(sru__vec x) { sru__bits b; memcpy(&b, &x, 4); return b; }
SRU__INLINE sru__vec sru__from_bits(sru__bits b) { sru__vec x; memcpy(&x, &b, 4); return x; }
SRU__INLINE sru__vec sru__from_ints(sru__mask x) { return (sru__vec)x; }
SRU__INLINE sru__vec sru__select(sru__mask m, sru__vec a, sru__vec b) { return m ? a : b; }
#endif

SRU__INLINE sru__vec sru__zero(void) { sru__vec v; memset(&v, 0, sizeof v); return v; }
SRU__INLINE sru__vec sru__load(const float *p) { return *(const sru__loose *)p; }
SRU__INLINE void sru__store(float *p, sru__vec v) { *(sru__loose *)p = v; }

/* Which lanes of a row's last vector are new, if its n values are not whole vectors: it ends where
   the row ends and overlaps the vector before. A row shorter than a vector fills n lanes. */
SRU__INLINE sru__mask SRU__FN(fresh)(size_t n)
{
    static const int32_t number[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    sru__mask lane;
    memcpy(&lane, number, sizeof lane);
    return n < SRU__W ? lane < (int)n : lane >= (int)(SRU__W - n % SRU__W);
}

/* Loads the first n lanes of a vector; the others are 0. Collecting them in memory would be slow:
   the processor has to wait before it reads as a whole what was written in pieces. */
SRU__INLINE sru__vec sru__load_part(const float *p, size_t n)
{
    if (n < SRU__W) {
#ifdef SRU__LOAD_PART
        return SRU__LOAD_PART(p, n);
#elif SRU__W > 1
        sru__vec v = sru__zero();
        size_t i;
        SRU__EACH(i, n, SRU__W - 1) v[i] = p[i];
        return v;
#endif
    }
    return sru__load(p);
}

SRU__INLINE void sru__store_part(float *p, sru__vec v, size_t n)
{
    size_t at = 0, piece;
    if (n >= SRU__W) {
        sru__store(p, v);
        return;
    }
    SRU__UNROLL
    for (piece = SRU__W / 2; piece; piece /= 2)
        if (n & piece) {
            memcpy(p + at, (const char *)&v + at * 4, piece * 4);
            at += piece;
        }
}

/* A product that is rounded before it is added. If a product is used twice, whether gcc fuses it
   depends on the branches around it, and so on how many vectors are side by side. */
SRU__INLINE sru__vec sru__rounded(sru__vec x)
{
    SRU__ROUND(x);
    return x;
}

/* One of n sums side by side. When gcc tunes for some processors (-march=native), and always since
   gcc 14, it does not fuse products with a sum that is alone; so it must not see that one is. */
SRU__INLINE sru__vec sru__one_of(const int n, sru__vec sum)
{
    if (n == 1) SRU__ROUND(sum);
    return sum;
}

SRU__INLINE sru__vec sru__abs(sru__vec x)
{
    return sru__from_bits(sru__to_bits(x) & 0x7fffffffu);
}

/* The smaller and the larger of two; x if x is NaN. With -ffast-math, gcc 14 takes any scalar for a
   number, and clang without float_control any vector: then the bits of x are tested. */
#ifndef SRU__MIN
#if SRU__W == 1 || (defined(__clang__) && __FINITE_MATH_ONLY__)
#define SRU__IF_NUMBER(x, yes) (((sru__to_bits(x) & 0x7fffffffu) <= 0x7f800000u) & (yes))
#else
#define SRU__IF_NUMBER(x, yes) (yes)
#endif
#define SRU__MIN(a, x) sru__select(SRU__IF_NUMBER(x, a < x), a, x)
#define SRU__MAX(a, x) sru__select(SRU__IF_NUMBER(x, a > x), a, x)
#endif
SRU__INLINE sru__vec sru__smaller(sru__vec a, sru__vec x) { return SRU__MIN(a, x); }
SRU__INLINE sru__vec sru__larger(sru__vec a, sru__vec x) { return SRU__MAX(a, x); }

/* The sum of all lanes, or the highest lane, by halving: in vectors of four while there are enough
   lanes, because one lane after another is five times as slow. */
SRU__INLINE float SRU__FN(fold)(sru__vec v, const int highest)
{
    float lane[SRU__W];
    int i, half = SRU__W / 2;
#if SRU__W > 4
    typedef float   four  __attribute__((__vector_size__(16)));
    typedef int32_t which __attribute__((__vector_size__(16)));
    four q[SRU__W / 4];
    memcpy(q, &v, sizeof v);
    SRU__UNROLL
    for (; half >= 4; half /= 2) {
        SRU__UNROLL
        for (i = 0; i < half / 4; i++) {
            const four a = q[i], b = q[i + half / 4];
            const which m = b > a;
            q[i] = !highest ? a + b : (four)(((which)b & m) | ((which)a & ~m));
        }
    }
    memcpy(lane, q, sizeof lane);
#else
    memcpy(lane, &v, sizeof v);
#endif
    SRU__UNROLL
    for (; half; half /= 2) {
        SRU__UNROLL
        for (i = 0; i < half; i++) {
            const float a = lane[i], b = lane[i + half];
            lane[i] = !highest ? a + b : b > a ? b : a;
        }
    }
    return lane[0];
}
SRU__INLINE float sru__sum(sru__vec v) { return SRU__FN(fold)(v, 0); }
SRU__INLINE float sru__highest(sru__vec v) { return SRU__FN(fold)(v, 1); }

/* 1/x for x from 1 to 8.5e37. Dividing 16 floats takes twice as long as dividing 8: where the
   processor can guess 14 bits of the result, one Newton step makes it as exact in less time. */
SRU__INLINE sru__vec sru__inverse(sru__vec x)
{
#ifdef SRU__GUESS
    const sru__vec y = SRU__GUESS(x);
    return (1.0f - x * y) * y + y;
#else
    return 1.0f / x;
#endif
}

/* x = exp(sign*x) + plus for n vectors. Each step is done for all vectors before the next: steps of
   one vector wait for one another, but several vectors keep the processor busy. exp has a relative
   error below 1.2e-7 from -87.33 to 87.33; beyond, it keeps its value there. NaN stays NaN. */
SRU__INLINE void sru__exps(const int n, sru__vec *x, const float sign, const float plus)
{
    /* exp(r) for |r| <= ln 2 / 2, with a relative error below 4.3e-9 */
    static const float coefficient[] = { 8.3687813844e-3f, 4.1668394266e-2f, 1.6666520100e-1f,
                                         4.9999993412e-1f, 1.0f, 1.0f };
    enum { MOST = 8 };
    sru__vec t[MOST], k, r[MOST], y[MOST];
    int i, p;
    SRU__EACH(i, n, MOST) {
        x[i] = sru__smaller(sru__zero() + 87.33f, sru__larger(sru__zero() - 87.33f, x[i]));
        /* sign*x = k ln 2 + r. Near 1.5*2^23 floats are 1 apart, so adding that rounds to k; adding
           127 more leaves the exponent of 2^k in the low bits */
        t[i] = x[i] * (sign * 1.44269504f) + 12583039.0f;
#if SRU__W > 1
        k = t[i] - 12583039.0f;
#else       /* x87 may hold more of t than its 32 bits, and only these are a whole number */
        k = sru__from_ints((sru__mask)(sru__to_bits(t[i]) - 0x4b40007fu));
#endif
        r[i] = x[i] * sign - k * 0.693359375f;
        r[i] = r[i] + k * 2.12194440e-4f;
        y[i] = sru__zero() + 1.3814468141e-3f;
    }
    SRU__UNROLL
    for (p = 0; p < 6; p++) {
        SRU__EACH(i, n, MOST) y[i] = y[i] * r[i] + coefficient[p];
    }
    SRU__EACH(i, n, MOST)    /* a NaN in y stays NaN when it is multiplied */
        x[i] = y[i] * sru__from_bits(sru__to_bits(t[i]) << 23) + plus;
}

SRU__INLINE sru__vec sru__exp(sru__vec x) { sru__exps(1, &x, 1, 0); return x; }

/* Relative error below 3e-7. */
SRU__INLINE sru__vec sru__tanh(sru__vec x)
{
    const sru__vec a = sru__abs(x), z = x * x;
    sru__vec big = 1.0f - 2.0f * sru__inverse(sru__exp(a + a) + 1.0f), little;
    little = z * -5.70498872745e-3f + 2.06390887954e-2f;    /* coefficients: Cephes, tanhf */
    little = little * z - 5.37397155531e-2f;
    little = little * z + 1.33314422036e-1f;
    little = little * z - 3.33332819422e-1f;
    little = little * z * x + x;
    big = sru__from_bits(sru__to_bits(big) | (sru__to_bits(x) & 0x80000000u));
    return sru__select(a < sru__zero() + 0.625f, little, big);
}

/* sqrt(x) for x >= 0, or its inverse: a guess from the bits, then three Newton steps, which would
   turn infinity into NaN. */
SRU__INLINE sru__vec sru__root(sru__vec x, const int inverse)
{
    sru__vec y;
    x = sru__smaller(sru__zero() + 3.4e38f, x);
    y = sru__from_bits(0x5f375a86u - (sru__to_bits(x) >> 1));
    /* y is halved, not x: half of the least x would count as 0 */
    y = y * (1.5f - x * y * (y * 0.5f));
    y = y * (1.5f - x * y * (y * 0.5f));
    y = y + y * (0.5f - x * y * (y * 0.5f));
    return inverse ? y : x * y;
}

/* ---- the product -------------------------------------------------------------------------------

   C = A B, or C += A B. B is packed in panels of 16 columns. For each k, a panel has a line of 16
   floats: 64 bytes, a line of the cache. So it is read from front to back. A tile is a few rows of
   C by one or more panels. Its sums stay in registers while k runs. For each k, it loads one line
   of each panel, used for all rows, and one number of each row, used for all panels. A full tile
   fills the registers. A tile of fewer rows has more panels if possible: each sum is a chain of
   additions that wait for one another, and it takes many chains to keep the processor busy.

                       full tile     registers                  two rows    one row
       avx512          8 rows x 3    24 sums + 3 of B, of 32    3 panels    6 panels
       avx2            6 rows x 1    12 sums + 2 of B, of 16    2           6; clang 4
       neon and alike  6 rows x 1    24 sums + 4 of B, of 32    1           2
       sse2            2 rows x 1     8 sums + 4 of B, of 16    1           2
       scalar          1 row  x 1    16 sums                    -           1

   product() is called for a strip, which has the rows of a tile. strip() divides its panels into
   tiles, edge() handles columns that do not exist, tile() loops over k, step() adds one term. */

#ifdef SRU__DOT
/* Rounds values to bfloat16 and packs two that follow one another along k into a word, the first in
   the lower half; the last of an odd k is packed with 0. Element (i,p) is a[i*row + p*col]. If col
   is 1, its word is out[i*ldo + p/2]; otherwise row is 1, and its word is out[p/2*ldo + i]. What is
   needed SRU__NEAR lines later is fetched. */
static void SRU__FN(pairs)(float *out, size_t ldo, const float *a, size_t n, size_t row, size_t col,
                           size_t k)
{
    typedef uint16_t halves __attribute__((__vector_size__(2 * SRU__W)));
    const size_t value = col * sizeof *a, ahead = 2 * SRU__NEAR * value;
    size_t i, p;
    for (i = 0; i < n && col == 1; i++, out += ldo, a += row)
        for (p = 0; p < k; p += SRU__W) {
            const halves x = (halves)SRU__HALVES(sru__load_part(a + p, k - p));
            SRU__PREFETCH((uintptr_t)(a + p) + ahead);
            if (k - p >= SRU__W) memcpy(out + p / 2, &x, sizeof x);
            else memcpy(out + p / 2, &x, sru__ceil(k - p, 2) * sizeof *out);
        }
    for (p = 0; p < k && col != 1; p += 2, out += ldo, a += 2 * col)
        for (i = 0; i < n; i += SRU__W) {
            const halves x = (halves)SRU__HALVES(sru__load_part(a + i, n - i));
            sru__bits words = __builtin_convertvector(x, sru__bits);
            SRU__PREFETCH((uintptr_t)(a + i) + ahead);
            SRU__PREFETCH((uintptr_t)(a + i) + ahead + value);
            if (p + 1 < k) {
                const halves y = (halves)SRU__HALVES(sru__load_part(a + col + i, n - i));
                words |= __builtin_convertvector(y, sru__bits) << 16;
            }
            sru__store_part(out + i, sru__from_bits(words), n - i);
        }
}
#endif

/* acc + a b, of floats or of pairs of bfloat16, whose words are passed in the place of floats. */
SRU__INLINE sru__vec SRU__FN(step)(const int pairs, sru__vec acc, float a, sru__vec b)
{
#ifdef SRU__DOT
    if (pairs) {
        sru__bits words = sru__to_bits(sru__zero());
        uint32_t word;
        memcpy(&word, &a, sizeof word);
        words += word;
#if defined(__clang__) && __clang_major__ >= 15 && __clang_major__ <= 17
        __asm__("" : "+v"(words));      /* LLVM 16, 17 (Apple's 15, 16) crash: its issue 68117 */
#endif
        return SRU__DOT(acc, words, b);
    }
#endif
    (void)pairs;
    return a * b + acc;
}

/* One tile of C = A B, or of C += A B if `add`: `rows` rows by `vectors` vectors of columns, which
   are whole panels or the first vectors of one. Element (i,p) of A is a[i*row + p*col]. b[j] is
   panel j, k lines of 16. Row i of panel j of C is at c + i*ldc + j*plane. (If `pairs`, each float
   of A and B is a word of two values, and k counts words.) Each element of C is one chain of sums
   in ascending k, which with `add` 1 begins with C itself: so the bits do not depend on how the
   work is divided. With `add` 2 it is added to C at its end. If only mr of the rows exist, some are
   computed and stored twice.
   Meanwhile the tile fetches into the cache what is needed next, a few lines at a time, because the
   processor drops some if there are many at once: `quarters` quarters of a panel from address
   `ahead`, unless it is 0; and, if vectors are wide, the tile of C below, whose 24 lines at once
   would delay those of B. */
SRU__INLINE void SRU__FN(tile)(const int pairs, const int rows, const int vectors, size_t k,
                               const float *a, size_t row, size_t col, const float *const *b,
                               float *c, size_t ldc, size_t plane, int add, int mr,
                               uintptr_t ahead, size_t quarters)
{
    const int panels = (vectors + SRU__VP - 1) / SRU__VP;
    sru__vec acc[SRU__MR][SRU__NP_ONE * SRU__VP], bv[SRU__NP_ONE * SRU__VP];
    enum { QUADS = (SRU__MR + 3) / 4 };
    /* four rows are addressed from one pointer: eight pointers would take too many registers */
    const float *bp[SRU__NP_ONE], *quad[QUADS];
    size_t first[QUADS];
    /* rows of C to fetch, each at the end of its panel: if a panel begins within a cache line, the
       panel before has brought that line. Rows that are close together are in the cache already */
    const size_t fetched = SRU__W == 16 && rows > 1 && ldc > 16 * SRU__PANEL ? (unsigned)rows : 0;
    const size_t stride = ahead ? SRU__STRIDE / quarters : fetched ? SRU__STRIDE : k;
    size_t p, end, line = 0;
    int i, j;
    SRU__EACH(j, panels, SRU__NP_ONE) bp[j] = b[j];
    /* row i of the tile is row first[i/4] + i%4 of A and C: the second quad ends with the last row
       that exists */
    SRU__EACH(i, (rows + 3) / 4, QUADS) {
        first[i] = (size_t)(i ? mr - (rows - 4 * i) : 0);
        quad[i] = a + first[i] * row;
    }
    SRU__EACH(i, rows, SRU__MR) {
        SRU__EACH(j, vectors, SRU__NP_ONE * SRU__VP)
            acc[i][j] = add != 1 ? sru__zero()
                      : sru__load(c + (first[i / 4] + (unsigned)i % 4) * ldc
                                    + (size_t)(j / SRU__VP) * plane
                                    + (size_t)(j % SRU__VP) * SRU__W);
    }
    if (!ahead) ahead = (uintptr_t)b[0];    /* read anyway, so the loop needs no condition */
    /* `stride` of k at a time; each time fetches 8 lines, a quarter of SRU__STRIDE lines of B */
    for (p = 0; p < k; ahead += SRU__STRIDE * SRU__PANEL) {
        end = sru__min(k, p + stride);
        SRU__UNROLL
        for (i = 0; i < SRU__STRIDE * SRU__PANEL; i += 64)
            SRU__PREFETCH(ahead + (unsigned)i);
        for (; line * k < end * fetched; line++) {
            SRU__EACH(j, panels, SRU__NP_ONE)
                SRU__PREFETCH((uintptr_t)c + 4 * ((fetched + line) * ldc + (size_t)j * plane) + 63);
        }
        SRU__UNROLL_4               /* otherwise counting takes up to a tenth of the time */
        for (; p < end; p++) {
            SRU__EACH(j, vectors, SRU__NP_ONE * SRU__VP)
                bv[j] = sru__load(bp[j / SRU__VP] + p * SRU__PANEL
                                  + (size_t)(j % SRU__VP) * SRU__W);
            SRU__EACH(i, rows, SRU__MR) {
                const float ai = quad[i / 4][(unsigned)i % 4 * row];
                SRU__EACH(j, vectors, SRU__NP_ONE * SRU__VP)
                    acc[i][j] = sru__one_of(rows * vectors,
                                            SRU__FN(step)(pairs, acc[i][j], ai, bv[j]));
            }
            SRU__EACH(i, (rows + 3) / 4, QUADS) {
                quad[i] += col;
#if defined(__clang__) && defined(__x86_64__)
                SRU__ANEW(quad[i]);     /* or clang keeps an address for each row of four steps */
#endif
            }
        }
    }
    SRU__ANEW(c);               /* or the addresses used above are kept in memory until here */
    SRU__ANEW(ldc);
    SRU__ANEW(plane);
    if (add == 2) {             /* all before the first is stored, for some rows are stored twice */
        SRU__EACH(i, rows, SRU__MR) {
            SRU__EACH(j, vectors, SRU__NP_ONE * SRU__VP)
                acc[i][j] = acc[i][j] + sru__load(c + (first[i / 4] + (unsigned)i % 4) * ldc
                                                    + (size_t)(j / SRU__VP) * plane
                                                    + (size_t)(j % SRU__VP) * SRU__W);
        }
    }
    SRU__EACH(i, rows, SRU__MR) {
        SRU__EACH(j, vectors, SRU__NP_ONE * SRU__VP)
            sru__store(c + (first[i / 4] + (unsigned)i % 4) * ldc + (size_t)(j / SRU__VP) * plane
                         + (size_t)(j % SRU__VP) * SRU__W, acc[i][j]);
    }
}

/* Copies nr columns of each panel of a tile from C to t, whose rows have room for SRU__NP_ONE
   panels, or back. If plane is 0, panels of C lie end to end, and only the last is narrower. */
SRU__INLINE void SRU__FN(copy_tile)(float *t, float *c, size_t ldc, size_t plane, int rows,
                                    int panels, int nr, const int back)
{
    const int runs = plane ? panels : 1;                /* of columns side by side */
    const size_t bytes = 4 * (size_t)(nr + (panels - runs) * SRU__PANEL);
    int i, j;
    for (i = 0; i < rows; i++)
        for (j = 0; j < runs; j++) {
            float *in_t = t + (i * SRU__NP_ONE + j) * SRU__PANEL;
            float *in_c = c + (size_t)i * ldc + (size_t)j * plane;
            memcpy(back ? in_c : in_t, back ? in_t : in_c, bytes);
        }
}

/* A tile with only nr columns of each panel or, if plane is 0, of the last. Unless these are whole
   panels or the narrowest tile, it is computed in t, to which C is copied first if `add`, and then
   copied back. */
SRU__INLINE void SRU__FN(edge)(const int pairs, const int rows, const int panels, size_t k,
                               const float *a, size_t row, size_t col, const float *const *b,
                               float *c, size_t ldc, size_t plane, int add, int mr, int nr,
                               uintptr_t ahead, size_t quarters)
{
    const int narrow = SRU__COLUMNS < SRU__PANEL && panels == 1 && nr <= SRU__COLUMNS;
    const int part = nr < (narrow ? SRU__COLUMNS : SRU__PANEL);
    float t[SRU__MR * SRU__NP_ONE * SRU__PANEL], *to = part ? t : c;
    const size_t ldt = part ? SRU__NP_ONE * SRU__PANEL : ldc;
    const size_t apart = plane && !part ? plane : SRU__PANEL;
    if (add && part) {
        memset(t, 0, sizeof t);
        SRU__FN(copy_tile)(t, c, ldc, plane, mr, panels, nr, 0);
    }
    if (narrow)
        SRU__FN(tile)(pairs, rows, SRU__COLUMNS / SRU__W, k, a, row, col, b, to, ldt, apart, add,
                      mr, ahead, quarters);
    else
        SRU__FN(tile)(pairs, rows, panels * SRU__VP, k, a, row, col, b, to, ldt, apart, add, mr,
                      ahead, quarters);
    if (part) SRU__FN(copy_tile)(t, c, ldc, plane, mr, panels, nr, 1);
}

/* Panels of the next tile, of those that are left. The last two tiles are halves: few sums would
   wait for one another, and 2 and 2 panels keep more of them in flight than 3 and 1. */
SRU__INLINE int SRU__FN(tile_panels)(int left, int most)
{
    return left >= 2 * most ? most : left > most ? (left + 1) / 2 : left;
}

/* A strip of `rows` rows (SRU__MR, or 1 to 4), of which mr exist, times any number of panels. Tile
   j fetches `quarters` quarters of a panel from address ahead[j], unless it is 0; see above. */
SRU__INLINE void SRU__FN(strip)(const int pairs, size_t k, const float *a, size_t row, size_t col,
                                int rows, const float *const *b, int panels, float *c, size_t ldc,
                                size_t plane, int add, int mr, int nr, const uintptr_t *ahead,
                                size_t quarters)
{
    const size_t apart = plane ? plane : SRU__PANEL;
    const int most = rows == 1 ? SRU__NP_ONE : rows == 2 ? SRU__NP_TWO : SRU__NP;
    while (panels > 0) {
        const int n = SRU__FN(tile_panels)(panels, most);
        const int cut = plane || n == panels ? nr : SRU__PANEL;
        const uintptr_t from = quarters ? *ahead++ : 0;
        int i, j;
        /* the tile below is probably the next; with wide vectors tile() fetches it bit by bit */
        for (i = 0; SRU__W < 16 && i < mr && rows > 1 && ldc > 16 * SRU__PANEL; i++)
            for (j = 0; j < n; j++)
                SRU__PREFETCH((uintptr_t)c + ((size_t)(rows + i) * ldc + (size_t)j * apart) * 4);
#define SRU__TILE(R, N) SRU__FN(edge)(pairs, R, N, k, a, row, col, b, c, ldc, plane, add, mr, cut, \
                                      from, quarters)
        if (rows == SRU__MR) SRU__KNOWN(SRU__TILE, SRU__MR, SRU__NP);
        else if (rows == 1) SRU__KNOWN(SRU__TILE, 1, SRU__NP_ONE);
#if SRU__MR > 2
        else if (rows == 4) SRU__KNOWN(SRU__TILE, 4, SRU__NP);
        else if (rows == 3) SRU__KNOWN(SRU__TILE, 3, SRU__NP);
        else SRU__KNOWN(SRU__TILE, 2, SRU__NP_TWO);
#endif
#undef SRU__TILE
        b += n;
        c += (size_t)n * apart;
        panels -= n;
    }
}

static void SRU__FN(product)(size_t k, const float *a, size_t row, size_t col, int rows,
                             const float *const *b, int panels, float *c, size_t ldc, size_t plane,
                             int add, int mr, int nr, const uintptr_t *ahead, size_t quarters)
{
    /* five to seven rows are computed in two turns, because vectors of 16 take longer to multiply
       than to load again; but not with a single panel, whose few sums wait for one another */
    if (SRU__W == 16 && rows == SRU__MR && panels > 1 && mr < SRU__MR) {
        const int half = (mr + 1) / 2;
        SRU__FN(product)(k, a, row, col, half, b, panels, c, ldc, plane, add, half, nr, ahead,
                         quarters);
        a += (unsigned)half * row;
        c += (unsigned)half * ldc;
        rows = mr -= half;
        quarters = 0;
    }
    SRU__FN(strip)(0, k, a, row, col, rows, b, panels, c, ldc, plane, add, mr, nr, ahead,
                   quarters);
}

#ifdef SRU__DOT
static void SRU__FN(product_bf16)(size_t k, const float *a, size_t row, size_t col, int rows,
                         const float *const *b, int panels, float *c, size_t ldc, size_t plane,
                         int add, int mr, int nr, const uintptr_t *ahead, size_t quarters)
{
    SRU__FN(strip)(1, k, a, row, col, rows, b, panels, c, ldc, plane, add, mr, nr, ahead,
                   quarters);
}
#endif

/* ---- one row times packed weights, and weights in fewer bits --------------------------------- */

/* Value r of each 32-bit word, which holds two bfloat16 or four bytes (Q8), moved to the upper end
   of the word. The bits of the values before r stay below it; sru__pack_lane() allows for them. A
   byte b becomes about b*2^24, without the scale of its unit: callers take care of both. */
SRU__INLINE sru__vec SRU__FN(value)(sru__bits x, sru_type type, const int r)
{
    if (type == SRU_BF16) return sru__from_bits(r ? x : x << 16);
#ifdef SRU__BYTES
    if (r < 3) {        /* the same where shifts are slow: `which` says where a byte comes from */
        uint32_t four[4];
        sru__bits which;
        unsigned i;
        SRU__EACH(i, 4, 4) four[i] = (0x03020100u + i * 0x04040404u) << (24 - 8 * r)
                                     | 0x00808080u >> 8 * r;
        SRU__EACH(i, SRU__W / 4, 4) memcpy((char *)&which + 16 * i, four, sizeof four);
        return sru__from_ints((sru__mask)SRU__BYTES(x, which));
    }
#endif
    return sru__from_ints((sru__mask)(x << (24 - 8 * r)));
}

SRU__INLINE sru__bits SRU__FN(load_bits)(const char *p)
{
#if SRU__W > 1
    return (sru__bits)sru__load((const float *)(const void *)p);
#else       /* loaded as a float on x87, the bits of a NaN would change */
    sru__bits x;
    memcpy(&x, p, sizeof x);
    return x;
#endif
}

/* Lines p0 ... p0+k-1 of a panel as floats; those of Q8 are 2^24 times as large, without scale. */
static void SRU__FN(unpack)(float *out, const void *panel, sru_type type, size_t p0, size_t k)
{
    const size_t each = sru__per_lane(type);
    const char *from = (const char *)panel + (type == SRU_Q8 ? 64 : 0) + p0 / each * 64;
    float last[4 * SRU__PANEL];
    size_t p, v;
    for (p = 0; p < k; p += each, from += 64) {
        float *to = k - p < each ? last : out + p * SRU__PANEL;
        SRU__PREFETCH((uintptr_t)from + 4096);      /* 0.8 of the time, if it is in memory */
        for (v = 0; v < SRU__PANEL; v += SRU__W) {
            const sru__bits x = SRU__FN(load_bits)(from + 4 * v);
            sru__vec w;
            int r;
            SRU__EACH(r, (int)each, 4) {
                w = SRU__FN(value)(x, type, r);
                sru__store(to + (size_t)r * SRU__PANEL + v, w);
            }
        }
        if (k - p < each) memcpy(out + p * SRU__PANEL, last, (k - p) * SRU__PANEL * 4);
    }
}

/* acc[j] += a[r] * value r of the words of vector j, for r = 0, 1 (BF16) or 0 ... 3 (Q8). So one
   line of each panel, 16 words at byte `at` that hold the values of two or four k, is multiplied by
   the numbers of the row for these k. */
SRU__INLINE void SRU__FN(row_step)(const int panels, sru_type type, sru__vec *acc,
                                   const char *const *from, size_t at, const float *a)
{
    sru__bits x[SRU__LOADS];
    int g, j, r;
    SRU__UNROLL
    for (g = 0; g < SRU__NP_ONE * SRU__VP; g += SRU__LOADS) {
        SRU__EACH(j, panels * SRU__VP - g, SRU__LOADS)
            x[j] = SRU__FN(load_bits)(from[(g + j) / SRU__VP] + at
                                      + (size_t)((g + j) % SRU__VP) * SRU__W * 4);
        SRU__EACH(r, (int)sru__per_lane(type), 4) {
            SRU__EACH(j, panels * SRU__VP - g, SRU__LOADS)
                acc[g + j] = sru__one_of(panels * SRU__VP, a[r] * SRU__FN(value)(x[j], type, r)
                                                           + acc[g + j]);
        }
    }
}

/* A whole row times panels of words side by side. */
SRU__INLINE void SRU__FN(row_words)(const int panels, sru_type type, sru__vec *acc,
                                    const char *const *from, size_t k, const float *a)
{
    const size_t each = sru__per_lane(type);
    float rest[4] = { 0, 0, 0, 0 };
    size_t p;
    for (p = 0; k - p >= each; p += each)
        SRU__FN(row_step)(panels, type, acc, from, p / each * 64, a + p);
    if (p < k) {
        memcpy(rest, a + p, (k - p) * 4);
        SRU__FN(row_step)(panels, type, acc, from, p / each * 64, rest);
    }
}

/* acc += a[i] * line i of each panel, for `run` lines i = p, p+1, ...: all lines of one panel, then
   all of another. Turn g takes the panel j with j+1 = g*by modulo SRU__NP_ONE+1: since that is a
   prime, each panel has one turn. */
SRU__INLINE void SRU__FN(row_lines)(const int panels, const int run, const int by, sru__vec *acc,
                                    const char *const *from, size_t p, const float *a)
{
    int g, i, v;
    SRU__UNROLL
    for (g = 1; g <= SRU__NP_ONE; g++) {
        const int j = g * by % (SRU__NP_ONE + 1) - 1;
        if (j >= panels) continue;
        SRU__EACH(v, SRU__VP, SRU__VP) {
            const float *line = (const float *)(const void *)(from[j] + p * 64) + v * SRU__W;
            sru__vec *sum = &acc[j * SRU__VP + v];
            SRU__EACH(i, run, SRU__RUN)
                *sum = sru__one_of(panels * SRU__VP, a[p + (unsigned)i]
                                                     * sru__load(line + i * SRU__PANEL) + *sum);
        }
    }
}

/* A whole row times panels of floats side by side. Long runs of lines load faster, but panels
   shorter than a page are in the first-level cache. The first lines of the next pages are not
   fetched: that takes longer if all panels together have more than 12 MB. Runs alternate between
   two orders of the panels, and of three or more panels neither order is from first to last. If the
   order were always the same, Zen 5 would load lines from the second-level cache at half its rate,
   and everything would take up to 1.3 times as long. */
SRU__INLINE void SRU__FN(row_floats)(const int panels, sru__vec *acc, const char *const *from,
                                     size_t k, const float *a)
{
    enum { ORDER = (SRU__NP_ONE + 1) / 2, OTHER = SRU__NP_ONE > 1 ? SRU__NP_ONE - 1 : 1 };
    const int runs = SRU__RUN <= 4 || k >= SRU__PAGE;
    size_t p = 0;
    for (; runs && k - p >= 2 * SRU__RUN; p += 2 * SRU__RUN) {
        SRU__FN(row_lines)(panels, SRU__RUN, ORDER, acc, from, p, a);
        SRU__FN(row_lines)(panels, SRU__RUN, OTHER, acc, from, p + SRU__RUN, a);
    }
    if (runs && k - p >= SRU__RUN) {
        SRU__FN(row_lines)(panels, SRU__RUN, ORDER, acc, from, p, a);
        p += SRU__RUN;
    }
    for (; p < k; p++)
        SRU__FN(row_lines)(panels, 1, 1, acc, from, p, a);
}

/* One row times panels side by side, unpacked on the way. The bits are those of unpack() and
   product(): the same sums in the same order. Q8 never adds to C: its sums have no scale yet. */
SRU__INLINE void SRU__FN(row_tile)(const int panels, sru_type type, size_t k, const float *a,
                                   const float *const *b, float *c, int add)
{
    sru__vec acc[SRU__NP_ONE * SRU__VP];
    const char *from[SRU__NP_ONE];
    int j;
    SRU__EACH(j, panels, SRU__NP_ONE) from[j] = (const char *)b[j] + (type == SRU_Q8 ? 64 : 0);
    SRU__EACH(j, panels * SRU__VP, SRU__NP_ONE * SRU__VP)
        acc[j] = add ? sru__load(c + j * SRU__W) : sru__zero();
    if (type == SRU_F32) SRU__FN(row_floats)(panels, acc, from, k, a);
    else SRU__FN(row_words)(panels, type, acc, from, k, a);
    SRU__EACH(j, panels * SRU__VP, SRU__NP_ONE * SRU__VP) {
        const float *scales = b[j / SRU__VP] + j % SRU__VP * SRU__W;
        if (type == SRU_Q8) acc[j] = acc[j] * (sru__load(scales) * SRU__Q8_UNIT);
        sru__store(c + j * SRU__W, acc[j]);
    }
}

static void SRU__FN(row)(size_t k, const float *a, const float *const *b, int panels, sru_type type,
                         float *c, int add, int nr)
{
    while (panels > 0) {
        const int n = SRU__FN(tile_panels)(panels, SRU__NP_ONE);
        const int part = nr < SRU__PANEL && n == panels;
        float t[SRU__NP_ONE * SRU__PANEL], *to = part ? t : c;
        if (add && part) {
            memset(t, 0, sizeof t);
            SRU__FN(copy_tile)(t, c, 0, 0, 1, n, nr, 0);
        }
#define SRU__ROW(TYPE, N) \
        ((TYPE) == SRU_F32 ? SRU__FN(row_tile)(N, SRU_F32, k, a, b, to, add) \
         : (TYPE) == SRU_BF16 ? SRU__FN(row_tile)(N, SRU_BF16, k, a, b, to, add) \
                              : SRU__FN(row_tile)(N, SRU_Q8, k, a, b, to, 0))
        SRU__KNOWN(SRU__ROW, type, SRU__NP_ONE);
#undef SRU__ROW
        if (part) SRU__FN(copy_tile)(t, c, 0, 0, 1, n, nr, 1);
        b += n;
        c += n * SRU__PANEL;
        panels -= n;
    }
}

/* ---- the scan -------------------------------------------------------------------------------- */

/* Rows of one sequence are too far apart for the processor to foresee the next: each is fetched
   SRU__AHEAD steps before it is used. */
SRU__INLINE void SRU__FN(fetch)(const float *p)
{
    int i;
    for (i = 0; i < 4 * SRU__W; i += 16) SRU__PREFETCH((uintptr_t)p + (uintptr_t)i * 4);
}

/* Units in vector q of nv side by side, of which the last has `last`. */
SRU__INLINE size_t SRU__FN(lanes)(int q, const int nv, size_t last)
{
    return q == nv - 1 ? last : SRU__W;
}

/* For nv vectors of units side by side, of which the last has `last` units: v and bias b of each
   gate (0 is f, 1 is r); keep, which is mask_c or 1; and c before the first step. */
SRU__INLINE void SRU__FN(scan_load)(const sru__scan_job *s, const int gates, size_t at,
                                    const int nv, size_t last, sru__vec (*v)[4], sru__vec (*b)[4],
                                    sru__vec *keep, sru__vec *c)
{
    const sru__vec zero = sru__zero();
    int q, g;
    SRU__EACH(q, nv, 4) {
        const size_t n = SRU__FN(lanes)(q, nv, last), i = at + (size_t)q * SRU__W;
        c[q]    = s->c0 ? sru__load_part(s->c0 + i, n) : zero;
        keep[q] = s->mask_c ? sru__load_part(s->mask_c + i, n) : zero + 1.0f;
        SRU__EACH(g, gates, 2) {
            v[g][q] = s->v ? sru__load_part(s->v + (size_t)g * s->plane + i, n) : zero;
            b[g][q] = s->bias ? sru__load_part(s->bias + (size_t)g * s->plane + i, n) : zero;
        }
    }
}

/* v of a gate in one step: vt is added, unless it is NULL. Both cases must meet before v is
   multiplied: with -mavx, gcc moves the product into each, where no sum can be fused with it. */
SRU__INLINE sru__vec SRU__FN(scan_v)(sru__vec v, const float *vt, size_t at, size_t n)
{
    return sru__rounded(vt ? v + sru__load_part(vt + at, n) : v);
}

/* z = 1/f and 1/r of one step; c is the state before it. Of u's last vector, u_last units may be
   read. A gate's loads come before its product and sum: gcc would not fuse these across branches
   that load a part of a vector, and then bits would depend on where a block ends. */
SRU__INLINE void SRU__FN(scan_gates)(const sru__scan_job *s, const int gates, const int nv,
                                     size_t last, size_t u_last, const float *u, const float *vt,
                                     sru__vec (*v)[4], sru__vec (*b)[4], const sru__vec *c,
                                     sru__vec *z)
{
    int q, g;
    SRU__EACH(q, nv, 4) {
        const size_t n = SRU__FN(lanes)(q, nv, last), i = (size_t)q * SRU__W;
        const size_t un = SRU__FN(lanes)(q, nv, u_last);
        SRU__EACH(g, gates, 2) {
            const sru__vec vg = SRU__FN(scan_v)(v[g][q], vt, (size_t)g * s->plane + i, n);
            const sru__vec ug = sru__load_part(u + (size_t)(g + 1) * s->u_plane + i, un) + b[g][q];
            z[gates*q+g] = vg * c[q] + ug;
        }
    }
    sru__exps(gates * nv, z, -1, 1);
}

/* The skip terms of one step: u3 if K is 4; otherwise scale_x*x, or 0 without x. */
SRU__INLINE void SRU__FN(scan_skip)(const sru__scan_job *s, const int nv, size_t last,
                                    size_t u_last, const float *u, const float *x, sru__vec *skip)
{
    int q;
    if (s->K == 4) {
        SRU__EACH(q, nv, 4)
            skip[q] = sru__load_part(u + 3 * s->u_plane + q * SRU__W,
                                     SRU__FN(lanes)(q, nv, u_last));
    } else if (x) {
        SRU__EACH(q, nv, 4)
            skip[q] = sru__rounded(sru__load_part(x + q * SRU__W, SRU__FN(lanes)(q, nv, last))
                                   * s->scale_x);
    } else {
        SRU__EACH(q, nv, 4) skip[q] = sru__zero();
    }
}

/* All T steps of these units, with u0 ... u3 from the K planes of u, sigmoid(z) = 1/(1 + exp(-z)):

       f = sigmoid(u1 + (vf + vft)*c + bf)         vft and vrt: from vt, for this step
       r = sigmoid(u2 + (vr + vrt)*c + br)         with one gate (K = 2), r is 1
       c = (c - u0)*f + u0
       h = (g(c) - skip)*r*keep + skip

   With two gates, g(c) is c or tanh(c). With one gate it is max(0,c), and h = g(c)*keep + skip. A
   padded step leaves c as it is and sets h = 0. */
SRU__INLINE void SRU__FN(scan_vectors)(const sru__scan_job *s, const int gates, size_t at,
                                       const int nv, size_t last)
{
    const sru__vec zero = sru__zero(), one = zero + 1.0f, tiny = zero + 1e-30f;
    sru__vec c[4], v[2][4], b[2][4], keep[4], z[8], skip[4], y[4];
    const size_t u_last = sru__min(SRU__W, last + s->u_n - s->n);
    const ptrdiff_t T = (ptrdiff_t)s->T;
    ptrdiff_t t;
    int q;
    SRU__FN(scan_load)(s, gates, at, nv, last, v, b, keep, c);
    SRU__EACH(q, 2 * nv, 8) z[q] = one;     /* or gcc -Os warns that padding leaves z unset */
    for (t = 0; t < T; t++) {
        const float *u = s->u + t * s->u_step + at;
        const float *x = s->x ? s->x + t * s->step + at : NULL;
        const float *vt = s->vt ? s->vt + t * gates * s->step + at : NULL;
        float *h = s->h + t * s->step + at, *cs = s->c ? s->c + t * s->step + at : NULL;
        const int skipped = s->pad && s->pad[t * s->pad_step];
        if (!skipped) SRU__FN(scan_gates)(s, gates, nv, last, u_last, u, vt, v, b, c, z);
        if (s->distant && t + SRU__AHEAD < T) {
            if (x) SRU__FN(fetch)(x + SRU__AHEAD * s->step);
            SRU__FN(fetch)(h + SRU__AHEAD * s->step);
            if (cs) SRU__FN(fetch)(cs + SRU__AHEAD * s->step);
            for (q = 0; q < s->K && cs; q++)         /* in training u lies in memory */
                SRU__FN(fetch)(u + SRU__AHEAD * s->u_step + (size_t)q * s->u_plane);
        }
        if (skipped) {
            SRU__EACH(q, nv, 4)
                sru__store_part(h + q * SRU__W, zero, SRU__FN(lanes)(q, nv, last));
        } else {
            SRU__EACH(q, nv, 4) {
                const sru__vec u0 = sru__load_part(u + q * SRU__W, SRU__FN(lanes)(q, nv, u_last));
                c[q] = (c[q] - u0) * sru__inverse(z[gates*q]) + u0;
                /* a state that fades out would become denormal, and slow */
                if (!SRU__FLUSHES) c[q] = sru__select(sru__abs(c[q]) < tiny, zero, c[q]);
            }
            SRU__FN(scan_skip)(s, nv, last, u_last, u, x, skip);
            SRU__EACH(q, nv, 4) y[q] = gates == 1 ? sru__larger(zero, c[q]) : c[q];
            if (gates > 1 && s->use_tanh)
                SRU__EACH(q, nv, 4) y[q] = sru__tanh(y[q]);
            SRU__EACH(q, nv, 4) {
                const sru__vec r = gates > 1 ? sru__inverse(z[gates*q+1]) * keep[q] : keep[q];
                if (gates > 1) y[q] = (y[q] - skip[q]) * r + skip[q];
                else y[q] = sru__one_of(1, y[q] * r + skip[q]); /* gcc may join units, unfused */
                sru__store_part(h + q * SRU__W, y[q], SRU__FN(lanes)(q, nv, last));
            }
        }
        if (cs)
            SRU__EACH(q, nv, 4)
                sru__store_part(cs + q * SRU__W, c[q], SRU__FN(lanes)(q, nv, last));
    }
    SRU__EACH(q, nv, 4)
        sru__store_part(s->cT + at + (size_t)q * SRU__W, c[q], SRU__FN(lanes)(q, nv, last));
}

SRU__INLINE void SRU__FN(scan_units)(const sru__scan_job *s, const int gates)
{
    const int any = SRU__W > 1;                 /* the rest at once, not vector by vector */
    size_t at, nv, last;
    for (at = 0; at < s->n; at += nv * SRU__W) {
        const size_t left = s->n - at;
        nv = left >= 4 * SRU__W ? 4 : any ? (left + SRU__W - 1) / SRU__W : 1;
        last = sru__min(SRU__W, left - (nv - 1) * SRU__W);
        if (nv == 1) SRU__FN(scan_vectors)(s, gates, at, 1, last);
        else if (any && nv == 2) SRU__FN(scan_vectors)(s, gates, at, 2, last);
        else if (any && nv == 3) SRU__FN(scan_vectors)(s, gates, at, 3, last);
        else if (any && last < SRU__W) SRU__FN(scan_vectors)(s, gates, at, 4, last);
        else SRU__FN(scan_vectors)(s, gates, at, 4, SRU__W);
    }
}

static void SRU__FN(scan_forward)(const sru__scan_job *s)
{
    if (s->K > 2) SRU__FN(scan_units)(s, 2);
    else SRU__FN(scan_units)(s, 1);
}

#ifndef SRU_NO_BACKWARD
/* The gradients, from the last step to the first; pointers are those of the first step. `was` is
   the state before a step; dc is the gradient of the state after it, then of the state before it.
   Each sum has only one product: of two, gcc would sometimes fuse one and sometimes the other. */
SRU__INLINE void SRU__FN(scan_backward_vectors)(const sru__scan_job *s, const int gates, size_t at,
                                                const int nv, size_t last)
{
    const sru__vec zero = sru__zero(), one = zero + 1.0f;
    sru__vec v[2][4], b[2][4], keep[4], c0[4], was[4], z[8], y[4], skip[4];
    sru__vec dc[4], dv[2][4], db[2][4];
    ptrdiff_t t;
    int k, q, g;
    SRU__FN(scan_load)(s, gates, at, nv, last, v, b, keep, c0);
    SRU__EACH(q, nv, 4) {
        const size_t n = SRU__FN(lanes)(q, nv, last), i = at + (size_t)q * SRU__W;
        dc[q] = s->dc ? sru__load_part(s->dc + i, n) : zero;
        SRU__EACH(g, gates, 2) dv[g][q] = db[g][q] = zero;
    }
    for (t = (ptrdiff_t)s->T - 1; t >= 0; t--) {
        const float *u = s->u + t * s->u_step + at;
        const float *c = s->c + t * s->step + at, *dh = s->dh + t * s->step + at;
        const float *x = s->x ? s->x + t * s->step + at : NULL;
        const float *vt = s->vt ? s->vt + t * gates * s->step + at : NULL;
        float *du = s->du + t * s->u_step + at, *dx = s->dx ? s->dx + t * s->step + at : NULL;
        float *dvt = s->dvt ? s->dvt + t * gates * s->step + at : NULL;
        const int skipped = s->pad && s->pad[t * s->pad_step];
        if (t > SRU__AHEAD) {
            for (k = 0; k < s->K; k++) {
                SRU__FN(fetch)(u - SRU__AHEAD * s->u_step + (size_t)k * s->u_plane);
                SRU__FN(fetch)(du - SRU__AHEAD * s->u_step + (size_t)k * s->u_plane);
            }
            SRU__FN(fetch)(c - (SRU__AHEAD + 1) * s->step);
            SRU__FN(fetch)(dh - SRU__AHEAD * s->step);
            if (x) SRU__FN(fetch)(x - SRU__AHEAD * s->step);
            if (dx) SRU__FN(fetch)(dx - SRU__AHEAD * s->step);
        }
        if (!skipped) {
            SRU__EACH(q, nv, 4)
                was[q] = t ? sru__load_part(c - s->step + q * SRU__W, SRU__FN(lanes)(q, nv, last))
                           : c0[q];
            SRU__FN(scan_gates)(s, gates, nv, last, last, u, vt, v, b, was, z);
            SRU__FN(scan_skip)(s, nv, last, last, u, x, skip);
            SRU__EACH(q, nv, 4)
                y[q] = sru__load_part(c + q * SRU__W, SRU__FN(lanes)(q, nv, last));
            if (gates > 1 && s->use_tanh)
                SRU__EACH(q, nv, 4) y[q] = sru__tanh(y[q]);
        }
        SRU__EACH(q, nv, 4) {
            const size_t n = SRU__FN(lanes)(q, nv, last), i = (size_t)q * SRU__W;
            sru__vec vg[2], dz[2], u0, f, r, dy, ds, dht, dct, back;
            if (skipped) {
                for (k = 0; k < s->K; k++)
                    sru__store_part(du + (size_t)k * s->u_plane + i, zero, n);
                if (dx) sru__store_part(dx + i, zero, n);
                for (g = 0; g < gates && dvt; g++)
                    sru__store_part(dvt + (size_t)g * s->plane + i, zero, n);
                continue;
            }
            SRU__EACH(g, gates, 2)
                vg[g] = SRU__FN(scan_v)(v[g][q], vt, (size_t)g * s->plane + i, n);
            u0 = sru__load_part(u + i, n);
            f = sru__inverse(z[gates*q]);
            r = gates > 1 ? sru__inverse(z[gates*q+1]) : one;
            dht = sru__load_part(dh + i, n);

            /* forward: h = (y - skip)*r*keep + skip, r = sigmoid(zr); one gate: y*keep + skip */
            dy = sru__rounded(dht * keep[q] * r);
            dz[1] = dht * keep[q] * (y[q] - skip[q]) * r * (one - r);
            ds = gates > 1 ? dht - dy : dht;
            if (s->K == 4) sru__store_part(du + 3 * s->u_plane + i, ds, n);
            else if (dx) sru__store_part(dx + i, ds * s->scale_x, n);
            if (gates == 1) dct = sru__select(y[q] > zero, dy, zero) + dc[q];
            else dct = s->use_tanh ? dy * (one - y[q] * y[q]) + dc[q] : dy + dc[q];

            /* forward: c = (was - u0)*f + u0, f = sigmoid(zf) */
            sru__store_part(du + i, dct * (one - f), n);
            dz[0] = dct * (was[q] - u0) * f * (one - f);

            /* forward: zf = u1 + vf*was + bf, zr = u2 + vr*was + br */
            SRU__EACH(g, gates, 2) {
                const sru__vec dvg = sru__rounded(dz[g] * was[q]);
                sru__store_part(du + (size_t)(g + 1) * s->u_plane + i, dz[g], n);
                if (dvt) sru__store_part(dvt + (size_t)g * s->plane + i, dvg, n);
                dv[g][q] = dv[g][q] + dvg;
                db[g][q] = db[g][q] + dz[g];
            }
            back = sru__rounded(dz[0] * vg[0]);
            if (gates > 1) back = dz[1] * vg[1] + back;
            dc[q] = dct * f + back;
        }
    }
    SRU__EACH(q, nv, 4) {
        const size_t n = SRU__FN(lanes)(q, nv, last), i = at + (size_t)q * SRU__W;
        if (s->dc) sru__store_part(s->dc + i, dc[q], n);
        SRU__EACH(g, gates, 2) {
            sru__store_part(s->sums + (size_t)g * s->plane + i, dv[g][q], n);
            sru__store_part(s->sums + (size_t)(gates + g) * s->plane + i, db[g][q], n);
        }
    }
}

SRU__INLINE void SRU__FN(scan_backward_units)(const sru__scan_job *s, const int gates)
{
    size_t at = 0;
    for (; at + 4 * SRU__W <= s->n; at += 4 * SRU__W)
        SRU__FN(scan_backward_vectors)(s, gates, at, 4, SRU__W);
    for (; at < s->n; at += SRU__W)
        SRU__FN(scan_backward_vectors)(s, gates, at, 1, sru__min(SRU__W, s->n - at));
}

static void SRU__FN(scan_backward)(const sru__scan_job *s)
{
    if (s->K > 2) SRU__FN(scan_backward_units)(s, 2);
    else SRU__FN(scan_backward_units)(s, 1);
}
#endif

/* ---- attention ------------------------------------------------------------------------------- */

/* Turns n vectors of one query's scores into weights exp(score - most), or 0 where the score is
   hidden, and adds them to the sum. */
SRU__INLINE sru__vec SRU__FN(weigh)(float *s, const int n, float most, sru__vec sum)
{
    const sru__vec hidden = sru__zero() + SRU__HIDDEN;
    sru__vec p[4];
    int j;
    SRU__EACH(j, n, 4) p[j] = sru__load(s + j * SRU__W) - most;
    sru__exps(n, p, 1, 0);
    SRU__EACH(j, n, 4) {
        p[j] = sru__select(sru__load(s + j * SRU__W) <= hidden, sru__zero(), p[j]);
        sru__store(s + j * SRU__W, p[j]);
        sum = sum + p[j];
    }
    return sum;
}

/* Turns the first `keys` scores (whole panels) of each of n queries, SRU__KEYS apart, into weights.
   most (n) is about the highest score so far: weights may be above 1, as long as they stay finite.
   total (n,16) is the sum of the weights so far, in lanes, and sums (n,wide) the sum of values
   times weights; when most rises, both are scaled down. */
SRU__INLINE void SRU__FN(attend_keys)(float *s, size_t n, const size_t keys, float *most,
                                      float *total, float *sums, size_t wide)
{
    for (; n; n--, s += SRU__KEYS, most++, total += SRU__PANEL, sums += wide) {
        sru__vec best = sru__zero() + SRU__HIDDEN, sum = sru__load(total);
        float now = *most, highest;
        size_t at;
        for (at = 0; at < keys; at += SRU__W) best = sru__larger(best, sru__load(s + at));
        highest = sru__highest(best);
        if (highest > now + 16.0f) {            /* else weights are at most exp(16) */
            const sru__vec by = sru__exp(sru__zero() + (now - highest));
            for (at = 0; at < wide; at += SRU__W)
                sru__store(sums + at, sru__load(sums + at) * by);
            sum = sum * by;
            now = *most = highest;
        }
        for (at = 0; at + 4 * SRU__W <= keys; at += 4 * SRU__W)
            sum = SRU__FN(weigh)(s + at, 4, now, sum);
        for (; at < keys; at += SRU__W) sum = SRU__FN(weigh)(s + at, 1, now, sum);
        sru__store(total, sum);
    }
}

static void SRU__FN(attend)(float *s, size_t n, size_t keys, float *most, float *total,
                            float *sums, size_t wide)
{
    if (keys == SRU__KEYS) SRU__FN(attend_keys)(s, n, SRU__KEYS, most, total, sums, wide);
    else SRU__FN(attend_keys)(s, n, keys, most, total, sums, wide);
}

/* One query's a = sums/sum and o = alpha*a + q; a, q may be NULL. Returns the sum of weights. */
static float SRU__FN(attended)(float *o, float *a, const float *q, const float *sums,
                               const float *total, float alpha, size_t n)
{
    const float sum = sru__sum(sru__load(total)), by = sum > 0 ? 1 / sum : 0;
    size_t i;
    for (i = 0; i < n; i += SRU__W) {
        /* no branch between the product and the sum, or they might not always fuse */
        const sru__vec x = q ? sru__load_part(q + i, n - i) : sru__zero();
        const sru__vec v = sru__load(sums + i) * by, y = alpha * v + x;
        if (a) sru__store_part(a + i, v, n - i);
        sru__store_part(o + i, y, n - i);
    }
    return sum;
}

/* s += m. Where m is -inf, s becomes -inf, even if the score was infinite or NaN. */
static void SRU__FN(add_mask)(float *s, const float *m, size_t n)
{
    size_t i;
    for (i = 0; i < n; i += SRU__W) {
        const sru__vec by = sru__load_part(m + i, n - i), sum = sru__load_part(s + i, n - i) + by;
        sru__store_part(s + i, sru__select(by < sru__zero() - 3.4e38f, by, sum), n - i);
    }
}

#ifndef SRU_NO_BACKWARD
/* For one query and SRU__KEYS keys, s holds the scores and ds the gradients of their softmax p.
   They become s = p and ds = p*(ds - mean), the gradients of the scores; mean is the sum of p*ds
   over all keys. stats holds m and 1/sum from forward, so that p = exp(s - m)/sum. */
static void SRU__FN(attend_backward)(float *s, float *ds, const float *stats, float mean)
{
    const sru__vec hidden = sru__zero() + SRU__HIDDEN;
    int i;
    for (i = 0; i < SRU__KEYS; i += SRU__W) {
        const sru__vec v = sru__load(s + i);
        const sru__vec e = sru__exp(v - stats[0]) * stats[1];
        const sru__vec p = sru__select(v <= hidden, sru__zero(), e);
        const sru__vec d = p * (sru__load(ds + i) - mean);
        sru__store(s + i, p);
        /* ds may be infinite or, behind the last key, anything */
        sru__store(ds + i, sru__select(v <= hidden, sru__zero(), d));
    }
}
#endif

/* ---- rows ------------------------------------------------------------------------------------ */

/* The last vector of a row of n values, see fresh(). */
SRU__INLINE sru__vec SRU__FN(load_end)(const float *x, size_t n)
{
    return n < SRU__W ? sru__load_part(x, n) : sru__load(x + n - SRU__W);
}

SRU__INLINE sru__vec SRU__FN(add_term)(sru__vec sum, sru__vec d, const int square)
{
    return square ? d * d + sum : sum + d;
}

/* The sum of x - mean, or of its squares: four sums at a time, each a chain of its own. */
SRU__INLINE float SRU__FN(row_sum)(const float *x, float mean, const int square, size_t n)
{
    sru__vec sum[4], d;
    size_t i = 0;
    int q;
    SRU__UNROLL
    for (q = 0; q < 4; q++) sum[q] = sru__zero();
    for (; i + 4 * SRU__W <= n; i += 4 * SRU__W) {
        SRU__UNROLL
        for (q = 0; q < 4; q++) {
            d = sru__load(x + i + (size_t)q * SRU__W) - mean;
            sum[q] = SRU__FN(add_term)(sum[q], d, square);
        }
    }
    for (; i + SRU__W <= n; i += SRU__W) {
        d = sru__load(x + i) - mean;
        sum[0] = SRU__FN(add_term)(sum[0], d, square);
    }
    if (i < n) {
        d = sru__select(SRU__FN(fresh)(n), SRU__FN(load_end)(x, n) - mean, sru__zero());
        sum[1] = SRU__FN(add_term)(sum[1], d, square);
    }
    return sru__sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* The sums of a row are chains of dependent operations, which the processor overlaps if rows are
   summed one right after the other: as many as the first-level cache holds. */
SRU__INLINE size_t SRU__FN(rows_side_by_side)(size_t n)
{
    return sru__min(SRU__PANEL, sru__max(1, 3072 / n));
}

/* y = (x - mean)*rstd*gain + bias */
static void SRU__FN(layernorm)(float *y, float *stats, const float *x, const float *gain,
                               const float *bias, size_t rows, size_t n)
{
    float mean[SRU__PANEL], rstd[SRU__PANEL] = { 0 };
    size_t lot, r, i;
    for (; rows > 0; rows -= lot, x += lot * n, y += lot * n) {
        lot = sru__min(rows, SRU__FN(rows_side_by_side)(n));
        for (r = 0; r < lot; r++)   /* less the first value: exact for a constant row */
            mean[r] = x[r * n] + SRU__FN(row_sum)(x + r * n, x[r * n], 0, n) / (float)n;
        for (r = 0; r < lot; r++) rstd[r] = SRU__FN(row_sum)(x + r * n, mean[r], 1, n) / (float)n;
        for (r = 0; r < lot; r += SRU__W)
            sru__store(rstd + r, sru__root(sru__load(rstd + r) + 1e-5f, 1));
        for (r = 0; r < lot; r++) {
            const float *from = x + r * n;
            const float m = mean[r], s = rstd[r];
            const sru__vec end = SRU__FN(load_end)(from, n);    /* y may be where x is */
            float *to = y + r * n;
            sru__vec v;
            for (i = 0; i + SRU__W <= n; i += SRU__W) {
                v = (sru__load(from + i) - m) * s * sru__load(gain + i) + sru__load(bias + i);
                sru__store(to + i, v);
            }
            if (i < n) {
                v = (end - m) * s * SRU__FN(load_end)(gain, n) + SRU__FN(load_end)(bias, n);
                if (n < SRU__W) sru__store_part(to, v, n);
                else sru__store(to + n - SRU__W, v);
            }
            if (stats) {
                *stats++ = m;
                *stats++ = s;
            }
        }
    }
}

#ifndef SRU_NO_BACKWARD
/* n columns of a row, at most a vector, from column i on: see below. */
SRU__INLINE void SRU__FN(norm_columns)(size_t i, size_t n, float *dx, float *dgain, float *dbias,
                                       const float *dy, const float *x, const float *gain,
                                       const float *stats, const float *means, float beta)
{
    const sru__vec d = sru__load_part(dy + i, n), g = sru__load_part(gain + i, n);
    const sru__vec xhat = (sru__load_part(x + i, n) - stats[0]) * stats[1];
    const sru__vec db = sru__load_part(dbias + i, n);
    sru__vec dg = sru__load_part(dgain + i, n);
    sru__vec v = (d * g - means[0] - xhat * means[1]) * stats[1];
    dg = d * xhat + dg;
    if (dx && beta != 0) v = sru__load_part(dx + i, n) + v;
    if (dx) sru__store_part(dx + i, v, n);
    sru__store_part(dgain + i, dg, n);
    sru__store_part(dbias + i, db + d, n);
}

/* With xhat = (x - mean)*rstd and g = dy*gain: dgain += dy*xhat, dbias += dy,
   dx = (g - mean(g) - xhat*mean(g*xhat))*rstd, or += where beta is not 0. */
static void SRU__FN(layernorm_backward)(float *dx, float *dgain, float *dbias, const float *dy,
                                        const float *x, const float *gain, const float *stats,
                                        float beta, size_t rows, size_t n)
{
    const sru__mask fresh = SRU__FN(fresh)(n);
    float means[2 * SRU__PANEL];
    size_t lot, r, i, at;
    for (; rows > 0; rows -= lot) {
        sru__vec g;
        lot = sru__min(rows, SRU__FN(rows_side_by_side)(n));
        for (r = at = 0; r < lot; r++, at += n) {
            const float mean = stats[2 * r], rstd = stats[2 * r + 1];
            sru__vec s1 = sru__zero(), s2 = s1;
            for (i = 0; i + SRU__W <= n; i += SRU__W) {
                g = sru__load(dy + at + i) * sru__load(gain + i);
                s1 = s1 + g;
                s2 = g * ((sru__load(x + at + i) - mean) * rstd) + s2;
            }
            if (i < n) {
                const sru__vec d = SRU__FN(load_end)(x + at, n) - mean;
                g = SRU__FN(load_end)(dy + at, n) * SRU__FN(load_end)(gain, n);
                g = sru__select(fresh, g, sru__zero());
                s1 = s1 + g;
                s2 = g * (sru__select(fresh, d, sru__zero()) * rstd) + s2;
            }
            means[2 * r] = sru__sum(s1) / (float)n;
            means[2 * r + 1] = sru__sum(s2) / (float)n;
        }
        for (r = 0; r < lot; r++, dy += n, x += n, stats += 2) {
            for (i = 0; i + SRU__W <= n; i += SRU__W)   /* known to be a whole vector */
                SRU__FN(norm_columns)(i, SRU__W, dx, dgain, dbias, dy, x, gain, stats,
                                      means + 2 * r, beta);
            if (i < n)
                SRU__FN(norm_columns)(i, n - i, dx, dgain, dbias, dy, x, gain, stats,
                                      means + 2 * r, beta);
            if (dx) dx += n;
        }
    }
}
#endif

/* y = x*by */
static void SRU__FN(scale)(float *y, const float *x, float by, size_t n)
{
    size_t i;
    for (i = 0; i < n; i += SRU__W)
        sru__store_part(y + i, sru__load_part(x + i, n - i) * by, n - i);
}

/* Returns -log softmax(y)[target];  dy = scale*(softmax(y) - onehot), unless NULL. */
static double SRU__FN(softmax_loss)(float *dy, const float *y, size_t target, float scale, size_t n)
{
    /* vectors in a partial sum. If very many values of about the same size were added to one sum,
       each would be rounded the same way, to a bit that is a large part of the value */
    enum { RUN = 256 };
    sru__vec best = sru__zero() + y[0], sum = sru__zero(), sums = sum;
    const float aim = y[target];
    float most, total;
    size_t i;
    for (i = 0; i + SRU__W <= n; i += SRU__W) best = sru__larger(best, sru__load(y + i));
    most = sru__highest(best);
    for (; i < n; i++) most = y[i] > most ? y[i] : most;
    for (i = 0; i < n; i += SRU__W) {
        sru__vec e = sru__exp(sru__load_part(y + i, n - i) - most);
        /* lanes without a value hold exp(0 - most) */
        if (n - i < SRU__W) e = sru__load_part((const float *)&e, n - i);
        sum = sum + e;
        if (dy) sru__store_part(dy + i, e, n - i);
        if (i % (RUN * SRU__W) == 0) {
            sums = sums + sum;
            sum = sru__zero();
        }
    }
    total = sru__sum(sums + sum);
    if (dy) {
        SRU__FN(scale)(dy, dy, scale / total, n);
        dy[target] -= scale;
    }
    return sru__dlog((double)total) + ((double)most - (double)aim);
}

/* y += x */
static void SRU__FN(add)(float *y, const float *x, size_t n)
{
    size_t i;
    for (i = 0; i < n; i += SRU__W)
        sru__store_part(y + i, sru__load_part(y + i, n - i) + sru__load_part(x + i, n - i), n - i);
}

/* y = x*m, or += where beta is not 0 */
static void SRU__FN(multiply)(float *y, const float *x, const float *m, float beta, size_t n)
{
    size_t i;
    for (i = 0; i < n; i += SRU__W) {
        sru__vec p = sru__load_part(x + i, n - i) * sru__load_part(m + i, n - i);
        if (beta != 0) p = sru__load_part(y + i, n - i) + p;
        sru__store_part(y + i, p, n - i);
    }
}

/* Factors of dropout: m[i] is 0 where number first+i of the key is below p. Numbers are those of
   sru__uniform(), but without the last step of sru__mix(), which leaves the upper 31 bits alone.
   Even and odd numbers are drawn in lanes of 64 bits, and their upper halves are the lanes of a
   vector. With vectors of four this would take as long as one number after another. */
static void SRU__FN(draw)(float *m, uint64_t key, uint64_t first, float p, size_t n)
{
    const float keep = p < 1 ? 1 / (1 - p) : 0;
    size_t i;
#if SRU__W > 4
    typedef uint64_t wide __attribute__((__vector_size__(4 * SRU__W)));
    const uint64_t by = 0x9e3779b97f4a7c15u;
    wide counter[2], z[2];
    unsigned j;
    SRU__EACH(i, SRU__W, SRU__W) counter[i % 2][i / 2] = key + (first + i + 1) * by;
    for (i = 0; i < n; i += SRU__W) {
        SRU__EACH(j, 2, 2) {
            z[j] = (counter[j] ^ (counter[j] >> 30)) * 0xbf58476d1ce4e5b9u;
            z[j] = (z[j] ^ (z[j] >> 27)) * 0x94d049bb133111ebu;
            counter[j] += SRU__W * by;
        }
        z[0] = z[0] >> 32 | (z[1] & 0xffffffff00000000u);
        sru__store_part(m + i, sru__select(sru__from_ints((sru__mask)((sru__bits)z[0] >> 8))
                                           * (1.0f / 16777216.0f) < p, sru__zero(),
                                           sru__zero() + keep), n - i);
    }
#else
    for (i = 0; i < n; i++) m[i] = sru__uniform(key, first + i) < p ? 0 : keep;
#endif
}

#ifndef SRU_NO_BACKWARD
SRU__INLINE float SRU__FN(scaled_squares)(const float *g, const float scale, size_t n)
{
    sru__vec sum = sru__zero();
    size_t i;
    for (i = 0; i < n; i += SRU__W) {
        const sru__vec v = sru__load_part(g + i, n - i) * scale;
        sum = v * v + sum;
    }
    return sru__sum(sum);
}

/* The sum of squares, in single precision for 4096 values at a time. If that overflows, or is so
   small that much of it may have been lost, it is computed again from values scaled closer to 1. */
static double SRU__FN(squares)(const float *g, size_t n)
{
    double total = 0;
    size_t m;
    for (; n > 0; n -= m, g += m) {
        float part, scale = 1;
        m = sru__min(n, 4096);
        part = SRU__FN(scaled_squares)(g, 1, m);
        if (!(part > 1e-24f && part < 1e38f)) {
            scale = part > 1 ? 1e-25f : 1e25f;
            part = SRU__FN(scaled_squares)(g, scale, m);
        }
        total += (double)part / ((double)scale * (double)scale);
    }
    return total;
}

/* With d = scale*g: m += (1 - beta1)*(d - m), v += (1 - beta2)*(d*d - v), g = 0 and
   p = (1 - lr*decay)*p - lr*m/(1 - beta1^t) / (sqrt(v/(1 - beta2^t)) + eps). */
static void SRU__FN(adamw)(float *p, float *m, float *v, float *g, const sru__adamw_job *s,
                           size_t n)
{
    size_t i;
    for (i = 0; i < n; i += SRU__W) {
        const sru__vec d = sru__load_part(g + i, n - i) * s->scale;
        const sru__vec p0 = sru__load_part(p + i, n - i);
        const sru__vec m0 = sru__load_part(m + i, n - i), v0 = sru__load_part(v + i, n - i);
        /* one product in each sum: of two, the compiler would sometimes fuse one and sometimes the
           other. v must not become infinite, or the next v is NaN */
        const sru__vec m1 = (d - m0) * s->step1 + m0, sum = (d * d - v0) * s->step2 + v0;
        const sru__vec v1 = sru__smaller(sru__zero() + 3.4e38f, sum);
        const sru__vec down = sru__root(v1, 0) * s->root_unbias2 + s->eps;
        sru__store_part(m + i, m1, n - i);
        sru__store_part(v + i, v1, n - i);
        sru__store_part(p + i, p0 * s->shrink - m1 * s->rate / down, n - i);
        sru__store_part(g + i, sru__zero(), n - i);
    }
}
#endif

/* The operators with these kernels. */
#define SRU__OFFER(KERNELS, BACKEND, NAME, DOT, PAIRS) \
    static const sru__kernels KERNELS = { \
        SRU__MR, SRU__NP, SRU__COLUMNS, SRU__W < 4 ? 16 : 4 * SRU__W, \
        SRU__FN(product), DOT, PAIRS, SRU__FN(unpack), SRU__FN(row), SRU__FN(scan_forward), \
        SRU__FN(attend), SRU__FN(attended), SRU__FN(add_mask), SRU__FN(layernorm), \
        SRU__FN(softmax_loss), SRU__FN(add), SRU__FN(scale), SRU__FN(multiply), SRU__FN(draw), \
        SRU__TRAINING(SRU__FN(scan_backward)), SRU__TRAINING(SRU__FN(attend_backward)), \
        SRU__TRAINING(SRU__FN(layernorm_backward)), SRU__TRAINING(SRU__FN(squares)), \
        SRU__TRAINING(SRU__FN(adamw)) \
    }; \
    static const sru_backend BACKEND = { \
        NAME, 256, &KERNELS, sru__cpu_alloc, sru__cpu_release, sru__cpu_copy, sru__cpu_pack, \
        sru__cpu_linear_forward, SRU__TRAINING(sru__cpu_linear_backward), \
        sru__cpu_scan_forward, SRU__TRAINING(sru__cpu_scan_backward), \
        sru__cpu_attention_forward, SRU__TRAINING(sru__cpu_attention_backward), \
        sru__cpu_layernorm_forward, SRU__TRAINING(sru__cpu_layernorm_backward), \
        sru__cpu_embedding_forward, SRU__TRAINING(sru__cpu_embedding_backward), \
        sru__cpu_dropout, sru__cpu_softmax_loss, \
        SRU__TRAINING(sru__cpu_norm), SRU__TRAINING(sru__cpu_adamw) \
    }

SRU__OFFER(SRU__FN(kernels), SRU__FN(backend), SRU__STR(SRU__ISA), NULL, NULL);
#ifdef SRU__DOT
SRU__OFFER(SRU__FN(kernels_bf16), SRU__FN(backend_bf16), SRU__STR(SRU__ISA) "_bf16",
           SRU__FN(product_bf16), SRU__FN(pairs));
#endif

#undef SRU__OFFER
#undef SRU__GLUE_
#undef SRU__GLUE
#undef SRU__STR_
#undef SRU__STR
#undef SRU__FN
#undef SRU__VP
#undef SRU__COLUMNS
#undef SRU__RUN
#undef SRU__LOADS
#undef SRU__KNOWN
#undef SRU__EACH
#undef sru__vec
#undef sru__loose
#undef sru__mask
#undef sru__bits
#undef sru__zero
#undef sru__load
#undef sru__store
#undef sru__load_part
#undef sru__store_part
#undef sru__to_bits
#undef sru__from_bits
#undef sru__from_ints
#undef sru__select
#undef sru__abs
#undef sru__inverse
#undef sru__rounded
#undef sru__one_of
#undef sru__sum
#undef sru__highest
#undef sru__smaller
#undef sru__larger
#undef sru__exps
#undef sru__exp
#undef sru__tanh
#undef sru__root
#undef SRU__ISA
#undef SRU__W
#undef SRU__MIN
#undef SRU__MAX
#undef SRU__GUESS
#undef SRU__HALVES
#undef SRU__DOT
#undef SRU__BYTES
#undef SRU__LOAD_PART
#undef SRU__IF_NUMBER
#undef SRU__MR
#undef SRU__NP
#undef SRU__NP_TWO
#undef SRU__NP_ONE
#endif /* SRU__PASS */

/* -------------------------------------------------------------------------------------------------
   This software is available under two licences: choose whichever you prefer.

   A. Public domain (www.unlicense.org)
   This is free and unencumbered software released into the public domain. Anyone is free to copy,
   modify, publish, use, compile, sell, or distribute this software, either in source code form or
   as a compiled binary, for any purpose, commercial or non-commercial, and by any means.
   In jurisdictions that recognize copyright laws, the author or authors of this software dedicate
   any and all copyright interest in the software to the public domain. We make this dedication for
   the benefit of the public at large and to the detriment of our heirs and successors. We intend
   this dedication to be an overt act of relinquishment in perpetuity of all present and future
   rights to this software under copyright law.
   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
   NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
   NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
   LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
   CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.

   B. MIT License
   Copyright (c) 2026 the authors of sru.h
   Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
   associated documentation files (the "Software"), to deal in the Software without restriction,
   including without limitation the rights to use, copy, modify, merge, publish, distribute,
   sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
   furnished to do so, subject to the following conditions:
   The above copyright notice and this permission notice shall be included in all copies or
   substantial portions of the Software.
   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
   NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
   NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
   DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
   OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE. */
