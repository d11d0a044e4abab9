#!/bin/sh
# Checks sru.h as a header: standards, options, symbols, macros, ways of including it. The last line
# is `N passed, N failed`. CC and CXX name the compilers; clang is used too where it is installed.

. "$(dirname "$0")/check.sh"
mkdir $dir/renamed
strict='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror'

# ---- a program that uses whatever the options leave ----------------------------------------------

cat > $dir/smoke.c <<'END'
#ifndef HEADER
#define HEADER "../../../../sru.h"
#endif
#include HEADER
#include <stdio.h>
#include <string.h>

enum { T = 7, B = 3, N = 5, L = 2 };
static float plain[4096], packed[4096], x[T*B*N], h[T*B*N], steps[T*B*N], state[B*L*N];
static float work[1 << 16];

static int fail(const char *what) { return printf("wrong: %s\n", what), 1; }

static double power(double y)                   /* e^y, without the maths library */
{
    double sum = 1, term = 1;
    int i;
    for (i = 1; i < 40; i++) sum += term *= y/16/i;
    for (i = 0; i < 4; i++) sum *= sum;
    return sum;
}

int main(void)
{
    sru_model a, b;
    sru_context ctx;
    sru_sizes n;
    sru_io io;
    sru_scan s;
    int i, t;
    memset(&a, 0, sizeof a);
    memset(&ctx, 0, sizeof ctx);
    memset(&io, 0, sizeof io);
    memset(&s, 0, sizeof s);
    ctx.work = work;
    ctx.work_size = sizeof work;
    for (i = 0; i < T*B*N; i++) x[i] = (float)(i*7 % 11)/5 - 1;

    /* a network: whole, and packed and step by step */
    a.config.input_size = a.config.hidden_size = N;
    a.config.num_layers = L;
    if (sru_size(&n, &ctx, &a, T, B) || n.weights > sizeof plain || n.state != L*N)
        return fail("sru_size");
    if (n.work > sizeof work || sru_init(plain, &a.config, 1)) return fail("sru_init");
    a.weights = plain;
    io.T = T, io.B = B, io.x = x, io.h = h;
    if (sru_forward(&ctx, &a, &io)) return fail("sru_forward");

    b = a;
    b.type = SRU_F32;
    if (sru_size(&n, &ctx, &b, 1, B) || n.weights > sizeof packed) return fail("sru_size, packed");
    if (sru_pack(&ctx, &b, packed, &a)) return fail("sru_pack");
    io.T = 1, io.state = state;
    for (t = 0; t < T; t++) {
        io.x = x + t*B*N, io.h = steps + t*B*N;
        if (sru_forward(&ctx, &b, &io)) return fail("sru_forward, packed");
    }
    for (i = 0; i < T*B*N; i++)
        if (steps[i] - h[i] > 1e-6f || h[i] - steps[i] > 1e-6f) return fail("steps");
#ifndef SRU_USE_CBLAS
    if (memcmp(steps, h, sizeof h)) return fail("the bits of steps");
#endif
    ctx.work_size = 8;
    if (sru_forward(&ctx, &b, &io) != SRU_ENOMEM) return fail("no error if scratch is too small");
    ctx.work_size = sizeof work;

    /* the recurrence of one unit, against its definition */
    {
        float u[3*T], y[T];
        double c = 0;
        for (i = 0; i < 3*T; i++) u[i] = (float)(i*5 % 13)/6 - 1;
        s.T = T, s.B = 1, s.N = 1, s.K = 3, s.u = u, s.x = x, s.h = y;
        if (sru_cpu()->scan_forward(&ctx, &s)) return fail("scan_forward");
        for (t = 0; t < T; t++) {
            const double f = 1/(1 + power(-u[3*t + 1])), r = 1/(1 + power(-u[3*t + 2]));
            double off;
            c = f*c + (1 - f)*(double)u[3*t];
            off = (double)y[t] - (r*c + (1 - r)*(double)x[t]);
            if (!(off < 1e-6 && off > -1e-6)) return fail("the recurrence");
        }
    }

#ifndef SRU_NO_BACKWARD
    {
        static float tape[1 << 14], grads[4096], dh[T*B*N];
        float sum = 0;
        for (i = 0; i < T*B*N; i++) dh[i] = 1;
        if (sru_size(&n, &ctx, &a, T, B) || n.tape > sizeof tape) return fail("sru_size, tape");
        memset(&io, 0, sizeof io);
        io.T = T, io.B = B, io.x = x, io.h = h, io.tape = tape, io.dh = dh, io.grads = grads;
        if (sru_forward(&ctx, &a, &io) || sru_backward(&ctx, &a, &io)) return fail("sru_backward");
        for (i = 0; i < 4096; i++) sum += grads[i]*grads[i];
        if (!(sum > 0)) return fail("gradients");
    }
#endif

#ifndef SRU_NO_STDIO
    {
        char error[SRU_ERROR_SIZE] = "";
        const int saved = sru_save(FOLDER "/smoke.safetensors", &a, "net.", NULL, 0, error);
        sru_model *loaded = sru_load(FOLDER "/smoke.safetensors", SRU_PLAIN, error);
#ifdef NO_HEAP
        if (!saved || loaded || !*error) return fail("saved or loaded without a heap");
#else
        if (saved || !loaded || sru_size(&n, &ctx, &a, 1, 1)) return fail(error);
        if (memcmp(loaded->weights, plain, n.weights)) return fail("what was loaded");
        SRU_FREE(loaded);
#endif
    }
#endif

#ifdef NO_HEAP
    io.tape = NULL;
    if (sru_forward(NULL, &a, &io) != SRU_ENOMEM) return fail("no error without a heap");
#endif
#ifdef AT_END
    AT_END
#endif
    return 0;
}
END

# smoke WHAT COMPILER FLAGS...: the program above must compile without a warning, and work
count=0
smoke()
{
    label=$1; shift
    count=$((count + 1))
    mkdir -p $dir/$count
    check "$label: compiles" "$@" $strict -DSRU_IMPLEMENTATION -DFOLDER="\"$dir/$count\"" \
        $dir/smoke.c -o $dir/$count/smoke $libs
    check "$label: works" $dir/$count/smoke
}
libs=
c="$CC -std=c99"
cpp="$CXX -x c++ -std=c++11"

# SRU_FREE is for callers that load without <stdlib.h>; counted.h counts what is allocated.
cat > $dir/counted.h <<'END'
#include <stdlib.h>
static int allocated, freed, failed_asserts;
static void *counted(size_t n) { return allocated++, malloc(n); }
#define SRU_MALLOC(n) counted(n)
#define SRU_FREE(p)   (freed++, free(p))
#define SRU_ASSERT(x) ((x) ? (void)0 : (void)failed_asserts++)
#define AT_END  if (!allocated || allocated > freed || failed_asserts) return fail("counts");
END
cat > $dir/nothing.h <<'END'
#define SRU_MALLOC(n) NULL
#define SRU_FREE(p)   ((void)(p))
#define NO_HEAP
END
cat > $dir/trouble.h <<'END'
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int no_way_back(FILE *f, long at, int from)
{
    return from == SEEK_SET ? errno = EIO, -1 : fseek(f, at, from);
}
static char said[256];
static size_t how_much, too_much = (size_t)-1, disk_left = (size_t)-1;
static size_t till_full(const void *p, size_t size, size_t n, FILE *f)
{
    const size_t some = n < disk_left ? n : disk_left;
    disk_left -= some;
    if (some < n) fgetc(f);     /* an error, for f is open to be written */
    return fwrite(p, size, some, f);
}
#define fseek           no_way_back
#define fwrite          till_full
#define SRU_MALLOC(n)   ((n) < too_much ? malloc(n) : NULL)
#define SRU_FREE        free
#define UNREAD(why)     (!sru_read_file("sru.h", &how_much, said) && strstr(said, why))
#define AT_END  if (!UNREAD("cannot read")) return fail("a file that cannot be read"); \
                too_much = 100000; \
                if (!UNREAD("no memory")) return fail("a file that is too large"); \
                alarm(20); \
                for (i = 0; i < 600; i++) { \
                    disk_left = (size_t)i; \
                    if (sru_save(FOLDER "/full", &a, "", NULL, 0, said) != SRU_EFILE || disk_left) \
                        return fail("a full disk"); \
                }
END

smoke "default, C99"            $c
smoke "SRU_STATIC"              $c -DSRU_STATIC
smoke "SRU_NO_BACKWARD"         $c -DSRU_NO_BACKWARD
smoke "SRU_NO_SIMD"             $c -DSRU_NO_SIMD
smoke "SRU_NO_DISPATCH, native" $c -DSRU_NO_DISPATCH -march=native
one="$c -DSRU_NO_DISPATCH"      # only one set of kernels, for options that change nothing in them
smoke "SRU_NO_DISPATCH"         $one
smoke "SRUDEF"                  $one -DSRUDEF="__attribute__((visibility(\"default\"))) extern"
smoke "SRU_NO_STDIO"            $one -DSRU_NO_STDIO
smoke "SRU_MALLOC, SRU_ASSERT"  $one -include $dir/counted.h
smoke "no heap"                 $one -include $dir/nothing.h
smoke "NDEBUG"                  $one -DNDEBUG
smoke "files that fail"         $one -include $dir/trouble.h
smoke "as little as can be"     $c -include $dir/nothing.h -DSRU_STATIC -DSRU_NO_STDIO \
                                -DSRU_NO_BACKWARD -DSRU_NO_SIMD
if $CC -m64 -mfpmath=387 -x c -fsyntax-only - < /dev/null 2> $dir/log.txt; then
    smoke "-mfpmath=387"        $c -m64 -mfpmath=387
fi
if have "$CXX"; then
    smoke "default, C++11"      $cpp
    smoke "SRU_STATIC, C++"     $cpp -DSRU_NO_DISPATCH -DSRU_STATIC
    smoke "SRU_MALLOC, C++"     $cpp -DSRU_NO_DISPATCH -include $dir/counted.h
fi
if have clang; then
    smoke "default, clang"      clang -std=c99
    smoke "SRU_STATIC, clang"   clang -std=c99 -DSRU_STATIC
    smoke "least, clang"        clang -std=c99 -include $dir/nothing.h -DSRU_STATIC \
                                -DSRU_NO_STDIO -DSRU_NO_BACKWARD -DSRU_NO_SIMD
fi

echo '#include <cblas.h>
int main(void) { return cblas_sgemm == 0; }' > $dir/blas.c
if $CC $dir/blas.c -o $dir/blas -lopenblas 2> $dir/log.txt; then
    libs=-lopenblas
    smoke "SRU_USE_CBLAS"       $one -DSRU_USE_CBLAS
    libs=
else
    echo "skipped: SRU_USE_CBLAS, because OpenBLAS is not installed"
fi

cp sru.h $dir/renamed/my-sru.h
smoke "SRU_FILENAME"            $one -DHEADER='"renamed/my-sru.h"' -DSRU_FILENAME='"my-sru.h"'
smoke "<sru.h>"                 $one -DHEADER='<sru.h>' -I. -DSRU_FILENAME='<sru.h>'

# ---- standards, and ways of including it ---------------------------------------------------------

echo '#include "../../../../sru.h"
#include "../../../../sru.h"
int try_twice(void);
int try_twice(void) { return SRU_VERSION; }' > $dir/twice.c
echo '#include "../../../../sru.h"
#define SRU_IMPLEMENTATION
#include "../../../../sru.h"
#include "../../../../sru.h"' > $dir/implementation.c
echo '#include <complex.h>
#define SRU_IMPLEMENTATION
#include "../../../../sru.h"' > $dir/complex.c
check "after <complex.h>, whose I is a macro" $CC -std=c99 $strict -fsyntax-only $dir/complex.c
cat > $dir/windows.c <<'END'
#define near
#define far
#define small char
#define hyper long
#define interface struct
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define IN
#define OUT
#define CONST const
#define VOID void
#define ERROR 0
#define DELETE 0x10000L
#define STRICT 1
#define SRU_IMPLEMENTATION
#include "../../../../sru.h"
END
check "after <windows.h>, whose macros are words" $CC -std=c99 $strict -fsyntax-only $dir/windows.c
cat > $dir/words.c <<'END'
#define unused __attribute__((__unused__))
#define aligned(n) __attribute__((__aligned__(n)))
#define always_inline inline __attribute__((__always_inline__))
#define private static
#define SRU_STATIC
#define SRU_IMPLEMENTATION
#include "../../../../sru.h"
END
check "after macros that are words of attributes and OpenMP" $CC -std=c99 $strict -fopenmp \
    -fsyntax-only $dir/words.c
have clang++
for file in twice implementation; do
    for std in c99 c11 c17 gnu99; do
        for compiler in "$CC" clang; do
            command -v ${compiler%% *} > /dev/null || continue
            check "$file" $compiler -std=$std $strict -fsyntax-only $dir/$file.c
        done
    done
    for std in c++11 c++14 c++17 c++20; do
        for compiler in "$CXX" clang++; do
            command -v ${compiler%% *} > /dev/null || continue
            check "$file" $compiler -x c++ -std=$std $strict -fsyntax-only $dir/$file.c
        done
    done
done
for compiler in "$CC" clang; do
    command -v ${compiler%% *} > /dev/null || continue
    check "alone" $compiler -std=c99 $strict -x c -DSRU_IMPLEMENTATION -fsyntax-only sru.h
done

echo '#include "../../../../sru.h"
int main(void) { return !sru_cpu()->name; }' > $dir/user.c
for compiler in "$one" "$cpp -DSRU_NO_DISPATCH"; do
    command -v ${compiler%% *} > /dev/null || continue
    check "one implementation, another file" $compiler $dir/user.c tests/sru.c -o $dir/two
    check "two files that have it static" $compiler -DSRU_STATIC -DSRU_IMPLEMENTATION \
        $dir/user.c tests/sru.c -o $dir/two
done
check "C from C++: compiles C"   $CC  -std=c99 -DSRU_NO_DISPATCH -c tests/sru.c -o $dir/c.o
if command -v ${CXX%% *} > /dev/null; then
    check "C from C++: links"    $CXX -x c++ $dir/user.c -x none $dir/c.o -o $dir/two
fi

# ---- symbols and macros --------------------------------------------------------------------------

# symbols of the C library, and then of what the compiler and OpenMP add
library='malloc|free|getenv|bcmp|mem(chr|cmp|cpy|move|set)
str(chr|cmp|cpy|cspn|error|len|ncmp|rchr|spn|str|tod)
f(close|error|flush|open|putc|read|write|seek|tell)|v?s?n?printf|remove|rename|fileno|fsync|perror
__(v|vs|vsn|sn|s)?printf_chk|__mem(cpy|move|set)_chk|__str(cpy|cat)_chk|__isoc(99|23)_.*
__errno_location|__assert_fail|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_
GOMP_.*|omp_.*|__kmpc_.*'
library=$(echo "$library" | tr '\n' '|')

symbols()                       # symbols WHAT COMPILER FLAGS...
{
    label=$1; shift
    check "$label: no warning" "$@" -c tests/sru.c -o $dir/symbols.o
    check "$label: nm finds sru_forward" sh -c "nm $dir/symbols.o | grep -q ' T sru_forward'"
    foreign=$(nm -g --defined-only $dir/symbols.o | awk '{ print $3 }' | grep -v '^sru_' | xargs)
    check "$label: symbols without sru_: $foreign" [ -z "$foreign" ]
    private=$(nm -g --defined-only $dir/symbols.o | awk '{ print $3 }' | grep '^sru__' | xargs)
    check "$label: public symbols with sru__: $private" [ -z "$private" ]
    wants=$(nm -u $dir/symbols.o | awk '{ print $2 }' | grep -Evx "$library" | xargs)
    check "$label: not in the C library: $wants" [ -z "$wants" ]
}
symbols "-Os"                   $CC -std=c99 $strict -Os
symbols "-O3"                   $one $strict -O3 -ffast-math -fopenmp
# clang says which loops it could not unroll; a product would then take five times as long
if command -v clang > /dev/null; then
    symbols "clang -Os"         clang -std=c99 $strict -Os -Werror=pass-failed
fi
if have clang-16; then          # which products of bfloat16 can send into an endless loop
    symbols "clang-16 -O2"      clang-16 -std=c99 $strict -O2
fi
if $CC -Werror -Wuse-after-free=3 -x c -fsyntax-only - < /dev/null 2> $dir/log.txt; then
    check "pointers that are freed" $CC -std=c99 $strict -O2 -DSRU_NO_SIMD -Wuse-after-free=3 \
        -c tests/sru.c -o $dir/freed.o
fi
# without files and heap: only what even a freestanding compiler needs, and strings
library='bcmp|mem(chr|cmp|cpy|move|set)|str(chr|cmp|cpy|len|ncmp|str)|_GLOBAL_OFFSET_TABLE_'
symbols "at the least"          $one $strict -Wno-unused-value -O1 \
                                -fno-stack-protector -U_FORTIFY_SOURCE -include $dir/nothing.h \
                                -DSRU_NO_STDIO -DSRU_ASSERT=

echo '#define SRU_IMPLEMENTATION
#include "../../../../sru.h"' > $dir/all.c
sed -n 's/^ *# *include *\(<.*>\).*/\1/p' sru.h | sort -u | while read -r name; do
    echo "#include $name" > $dir/one.c
    $CC -fsyntax-only $dir/one.c 2> $dir/log.txt && cat $dir/one.c
done > $dir/system.c
# SRUDEF is one of the options; SRU__IMPLEMENTED guards the implementation, as SRU_H guards the
# declarations; names with __ are the compiler's
for flags in "-x c -std=c99" "-x c -std=c99 -DSRU_NO_SIMD" "-x c -fopenmp"; do
    $CC $flags -O2 -dM -E $dir/all.c | awk '{ print $2 }' | sort -u > $dir/after.txt
    $CC $flags -O2 -dM -E $dir/system.c | awk '{ print $2 }' | sort -u > $dir/before.txt
    left=$(comm -23 $dir/after.txt $dir/before.txt | grep -Ev '^(SRU_.*|SRUDEF|__.*)$' | xargs)
    check "macros without SRU_ ($flags): $left" [ -z "$left" ]
    left=$(grep '^SRU__' $dir/after.txt | grep -vx SRU__IMPLEMENTED | xargs)
    check "private macros left behind ($flags): $left" [ -z "$left" ]
done

# ---- the text ------------------------------------------------------------------------------------

for file in sru.h *.cu Makefile */*.c */*.cpp */*.h */*.sh */*.py tests/cuda/*; do
    long=$(awk 'length > 100 { print FNR }' $file | xargs)
    check "$file: lines over 100 columns: $long" [ -z "$long" ]
done
late=$(grep -E '^[^#]*(printf\(|echo )"[^"]+skipped' tests/*.c tests/*.cpp tests/*.h tests/*.sh)
check "run.sh shows what is skipped where that is the first word: $late" [ -z "$late" ]
check "Makefile has at most 100 lines" [ "$(wc -l < Makefile)" -le 100 ]
check "hello.c has fewer than 40 lines" [ "$(wc -l < examples/hello.c)" -lt 40 ]
for name in $(sed -n '/^   OPTIONS/,/\*\//s/^   \(SRU[A-Z_]*\).*/\1/p' sru.h); do
    check "README.md has the option $name" grep -q "\`$name" README.md
done

finish
