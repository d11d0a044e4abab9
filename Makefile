# make help lists the targets. Only a C compiler is needed; OpenMP is used where there is one.

CFLAGS  = -O2
SECONDS = 60
FILE    = sru.h

OPENMP := $(shell echo 'int main(void) { return 0; }' | \
            $(CC) -fopenmp -x c - -o /dev/null 2>/dev/null && echo -fopenmp)
COMPILE = $(CC) -std=c99 -Wall -Wextra -Wpedantic $(OPENMP) $(CFLAGS)

EXAMPLES = $(patsubst examples/%.c, build/%, $(wildcard examples/*.c))
TESTS    = $(patsubst tests/%.c, build/%, $(wildcard tests/test_*.c tests/fuzz_*.c))

all: $(EXAMPLES) $(TESTS) build/bench  ## build the examples, tests and benchmarks: the default

run: build/charlm     ## train a language model on FILE=sru.h for SECONDS=60, and sample it
	build/charlm train $(FILE) --model build/charlm.safetensors --seconds $(SECONDS)
	build/charlm sample build/charlm.safetensors --length 600

test: all             ## run all tests; the last line is `N passed, N failed`
	@CC="$(CC)" sh tests/run.sh

bench: build/bench    ## measure the operators and networks on this machine
	build/bench

peers: build/bench build/charlm  ## measure beside torch, onnxruntime, OpenBLAS and the reference
	bench/setup
	build/venv/bin/python bench/peers.py $(ARGS)

learning: build/charlm  ## train on FILE for SECONDS beside LSTM, GRU and the reference: the curves
	bench/setup
	build/venv/bin/python bench/learning.py $(FILE) --seconds $(SECONDS) $(ARGS)

test-pytorch:         ## compare with the reference in PyTorch, which it installs first
	tests/pytorch/run

test-exhaustive: build/test_operators  ## exp, sigmoid and tanh on all 2^32 numbers: minutes
	build/test_operators --exhaustive

help:                 ## print this
	@sed -n 's/^\([a-z-]*\):.*## /make \1@/p' Makefile | awk -F@ '{ printf "%-22s%s\n", $$1, $$2 }'

clean:                ## remove build/
	rm -rf build

cuda test-cuda:
	@echo "There is no GPU program yet: sru_cuda.cu is still to come." >&2; exit 1

build/%: examples/%.c sru.h | build
	$(COMPILE) $< -o $@ -lm -lpthread

build/%: bench/%.c sru.h | build
	$(COMPILE) $< -o $@

build/mcu: examples/mcu.c sru.h build/weights.h
	$(COMPILE) -Ibuild $< -o $@

build/weights.h: build/pack examples/rnn.safetensors
	build/pack examples/rnn.safetensors q8 > $@

build/sru.o: tests/sru.c sru.h | build
	$(COMPILE) -c $< -o $@

build/%: tests/%.c build/sru.o $(wildcard tests/*.h)
	$(COMPILE) $< build/sru.o -o $@ -lm

build:
	mkdir -p build

.PHONY: all run test bench peers learning test-pytorch test-exhaustive help clean cuda test-cuda
