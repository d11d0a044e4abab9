#!/bin/sh
# Tests sru_cuda.cu without a GPU: compiled as C++, it runs on tests/cuda, a stand-in for the CUDA
# Toolkit, with several schedules, with sanitizers, and with planted faults that the tests must
# find. The last line is `N passed, N failed`.

. "$(dirname "$0")/check.sh"
have "$CXX" || { finish; exit; }
strict='-Wall -Wextra -Wpedantic -Werror -Wno-unknown-pragmas -Wno-clobbered'
# little scratch memory at a time, so that scans and attention are computed in many parts
gpu='-std=c++17 -I. -Itests/cuda -DSRU_STANDIN -DSRU_CUDA_U=20000 -DSRU_CUDA_SCORES=20000'

# --foreground, or Ctrl-C does not reach what timeout runs
timeout=$(timeout --foreground 9 echo timeout --foreground 2> /dev/null || echo timeout)

excerpt() { grep -E 'failed|error|warning|stand-in|ERROR' $dir/log.txt | head -n 8; }

# compile SOURCE OBJECT FLAGS...
compile()
{
    source=$1 object=$2; shift 2
    case $source in
    *.c) $CC -std=c99 -DSRU_CUDA "$@" -c $source -o $dir/$object ;;
    *)   $CXX $gpu $strict "$@" -x c++ -c $source -o $dir/$object ;;
    esac > $dir/log.txt 2>&1 || { count 1 "$source does not compile: $*"; return 1; }
}

# run WHAT PROGRAM ARGUMENTS...: all of the program's checks must pass; that is one check here
run()
{
    what=$1; shift
    $timeout 900 "$@" > $dir/log.txt 2>&1 &&
        tail -n 1 $dir/log.txt | grep -Eqx '[0-9]+ passed, 0 failed'
    count $? "$what"
    echo "$what: $(tail -n 1 $dir/log.txt)"
}

link() { name=$1; shift; $CXX "$@" -o $dir/$name > $dir/log.txt 2>&1 || count 1 "$name: linking"; }

# ---- nvcc compiles it for each of the Makefile's GPUS, without spilling registers ----------------

if have nvcc; then check 'nvcc' make build/sru_cuda.o; fi

# ---- as it is, with several schedules ------------------------------------------------------------

compile tests/sru.c sru.o -O1 -DSRU_NO_DISPATCH
compile sru_cuda.cu sru_cuda.o -O1
compile tests/test_cuda.cpp test_cuda.o
compile tests/test_golden.c test_golden.o -O1
link test_cuda $dir/test_cuda.o $dir/sru_cuda.o $dir/sru.o
link test_golden $dir/test_golden.o $dir/sru_cuda.o $dir/sru.o
run 'operators and networks' $dir/test_cuda
run 'schedule 2' env STANDIN_SEED=2 $dir/test_cuda --brief
for math in '' =TF32 =BF16 =FP16; do
    run "golden cases, --cuda$math" $dir/test_golden --cuda$math
done

# ---- a program whose copy of sru.h is static finds it --------------------------------------------

cat > $dir/static.c <<'END'
#define SRU_STATIC
#define SRU_IMPLEMENTATION
#include "sru.h"
int main(void) { return sru_cuda_open(NULL, SRU_CUDA_FLOAT32, NULL) == NULL; }
END
compile $dir/static.c static.o -I. -DSRU_NO_DISPATCH
link static $dir/static.o $dir/sru_cuda.o
check 'SRU_STATIC' $dir/static

# ---- a language model comes out the same, whether trained on the CPU or on the GPU ---------------

compile examples/charlm.c charlm.o -O1 -DSRU__IMPLEMENTED
link charlm $dir/charlm.o $dir/sru_cuda.o $dir/sru.o -lm
head -c 20000 sru.h > $dir/text.txt
tiny='--steps 5 --hidden 12 --layers 2 --batch 3 --length 9 --dropout 0.2'
for arch in sru 'srupp --projection 6 --window 7'; do
    for side in '' --cuda; do
        $timeout 100 $dir/charlm train $dir/text.txt --arch $arch $tiny $side \
            --model $dir/model$side.safetensors > $dir/log.txt 2>&1
        count $? "charlm train --arch $arch $side"
        tail -n 1 $dir/log.txt > $dir/trained$side.txt
    done
    for side in '' --cuda; do
        $dir/charlm sample $dir/model--cuda.safetensors --length 9 $side > $dir/sample$side.txt 2>&1
        count $? "charlm sample --arch $arch $side"
    done
    cmp $dir/trained.txt $dir/trained--cuda.txt > $dir/log.txt 2>&1
    count $? "charlm --arch $arch: $(cat $dir/trained.txt) on the CPU, on the GPU $(tail -n 1 \
                                    $dir/trained--cuda.txt)"
    cmp $dir/sample.txt $dir/sample--cuda.txt > $dir/log.txt 2>&1
    count $? "charlm --arch $arch: it writes something else on the GPU"
done

# ---- the benchmarks run to their end -------------------------------------------------------------

compile bench/roofline.cpp roofline.o
link roofline $dir/roofline.o $dir/sru_cuda.o $dir/sru.o
$timeout 100 $dir/roofline 3 2 20 --seconds 0.001 --json > $dir/log.txt 2>&1
count $? 'roofline_cuda'
[ $(grep -c '"us"' $dir/log.txt) = $(wc -l < $dir/log.txt) ]
count $? 'roofline_cuda: lines without a time'

compile bench/bench.c bench.o -O1 -DSRU__IMPLEMENTED
link bench_cuda $dir/bench.o $dir/sru_cuda.o $dir/sru.o -lm
for case in 'linear 3 20 5' 'linear 3 20 5 --type f16' 'scan 3 2 16' 'layer 3 2 8 2 --type tf32' \
            'train 3 2 8 2' 'train 3 2 8 2 --type bf16' 'stream 8 2 --threads 1 --isa cuda' \
            'layernorm 3 9' 'attention 5 2 2 4' 'srupp 3 2 8 4 2 --heads 2' \
            'srupp 3 2 8 4 2 --train' 'srupp 1 2 8 4 2 --window 3 --after 4'; do
    $timeout 100 $dir/bench_cuda $case --seconds 0 --json > $dir/log.txt 2>&1 &&
        grep -q '"isa": "cuda", "ns": [0-9.]*, "ns_min": [0-9.]*, "g[a-z]*": ' $dir/log.txt
    count $? "bench_cuda $case"
done
for case in 'linear 3 20 5 --type q8' 'linear 3 20' 'layer 3 2 8 2 --isa avx2'; do
    $timeout 100 $dir/bench_cuda $case > $dir/log.txt 2>&1
    [ $? = 1 ] && [ $(wc -l < $dir/log.txt) = 1 ]
    count $? "bench_cuda does not refuse $case"
done

# ---- with sanitizers -----------------------------------------------------------------------------

export ASAN_OPTIONS=detect_stack_use_after_return=0     # else gcc 14's is fifty times as slow

# sanitize NAME HOW FLAG: FLAG makes the first object fast, which contains the stand-in's own code
sanitize()
{
    flags="-fsanitize=$1 -fno-sanitize-recover=all"
    compile sru_cuda.cu san.o $flags $3 || return
    compile tests/test_cuda.cpp san_test.o $flags
    link sanitized $flags $dir/san.o $dir/san_test.o $dir/sru.o
    run "-fsanitize=$1" $dir/sanitized $2
}
sanitize address,undefined --brief -Og
sanitize thread --few -O1

# ---- with planted faults -------------------------------------------------------------------------

# plant N EXPRESSION: edits the copy of sru_cuda.cu, so that it has fault N if FAULT=N
plant()
{
    sed "$2" $dir/faults.cu > $dir/more.cu
    cmp -s $dir/faults.cu $dir/more.cu && count 1 "fault $1 changes nothing: sru_cuda.cu was edited"
    mv $dir/more.cu $dir/faults.cu
}

# find N WHAT: the tests must fail, or the stand-in must end them, in time (else the status is 124).
# After the first failure, nothing reads what the program prints, and it ends at the next
find()
{
    why=$({ FAULT=$1 $timeout 300 $dir/faults --brief 2>&1; echo "ended with $?"; } |
          tee $dir/log.txt | grep -m 1 -E 'failed: |stand-in: |^ended with (12[89]|1[3-9].)')
    count $? "the tests do not find the fault: $2"
    [ -z "$why" ] || echo "found: $2: $(echo "$why" | cut -c 1-90)"
}

{ echo '#include <stdlib.h>'; echo 'static const int FAULT = atoi(getenv("FAULT"));'
  cat sru_cuda.cu; } > $dir/faults.cu
barrier() { plant $1 "/$2/,/^}/s/__syncthreads();/if (FAULT != $1) &/"; }
barrier 1 'void sum_rows_kernel'
barrier 2 'void total_kernel'
barrier 3 'float over_block'
plant 4 '/softmax_loss_kernel(double/,/^}/s/row >= rows/& || (FAULT == 4 \&\& lane >= n)/'
plant 5 's/const int n = T - t < TILE ? T - t : TILE/& - (FAULT == 5)/'
plant 6 's/if (i >= s.B\*N) return;/if (i >= s.B*N + (FAULT == 6)) return;/'
plant 7 '/P(targets)/s/if (rows) TRY/if (rows \&\& FAULT == 7 \&\& *targets < -9) abort(); &/'
plant 8 '/^sru_status deliver/,/^}/s/return check(c, name, cuda/if (FAULT == 8) return SRU_OK; &/'
plant 10 's/tiles\[odd\]/tiles[odd \&\& FAULT != 10]/'
plant 11 's/pinned(lanes, v/(FAULT == 11) + &/'
plant 12 '/softmax_loss_kernel(double/,/^}/s/__syncwarp();/if (FAULT != 12) &/'
plant 9 '/^sru_status norm/,/^}/s/if (on_device/if (FAULT == 9) TRY(copy(c, \&sum, g, 8)); &/'
if compile $dir/faults.cu faults.o -w -O1; then
    link faults $dir/test_cuda.o $dir/faults.o $dir/sru.o
    run 'no fault, and schedule 3' env FAULT=0 STANDIN_SEED=3 $dir/faults --brief
    find 1 'a barrier is missing in a sum over rows'
    find 2 'a barrier is missing in a sum of squares'
    find 3 'a barrier is missing in a sum over a block'
    find 4 'lanes leave before a shuffle'
    find 5 'the last step of a tile is left out'
    find 6 'a thread has a column too many'
    find 7 'the host reads device memory'
    find 8 'a result is not waited for'
    find 9 'an operator waits for the GPU'
    find 10 'helpers write what is still being read'
    find 12 'the loss in place writes what is still being read'
    find 11 'many columns: a gate is wrong from the second tile on'
fi

finish
