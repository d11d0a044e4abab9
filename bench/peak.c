/* What the machine can do at most, with vectors as wide as the compiler's flags allow:

       cc -O2 -fopenmp -ffp-contract=fast -mavx2 -mfma bench/peak.c -o build/peak
       build/peak flops 1 0.1           multiplications and additions in registers, in 10^9 a second
       build/peak tile 1 0.1            the same in the inner loop of a matrix product, which takes
                                        its operands from the first-level cache, 128 at a time, as
                                        many as fit there, and then stores the sums
       build/peak gates 1 0.1           the recurrence's arithmetic in registers, in 10^9 steps of
                                        a unit a second. A step is 2 divisions, 30 multiply-adds, 6
                                        additions and 2 bit operations; 28 make 2 exponentials. With
                                        vectors of 16, a division is a guess and 2 multiply-adds
       build/peak weights 1 0.1         attention's arithmetic between its products, in registers,
                                        in 10^9 weights a second. A weight is 13 multiply-adds, 3
                                        additions and 1 bit operation: 14 make an exponential, the
                                        others the highest score, the difference and the sum
       build/peak whole 1 0.1           whole numbers from the first-level cache that are converted,
                                        multiplied and added up, in 10^9 a second
       build/peak half 1 0.1            the same for numbers of 16 bits, two in a word
       build/peak copy 1 0.1 BYTES      copying, in 10^9 bytes read and written a second
       build/peak read 1 0.1 BYTES      reading and adding up, in 10^9 bytes a second
       build/peak start 2 0.1           starting threads and waiting for them, in 10^9 a second

   The numbers are of threads and seconds; BYTES are for all threads together. Prints the median of
   repetitions of about 1 ms, as other times are medians, too: the clock rate rises now and then. */
#define _POSIX_C_SOURCE 200112L         /* clock_gettime */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__AVX512F__)
enum { WIDTH = 16, ROWS = 8, COLS = 3 };    /* floats in a vector; tile's rows, vectors in a row */
#elif defined(__AVX__)
enum { WIDTH = 8, ROWS = 6, COLS = 2 };
#else
enum { WIDTH = 4, ROWS = 6, COLS = 2 };
#endif
typedef float vector __attribute__((vector_size(WIDTH*sizeof(float)), aligned(WIDTH*4)));
typedef int integers __attribute__((vector_size(WIDTH*sizeof(int))));

enum { CHAINS = 12, ROUNDS = 10000 };   /* 8 are in flight if two of latency 4 start at a time */
static volatile float given = 0.5f, taken;      /* make the compiler assume and omit nothing */

static void multiply_and_add(void)
{
    vector c[CHAINS], a = {0}, b = {0};
    int i, n;
    a += given;
    b += given;
    for (i = 0; i < CHAINS; i++) c[i] = a*given;
    for (n = 0; n < ROUNDS; n++) {
#pragma GCC unroll 12
        for (i = 0; i < CHAINS; i++) c[i] = c[i]*a + b;
    }
    for (i = 1; i < CHAINS; i++) c[0] += c[i];
    taken = c[0][0];
}

#if defined(__AVX512F__)
#include <immintrin.h>
enum { GATES = 42 };                    /* operations of a unit's step, besides divisions: 6 are
                                           additions, 2 on bits; min and max count as products */
#define INVERSE(x) _mm512_maskz_rcp14_ps(0xffff, x)
#else
enum { GATES = 38 };
#define INVERSE(x) (1.0f/(x))
#endif
enum { WEIGHTS = 17, STEPS = 4000 };    /* operations of a weight: 3 are additions, 1 on bits */

static inline __attribute__((always_inline))
void compute(const int sums, const int additions, const int divisions)
{
    vector c[8], z[4], a = {0}, b = {0};
    integers bits = {0};
    int i, n;
    a += given;
    b += given;
    bits -= given > 0;
    for (i = 0; i < 8; i++) c[i] = a*given;
    for (i = 0; i < 4; i++) z[i] = b + (float)i;
    for (n = 0; n < STEPS; n += 4) {
#pragma GCC unroll 168
        for (i = 0; i < 4*sums; i++) {
            const int half = divisions ? sums/divisions : sums, divided = i/half%4;
            if (i%sums%(sums/additions) == 2) c[i%8] = c[i%8] + b;
            else if (i%half == 5) c[i%8] = (vector)((integers)c[i%8] & bits);
            else c[i%8] = c[i%8]*a + b;
            if (i%half == 0 && divisions) z[divided] = INVERSE(z[divided]);
        }
    }
    for (i = 1; i < 8; i++) c[0] += c[i];
    for (i = 0; i < 4; i++) c[0] += z[i];
    taken = c[0][0];
}

static void compute_gates(void)   { compute(GATES, 6, 2); }
static void compute_weights(void) { compute(WEIGHTS, 3, 0); }

enum { DEPTH = 128, AGAIN = 32 };       /* terms of the tile's sums (28 KB in all), repetitions */
static float row_values[DEPTH*ROWS];
static vector columns[DEPTH*COLS];

static void multiply_tile(void)
{
    vector sums[ROWS][COLS], c[ROWS][COLS], b[COLS];
    const vector zero = {0};
    int i, j, n;
    for (n = 0; n < AGAIN; n++) {
        const float *a = row_values;
        const vector *from = columns;
        int k;
#pragma GCC unroll 8
        for (i = 0; i < ROWS; i++) {
#pragma GCC unroll 8
            for (j = 0; j < COLS; j++) c[i][j] = zero;
        }
        for (k = 0; k < DEPTH; k++, a += ROWS, from += COLS) {
#pragma GCC unroll 8
            for (j = 0; j < COLS; j++) b[j] = from[j];
#pragma GCC unroll 8
            for (i = 0; i < ROWS; i++) {
#pragma GCC unroll 8
                for (j = 0; j < COLS; j++) c[i][j] = a[i]*b[j] + c[i][j];
            }
        }
#pragma GCC unroll 8
        for (i = 0; i < ROWS; i++) {
#pragma GCC unroll 8
            for (j = 0; j < COLS; j++) sums[i][j] = c[i][j];
        }
        __asm__ volatile("" : : "r"(sums) : "memory");     /* else sums might never be stored */
    }
}

enum { LANES = 8, WORDS = 32, PASSES = 400 };       /* 16 KB of words with AVX-512 */
static integers words[WORDS*LANES];

static inline void convert_and_add(const int halves)
{
    vector c[LANES], a = columns[0] + given;
    int i, n, p;
    for (i = 0; i < LANES; i++) c[i] = a;
    for (n = 0; n < PASSES; n++) {
        for (p = 0; p < WORDS*LANES; p += LANES) {
#pragma GCC unroll 8
            for (i = 0; i < LANES; i++) {
                const integers x = words[p + i];
                c[i] = a*(halves ? (vector)(x << 16) : __builtin_convertvector(x, vector)) + c[i];
                if (halves) c[i] = a*(vector)x + c[i];
            }
        }
    }
    for (i = 1; i < LANES; i++) c[0] += c[i];
    taken = c[0][0];
}

static void convert_whole(void)  { convert_and_add(0); }
static void convert_halves(void) { convert_and_add(1); }

static void add_up(const float *from, size_t bytes)
{
    const vector *v = (const vector *)from;
    vector c[8];
    size_t n = bytes/sizeof(vector);
    int i;
    memset(c, 0, sizeof c);
    for (; n >= 8; n -= 8, v += 8) {
#pragma GCC unroll 8
        for (i = 0; i < 8; i++) c[i] += v[i];
    }
    for (i = 1; i < 8; i++) c[0] += c[i];
    taken = c[0][0];
}

enum { MOST = 100000 };                 /* repetitions */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9*(double)t.tv_nsec;
}

static void copy_over(char *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
    __asm__ volatile("" : : "r"(to) : "memory");
}

static void do_nothing(void) { }

/* What takes no BYTES: how much one call does, in 10^9, and the calls that take about 1 ms. */
static const struct {
    const char *name;
    void      (*call)(void);
    double      count;
    size_t      repeat;
} of_registers[] = {
    { "flops", multiply_and_add, 2e-9*WIDTH*CHAINS*ROUNDS,          50 },
    { "tile",  multiply_tile,    2e-9*WIDTH*ROWS*COLS*DEPTH*AGAIN,  20 },
    { "gates", compute_gates,    1e-9*WIDTH*STEPS,                  30 },
    { "weights", compute_weights, 1e-9*WIDTH*STEPS,                60 },
    { "whole", convert_whole,    1e-9*WIDTH*LANES*WORDS*PASSES,     30 },
    { "half",  convert_halves,   2e-9*WIDTH*LANES*WORDS*PASSES,     30 },
    { "start", do_nothing,       1e-9,                               1 }
};
enum { KINDS = sizeof of_registers/sizeof *of_registers };

/* The value of a text that is a number and not negative; -1 for any other text. */
static double number(const char *text)
{
    char *end;
    const double x = strtod(text, &end);
    return end == text || *end || !(x >= 0) ? -1 : x;
}

int main(int argc, char **argv)
{
    const char *what = argc > 3 ? argv[1] : "";
    const int threads = argc > 3 ? (int)number(argv[2]) : 1, copy = !strcmp(what, "copy");
    const int start = !strcmp(what, "start"), again = start ? 500 : 1;
    const double seconds = argc > 3 ? number(argv[3]) : 0, all = argc > 4 ? number(argv[4]) : 0;
    size_t bytes = (size_t)(all > 0 && threads > 0 ? all/threads : 0);
    size_t repeat = 1 + (size_t)2e7/(bytes + 1);
    static double times[MOST];
    void (*call)(void) = NULL;
    double begin, work;
    int count = 0;
    char *memory;
    int at;
    bytes = (bytes + 63)/64*64;
    work = 1e-9*(double)bytes*(copy ? 2 : 1);
    for (at = 0; at < KINDS; at++) {
        if (strcmp(what, of_registers[at].name)) continue;
        call = of_registers[at].call;
        work = of_registers[at].count;
        repeat = of_registers[at].repeat;
    }
    if (threads < 1 || seconds < 0 || all < 0
        || !(call ? argc == 4 : (copy || !strcmp(what, "read")) && argc == 5)) {
        const int asked = argc == 2 && !strcmp(argv[1], "--help");
        fputs("peak flops|tile|gates|weights|whole|half|start THREADS SECONDS | "
              "copy|read THREADS SECONDS BYTES: see peak.c\n", asked ? stdout : stderr);
        return !asked;
    }
    memory = (char *)malloc(64 + 2*bytes*(size_t)threads);
    if (!memory) return fputs("peak: no memory\n", stderr), 1;
    memset(memory, 1, 64 + 2*bytes*(size_t)threads);    /* real pages, not a shared one of zeros */
    memory += 64 - (size_t)memory%64;
    for (at = 0; at < DEPTH*ROWS; at++) row_values[at] = given/(float)(at + 1);
    for (at = 0; at < DEPTH*COLS; at++) columns[at] += given*(float)at;
    for (at = 0; at < WORDS*LANES; at++) words[at] += 0x3f803f80 + at;    /* halves: about 1 */
    /* threads may start on one processor: the system takes a tenth of a second to spread them */
    begin = now() + (threads > 1 ? 0.1 : 0);
    do {
        const double before = now();
        int n, t;
        for (n = 0; n < again; n++) {
#pragma omp parallel for num_threads(threads)
            for (t = 0; t < threads; t++) {
                char *mine = memory + 2*bytes*(size_t)t;
                size_t i;
                for (i = 0; i < repeat; i++) {
                    if (call) call();
                    else if (copy) copy_over(mine + bytes, mine, bytes);
                    else add_up((const float *)mine, bytes);
                }
            }
        }
        if (before >= begin) times[count++] = now() - before;
    } while (!count || (now() < begin + seconds && count < MOST));
    qsort(times, (size_t)count, sizeof *times, ascending);
    printf("%.6g\n", (start ? again : threads*(double)repeat)*work/times[count/2]);
    return fflush(stdout) ? perror("peak"), 1 : 0;
}
