#!/bin/sh
# Builds and runs the tests. The last line is `N passed, N failed`, over all programs and checks.
#
#     tests/run.sh                runs all jobs, two at a time (JOBS=n: n at a time)
#     tests/run.sh JOB...         runs only these jobs; --list prints the names of all
#
# A job is a script of checks, or one way of building the library: every tests/test_*.c and
# tests/fuzz_*.c is then linked with it and run. Jobs cc and charlm need what `make all` builds. A
# program counts as a failure if it ends without a line `N passed, N failed`, or with a status that
# disagrees with this line.

unset CDPATH                        # with it, cd may go elsewhere
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C
export OMP_WAIT_POLICY=passive      # several programs share the machine: no thread may spin
CC=${CC:-cc}
CXX=${CXX:-c++}
strict='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror'
here=build/tests
libraries='-lm -lpthread'
threads='-DSRU__PORTION=1000 -DSRU__SHARE=1'    # several threads even for small work, as in tests
jobs='undefined address thread aarch64 cuda header examples charlm isa clang fast cc c++
      native scalar scalar-native cblas m32 wasm windows armhf s390x readme'

job()
{
    case $1 in
    cc)             made ;;
    fast)           variant $CC  -std=c11 -O3 -ffast-math $(openmp $CC) $threads $(tuned $CC) ;;
    # an error if loops are not unrolled: see test_header.sh
    clang)          variant clang -std=c99 -O2 -Werror=pass-failed $(openmp clang) $threads ;;
    c++)            variant $CXX -x c++ -std=c++11 -O1 $(openmp $CXX) $threads ;;
    # job scalar looks for pointers that overflow: with other kernels, that takes minutes to compile
    undefined)      variant $CC  -std=c99 -O2 -g1 $(openmp $CC) $threads $sanitize \
                        -fno-sanitize=pointer-overflow ;;
    address)        echo leak:libomp > $dir/known.txt       # leaks of libomp itself
                    export LSAN_OPTIONS=suppressions=$dir/known.txt:print_suppressions=0
                    variant clang++ -x c++ -std=c++17 -O1 -gline-tables-only $(openmp clang++) \
                        $threads -fsanitize=address ;;
    thread)         races ;;
    # clang's check of pointers finds what gcc's does not
    scalar)         variant clang -std=c99 -O2 $(openmp clang) $threads -DSRU_NO_SIMD $sanitize ;;
    # without OpenMP
    scalar-native)  variant $CC  -std=c99 -O3 -march=native -DSRU_NO_SIMD -Wno-unknown-pragmas \
                        $(tuned $CC) ;;
    # with -mavx, gcc fuses other products with sums
    native)         variant $CC  -std=c99 -O2 -march=native $(openmp $CC) $threads ;;
    m32)            variant $CC  -m32 -O2 $(openmp $CC -m32) $threads ;;
    aarch64)        export SRU_ISA=neon     # the only kernels there that are not tested elsewhere
                    emulated qemu-aarch64 clang --target=aarch64-linux-gnu -static -fuse-ld=lld ;;
    wasm)           emulated 'node --no-warnings --single-threaded tests/wasi.mjs' clang \
                        --target=wasm32-wasi -msimd128 -ffast-math -Wl,-z,stack-size=1048576 ;;
    # Wine finds no folder whose name has letters that are not in the locale
    windows)        export WINEPREFIX="$PWD/$dir/wine" WINEDEBUG=-all LC_ALL=C.UTF-8; suffix=.exe
                    emulated wine x86_64-w64-mingw32-gcc -static
                    wineserver -k 2> /dev/null      # else it may still write there
                    rm -rf "$WINEPREFIX" ;;
    armhf)          export SRU_ISA=neon; sources='tests/test_golden.c tests/test_srupp.c'
                    emulated qemu-arm clang --target=arm-linux-gnueabihf -mfpu=neon-vfpv4 -static \
                        -fuse-ld=lld -D_FILE_OFFSET_BITS=64 ;;
    # here numbers in memory begin with their highest byte; in files, always with their lowest
    s390x)          sources='tests/test_golden.c tests/test_files.c'
                    emulated qemu-s390x clang --target=s390x-linux-gnu -static ;;
    isa)            instruction_sets ;;
    cblas)          openblas ;;
    # CC may be several words, such as "ccache gcc"
    header)         export CC="env $CC"; report test_header sh tests/test_header.sh ;;
    readme)         report test_readme sh tests/test_readme.sh ;;
    examples)       export CC="env $CC"; report test_examples sh tests/test_examples.sh ;;
    cuda)           report test_cuda sh tests/test_cuda.sh ;;
    charlm)         report test_charlm bash tests/test_charlm.sh build/charlm ;;
    esac
}
sanitize='-fsanitize=undefined -fno-sanitize-recover=all'

# Whether a compiler, with its flags, makes programs that run here, and has the C library's headers.
works()
{
    printf '#include <errno.h>\nint main(void) { return errno; }\n' > $dir/try.c
    "$@" $dir/try.c -o $dir/try$suffix 2> $dir/try.txt && $emulator $dir/try$suffix 2>> $dir/try.txt
}

openmp() { works "$@" -fopenmp > $dir/openmp.txt 2>&1 && echo -fopenmp; }

# Prints the flag with which gcc fuses products with sums as seldom as when it is tuned for Zen 5.
tuned() { works "$@" --param=avoid-fma-max-bits=512 && echo --param=avoid-fma-max-bits=512; }

say() { printf '%-15s %s\n' "$name" "$*"; }

# Says what failed, at once; it is said again at the end of all jobs.
fail() { say "$*" | tee -a $dir/failures.txt; failed=$((failed + 1)); }

# report PROGRAM COMMAND...: runs the command, and adds its counts to passed and failed.
report()
{
    program=$1; shift
    log=$dir/$program.txt
    start=$(date +%s)
    "$@" > $log 2>&1 < /dev/null
    status=$?
    took=$(($(date +%s) - start))
    last=$(tail -n 1 $log | tr -d '\r' | grep -E '^[0-9]+ passed, [0-9]+ failed$')
    if [ -z "$last" ]; then
        tail -n 30 $log
        fail "$program: failed, with status $status and without a line 'N passed, N failed'"
        return
    fi
    p=${last%% *}; f=${last#*, }; f=${f%% *}
    if [ $f = 0 ] && { [ $status != 0 ] || [ $p = 0 ]; }; then
        tail -n 30 $log
        fail "$program: failed, with status $status after '$last'"
    elif [ $f != 0 ]; then
        grep 'failed: ' $log | head -n 20 | sed "s/^/$name: /" | tee -a $dir/failures.txt
    fi
    grep -i '^skipped' $log | while read -r line; do say "$program: $line"; done
    passed=$((passed + p)); failed=$((failed + f))
    say "$program: $last ($took s)"
}

# variant COMPILER FLAGS...: builds the library once and every test program with it; runs these.
build()
{
    if ! works "$@"; then
        say "skipped: $* does not work here: $(head -n 1 $dir/try.txt)"
        return 1
    fi
    say "$*"
    if ! "$@" $strict -c tests/sru.c -o $dir/sru.o > $dir/sru.txt 2>&1; then
        head -n 40 $dir/sru.txt
        fail "tests/sru.c does not compile"
        return 1
    fi
    case "$*" in *'-x c++'*) object="-x none $dir/sru.o" ;; *) object=$dir/sru.o ;; esac
    programs=
    for source in ${sources:-tests/test_*.c tests/fuzz_*.c}; do
        [ -f $source ] || continue
        program=$(basename $source .c)
        if "$@" $strict $source $object -o $dir/$program$suffix $libraries \
            > $dir/$program.txt 2>&1; then
            programs="$programs $program"
        else
            head -n 40 $dir/$program.txt
            fail "$program: does not compile"
        fi
    done
}

variant()
{
    build "$@" || return
    for program in $programs; do report $program $emulator $dir/$program$suffix; done
}

# Runs the programs that make has built, with the flags that it was given.
made()
{
    for source in tests/test_*.c tests/fuzz_*.c; do
        program=$(basename $source .c)
        report $program build/$program
    done
}

# emulated EMULATOR COMPILER FLAGS...: programs that need little of a system, built for another one.
emulated()
{
    emulator=$1 libraries=-lm; shift
    case $emulator in qemu-a*) export TEST_BRIEF=1 ;; esac
    : "${sources:=tests/test_golden.c tests/test_operators.c tests/test_model.c tests/test_srupp.c}"
    variant "$@" -std=c99 -O2 -Wno-unknown-pragmas -Wno-unused-command-line-argument
}

# Looks for data races. Archer tells the sanitizer how OpenMP's threads wait for each other.
races()
{
    archer=$(clang -print-resource-dir 2> $dir/try.txt)/../../libarcher.so
    if [ ! -f "$archer" ]; then say "skipped: clang's OpenMP has no Archer here"; return; fi
    export OMP_TOOL_LIBRARIES="$archer" TEST_BRIEF=1
    export TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1
    sources='tests/test_model.c tests/test_srupp.c'
    variant clang -std=c99 -O1 -gline-tables-only $(openmp clang) $threads -fsanitize=thread \
        -march=native -DSRU_NO_DISPATCH
}

# Runs the golden cases with each instruction set that this machine has, and on processors that lack
# some. The other programs try all instruction sets by themselves.
instruction_sets()
{
    sources=tests/test_golden.c
    build $CC -std=c99 -O2 $(openmp $CC) || return
    cat > $dir/isa.c <<'END'
#include "../../../sru.h"
#include <stdio.h>
int main(void) { return puts(sru_cpu()->name) < 0; }
END
    $CC -fopenmp $dir/isa.c $dir/sru.o -o $dir/isa 2> $dir/isa.txt ||
        $CC $dir/isa.c $dir/sru.o -o $dir/isa || { fail "isa.c does not compile"; return; }
    for isa in $(sed -n 's/^#define SRU__ISA *//p' sru.h); do
        export SRU_ISA=$isa
        if [ "$($dir/isa)" != $isa ]; then
            say "skipped: this machine or build has no $isa: $($dir/isa) would be used"
            continue
        fi
        say "SRU_ISA=$isa"
        report test_golden $dir/test_golden
    done
    unset SRU_ISA
    say "products of bfloat16, where this machine and build have them, with larger tolerances"
    report test_golden $dir/test_golden --bf16
    # processors without AVX2, FMA, AVX-512 in turn: instructions that they lack end the program
    for cpu in SandyBridge:sse2 Haswell,-fma:sse2 Haswell:avx2; do
        emulator="qemu-x86_64 -cpu ${cpu%:*}" isa=${cpu#*:}
        if ! works $CC; then
            say "skipped: $emulator does not work here: $(head -n 1 $dir/try.txt)"
            continue
        fi
        uses=$($emulator $dir/isa 2> /dev/null)
        if [ "$uses" != $isa ]; then fail "$emulator: $uses is used, not $isa"; fi
        say "$emulator"
        report test_golden $emulator $dir/test_golden
    done
    emulator=
}

# Products by OpenBLAS, whose bits may vary: only for programs that do not rely on the same bits.
openblas()
{
    sources='tests/test_operators.c tests/test_golden.c'
    build $CC -std=c99 -O2 -march=native -DSRU_NO_DISPATCH -DSRU_USE_CBLAS \
        -Wno-unused-command-line-argument -Wl,--no-as-needed -lopenblas || return
    report test_operators $dir/test_operators
    report test_golden $dir/test_golden
}

case $1 in
--help)
    sed -n '2,/^$/s/^# \{0,1\}//p' tests/run.sh
    exit ;;
--list)
    echo $jobs
    exit ;;
--job)                              # one job, in a process of its own
    name=$2
    dir=$here/$name
    rm -rf "$dir" && mkdir -p "$dir" || exit
    passed=0 failed=0 sources= emulator= suffix=
    job $name
    echo $passed $failed > $dir/result
    exit ;;
esac

for name; do
    case " "$(echo $jobs)" " in
    *" $name "*) ;;
    *) echo "There is no job '$name': see --list" >&2; exit 2 ;;
    esac
done
[ $# -gt 0 ] && jobs=$*
for name in $jobs; do rm -f "$here/$name/result" "$here/$name/failures.txt" || exit; done
mkdir -p $here || exit
start=$(date +%s)
echo $jobs | tr ' ' '\n' | CC=$CC CXX=$CXX xargs -P "${JOBS:-2}" -n 1 sh tests/run.sh --job

passed=0 failed=0
for name in $jobs; do
    if read -r p f < $here/$name/result; then
        passed=$((passed + p)) failed=$((failed + f))
    else
        dir=$here/$name
        mkdir -p $dir
        fail "did not end"
    fi
done
if [ $failed != 0 ]; then
    echo "What failed:"
    for name in $jobs; do cat $here/$name/failures.txt 2> /dev/null; done
fi
echo "All tests took $(($(date +%s) - start)) s."
echo "$passed passed, $failed failed"
[ $failed = 0 ]
