# make help lists the targets. Only a C compiler is needed; OpenMP is used where there is one.

CFLAGS  = -O2
NVCC    = nvcc -std=c++17 -O2
GPUS    = 75 80 90 100 120
SECONDS = 60
FILE    = sru.h

OPENMP := $(shell f=$$(mktemp || TMPDIR= mktemp) && echo 'int main(void) { return 0; }' | \
            $(CC) -fopenmp -x c - -o "$$f" 2>/dev/null && echo -fopenmp; rm -f "$$f")
COMPILE = $(CC) -std=c99 -Wall -Wextra -Wpedantic $(OPENMP) $(CFLAGS)

EXAMPLES = $(patsubst examples/%.c, build/%, $(wildcard examples/*.c))
TESTS    = $(patsubst tests/%.c, build/%, $(wildcard tests/test_*.c tests/fuzz_*.c))
CUDA     = test_cuda test_golden_cuda charlm_cuda bench_cuda roofline_cuda
all: $(EXAMPLES) $(TESTS) build/bench  ## build the examples, tests and benchmarks: the default

run: build/charlm  ## train a language model on FILE=sru.h for SECONDS=60 or until Ctrl-C; sample it
	trap : INT; OMP_WAIT_POLICY=passive build/charlm train "$(FILE)" --seconds "$(SECONDS)" \
	    --dropout 0.3 && build/charlm sample build/charlm.safetensors --length 600

test: all             ## run all tests; the last line is `N passed, N failed`
	@CC="$(CC)" sh tests/run.sh

bench: build/bench    ## measure the operators and networks on this machine
	build/bench

peers: build/bench build/charlm  ## measure beside torch, onnxruntime, OpenBLAS and the reference
	bench/setup
	build/venv/bin/python bench/peers.py $(ARGS)

learning: build/bench build/charlm  ## train on FILE for SECONDS beside LSTM, GRU and the reference
	bench/setup
	build/venv/bin/python bench/learning.py "$(FILE)" --seconds $(SECONDS) $(ARGS)

browser: | build     ## build the page examples/browser; needs clang, lld, wasi-libc
	mkdir -p build/browser && cp examples/browser/*.html examples/browser/*.mjs build/browser
	clang --target=wasm32-wasi -mexec-model=reactor -msimd128 -std=c99 -O2 -DNDEBUG \
	    -Wall -Wextra -Wpedantic examples/browser/browser.c -o build/browser/browser.wasm
	@echo "python3 -m http.server -d build/browser    shows it at http://localhost:8000"

cuda: $(CUDA:%=build/%)  ## build the GPU programs, and charlm with --cuda; needs nvcc
	cp build/charlm_cuda build/charlm

test-cuda: cuda       ## run the GPU's tests on a GPU; make test runs them without one
	build/test_cuda
	build/test_golden_cuda --cuda

bench-cuda: cuda      ## measure on a GPU, beside cuDNN and the reference in PyTorch
	build/bench_cuda && build/roofline_cuda
	python3 bench/peers_cuda.py

test-pytorch:         ## compare with the reference in PyTorch, which it installs first
	tests/pytorch/run

test-exhaustive: build/test_operators  ## test exp, sigmoid and tanh on all 2^32 floats (minutes)
	build/test_operators --exhaustive

help:                 ## print this
	@sed -n 's/^\([^ .:]*\):.*## /make \1@/p' Makefile | awk -F@ '{ printf "%-22s%s\n", $$1, $$2 }'

clean:                ## remove build/, and what Python leaves in bench/
	rm -rf build bench/__pycache__

# One library serves all programs; those that define SRU_IMPLEMENTATION can be compiled alone, too.
vpath %.c tests examples bench
build/%: %.c build/sru.o
	$(COMPILE) -DSRU__IMPLEMENTED $< build/sru.o -o $@ -lm -lpthread
$(TESTS): $(wildcard tests/*.h)

# these have no heap, so their library is another
build/audio build/mcu: build/%: %.c sru.h | build
	$(COMPILE) -Ibuild $< -o $@ -lm
build/mcu: build/weights.h
build/weights.h: build/pack examples/rnn.safetensors
	build/pack examples/rnn.safetensors q8 > $@

build/sru.o: tests/sru.c sru.h | build
	$(COMPILE) -c $< -o $@

# Code for each of GPUS, and code that later GPUs compile themselves; fails if registers spill.
build/sru_cuda.o: sru_cuda.cu sru.h | build
	$(NVCC) --threads 0 $(foreach n,$(GPUS),-gencode arch=compute_$n,code=sm_$n) \
	    -gencode arch=compute_$(lastword $(GPUS)),code=compute_$(lastword $(GPUS)) \
	    -Xptxas -v -c $< -o build/gpu.o > build/gpu.txt 2>&1 || { cat build/gpu.txt; false; }
	! grep -B 1 -E '[1-9][0-9]* bytes spill' build/gpu.txt
	mv build/gpu.o $@

build/%_cuda.o: %.c sru.h | build
	$(COMPILE) -DSRU_CUDA -DSRU__IMPLEMENTED -c $< -o $@
build/test_cuda: tests/test_cuda.cpp
build/roofline_cuda: bench/roofline.cpp
build/test_golden_cuda build/charlm_cuda build/bench_cuda: build/%: build/%.o
$(CUDA:%=build/%): build/sru.o build/sru_cuda.o
	$(NVCC) $^ $(OPENMP:%=-Xcompiler %) -lcublas -o $@

build: ; mkdir -p build

.DELETE_ON_ERROR:
.PHONY: $(shell sed -n 's/^\([^ .:]*\):.*##.*/\1/p' Makefile)
