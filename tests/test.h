/* What every test program shares: CHECK, the error of an array, repeatable random numbers.
   Include it before anything else, because it asks for POSIX, which can set the environment.

       int main(int argc, char **argv)
       {
           test_begin(argc, argv, "What this program tests, in a sentence or two.");
           CHECK(a == b, "a is %d, b is %d", a, b);
           return test_end();
       }
*/
#ifndef TEST_H
#define TEST_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef _WIN32
#include <direct.h>
#endif

/* Tests try numbers of threads up to this one; without OpenMP, all of them do the same. */
#ifdef _OPENMP
enum { TEST_THREADS = 3 };
#else
enum { TEST_THREADS = 2 };
#endif

static long     test_passed, test_failed;
static uint64_t test_random_state = 1;

/* Counts a check. If the condition is false, prints the place, the condition and the values. The
   value of CHECK is that of the condition, so that a test can stop early. */
#define CHECK(cond, ...) test_check((cond) ? 1 : 0, __FILE__, __LINE__, #cond, __VA_ARGS__)

#ifdef __GNUC__
__attribute__((format(printf, 5, 6)))
#endif
static inline int test_check(int ok, const char *file, int line, const char *cond,
                             const char *format, ...)
{
    if (ok) {
        test_passed++;
    } else if (test_failed++ < 100) {   /* one fault can fail thousands of checks */
        va_list args;
        printf("%s:%d: failed: %s: ", file, line, cond);
        va_start(args, format);
        vprintf(format, args);
        va_end(args);
        printf("\n");
        fflush(stdout);
    }
    return ok;
}

/* Emulators and others that are slow run fewer cases: the environment then has TEST_BRIEF. */
static inline int test_brief(void) { return getenv("TEST_BRIEF") != NULL; }

/* How many random cases there are. */
static inline int test_cases(int n) { return test_brief() ? n/4 + 1 : n; }

/* Answers --help with `about`. Refuses options that `about` does not name and, unless it names
   [DIR...], any other arguments. The program reads the rest itself. */
static inline void test_begin(int argc, char **argv, const char *about)
{
    int i;
    for (i = 1; i < argc; i++) {
        char name[32];
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            printf("%s\n", about);
            exit(0);
        }
        sprintf(name, "%.31s", argv[i]);
        name[strcspn(name, "=")] = 0;
        if (!strstr(about, name[0] == '-' ? name : "[DIR")) {
            fprintf(stderr, "There is no argument '%s': see --help.\n", argv[i]);
            exit(2);
        }
    }
}

/* The number that an argument holds, which must be from 1 to `most`. */
static inline long test_number(const char *argument, long most)
{
    char *end;
    const long number = strtol(argument, &end, 10);
    if (*end || number < 1 || number > most) {
        fprintf(stderr, "'%s' is not a number from 1 to %ld.\n", argument, most);
        exit(2);
    }
    return number;
}

/* Prints the last line, and returns the exit status. */
static inline int test_end(void)
{
    printf("%ld passed, %ld failed\n", test_passed, test_failed);
    if (!fflush(stdout) && !ferror(stdout)) return test_failed > 0;
    fputs("What the tests print cannot be written.\n", stderr);
    return 1;
}

/* These take floats in memory, not as arguments and results: with -ffast-math, clang 18 and later
   take the latter for neither infinite nor NaN, and warn of NAN and INFINITY. */
static inline uint32_t test_bits_at(const float *x)
{
    uint32_t bits;
    memcpy(&bits, x, 4);
    return bits;
}

static inline void test_set_bits(float *x, uint32_t bits) { memcpy(x, &bits, 4); }
static inline void test_make_nan(float *x) { test_set_bits(x, 0x7fc00000); }
static inline void test_make_minus_infinity(float *x) { test_set_bits(x, 0xff800000); }

static inline uint32_t test_to_bits(float x) { return test_bits_at(&x); }

static inline float test_from_bits(uint32_t bits)
{
    float x;
    test_set_bits(&x, bits);
    return x;
}

/* 1 unless *x is infinite or NaN, by its bits: with -ffast-math, isnan() is always 0. */
static inline int test_finite(const float *x)
{
    return (test_bits_at(x) & 0x7f800000) != 0x7f800000;
}

/* ||a - b|| / ||b||, with ||b|| taken to be at least the root of `least`; ||a|| if both b and least
   are 0; 1e300 if a holds an infinity or a NaN. */
static inline double test_error_above(const float *a, const double *b, size_t n, double least)
{
    double diff = 0, norm = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        double d = (double)a[i] - b[i];
        if (!test_finite(&a[i])) return 1e300;
        diff += d*d;
        norm += b[i]*b[i];
    }
    if (norm < least) norm = least;
    return sqrt(norm > 0 ? diff/norm : diff);
}

static inline double test_error_double(const float *a, const double *b, size_t n)
{
    return test_error_above(a, b, n, 0);
}

static inline double test_error(const float *a, const float *b, size_t n)
{
    double diff = 0, norm = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        if (!test_finite(&a[i])) return 1e300;
        diff += d*d;
        norm += (double)b[i]*(double)b[i];
    }
    return sqrt(norm > 0 ? diff/norm : diff);
}

/* Checks that a call returned the error that it should, with a sentence in message, and clears the
   message for the next call. */
static inline void test_status(int got, int want, char *message, size_t size, const char *what)
{
    CHECK(got == want, "%s: status is %d, not %d: %.*s", what, got, want, (int)size, message);
    CHECK(memchr(message, 0, size) && strlen(message) > 10 && strchr(message, ' '),
          "%s: the error says \"%.*s\"", what, (int)size - 1, message);
    memset(message, 0, size);
}

/* Makes a new folder for temporary files; path has 512 bytes. */
static inline void test_folder(char *path)
{
    const char *where = getenv("TMPDIR");
    int i, failed = 1;
    for (i = 0; i < 10000 && failed; i++) {
        sprintf(path, "%.400s/sru_test.%d", where && *where ? where : "/tmp", i);
#ifdef _WIN32
        failed = _mkdir(path);
#else
        failed = mkdir(path, 0700);
#endif
    }
    if (failed) {
        fprintf(stderr, "The test cannot make a folder '%s'.\n", path);
        exit(2);
    }
}

/* The next number of a repeatable sequence (splitmix64), which test_random_state can start anew. */
static inline uint64_t test_bits(void)
{
    uint64_t z = test_random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30))*UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27))*UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform between -1 and 1. */
static inline double test_random(void)
{
    return (double)(int64_t)(test_bits() >> 11)/4503599627370496.0 - 1.0;
}

/* n numbers between -scale and scale. */
static inline void test_fill(float *a, size_t n, double scale)
{
    size_t i;
    for (i = 0; i < n; i++) a[i] = (float)(scale*test_random());
}

/* Checks mean, variance and extremes of n numbers drawn uniformly between +-bound. The first two
   have standard deviations of bound/sqrt(3n) and variance*sqrt(0.8/n); five of them are allowed. */
static inline void test_uniform(const char *what, const float *a, size_t n, double bound)
{
    double mean = 0, var = 0, max = 0, count = (double)n;
    size_t i;
    if (!CHECK(n > 0, "%s is empty", what)) return;
    for (i = 0; i < n; i++) {
        double x = (double)a[i];
        if (!test_finite(&a[i])) x = 1e30;
        mean += x/count;
        var += x*x/count;
        if (fabs(x) > max) max = fabs(x);
    }
    CHECK(fabs(mean) <= 5*bound/sqrt(3*count), "%s: the mean is %g", what, mean);
    CHECK(fabs(var*3/(bound*bound) - 1) <= 5*sqrt(0.8/count), "%s: the variance is %g, not %g",
          what, var, bound*bound/3);
    CHECK(max <= bound*1.000001 && max >= bound*(1 - 20/count), "%s: the largest is %g, not %g",
          what, max, bound);
}

static inline void test_constant(const char *what, const float *a, size_t n, float value)
{
    size_t i;
    for (i = 0; i < n && a[i] == value; i++) continue;
    CHECK(i == n, "%s: number %lu is %g, not %g", what, (unsigned long)i,
          i < n ? (double)a[i] : 0, (double)value);
}

/* n zeroed bytes, never NULL; to be freed. */
static inline void *test_alloc(size_t n)
{
    void *p = calloc(n ? n : 1, 1);
    if (!p) {
        fprintf(stderr, "The test needs %lu bytes of memory and got none.\n", (unsigned long)n);
        exit(2);
    }
    return p;
}

static inline float *test_floats(size_t n)
{
    return (float *)test_alloc(n*sizeof(float));
}

/* Asks for the kernels of an instruction set from now on. Returns 0 if the system cannot. */
static inline int test_set_isa(const char *name)
{
#ifdef _WIN32
    return _putenv_s("SRU_ISA", name) == 0;
#else
    return setenv("SRU_ISA", name, 1) == 0;
#endif
}

/* Whether this machine and build have the kernels of an instruction set; -1 if that is unknown. Of
   test_each_isa()'s names, the last that they have is the best. */
static inline int test_has_isa(const char *name)
{
    if (!strcmp(name, "scalar")) return 1;
#if defined(__GNUC__) && defined(__x86_64__) && !defined(SRU_NO_SIMD) && !defined(SRU_NO_DISPATCH)
    __builtin_cpu_init();
    if (!strcmp(name, "sse2")) return 1;
    if (!strcmp(name, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!strcmp(name, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#if defined(__clang__) ? __clang_major__ > 10 : __GNUC__ > 10
    if (!strcmp(name, "avx512_bf16"))
        return test_has_isa("avx512") && __builtin_cpu_supports("avx512bf16");
#endif
    return 0;
#else
    return -1;
#endif
}

/* Runs tests with the best kernels, then with all others that there are; but if SRU_ISA is in the
   environment, only with the kernels that it names. name() tells which kernels are in use. */
static inline void test_each_isa(const char *(*name)(void), void (*run)(void))
{
    static const char *const names[] = {"scalar", "sse2", "avx2", "avx512", "neon", "simd128",
                                        "rvv"};
    const char *asked = getenv("SRU_ISA");
    const char *expected = "scalar";
    char best[32], missing[100] = "";
    size_t i;
    strncpy(best, name(), sizeof best - 1);
    best[sizeof best - 1] = 0;
    printf("%s\n", best);
    fflush(stdout);
    for (i = 0; i < sizeof names/sizeof *names; i++)
        if (test_has_isa(names[i]) == 1) expected = names[i];
    if (!asked && test_has_isa("sse2") >= 0)
        CHECK(!strcmp(best, expected), "%s kernels where there are those of %s", best, expected);
    run();
    for (i = 0; !asked && i < sizeof names/sizeof *names; i++) {
        if (!strcmp(names[i], best)) continue;
        if (test_set_isa(names[i]) && !strcmp(name(), names[i])) {
            printf("%s\n", names[i]);
            fflush(stdout);
            run();
        } else {
            strcat(strcat(missing, " "), names[i]);
            CHECK(test_has_isa(names[i]) != 1, "%s cannot be asked for", names[i]);
        }
    }
    if (*missing) printf("skipped, not on this machine or not in this build:%s\n", missing);
}

#endif
