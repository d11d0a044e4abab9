"""Times random shapes, most of them small: more threads or wider vectors should never take longer.

    make build/bench
    python3 bench/sweep.py [--count 200] [--seed 1] [--threads 2]

Prints the shapes in which they do, the worst first. Each is measured twice in every way, by turns,
and the shortest times count; other programs may still change a ratio by a few hundredths.
"""
import argparse, json, os, random, signal, subprocess, sys, time
from peers import HERE, at_least, need

BENCH = os.path.join(HERE, "..", "build", "bench")
SETS = ["avx512", "avx2", "sse2", "neon", "rvv", "simd128", "scalar"]   # from the widest down


def shapes(count, rng):
    def size(low, high):
        return int(2**rng.uniform(low, high))

    def units():
        return rng.choice([size(3, 8), 16*size(0, 4)])

    kinds = {
        "linear": lambda: [size(0, 9), size(3, 9), size(3, 9)],
        "scan": lambda: [size(0, 9), size(0, 4), units()],
        "layer": lambda: [size(0, 8), size(0, 4), units(), size(0, 2)],
        "train": lambda: [size(0, 8), size(0, 4), units(), size(0, 2)],
        "stream": lambda: [units(), size(0, 2)],
        "layernorm": lambda: [size(0, 10), size(3, 10)],
        "attention": lambda: [size(0, 8), size(0, 3), size(0, 3), size(2, 7)],
        "srupp": lambda: [size(0, 7), size(0, 3), units(), 16, size(0, 2)],
        "srupp --train": lambda: [size(0, 7), size(0, 3), units(), 16, size(0, 2)],
    }
    for i in range(count):
        kind = list(kinds)[i % len(kinds)]
        name, *options = kind.split()
        yield [name, *map(str, kinds[kind]()), *options]


def measured(case, isa, threads, seconds):
    return json.loads(subprocess.check_output(
        [BENCH, *case, "--isa", isa, "--threads", str(threads), "--seconds", str(seconds),
         "--json"]))["ns_min"]


def report(title, worst, least):
    worst = sorted(row for row in worst if row[0] > least)
    print("%s: %d" % (title, len(worst)))
    for ratio, case, slow, fast in reversed(worst):
        print("    %5.2f  %-32s %9.1f us, not %.1f" % (ratio, case, slow/1e3, fast/1e3))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=at_least(1), default=200, help="number of shapes (200)")
    parser.add_argument("--seed", type=int, default=1, help="each seed has other shapes (1)")
    parser.add_argument("--threads", type=at_least(1), default=2, help="to compare with 1 (2)")
    parser.add_argument("--seconds", type=at_least(0, float), default=0.03,
                        help="time of each measurement (0.03)")
    parser.add_argument("--least", type=float, default=1.1, help="ratio above which to show (1.1)")
    a = parser.parse_args()
    need("build/bench")
    sets = [isa for isa in SETS if subprocess.run([BENCH, "linear", "1", "1", "1", "--isa", isa,
                                                   "--seconds", "0.001"], capture_output=True)
            .returncode == 0]
    ways = [(isa, 1) for isa in sets] + [(sets[0], a.threads)]
    threads, vectors, began = [], [], time.time()
    for done, case in enumerate(shapes(a.count, random.Random(a.seed))):
        twice = [[measured(case, *way, a.seconds) for way in ways] for _ in range(2)]
        best = dict(zip(ways, map(min, *twice)))
        name, one, more = " ".join(case), best[sets[0], 1], best[sets[0], a.threads]
        threads.append((more/one, name, more, one))
        for wide, narrow in zip(sets, sets[1:]):
            slow, fast = best[wide, 1], best[narrow, 1]
            vectors.append((slow/fast, "%s, %s" % (name, wide), slow, fast))
        if sys.stderr.isatty():
            left = (time.time() - began)/(done + 1)*(a.count - done - 1)
            sys.stderr.write("\r  %3d of %d, %.0f s left " % (done + 1, a.count, left))
    if sys.stderr.isatty():
        sys.stderr.write("\r%40s\r" % "")
    report("slower with %d threads than with 1" % a.threads, threads, a.least)
    report("slower than with the next narrower vectors, 1 thread", vectors, a.least)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)    # Ctrl-C ends it without a traceback
    main()
