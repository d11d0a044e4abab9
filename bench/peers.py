"""Times sru.h beside its peers: torch, onnxruntime, OpenBLAS, and the reference, 2.x and 3.0-dev.

    make peers                                  sets up what it needs, and runs it: some minutes
    make peers ARGS="--only linear --isa avx2"

A round goes through all cases, and measures each with sru.h and then with its peers. A ratio is the
peer's time divided by that of sru.h, as the median over the rounds. Results go to build/peers, or
with --isa to build/peers-ISA:

    peers.md, peers.csv     ratios, and beside each its target: how large it should be at least
    curves.csv, memory.csv  times against d, T, B and threads; memory against T
    *.png                   pictures of all this
"""
import argparse, csv, glob, importlib.util, json, os, platform, re, shlex, statistics
import signal, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
CC = shlex.split(os.environ.get("CC") or "cc")
ISA_FLAGS = {"avx512": ["-mavx512f", "-mprefer-vector-width=512"], "avx2": ["-mavx2", "-mfma"]}
# keeps peers to what an AVX2 machine has; onnxruntime cannot be told to, and asks the processor
# alone: see cpuid.c
AVX2_PEERS = {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
              "ONEDNN_MAX_CPU_ISA": "AVX2", "OPENBLAS_CORETYPE": "Haswell"}
AVX512_PEERS = {"OPENBLAS_CORETYPE": "SkylakeX"}     # it takes those too new for it for Haswells
# makes malloc keep what is freed; else torch's training gives pages back and faults them in again
KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TOP_PAD_": str(1 << 28),
           "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
CHARLM_SECONDS = 3
WINDOW = 257                # of SRU++ when it streams: the step itself and 256 before it


# ---- arguments and what is needed, for learning.py, sweep.py and peers_cuda.py too --------------

def need(*things):
    """Ends the program with a sentence unless all things are there: modules, or files in build/."""
    for thing in things:
        if not (os.path.exists(os.path.join(HERE, "..", thing)) if "/" in thing
                else importlib.util.find_spec(thing)):
            sys.exit("%s: there is no %s%s: see --help" % (os.path.basename(sys.argv[0]), thing,
                     "" if "/" in thing else " for " + sys.executable))


def at_least(least, kind=int):
    """The type of an argument that must not be below `least`."""
    def number(text):
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError("%s is below %g" % (text, least))
        return value
    return number


def pattern(text):
    """The type of an argument that must be a regular expression."""
    try:
        return re.compile(text)
    except re.error as e:
        raise argparse.ArgumentTypeError("'%s' is no regular expression: %s" % (text, e))


# ---- what is measured ------------------------------------------------------------------------

def sru_flops(T, B, d, L):
    return 2*T*B*3*d*d*L


def sru_loops(T, B, d, L, passes=1):
    """A case of peak.c: products and the scan's arithmetic in cache, the least time for layers."""
    return "tile %d + gates %d" % ((2*passes - 1)*sru_flops(T, B, d, L), passes*T*B*d*L)


def srupp_loops(T, B, d, P, L):
    """The same for inference with SRU++: three products, causal attention and the scan."""
    return "tile %d + gates %d + weights %d" % (2*T*B*L*(P*(d + 2*P + 3*d) + P*(T + 1)), T*B*d*L,
                                                B*L*T*(T + 1)//2)


def table(isa, bf16):
    """Yields a work, its case of build/bench, and its peers: name, library, the library's case, and
    the ratio that is the target. bf16: products in training can be of bfloat16."""
    linear = [(1024, 1536, 512), (512, 3072, 1024), (64, 1536, 512), (32, 768, 256),
              (256, 9216, 768)]
    largest = sorted(linear, key=lambda s: s[0]*s[1]*s[2])[-2:]
    for s in linear:
        text = "%d %d %d" % s
        yield ("linear (%d,%d,%d)" % s, "linear " + text, [
            ("MKL", "torch", "mm " + text, 1), ("OpenBLAS", "openblas", "mm " + text, 1),
            ("measured peak", "peak", "flops %d" % (2*s[0]*s[1]*s[2]),
             0.9 if s in largest else None),
            ("inner loop in cache", "peak", "tile %d" % (2*s[0]*s[1]*s[2]), None)])
    row, n = "1 1536 512", 1536*512
    for kind, mkl, target, limit, peer in (
            ("f32", "MKL", 1.25, ("reading weights", "peak", "read %d" % (4*n)),
             ("OpenBLAS", "openblas", "mm " + row)),
            ("bf16", "MKL, float32", 1.8, ("its conversions and sums", "peak", "half %d" % n),
             ("torch, bfloat16", "torch", "mm_bf16 " + row)),
            ("q8", "MKL, float32", 1.8, ("its conversions and sums", "peak", "whole %d" % n),
             ("torch, int8", "torch", "mm_int8 " + row))):
        yield ("linear (1,1536,512), " + kind, "linear %s --type %s" % (row, kind), [
            (mkl, "torch", "mm " + row, target), peer + (None,), limit + (None,)])
    for d in (128, 256, 512, 1024):
        text = "128 8 %d 2" % d
        yield ("layers (128,8,%d,2)" % d, "layer " + text,
               [("MKL, their products alone", "torch", "products " + text,
                 1/(1.15 if d == 128 else 1.05)),
                ("inner loops in cache", "peak", sru_loops(128, 8, d, 2), None)])
    yield ("scan (16,8,256), in cache", "scan 16 8 256", [
        ("reference's operator", "sru2", "scan 16 8 256", {"avx2": 11, "avx512": 20}.get(isa)),
        ("its arithmetic in registers", "peak", "gates %d" % (16*8*256), None),
        ("copying as much", "peak", "copy %d" % (4*5*16*8*256), None)])
    for s, targets in (((128, 8, 512, 2), (1.9, 2.3, 3.6)), ((512, 1, 512, 2), (1.9, 4.7, 6)),
                       ((256, 1, 128, 2), (2.4, 4, 6))):
        text = "%d %d %d %d" % s
        yield ("inference (%d,%d,%d,%d)" % s, "layer " + text, [
            ("reference SRU", "sru2", "sru_infer " + text, targets[0]),
            ("onnxruntime GRU", "onnxruntime", "gru " + text, targets[1]),
            ("nn.LSTM", "torch", "lstm " + text, targets[2]),
            ("inner loops in cache", "peak", sru_loops(*s), None)])
    yield ("training (128,8,512,2)", "train 128 8 512 2", [
        ("reference SRU", "sru2", "sru_train 128 8 512 2", 2.5),
        ("nn.LSTM", "torch", "lstm_train 128 8 512 2", 3.7),
        ("inner loops in cache", "peak", sru_loops(128, 8, 512, 2, passes=2), None)])
    if bf16:
        yield ("training (128,8,512,2), bfloat16", "train 128 8 512 2 --type bf16", [
            ("reference SRU, autocast", "sru2", "sru_train_bf16 128 8 512 2", None),
            ("nn.LSTM, autocast", "torch", "lstm_train_bf16 128 8 512 2", None)])
    for d, gru, sru in ((128, 5, 15), (512, 3.3, 2.5), (1024, 5, 2)):
        yield ("streaming (%d,2)" % d, "stream %d 2" % d, [
            ("onnxruntime GRU", "onnxruntime", "gru_step %d 2" % d, gru),
            ("reference SRU", "sru2", "sru_step %d 2" % d, sru),
            ("reading weights, gates, threads", "peak",
             "read %d + gates %d + start 2" % (4*2*3*d*d, 2*d), None)])
        for kind, *peers in (
                ("bf16", ("nn.GRU, bfloat16", "torch", "gru_step_bf16 ")),
                ("q8", ("nn.GRU, int8", "torch", "gru_step_int8 "),
                 ("onnxruntime LSTM, int8", "onnxruntime", "lstm_step_int8 "))):
            yield ("streaming (%d,2), %s" % (d, kind), "stream %d 2 --type %s" % (d, kind), [
                (name, library, case + "%d 2" % d, None) for name, library, case in
                (("onnxruntime GRU, float32", "onnxruntime", "gru_step "), *peers)])
    for s in ((256, 4, 512, 128, 2), (1024, 1, 512, 128, 2)):
        text = "%d %d %d %d %d" % s
        yield ("SRU++ inference (%d,%d,%d,%d,%d)" % s, "srupp " + text,
               [("reference SRU++", "sru3", "srupp " + text, 2.2),
                ("inner loops in cache", "peak", srupp_loops(*s), None)])
        yield ("SRU++ training (%d,%d,%d,%d,%d)" % s, "srupp %s --train" % text,
               [("reference SRU++", "sru3", "srupp_train " + text, 3.5)])
    yield ("SRU++ streaming (512,128,2), 256 back",
           "srupp 1 1 512 128 2 --window %d --after %d" % (WINDOW, 2*WINDOW),
           [("reference SRU++", "sru3", "srupp_step 512 128 2", 20),
            ("reading weights and ring", "peak",
             "read %d" % (4*2*128*(512 + 2*128 + 3*512 + 2*(WINDOW - 1))), None)])
    yield ("layer norm (2048,512)", "layernorm 2048 512", [
        ("torch", "torch", "layernorm 2048 512", 1),
        ("copying as much", "peak", "copy %d" % (8*2048*512), None)])
    for s in ((512, 1, 1, 128), (512, 1, 4, 64)):
        text = "%d %d %d %d" % s
        flops = 2*s[1]*s[0]*(s[0] + 1)*s[2]*s[3]
        yield ("causal attention (%d,%d,%d,%d)" % s, "attention " + text, [
            ("scaled_dot_product_attention", "torch", "attention " + text, 1.8),
            ("measured peak", "peak", "flops %d" % flops, None)])
    yield ("charlm, an update of 3 x 192 units", "charlm 192 3 16 64",
           [("reference SRU", "sru2", "charlm 192 3 16 64", 2.5)])


def curves(cores):
    """Yields axis, value, threads, case of build/bench, and peers as in table()."""
    def networks(text):
        return "layer " + text, [("nn.LSTM", "torch", "lstm " + text, None),
                                 ("nn.GRU", "torch", "gru " + text, None),
                                 ("onnxruntime LSTM", "onnxruntime", "lstm " + text, None),
                                 ("onnxruntime GRU", "onnxruntime", "gru " + text, None),
                                 ("reference SRU", "sru2", "sru_infer " + text, None)]
    for d in (64, 128, 256, 512, 1024):
        yield ("d", d, 1) + networks("128 8 %d 2" % d)
    for T in (16, 64, 256, 1024, 4096):
        yield ("T", T, 1) + networks("%d 1 256 2" % T)
    for B in (1, 2, 4, 8, 16, 32):
        yield ("B", B, 1) + networks("128 %d 256 2" % B)
    for n in range(1, cores + 1):
        if n & (n - 1) == 0 or n == cores:
            yield ("threads", n, n) + networks("128 8 512 2")
    for T in (64, 256, 1024, 2048):
        text = "%d 1 256 64 2" % T
        yield ("T, SRU++", T, 1, "srupp " + text, [("reference SRU++", "sru3", "srupp " + text,
                                                    None)])


MEMORY_T = (1024, 4096, 16384, 65536)
MEMORY = [("nn.LSTM", "torch", "lstm %d 1 256 2"),
          ("nn.GRU", "torch", "gru %d 1 256 2"),
          ("onnxruntime GRU", "onnxruntime", "gru %d 1 256 2"),
          ("reference SRU", "sru2", "sru_infer %d 1 256 2")]


# ---- who measures it -------------------------------------------------------------------------

def kept_to_avx2(out):
    """The environment that keeps peers to AVX2; with LD_PRELOAD in it, that holds for all peers."""
    hider = os.path.join(os.path.abspath(out), "cpuid.so")
    subprocess.run([*CC, "-shared", "-fPIC", "-O2", os.path.join(HERE, "cpuid.c"), "-o", hider])
    try:
        hidden = Ours("", out, LD_PRELOAD=hider).isa == "avx2"
    except (subprocess.CalledProcessError, ValueError):
        hidden = False
    return dict(AVX2_PEERS, **({"LD_PRELOAD": hider} if hidden else {}))


def favoured(environment, out):
    """The environment in which peers run faster than as installed: MKL, which uses AVX-512 only on
    Intel's processors, takes this one for Intel's; and malloc keeps what is freed."""
    shim = os.path.join(os.path.abspath(out), "mkl.so")
    subprocess.run([*CC, "-shared", "-fPIC", "-x", "c", "-", "-o", shim],
                   input="int mkl_serv_intel_cpu_true(void) { return 1; }", text=True, check=True)
    preloaded = [p for p in (environment.get("LD_PRELOAD"), shim) if p]
    return dict(environment, LD_PRELOAD=":".join(preloaded), **KEEPING)


class Library:
    """A process of its own that runs contestants.py with one of the peers."""
    def __init__(self, name, environment):
        environment = dict(os.environ, PYTHONWARNINGS="ignore", **environment)
        environment["PATH"] = os.path.dirname(sys.executable) + ":" + environment["PATH"]
        if name.startswith("sru"):          # each version compiles an operator of the same name
            environment["TORCH_EXTENSIONS_DIR"] = os.path.abspath("build/torch_" + name[3:])
        if name == "sru3":
            environment["PYTHONPATH"] = os.path.abspath("build/sru3")
        self.log = "build/%s.log" % name
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, os.path.join(HERE, "contestants.py"), name], env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.versions = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("ended; see " + self.log)
        return json.loads(line)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def time(self, case, threads, seconds):
        return self.ask(case=case, threads=threads, seconds=seconds)["ns"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Ours:
    """sru.h, in build/bench and build/charlm."""
    def __init__(self, isa, out, **environment):
        self.environment = dict(os.environ, **({"SRU_ISA": isa} if isa else {}), **environment)
        self.model = os.path.join(out, "charlm.safetensors")
        self.isa = self.bench("linear 1 16 16", 1, 0)["isa"]
        self.bf16 = self.bench("train 1 1 16 1 --type bf16", 1, 0)["isa"] != self.isa
        if isa and self.isa != isa:
            sys.exit("peers.py: this machine has no %s, only %s" % (isa, self.isa))
        self.versions = {}

    def bench(self, case, threads, seconds):
        return json.loads(subprocess.check_output(
            ["build/bench", *case.split(), "--json", "--threads", str(threads),
             "--seconds", str(seconds)], env=self.environment))

    def time(self, case, threads, seconds):
        if not case.startswith("charlm"):
            return self.bench(case, threads, seconds)["ns"]
        D, L, B, T = case.split()[1:]
        subprocess.check_output(
            ["build/charlm", "train", "sru.h", "--seconds", str(CHARLM_SECONDS), "--hidden", D,
             "--layers", L, "--batch", B, "--length", T, "--threads", str(threads),
             "--model", self.model], env=self.environment)
        with open(self.model + ".csv", newline="") as f:
            last = list(csv.DictReader(f))[-1]
        return 1e9*int(B)*int(T)*float(last["seconds"])/float(last["characters"])


class Peak:
    """peak.c: how long the same operations, or bytes, would take at the machine's limit."""
    def __init__(self, isa, out):
        self.program = os.path.join(out, "peak")
        subprocess.run([*CC, "-O2", "-fopenmp", "-ffp-contract=fast"]
                       + ISA_FLAGS.get(isa, []) + [os.path.join(HERE, "peak.c"), "-o",
                                                   self.program], check=True)
        self.versions = {}

    def time(self, case, threads, seconds):
        """ns for one thing after the other, as in "read 4096 + gates 128". Where threads would have
        to be started first ("+ start"), a single thread may be faster."""
        alone = case.partition(" + start")[0]
        return min(self.sum(case if n > 1 else alone, n, seconds)
                   for n in ({1, threads} if case != alone else {threads}))

    def sum(self, case, threads, seconds):
        ns, parts = 0, case.split(" + ")
        for part in parts:
            what, n = part.split()
            size = {"copy": [str(int(n)//2)], "read": [n]}.get(what, [])
            ns += int(n)/float(subprocess.check_output(
                [self.program, what, str(threads), str(seconds/len(parts)), *size]))
        return ns


class Contestants:
    """All who measure; a peer's process starts when it is first asked for a time."""
    def __init__(self, isa, out, favour=False):
        self.ours = Ours(isa, out)
        self.isa = self.ours.isa
        self.environment = (kept_to_avx2(out) if isa == "avx2"
                            else AVX512_PEERS if self.isa == "avx512" else {})
        if favour:
            self.environment = favoured(self.environment, out)
        self.all = {"ours": self.ours, "peak": Peak(self.isa, out)}
        self.missing = set()

    def time(self, name, case, threads, seconds):
        """ns of a call; None if the library cannot be had, or has failed, now or before."""
        if name in self.missing:
            return None
        try:
            if name not in self.all:
                self.all[name] = Library(name, self.environment)
            if threads > 1:
                time.sleep(0.03)        # OpenBLAS's threads spin for 20 ms before they sleep
            return self.all[name].time(case, threads, seconds)
        except (RuntimeError, OSError) as e:
            self.missing.add(name)
            print("\nfrom here on without %s, which %s" % (name, e))

    def rounds(self, works, rounds, seconds, progress):
        """Returns {name: [ns in each round]} for each of works, which are (label, threads, case,
        peers); ours is named "sru.h". A round goes through all works: so a minute in which the
        machine is disturbed falls into one round of many works, not into all rounds of one."""
        all_times = [{name: [] for name in ["sru.h"] + [p[0] for p in w[3]]} for w in works]
        for r in range(rounds):
            for times, (label, threads, case, peers) in zip(all_times, works):
                progress.show("%s (%d of %d)" % (label, r + 1, rounds))
                for name, library, what in [("sru.h", "ours", case)] + [p[:3] for p in peers]:
                    times[name].append(self.time(library, what, threads, seconds))
                progress.done += 1 + len(peers)
        return [{name: ns for name, ns in times.items() if None not in ns} for times in all_times]

    def close(self):
        for library in self.all.values():
            if isinstance(library, Library):
                library.close()


def busy():
    """Seconds that cores have been busy with programs other than this one and its children."""
    with open("/proc/stat") as f:
        user, nice, system = map(int, f.readline().split()[1:4])
    return (user + nice + system)/os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def status(line, last=False, printed=[0]):
    """Shows how far the work is: on a terminal, in one line again and again, of 80 columns because
    \\r goes back no further; elsewhere, in a line every ten seconds. The last one stays."""
    if sys.stdout.isatty():
        print("\r%-79.79s" % line, end="\n" if last else "", flush=True)
    elif last or time.time() - printed[0] > 10:
        print(line, flush=True)
        printed[0] = time.time()


class Progress:
    def __init__(self, total):
        self.total, self.done, self.start = total, 0, time.time()

    def show(self, label):
        left = (time.time() - self.start)/self.done*(self.total - self.done) if self.done else 0
        status("%3.0f %%  %-60.60s %s left" % (100*self.done/self.total, label,
               "%d:%02d" % (left//60, left%60) if self.done else "?"))


# ---- results ---------------------------------------------------------------------------------

def readable(ns):
    for unit, size in (("ns", 1), ("us", 1e3), ("ms", 1e6), ("s", 1e9)):
        if ns < 1000*size or unit == "s":
            return "%.3g %s" % (ns/size, unit)


def processor():
    with open("/proc/cpuinfo") as f:
        cpu = dict(re.findall(r"(.+?)\s*: (.*)", f.read()))
    model = cpu.get("model name", platform.machine())
    if cpu.get("vendor_id") == "AuthenticAMD":      # whose model names do not say which Zen it is
        zen = {"25": 4 if "avx512f" in cpu["flags"] else 3, "26": 5}.get(cpu["cpu family"])
        model += " (Zen %d)" % zen if zen else ""
    return model


def machine(contestants, asked):
    """Lines that say on which machine and with which software the measurements were made."""
    caches = []
    for path in sorted(glob.glob("/sys/devices/system/cpu/cpu0/cache/index*")):
        level, kind, size = (open(os.path.join(path, n)).read().strip()
                             for n in ("level", "type", "size"))
        if kind != "Instruction":
            caches.append("L%s %s" % (level, size))
    cc = subprocess.run([*CC, "--version"], stdout=subprocess.PIPE, text=True)
    isa = contestants.isa
    lines = ["%s, %d cores, %s; %s" % (processor(), os.cpu_count(), ", ".join(caches),
                                       platform.release()),
             "sru.h uses %s%s; compiled by %s" % (isa, ", as it was asked to" if asked else "",
                                                  cc.stdout.splitlines()[0])]
    versions = {}
    for library in contestants.all.values():
        versions.update(library.versions)
    lines.append(", ".join("%s: %s" % v if " " in v[0] else "%s %s" % v for v in versions.items()))
    if asked == "avx2":
        lines.append("The peers were kept to AVX2 too." if "LD_PRELOAD" in contestants.environment
                     else "torch, MKL and OpenBLAS were kept to AVX2 too; onnxruntime cannot be.")
    if "MALLOC_TOP_PAD_" in contestants.environment:
        lines.append("The peers were favoured: MKL takes the processor for Intel's, and malloc "
                     "keeps what is freed.")
    return lines


def write_csv(path, header, rows):
    with open(path, "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(header)
        writer.writerows(rows)


def markdown(lines, rows):
    """The lines, and a table: a row for each work and peer, columns for each number of threads."""
    threads = sorted({r["threads"] for r in rows})
    text = ["", *("- " + line for line in lines), "",
            "| work | against | " + " | ".join("%d thread%s: sru.h | theirs | ratio"
                                               % (n, "s" if n > 1 else "") for n in threads)
            + " | at least | |", "|---|---|" + "---:|---:|---:|"*len(threads) + "---:|---|"]
    for work, against in dict.fromkeys((r["work"], r["against"]) for r in rows):
        cells, met, limits, target = [], True, [], None
        for n in threads:
            r = [r for r in rows if (r["work"], r["against"], r["threads"]) == (work, against, n)]
            if not r:
                cells += ["", "", ""]
                continue
            r, target = r[0], r[0]["target"]
            cells += [readable(r["ours"]), readable(r["theirs"]), "%.2f" % r["ratio"]]
            if target is not None and r["ratio"] < target:
                met = False
                limits += ["%.2f" % r["at_limit"]] if r["at_limit"] else []
        text.append("| %s | %s | %s | %s | %s |" % (
            work, against, " | ".join(cells), "" if target is None else "%.3g" % target,
            "" if target is None else "met" if met else
            "**not met**" + (", at the limit " if limits else "") + " and ".join(limits)))
    judged = [r for r in rows if r["target"] is not None]
    missed = [r for r in judged if r["ratio"] < r["target"]]
    text += ["", "%d of %d ratios meet their target; %d of the others could not, at the machine's "
             "limit." % (len(judged) - len(missed), len(judged),
                         sum((r["at_limit"] or r["target"]) < r["target"] for r in missed))]
    return "\n".join(text) + "\n"


def measure_memory(contestants, progress):
    """How many bytes more inference takes for T steps than for one, with input and output."""
    rows = []
    for T in MEMORY_T:
        grown = [contestants.ours.bench("layer %d 1 256 2" % t, 1, 0)["bytes"] for t in (T, 1)]
        rows.append(("sru.h", T, grown[0] - grown[1]))
    for name, library, case in MEMORY:
        progress.show("memory, " + name)
        if library in contestants.missing:
            continue
        try:
            for T in MEMORY_T:
                fresh = Library(library, contestants.environment)   # which keeps none from before
                for t in (1, 1, T):
                    grown = fresh.ask(case=case % t, threads=1, memory=True)["bytes"]
                rows.append((name, T, grown))
                fresh.close()
        except (RuntimeError, OSError) as e:
            print("\nmemory without %s, which %s" % (name, e))
        progress.done += 1
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", type=pattern,
                        help="measure only works whose names contain this regular expression, such "
                        "as linear, SRU, against d, memory")
    parser.add_argument("--isa", help="of sru.h (the best here); avx2 holds for the peers, too")
    parser.add_argument("--favour", action="store_true", help="make the peers faster than as they "
                        "are installed: MKL runs as on Intel's processors, malloc keeps memory")
    parser.add_argument("--threads", type=at_least(1), nargs="+", help="thread counts (1 and 2)",
                        metavar="N", default=range(1, min(2, os.cpu_count()) + 1))
    parser.add_argument("--repetitions", type=at_least(1), default=5, metavar="N",
                        help="number of rounds (5)")
    parser.add_argument("--seconds", type=at_least(0, float), default=0.1,
                        help="time of each measurement (0.1)")
    parser.add_argument("--out", help="folder for the results (build/peers or build/peers-ISA)")
    o = parser.parse_args()
    need("build/bench", "build/charlm", "matplotlib")       # a missing peer is left out
    import pictures
    out = os.path.abspath(o.out) if o.out else "build/peers" + ("-" + o.isa if o.isa else "")
    os.chdir(os.path.dirname(HERE))
    os.makedirs(out, exist_ok=True)
    contestants = Contestants(o.isa, out, o.favour)
    wanted = o.only.search
    cases = [(n,) + row for n in o.threads for row in table(contestants.isa, contestants.ours.bf16)
             if wanted(row[0])]
    points = [p for p in curves(os.cpu_count()) if wanted("against " + p[0])]
    with_memory = wanted("memory") and not o.favour     # where malloc keeps memory, it takes more
    if not (cases or points or with_memory):
        sys.exit("peers.py: nothing is called '%s', a regular expression" % o.only.pattern)
    few = min(3, o.repetitions)
    progress = Progress(o.repetitions*sum(1 + len(c[3]) for c in cases)
                        + few*sum(1 + len(p[4]) for p in points)
                        + (len(MEMORY) if with_memory else 0))

    rows, others = [], busy()
    works = [("%s, %d thread%s" % (work, threads, "s" if threads > 1 else ""), threads, case, peers)
             for threads, work, case, peers in cases]
    all_times = contestants.rounds(works, o.repetitions, o.seconds, progress)
    for times, (threads, work, case, peers) in zip(all_times, cases):
        for name, library, _, target in peers:
            if name in times:
                rows.append(dict(
                    work=work, against=name, limit=int(library == "peak"), threads=threads,
                    isa=contestants.isa,
                    ours=statistics.median(times["sru.h"]), theirs=statistics.median(times[name]),
                    ratio=statistics.median(b/a for a, b in zip(times["sru.h"], times[name])),
                    target=target))
        here = [r for r in rows if (r["work"], r["threads"]) == (work, threads)]
        limit = max((r["ratio"] for r in here if r["limit"]), default=None)
        for r in here:          # at_limit: the ratio if sru.h took no longer than the limit
            judged = r["target"] is not None or not r["limit"]
            r["at_limit"] = r["ratio"]/min(limit, 1) if limit and judged else None
    works = [("time against %s: %d" % p[:2],) + p[2:] for p in points]
    all_times = contestants.rounds(works, few, o.seconds/2, progress)
    curve = [p[:3] + (name, statistics.median(ns))
             for times, p in zip(all_times, points) for name, ns in times.items()]
    memory = measure_memory(contestants, progress) if with_memory else []
    contestants.close()
    others = 100*max(0, busy() - others)/os.cpu_count()/(time.time() - progress.start)
    status("measured in %.0f s" % (time.time() - progress.start), last=True)

    lines = machine(contestants, o.isa)
    lines.append("Other programs used %.1f %% of the machine meanwhile." % others)
    if rows:
        write_csv(os.path.join(out, "peers.csv"), list(rows[0]),
                  [[("%.6g" % v if isinstance(v, float) else v) for v in r.values()] for r in rows])
        with open(os.path.join(out, "peers.md"), "w") as f:
            f.write(markdown(lines, rows))
        print(markdown(lines, rows))
    if curve:
        write_csv(os.path.join(out, "curves.csv"), ["axis", "value", "threads", "name", "ns"],
                  [c[:4] + ("%.6g" % c[4],) for c in curve])
    if memory:
        write_csv(os.path.join(out, "memory.csv"), ["name", "T", "bytes"], memory)
    for path in pictures.draw(out, lines, rows, curve, memory):
        print("picture: " + path)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)    # Ctrl-C ends it without a traceback
    main()
