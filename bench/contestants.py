"""One library's side of the comparison that peers.py makes.     contestants.py LIBRARY

LIBRARY is torch, onnxruntime, openblas, sru2 or sru3; the last two are the reference in versions
2.x and 3.0-dev. It first prints its versions. Then each line of JSON that it reads names a case, to
be timed or to have its memory measured, and gets a line of JSON as answer. Each library has a
process of its own, so that its threads, waiting for work, do not disturb the others.
"""
import ctypes, ctypes.util, glob, json, os, statistics, sys, tempfile, time

if "--help" in sys.argv:
    sys.exit(print(__doc__))

STEPS = 256             # that SRU++ remembers when it streams


# ---- libraries: each has versions, set_threads(n), and cases, which make a function to be timed

class Torch:
    def __init__(self):
        import torch
        self.torch = torch
        torch.manual_seed(1)
        config = torch.__config__.show()
        mkl = [line for line in config.splitlines() if "Math Kernel" in line]
        self.versions = {"torch": torch.__version__.split("+")[0],
                         "MKL": mkl[0].split("Version ")[1].split(" ")[0] if mkl else "none",
                         "torch's instruction set": torch.backends.cpu.get_cpu_capability()}

    def set_threads(self, n):
        self.torch.set_num_threads(n)

    def mm(self, M, N, K, dtype=None):
        x, w, y = (self.torch.randn(s, dtype=dtype) for s in ((M, K), (N, K), (M, N)))
        w = w.t()
        return lambda: self.torch.mm(x, w, out=y)

    def mm_bf16(self, *sizes): return self.mm(*sizes, self.torch.bfloat16)

    def mm_int8(self, M, N, K):
        linear, x = self.int8(self.torch.nn.Linear(K, N)), self.torch.randn(M, K)
        return lambda: linear(x)

    def int8(self, module):
        """The module with int8 weights; each call rounds its inputs, too."""
        within = self.torch.nn.Sequential(module).eval()
        return self.torch.ao.quantization.quantize_dynamic(within, {type(module)})[0]

    def products(self, T, B, D, L):
        """The products of SRU's layers, without the rest."""
        mm = self.mm(T*B, 3*D, D)

        def run():
            for _ in range(L):
                mm()
        return run

    def layernorm(self, rows, n):
        x, gain, bias = self.torch.randn(rows, n), self.torch.randn(n), self.torch.randn(n)
        return lambda: self.torch.nn.functional.layer_norm(x, (n,), gain, bias)

    def attention(self, T, B, H, HD):
        q, k, v = (self.torch.randn(B, H, T, HD) for _ in range(3))
        return lambda: self.torch.nn.functional.scaled_dot_product_attention(q, k, v,
                                                                             is_causal=True)

    def infer(self, rnn, T, B, D):
        rnn.eval()
        x = self.torch.randn(T, B, D)
        return lambda: rnn(x)

    def step(self, rnn, D, dtype=None):
        rnn.eval()
        x, kept = self.torch.randn(1, 1, D, dtype=dtype), [None]

        def run():
            h, kept[0] = rnn(x, kept[0])
        return run

    def train(self, rnn, T, B, D, *more, bf16=False):
        rnn.train()
        x = self.torch.randn(T, B, D, requires_grad=True)
        dh = self.torch.randn(T, B, D)

        def run():
            with self.torch.enable_grad():
                with self.torch.autocast("cpu", self.torch.bfloat16, enabled=bf16):
                    h = rnn(x, *more)[0]
                h.backward(dh.to(h.dtype))
        return run

    def lstm(self, T, B, D, L): return self.infer(self.torch.nn.LSTM(D, D, L), T, B, D)
    def gru(self, T, B, D, L): return self.infer(self.torch.nn.GRU(D, D, L), T, B, D)

    def gru_step_bf16(self, D, L):
        return self.step(self.torch.nn.GRU(D, D, L).bfloat16(), D, self.torch.bfloat16)

    def gru_step_int8(self, D, L):
        return self.step(self.int8(self.torch.nn.GRU(D, D, L)), D)

    def lstm_train(self, T, B, D, L, **how):
        return self.train(self.torch.nn.LSTM(D, D, L), T, B, D, **how)

    def lstm_train_bf16(self, *sizes): return self.lstm_train(*sizes, bf16=True)


class Sru(Torch):
    """Inference is by the compiled operator, which the reference uses only if it is scripted."""
    def __init__(self):
        super().__init__()
        import sru
        self.sru = sru
        self.versions = {"sru 3" if hasattr(sru, "SRUpp") else "sru": sru.__version__}

    def sru_infer(self, T, B, D, L):
        return self.infer(self.torch.jit.script(self.sru.SRU(D, D, L).eval()), T, B, D)

    def sru_step(self, D, L):
        return self.step(self.torch.jit.script(self.sru.SRU(D, D, L).eval()), D)

    def sru_train(self, T, B, D, L, **how):
        return self.train(self.sru.SRU(D, D, L), T, B, D, **how)

    def sru_train_bf16(self, *sizes): return self.sru_train(*sizes, bf16=True)

    def scan(self, T, B, D):
        torch = self.torch
        u, x, c = torch.randn(T, B, 3*D), torch.randn(T, B, D), torch.zeros(B, D)
        v, bias = torch.randn(2*D), torch.randn(2*D)
        return lambda: torch.ops.sru_cpu.cpu_forward(u, x, v, bias, c, None, T, B, D, 3, 0, True,
                                                     1.0, False)

    def charlm(self, D, L, B, T):
        """An update of the network that charlm trains."""
        import learning
        return learning.Trainer("sru", D, L, B, T, 0.01).update_random

    def mask(self, T):
        return self.torch.full((T, T), -float("inf")).triu(1)

    def srupp(self, T, B, D, P, L):
        rnn = self.torch.jit.script(self.sru.SRUpp(D, D, P, L).eval())
        x, mask = self.torch.randn(T, B, D), self.mask(T)
        return lambda: rnn(x, None, None, mask)

    def srupp_train(self, T, B, D, P, L):
        return self.train(self.sru.SRUpp(D, D, P, L), T, B, D, None, None, self.mask(T))

    def srupp_step(self, D, P, L):
        rnn = self.torch.jit.script(self.sru.SRUpp(D, D, P, L).eval())
        x, c = self.torch.randn(1, 1, D), self.torch.zeros(L, 1, D)
        memory = [self.torch.randn(STEPS, 1, D) for _ in range(L)]
        return lambda: rnn(x, c, None, None, memory)


class Onnxruntime:
    def __init__(self):
        import numpy, onnx, onnxruntime
        self.np, self.onnx, self.ort, self.threads = numpy, onnx, onnxruntime, 1
        self.versions = {"onnxruntime": onnxruntime.__version__}

    def set_threads(self, n):
        self.threads = n

    def network(self, kind, T, B, D, L, int8=False):
        """L layers, as PyTorch would export them; state goes in and out. int8: weights are int8 and
        each call rounds its inputs, which onnxruntime does for LSTMs alone."""
        helper, K, nodes, weights = self.onnx.helper, {"LSTM": 4, "GRU": 3}[kind], [], []
        random = self.np.random.default_rng(1)
        states = ["h", "c"] if kind == "LSTM" else ["h"]
        inputs, outputs = {"x0": (T, B, D)}, {"x%d" % L: (T, B, D)}
        axis = helper.make_tensor("axis", self.onnx.TensorProto.INT64, [1], [1])
        for i in range(L):
            for name, shape in (("w", (1, K*D, D)), ("r", (1, K*D, D)), ("b", (1, 2*K*D))):
                values = random.uniform(-D**-0.5, D**-0.5, shape).astype(self.np.float32)
                weights.append(self.onnx.numpy_helper.from_array(values, "%s%d" % (name, i)))
            for s in states:
                inputs["%s%d" % (s, i)] = outputs["%s%d_out" % (s, i)] = (1, B, D)
            names = [n + str(i) for n in ["x", "w", "r", "b"]] + [""] + [s + str(i) for s in states]
            nodes.append(helper.make_node(kind, names, ["y%d" % i] + ["%s%d_out" % (s, i)
                                          for s in states], hidden_size=D,
                                          **({"linear_before_reset": 1} if kind == "GRU" else {})))
            nodes.append(helper.make_node("Squeeze", ["y%d" % i, "axis"], ["x%d" % (i + 1)]))

        def values(shapes):
            return [helper.make_tensor_value_info(n, self.onnx.TensorProto.FLOAT, s)
                    for n, s in shapes.items()]
        graph = helper.make_graph(nodes, kind, values(inputs), values(outputs), weights + [axis])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
        if int8:
            from onnxruntime.quantization import QuantType, quantize_dynamic
            with tempfile.NamedTemporaryFile() as f:
                quantize_dynamic(model, f.name, weight_type=QuantType.QInt8)
                model = self.onnx.load(f.name)
        options = self.ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        session = self.ort.InferenceSession(model.SerializeToString(), options,
                                            providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for n, s in inputs.items():
            value = random.standard_normal(s) if n == "x0" else self.np.zeros(s)
            binding.bind_ortvalue_input(
                n, self.ort.OrtValue.ortvalue_from_numpy(value.astype(self.np.float32)))
        for n, s in outputs.items():
            binding.bind_ortvalue_output(
                n, self.ort.OrtValue.ortvalue_from_numpy(self.np.zeros(s, self.np.float32)))
        return lambda: session.run_with_iobinding(binding)

    def lstm(self, T, B, D, L): return self.network("LSTM", T, B, D, L)
    def gru(self, T, B, D, L): return self.network("GRU", T, B, D, L)
    def gru_step(self, D, L): return self.network("GRU", 1, 1, D, L)
    def lstm_step_int8(self, D, L): return self.network("LSTM", 1, 1, D, L, int8=True)


class Openblas:
    """Debian's OpenBLAS, unpacked in build/openblas by `make peers`, or else installed."""
    def __init__(self):
        import numpy
        self.np = numpy
        self.c = None
        for name in ("quadmath.so.0", "gfortran.so.5", "openblas.so.0"):    # the last needs them
            for path in glob.glob("build/openblas/**/lib" + name, recursive=True)[:1]:
                self.c = ctypes.CDLL(path)
        self.c = self.c or ctypes.CDLL(ctypes.util.find_library("openblas") or "libopenblas.so.0")
        self.c.openblas_get_config.restype = ctypes.c_char_p
        self.versions = {"OpenBLAS": self.c.openblas_get_config().decode().split("OpenBLAS ")[1]}

    def set_threads(self, n):
        self.c.openblas_set_num_threads(n)

    def mm(self, M, N, K):
        random = self.np.random.default_rng(1)
        x, w, y = (random.standard_normal(s).astype(self.np.float32)
                   for s in ((M, K), (N, K), (M, N)))

        def pointer(a):
            return ctypes.c_void_p(a.ctypes.data)
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        if M == 1:
            args = (101, 111, N, K, one, pointer(w), K, pointer(x), 1, zero, pointer(y), 1)
            return lambda keep=(x, w, y): self.c.cblas_sgemv(*args)
        args = (101, 111, 112, M, N, K, one, pointer(x), K, pointer(w), K, zero, pointer(y), N)
        return lambda keep=(x, w, y): self.c.cblas_sgemm(*args)


# ---- measuring -------------------------------------------------------------------------------

def median_time(call, seconds, threads):
    """ns of a call; calls too short for the clock are timed several at a time. Several threads
    first get 0.1 s, as in bench.c, to wake up and to be spread over the cores."""
    together, clock = 1, time.perf_counter_ns
    end = clock() + (1e8 if threads > 1 and seconds > 0 else 0)
    while clock() < end:
        call()
    while True:
        start = clock()
        for _ in range(together):
            call()
        if clock() - start > 2e4:
            break
        together *= 2
    samples, end = [], clock() + 1e9*seconds
    while not samples or clock() < end:
        start = clock()
        for _ in range(together):
            call()
        samples.append((clock() - start)/together)
    return statistics.median(samples)


def status(field):
    """Bytes of memory from /proc/self/status."""
    with open("/proc/self/status") as f:
        return [1024*int(line.split()[1]) for line in f if line.startswith(field)][0]


def memory(make):
    """The most bytes by which the process grows while it makes a case and runs it once."""
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    before = status("VmRSS")
    make()()
    return max(0, status("VmHWM") - before)


def main():
    libraries = {"torch": Torch, "onnxruntime": Onnxruntime, "openblas": Openblas, "sru2": Sru,
                 "sru3": Sru}
    if len(sys.argv) != 2 or sys.argv[1] not in libraries:
        sys.exit(__doc__)
    os.environ.pop("LD_PRELOAD", None)              # compilers started from here have no need of it
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)                                   # what libraries print must not be an answer
    library = libraries[sys.argv[1]]()
    if hasattr(library, "torch"):
        library.torch.set_grad_enabled(False)
    answers.write(json.dumps(library.versions) + "\n")
    last, call = None, None
    for line in sys.stdin:
        ask = json.loads(line)
        kind, *sizes = ask["case"].split()
        make = lambda: getattr(library, kind)(*map(int, sizes))
        library.set_threads(ask["threads"])
        if ask.get("memory"):
            answer = {"bytes": memory(make)}
        else:
            if last != (ask["case"], ask["threads"]):
                call = None                         # frees the case before
                last, call = (ask["case"], ask["threads"]), make()
                for _ in range(3):                  # compilers that trace calls need two
                    call()
            answer = {"ns": median_time(call, ask["seconds"], ask["threads"])}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
