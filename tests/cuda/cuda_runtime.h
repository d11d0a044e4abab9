/* A stand-in for the CUDA Toolkit: it compiles sru_cuda.cu, unchanged, as C++17 and runs it on the
   CPU, so that the GPU's code is tested where there is no GPU. (-I tests/cuda, -x c++)

   Each thread of a block is a fiber, and the schedule is drawn from STANDIN_SEED: which block comes
   next, which warp runs ahead, in which order its lanes run. It finds

       missing barriers        by schedules and by ThreadSanitizer, which is told of the fibers
       barriers not reached    by all threads of a block, or at different places: "deadlock"
       shuffles                whose lanes left, or do not agree
       reads and writes        outside an allocation, by AddressSanitizer; without it, writes, when
                               the allocation is freed
       the host                touching device memory, which is closed to it, or reading a result
                               too early: work waits in its stream until something synchronises
       uninitialised memory    which is filled with NaN
       allocation or waiting   during the capture of a graph

   It cannot find what depends on the hardware: speed, the error of approximate instructions, the
   order of memory operations between blocks. STANDIN_DEVICES=0, STANDIN_CAPABILITY=70,
   STANDIN_MULTIPROCESSORS=132 and STANDIN_MEMORY=BYTES make a machine without a GPU, with an old
   one, with a large one, with little memory. */
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <tuple>
#include <vector>
#include <sys/mman.h>
#include <ucontext.h>

#if !defined(__clang__)
#pragma GCC optimize("no-thread-jumps")     /* which makes of one barrier two, at two places */
#endif

#if defined(__SANITIZE_THREAD__)
extern "C" {
void *__tsan_create_fiber(unsigned);
void *__tsan_get_current_fiber(void);
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_acquire(void *);
void __tsan_release(void *);
void AnnotateIgnoreReadsBegin(const char *, int);
void AnnotateIgnoreReadsEnd(const char *, int);
void AnnotateIgnoreWritesBegin(const char *, int);
void AnnotateIgnoreWritesEnd(const char *, int);
}
#define STANDIN_TSAN(...) __VA_ARGS__
#else
#define STANDIN_TSAN(...)
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define STANDIN_GUARD(p, n)   __asan_poison_memory_region(p, n)
#define STANDIN_UNGUARD(p, n) __asan_unpoison_memory_region(p, n)
#else
#define STANDIN_GUARD(p, n)   ((void)0)
#define STANDIN_UNGUARD(p, n) ((void)0)
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static thread_local      /* the fibers of a block share one thread */

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

enum cudaError_t {
    cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9, cudaErrorNoDevice = 100,
    cudaErrorStreamCaptureUnsupported = 900
};

namespace standin {

[[noreturn]] inline void die(const char *why)
{
    fprintf(stderr, "CUDA stand-in: %s\n", why);
    abort();
}

inline long setting(const char *name, long otherwise)
{
    const char *value = getenv(name);
    return value ? atol(value) : otherwise;
}

/* splitmix64. With std::mt19937, tests take a fifth longer. */
struct Random {
    typedef uint64_t result_type;
    static constexpr uint64_t min() { return 0; }
    static constexpr uint64_t max() { return UINT64_MAX; }
    uint64_t state;
    uint64_t operator()()
    {
        uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30))*UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27))*UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
    }
};

inline Random &random()
{
    static Random engine{(uint64_t)setting("STANDIN_SEED", 1)};
    return engine;
}

/* The stand-in's own memory is none of ThreadSanitizer's business. */
struct Private {
    STANDIN_TSAN(Private() { AnnotateIgnoreReadsBegin("", 0); AnnotateIgnoreWritesBegin("", 0); }
                 ~Private() { AnnotateIgnoreReadsEnd("", 0); AnnotateIgnoreWritesEnd("", 0); })
    STANDIN_TSAN(Private(const Private &) = delete;)
    int unused = 0;
};

/* ---- a block of threads ---------------------------------------------------------------------- */

struct Barrier {
    int waiting = 0;
    unsigned round = 0;
    const void *place = nullptr;
    char tag[2];                            /* what ThreadSanitizer takes for locks, one a round */
};

struct Fiber {
    ucontext_t context;
    void *jump[5];
    bool started = false;
};

/* Without a system call, and unseen by sanitizers, which would look through the stacks. */
#if defined(__clang__) && !defined(__x86_64__)
inline void change(Fiber &from, Fiber &to) { swapcontext(&from.context, &to.context); }
#else
__attribute__((noinline, no_sanitize("address", "thread", "undefined")))
inline void change(Fiber &from, Fiber &to)
{
    if (__builtin_setjmp(from.jump)) return;
    if (to.started) __builtin_longjmp(to.jump, 1);
    to.started = true;
    setcontext(&to.context);
}
#endif

struct Thread : Fiber {
    dim3 index;
    unsigned number = 0;
    bool done = false;
    Barrier *at = nullptr;                  /* where it waits, and for which round to end */
    unsigned round = 0;
    void *fiber = nullptr;
    std::vector<unsigned char> stack;
};

struct Warp {
    Barrier barrier;
    unsigned alive = 0, mask = 0;
    int operation = 0;
    uint64_t value[2][32];
};

struct Block {
    std::vector<Warp> warps;
    Barrier barrier, named;
    int alive = 0;
    Fiber scheduler;
    void *fiber = nullptr;
    char begin, end;
    dim3 index, size, grid;
    const std::function<void()> *kernel = nullptr;
};

inline Block *block;
inline Thread *thread;
enum { STACK = 64 << 10 };

inline std::vector<Thread> &threads()       /* used again for each block, with their stacks */
{
    static std::vector<Thread> all(1024);
    return all;
}

inline void suspend()
{
    Thread *self = thread;
    STANDIN_TSAN(__tsan_switch_to_fiber(block->fiber, 1);)
    change(*self, block->scheduler);
}

inline void open(Barrier &b)
{
    b.waiting = 0;
    b.round++;
}

/* Waits until `all` threads have arrived. What orders memory, too, ThreadSanitizer is told of. */
inline void arrive(Barrier &b, int all, bool orders = true)
{
    const unsigned round = b.round;
    STANDIN_TSAN(if (orders) __tsan_release(&b.tag[round & 1]);)
    if (++b.waiting == all) {
        open(b);
    } else {
        thread->at = &b;
        thread->round = round;
        suspend();
    }
    STANDIN_TSAN(if (orders) __tsan_acquire(&b.tag[round & 1]);)
    (void)orders;
}

/* One block's after another: if fibers began anew each time, ThreadSanitizer's record of what has
   called what would grow with every block. */
inline void run_thread()
{
    for (;; suspend()) {
        STANDIN_TSAN(__tsan_acquire(&block->begin);)
        (*block->kernel)();
        Private here;
        thread->done = true;
        block->warps[thread->number/32].alive &= ~(1u << thread->number%32);
        block->alive--;                     /* who has left is no longer waited for */
        for (Barrier *b : {&block->barrier, &block->named})
            if (block->alive && b->waiting == block->alive) open(*b);
        STANDIN_TSAN(__tsan_release(&block->end);)
    }
}

inline bool can_run(const Thread &t) { return !t.done && !(t.at && t.at->round == t.round); }

inline void resume(Thread &t)
{
    t.at = nullptr;
    thread = &t;
    STANDIN_TSAN(__tsan_switch_to_fiber(t.fiber, 1);)
    change(block->scheduler, t);
}

/* Whether a lane of the warp ran: each that could, in an order that is drawn. */
inline bool run_warp(unsigned warp, unsigned count)
{
    const uint64_t draw = random()();
    const unsigned times = (unsigned)draw | 1, plus = (unsigned)(draw >> 32);
    bool ran = false;
    for (unsigned i = 0; i < 32; i++) {
        const unsigned at = 32*warp + (i*times + plus)%32;      /* each lane once: times is odd */
        if (at >= count || !can_run(threads()[at])) continue;
        resume(threads()[at]);
        ran = true;
    }
    return ran;
}

/* One warp runs as far ahead of the others as barriers let it; which one, changes now and then. */
inline void schedule(unsigned count)
{
    std::vector<unsigned> warps(block->warps.size());
    for (unsigned i = 0; i < warps.size(); i++) warps[i] = i;
    std::shuffle(warps.begin(), warps.end(), random());
    while (block->alive) {
        bool ran = false;
        if (random()()%16 == 0) std::shuffle(warps.begin(), warps.end(), random());
        for (size_t w = 0; w < warps.size() && !ran; w++) ran = run_warp(warps[w], count);
        if (!ran) die("deadlock: some threads wait for others that never come");
    }
}

inline void run_block(dim3 index, dim3 size, dim3 grid, const std::function<void()> &kernel)
{
    Private here;
    static Block b;                     /* not on the stack, which ThreadSanitizer watches */
    const unsigned count = size.x*size.y*size.z;
    block = &b;
    b.barrier = b.named = Barrier();
    b.index = index;
    b.size = size;
    b.grid = grid;
    b.kernel = &kernel;
    b.alive = (int)count;
    b.scheduler.started = true;
    b.warps.assign((count + 31)/32, Warp());
    STANDIN_TSAN(b.fiber = __tsan_get_current_fiber(); __tsan_release(&b.begin);)
    for (unsigned i = 0; i < count; i++) {
        Thread &t = threads()[i];
        t.index = dim3(i%size.x, i/size.x%size.y, i/(size.x*size.y));
        t.number = i;
        t.done = false;
        t.at = nullptr;
        b.warps[i/32].alive |= 1u << i%32;
        if (!t.stack.empty()) continue;
        t.stack.resize(STACK);
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = t.stack.data();
        t.context.uc_stack.ss_size = STACK;
        t.context.uc_link = nullptr;
        makecontext(&t.context, run_thread, 0);
        STANDIN_TSAN(t.fiber = __tsan_create_fiber(0);)
    }
    schedule(count);
    STANDIN_TSAN(__tsan_acquire(&b.end);)
    block = nullptr;
}

/* What each lane of the warp gives; all of the mask must come. Of all such only __syncwarp() orders
   memory. */
enum { SHUFFLE, BALLOT, SYNCWARP };
inline const uint64_t *exchange(unsigned mask, uint64_t value, int operation)
{
    Private here;
    Warp &w = block->warps[thread->number/32];
    const unsigned lane = thread->number%32, side = w.barrier.round & 1;
    if (!(mask >> lane & 1)) die("shuffle: the calling lane is not in its mask");
    if (mask & ~w.alive) die("shuffle: the mask names a lane that has left");
    if (w.barrier.waiting == 0) {
        w.mask = mask;
        w.operation = operation;
        memset(w.value[side], 0xFF, sizeof w.value[side]);      /* NaN from who gives nothing */
    } else if (w.mask != mask || w.operation != operation) {
        die("shuffle: lanes disagree about the mask or the operation");
    }
    w.value[side][lane] = value;
    arrive(w.barrier, __builtin_popcount(mask), operation == SYNCWARP);
    return w.value[side];
}

/* ---- device memory --------------------------------------------------------------------------- */

/* One arena, closed to the host but while work runs. Between allocations lie gaps of NaN, which
   AddressSanitizer guards, and which are looked at when memory is freed. */
struct Memory { unsigned char *data; size_t size; };
inline std::vector<Memory> memories;
inline size_t allocated, used;
const size_t ARENA = (size_t)1 << 32, GAP = 4096, POISON = 1 << 20;

inline unsigned char *arena()
{
    static void *p = mmap(nullptr, ARENA, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) die("there is no address space for device memory");
    return (unsigned char *)p;
}

inline void set_open(bool is_open)
{
    if (used) mprotect(arena(), used, is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

inline size_t with_gap(size_t n) { return (n + GAP + GAP - 1)/GAP*GAP; }

/* ---- streams ------------------------------------------------------------------------------- */

typedef std::function<void()> Work;
struct Graph { std::vector<Work> work; };
struct Stream {
    std::deque<Work> work;
    Graph *capture = nullptr;
};

inline std::vector<Stream *> &streams()
{
    static Stream first;
    static std::vector<Stream *> all{&first};
    return all;
}

inline Stream *stream_of(Stream *s) { return s ? s : streams()[0]; }

inline bool capturing()
{
    for (auto *s : streams())
        if (s->capture) return true;
    return false;
}

inline cudaError_t push(Stream *s, Work work)
{
    s = stream_of(s);
    if (s->capture) s->capture->work.push_back(std::move(work));
    else s->work.push_back(std::move(work));
    return cudaSuccess;
}

inline cudaError_t synchronise()
{
    bool is_open = false;
    if (capturing()) return cudaErrorStreamCaptureUnsupported;
    for (;;) {
        std::vector<Stream *> ready;
        for (auto *s : streams())
            if (!s->work.empty()) ready.push_back(s);
        if (ready.empty()) break;
        if (!is_open) set_open(is_open = true);
        Stream *s = ready[random()()%ready.size()];
        Work work = std::move(s->work.front());
        s->work.pop_front();
        work();
    }
    if (is_open) set_open(false);
    return cudaSuccess;
}

inline cudaError_t launch(dim3 grid, dim3 size, Stream *s, Work kernel)
{
    const unsigned count = size.x*size.y*size.z;
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 || grid.x > 0x7fffffff
        || !count || count > 1024)
        return cudaErrorInvalidConfiguration;
    return push(s, [=] {
        std::vector<dim3> order;
        for (unsigned z = 0; z < grid.z; z++)
            for (unsigned y = 0; y < grid.y; y++)
                for (unsigned x = 0; x < grid.x; x++) order.push_back(dim3(x, y, z));
        std::shuffle(order.begin(), order.end(), random());
        for (auto &index : order) run_block(index, size, grid, kernel);
    });
}

template <class... P, size_t... I>
cudaError_t launch_with(void (*kernel)(P...), dim3 grid, dim3 size, void **args, Stream *s,
                        std::index_sequence<I...>)
{
    std::tuple<P...> values(*(std::remove_const_t<P> *)args[I]...);
    return launch(grid, size, s, [=] { std::apply(kernel, values); });
}

} /* namespace standin */

/* ---- what kernels use ------------------------------------------------------------------------ */

#define threadIdx (standin::thread->index)
#define blockIdx  (standin::block->index)
#define blockDim  (standin::block->size)
#define gridDim   (standin::block->grid)

__attribute__((noinline)) inline void __syncthreads()
{
    standin::Private here;
    standin::Barrier &b = standin::block->barrier;
    const void *place = __builtin_return_address(0);
    if (b.waiting == 0) b.place = place;
    else if (b.place != place) standin::die("__syncthreads() at different places of a kernel");
    standin::arrive(b, standin::block->alive);
}

/* The barrier of a number, of which there is one here, may be at several places. */
inline void __barrier_sync(unsigned)
{
    standin::Private here;
    standin::arrive(standin::block->named, standin::block->alive);
}

template <class T> T __shfl_xor_sync(unsigned mask, T value, unsigned lanes)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    const uint64_t *all = standin::exchange(mask, bits, standin::SHUFFLE);
    standin::Private here;
    memcpy(&value, &all[(standin::thread->number%32) ^ lanes], sizeof value);
    return value;
}

inline unsigned __ballot_sync(unsigned mask, bool vote)
{
    const uint64_t *all = standin::exchange(mask, vote, standin::BALLOT);
    standin::Private here;
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) votes |= (unsigned)all[lane] << lane;
    return votes;
}

inline void __syncwarp() { standin::exchange(~0u, 0, standin::SYNCWARP); }
inline int __ffs(int x) { return __builtin_ffs(x); }

/* ---- the runtime ----------------------------------------------------------------------------- */

typedef standin::Stream *cudaStream_t;
typedef standin::Graph *cudaGraph_t, *cudaGraphExec_t;
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice,
                      cudaMemoryTypeManaged };
enum cudaDeviceAttr { cudaDevAttrClockRate = 13, cudaDevAttrMultiProcessorCount = 16,
                      cudaDevAttrComputeCapabilityMajor = 75,
                      cudaDevAttrComputeCapabilityMinor = 76,
                      cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
                      cudaDevAttrPageableMemoryAccess = 88 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal };
struct cudaPointerAttributes { cudaMemoryType type; void *devicePointer; };
struct cudaDeviceProp { char name[256]; int major, minor; };

inline const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorNoDevice ? "no CUDA-capable device is detected"
         : e == cudaErrorMemoryAllocation ? "out of memory"
         : e == cudaErrorInvalidConfiguration ? "invalid configuration argument"
         : e == cudaErrorStreamCaptureUnsupported ? "not permitted when stream is capturing"
         : e == cudaSuccess ? "no error" : "invalid argument";
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

namespace standin { inline int current = 0; }

inline cudaError_t cudaGetDeviceCount(int *count)
{
    *count = (int)standin::setting("STANDIN_DEVICES", 2);
    return *count ? cudaSuccess : cudaErrorNoDevice;
}

inline cudaError_t cudaSetDevice(int device)
{
    standin::current = device;
    return cudaSuccess;
}

inline cudaError_t cudaGetDevice(int *device)
{
    int count;
    *device = standin::current;
    return cudaGetDeviceCount(&count);
}

inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which, int)
{
    const int capability = (int)standin::setting("STANDIN_CAPABILITY", 90);
    *value = which == cudaDevAttrComputeCapabilityMajor ? capability/10
           : which == cudaDevAttrComputeCapabilityMinor ? capability%10
           : which == cudaDevAttrMultiProcessorCount
           ? (int)standin::setting("STANDIN_MULTIPROCESSORS", 1)
           : which == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? 228 << 10
           : which == cudaDevAttrClockRate ? 1000000 : 0;
    return cudaSuccess;
}

inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    static const cudaDeviceProp it = {"CPU stand-in", 9, 0};
    *p = it;
    return cudaSuccess;
}

inline cudaError_t cudaMalloc(void **p, size_t n)
{
    using namespace standin;
    if (capturing()) return cudaErrorStreamCaptureUnsupported;
    if (n >= ARENA || allocated + n > (size_t)setting("STANDIN_MEMORY", 1L << 40)
        || used + with_gap(n) > ARENA)
        return cudaErrorMemoryAllocation;
    *p = arena() + used;
    used += with_gap(n);
    allocated += n;
    memories.push_back({(unsigned char *)*p, n});
    set_open(true);
    memset(*p, 0xFF, std::min(n, POISON));
    memset((unsigned char *)*p + n, 0xFF, with_gap(n) - n);
    set_open(false);
    STANDIN_GUARD((unsigned char *)*p + n, with_gap(n) - n);
    return cudaSuccess;
}

inline cudaError_t cudaFree(void *p)
{
    using namespace standin;
    if (!p) return cudaSuccess;
    if (cudaError_t e = synchronise()) return e;
    for (size_t i = 0; i < memories.size(); i++) {
        const Memory m = memories[i];
        if (m.data != p) continue;
        set_open(true);
        STANDIN_UNGUARD(m.data, with_gap(m.size));
        for (size_t k = m.size; k < with_gap(m.size); k++)
            if (m.data[k] != 0xFF) die("something was written behind an allocation");
        memset(m.data, 0xFF, std::min(m.size, POISON));
        STANDIN_GUARD(m.data, with_gap(m.size));
        set_open(false);
        memories.erase(memories.begin() + (long)i);
        allocated -= m.size;
        if (i == memories.size()) {         /* what was last is used again */
            used = 0;
            if (i) used = (size_t)(memories[i - 1].data - arena()) + with_gap(memories[i - 1].size);
            STANDIN_UNGUARD(arena() + used, (size_t)(m.data - arena()) - used + with_gap(m.size));
        }
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
}

inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
    const unsigned char *byte = (const unsigned char *)p;
    bool inside = false;
    for (const standin::Memory &m : standin::memories)
        inside = inside || (byte >= m.data && byte < m.data + m.size);
    a->type = inside ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    a->devicePointer = inside ? (void *)p : nullptr;
    return cudaSuccess;
}

inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind,
                                   cudaStream_t s = nullptr)
{
    return standin::push(s, [=] { memmove(to, from, n); });
}

inline cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t s = nullptr)
{
    return standin::push(s, [=] { memset(to, value, n); });
}

inline cudaError_t cudaStreamCreate(cudaStream_t *s)
{
    standin::streams().push_back(*s = new standin::Stream);
    return cudaSuccess;
}

inline cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    auto &all = standin::streams();
    standin::synchronise();
    all.erase(std::find(all.begin(), all.end(), s));
    delete s;
    return cudaSuccess;
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return standin::synchronise(); }

template <class... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 size, void **args, size_t shared,
                             cudaStream_t s)
{
    if (shared) standin::die("dynamic shared memory is not supported");
    return standin::launch_with(kernel, grid, size, args, s, std::index_sequence_for<P...>{});
}

inline cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    standin::stream_of(s)->capture = new standin::Graph;
    return cudaSuccess;
}

inline cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    *graph = standin::stream_of(s)->capture;
    standin::stream_of(s)->capture = nullptr;
    return cudaSuccess;
}

inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                        unsigned long long = 0)
{
    *exec = new standin::Graph(*graph);
    return cudaSuccess;
}

inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    for (auto &work : exec->work) standin::push(s, work);
    return cudaSuccess;
}

inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { delete graph; return cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { delete exec; return cudaSuccess; }

typedef std::chrono::steady_clock::time_point *cudaEvent_t;
inline cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    *e = new std::chrono::steady_clock::time_point;
    return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = nullptr)
{
    return standin::push(s, [=] { *e = std::chrono::steady_clock::now(); });
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return standin::synchronise(); }
inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    *ms = std::chrono::duration<float, std::milli>(*b - *a).count();
    return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t e) { delete e; return cudaSuccess; }
