"""Compares the C library with the reference; tests/pytorch/run calls this.

compare.py models RUN_MODEL MODULE N          N random models of SRU or SRUpp, run by C
compare.py charlm CHARLM ARCH TEXT SECONDS    a model trained by charlm, run by the reference
"""
import json, math, os, random, re, subprocess, sys, tempfile, types
if "--help" in sys.argv:
    print(__doc__)
    sys.exit()
if len(sys.argv) not in (5, 6) or sys.argv[1] not in ("models", "charlm"):
    sys.exit(__doc__)
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
import sru

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples"))
from pytorch import config_of

passed = failed = 0


def check(ok, sentence):
    global passed, failed
    passed += bool(ok)
    failed += not ok
    if not ok:
        print("failed:", sentence)


def chance(p):
    return random.random() < p


def width(normalized, most):
    """A random width. Layer norm turns 1 number into 0, and 2 into -1 and 1: nothing to compare."""
    return random.randint(3 if normalized else 1, most)


def sizes():
    """Random arguments that all constructors take."""
    both, norm = chance(0.4), chance(0.35)
    D = width(norm, 40)
    c = dict(input_size=random.choice([D, 2*D if both else D, width(norm, 50)]),
             hidden_size=D, num_layers=random.randint(1, 4), bidirectional=both, layer_norm=norm)
    for name in ("rescale", "normalize_after", "nn_rnn_compatible_return",
                 "proj_input_to_hidden_first"):
        if chance(0.35):
            c[name] = True
    if chance(0.5):
        c["highway_bias"] = random.choice([-3, -1.5, 0.25, 1])
    if chance(0.3):
        c["weight_c_init"] = random.choice([0.5, 1.5])
    return c


def sru_config():
    c = sizes()
    if chance(0.4):
        c["projection_size"] = random.randint(1, 12)
        if sru.__version__.startswith("3") and chance(0.5):
            c["projection_size"] = [random.randint(0, 12) for _ in range(c["num_layers"])]
    for name in ("use_tanh", "v1"):
        if chance(0.35):
            c[name] = True
    if chance(0.2):
        c["has_skip_term"] = False
    for name in ("dropout", "rnn_dropout"):
        if chance(0.35):
            c[name] = random.choice([0.1, 0.5])
    return c


def srupp_config():
    c = sizes()
    c["attn_layer_norm"] = chance(0.7)
    c["num_heads"] = random.choice([1, 1, 2, 3, 4])
    c["proj_size"] = c["num_heads"]*width(c["attn_layer_norm"], 12)
    if chance(0.3):
        c["attention_every_n_layers"] = random.randint(1, 3)
    elif chance(0.3):
        c["attention_last_n_layers"] = random.randint(1, c["num_layers"])
    if chance(0.2):                 # drops single numbers, so that only inference can be compared
        c[random.choice(["dropout", "attn_dropout"])] = 0.3
    return c


def ours(c, rnn):
    """A state of the reference, in our order (B,S)."""
    L, K = rnn.num_layers, rnn.num_directions
    if c.shape[0] == L*K and K == 2 and rnn.nn_rnn_compatible_return:
        c = c.view(L, K, c.shape[1], -1).transpose(1, 2).flatten(2)
    return c.transpose(0, 1).flatten(1)


def distance(a, b):
    """Of a from b, relative to b's norm, or absolute if that is 0. If only a is one number, it is
    compared with the sum of b."""
    a, b = a.double(), b.double()
    if a.shape != b.shape and a.numel() > 1:
        return math.inf
    difference = a - (b if a.shape == b.shape else b.sum())
    d = (difference.norm()/(b.norm() or 1)).item()
    return d if d == d else math.inf


def give_masks(rnn, B):
    """Draws dropout masks once, makes the reference use them, and returns them."""
    masks, inputs = [], []
    for cell in rnn.rnn_lst:
        m = {}
        for kind, p, width in (("x", cell.rnn_dropout, cell.input_size),
                               ("c", cell.dropout, cell.output_size)):
            m[kind] = (torch.rand(B, width) >= p).float()/(1 - p)
        inputs.append(m["x"].flatten())
        masks.append(m["c"])
        # the cell draws the mask of x first, where there is one, and then that of c
        turns = [k for k, p in (("x", cell.rnn_dropout), ("c", cell.dropout)) if p > 0]

        def draw(self, size, p, m=m, turns=turns, calls=[0]):
            mask = m[turns[calls[0] % len(turns)]]
            calls[0] += 1
            assert tuple(size) == tuple(mask.shape)
            return mask.double()
        cell.get_dropout_mask_ = types.MethodType(draw, cell)
    return torch.stack(masks), torch.cat(inputs)


def band(T, M, W):
    """The mask with which each of T steps sees the last W of M earlier steps and of these."""
    t, s = torch.arange(M, M + T).unsqueeze(1), torch.arange(M + T).unsqueeze(0)
    return torch.zeros(T, M + T).masked_fill((s > t) | (s <= t - W), -math.inf)


def attention_inputs(rnn, T, B):
    """Memory and masks: arguments of the reference, tensors for C, metadata of the model. Each step
    sees something, because a step that sees nothing is NaN in the reference."""
    there, tensors, metadata = {}, {}, {}
    M = random.randint(1, 12) if chance(0.5) else 0
    kind = random.choice(["all", "causal", "window", "mask"])
    if M:
        there["memory"] = [torch.randn(M, B, cell.input_size) for cell in rnn.rnn_lst]
        if kind == "all" and chance(0.3):           # the masks are of one width for all layers
            there["memory"][random.randrange(rnn.num_layers)] = None
        elif kind != "window" and chance(0.4):
            pad = torch.rand(M, B) < 0.4
            pad[0] = False
            there["memory_mask_pad"] = pad
            tensors["memory_mask_pad"] = pad.to(torch.uint8)
        for i, m in enumerate(there["memory"]):
            if m is not None:
                tensors["memory.%d" % i] = m
    if kind == "causal":
        there["attn_mask"] = band(T, M, M + T)
        metadata["causal"] = "1"
    elif kind == "window":
        W = random.randint(1, T + M)
        there["attn_mask"] = band(T, M, W)
        metadata["window"] = str(W)
        if not M and not rnn.bidirectional:         # C runs it in parts of so many steps
            tensors["part"] = torch.tensor([float(random.randint(1, T))])
    elif kind == "mask":
        mask = torch.randn(T, M + T).masked_fill(torch.rand(T, M + T) < 0.3, -math.inf)
        mask[:, 0] = 0
        there["attn_mask"] = tensors["attn_mask"] = mask
    return there, tensors, metadata


def to_double(x):
    """Tensors, in lists or not, as leaves that get gradients; Booleans stay as they are."""
    if isinstance(x, list):
        return [to_double(y) for y in x]
    if x is None or x.dtype == torch.bool:
        return x
    return x.double().detach().requires_grad_()


def compare(what, out, should):
    """Checks results by name, and returns the largest distance."""
    worst = 0
    for name, b in should.items():
        d = distance(out[name], b) if name in out else math.inf
        worst = max(worst, d)
        check(d <= 1e-5, "%s: %s is off by %.3g" % (what, name, d))
    return worst


def one_model(program, folder, module, i):
    """Saves one model of the reference, and runs it there and here."""
    torch.manual_seed(i)
    random.seed(i)
    config = {"SRU": sru_config, "SRUpp": srupp_config}[module]()
    T, B = random.randint(1, 20), random.randint(1, 5)
    rnn = getattr(sru, module)(**config)
    with torch.no_grad():
        for name, p in rnn.named_parameters():      # moves each away from its initial values
            if p.requires_grad:
                p.add_(torch.randn_like(p)*(0.05 if p.dim() > 1 else 0.2) + name.endswith("alpha"))
    if chance(0.2):                 # what is rounded here stays rounded, scale_x too
        rnn = rnn.to(random.choice([torch.half, torch.bfloat16])).float()
    weights = {k: v.clone() for k, v in rnn.state_dict().items()}

    L, N = rnn.num_layers, rnn.output_size
    x = torch.randn(T, B, config["input_size"])
    there, tensors, metadata = {}, {}, {}
    if module == "SRUpp":
        there, tensors, metadata = attention_inputs(rnn, T, B)
    there["c0"] = torch.randn(L, B, N) if chance(0.6) else torch.zeros(L, B, N)
    if chance(0.4) and "window" not in metadata:
        pad = torch.zeros(T, B)
        for b in range(B):
            pad[random.randint(int(module == "SRUpp"), T):, b] = 1
        there["mask_pad"] = pad.bool()
        tensors["mask_pad"] = pad.to(torch.uint8)
    tensors.update(x=x, c0=there["c0"].transpose(0, 1).flatten(1))
    what = "%s %d, %s, %s, T = %d, B = %d, %s" % (module, i, config, metadata, T, B,
                                                  ", ".join(tensors))

    rnn.eval()
    with torch.no_grad():
        eager = rnn(x, **there)
        compiled = torch.jit.script(rnn)(x, **there)        # by the reference's own operator
    should = {"h_inference": eager[0], "c_inference": ours(eager[1], rnn)}
    if module == "SRUpp" and "part" not in tensors:
        should.update(("saved.%d" % k, s) for k, s in enumerate(eager[2]["saved_inputs"]))
    gradients = {}
    if module == "SRU" and (rnn.dropout or config.get("rnn_dropout")):
        tensors["dropout_mask"], tensors["rnn_dropout_mask"] = give_masks(rnn, B)
        if not config.get("rnn_dropout"):
            del tensors["rnn_dropout_mask"]
    if module == "SRU" or not (rnn.dropout or config.get("attn_dropout")):
        rnn.double().train()
        for m in rnn.modules():                     # a factor for each number gets its own gradient
            if hasattr(m, "alpha"):
                m.alpha = torch.nn.Parameter(m.alpha.expand(T, B, m.proj_features).clone())
        leaves = {k: to_double(v) for k, v in there.items()}
        x64 = to_double(x)
        h, c = rnn(x64, **leaves)[:2]
        dh, dc = torch.randn(h.shape), torch.randn(c.shape)
        ((h*dh).sum() + (c*dc).sum()).backward()
        tensors.update(dh=dh, dc=ours(dc, rnn))
        should.update(h=h, c=ours(c, rnn))
        gradients = {"dx": x64.grad, "dc0": leaves["c0"].grad.transpose(0, 1).flatten(1)}
        for k, m in enumerate(leaves.get("memory", [])):
            if m is not None:
                gradients["dmemory.%d" % k] = torch.zeros_like(m) if m.grad is None else m.grad
        for name, p in rnn.named_parameters():
            name = "grad." + name.removeprefix("rnn_")
            gradients[name] = torch.zeros_like(p) if p.grad is None else p.grad

    path, given, results = (os.path.join(folder, n) for n in ("rnn", "input", "output"))
    saved = config_of(rnn) if i % 2 else config
    save_file(weights, path, metadata={"module": module, "config": json.dumps(saved), **metadata})
    save_file({k: v.contiguous() for k, v in tensors.items()}, given)
    run = subprocess.run([program, path, given, results], capture_output=True, text=True)
    if run.returncode:
        check(False, "%s: %s" % (what, run.stderr.strip() or run.returncode))
        return 0, 0
    out = load_file(results)
    worst = compare(what, out, should), compare(what, out, gradients)
    compare(what + ", compiled", out, {"h_inference": compiled[0],
                                       "c_inference": ours(compiled[1], rnn)})
    check(torch.equal(out["h_inference"], out["h_packed"])
          and torch.equal(out["c_inference"], out["c_packed"]), what + ": packed, other bits")

    back = {k[4:]: v for k, v in out.items() if k.startswith("rnn.")}
    check(back.keys() == weights.keys() and all(torch.equal(back[k], weights[k]) for k in weights),
          what + ": saved by C, it has other tensors")
    with safe_open(results, "pt") as f:
        metadata_back = f.metadata()
    check(metadata_back["module"] == module and
          all(float(metadata_back.get(k, "0")) == float(v) for k, v in metadata.items()),
          "%s: saved by C, the metadata are %s" % (what, metadata_back))
    try:
        again = getattr(sru, module)(**json.loads(metadata_back["config"]))
        again.load_state_dict(back, strict=True)
        again.eval()
        with torch.no_grad():
            check(torch.equal(again(x, **there)[0], eager[0]),
                  what + ": saved by C, it gives other results there")
    except Exception as e:
        check(False, "%s: saved by C, it does not load: %s" % (what, e))
    return worst


def models(program, module, n):
    largest = [0, 0]
    with tempfile.TemporaryDirectory() as folder:
        for i in range(int(n)):
            largest = [max(a, b) for a, b in zip(largest, one_model(program, folder, module, i))]
            if (i + 1) % 20 == 0 or i + 1 == int(n):
                print("%s %s, %d models of %s: results within %.2e, gradients within %.2e of their "
                      "norm" % (module, sru.__version__, i + 1, n, *largest), flush=True)


class Charlm(torch.nn.Module):
    """The network that charlm saves, as one would write it in PyTorch."""
    def __init__(self, tensors, module, config):
        super().__init__()
        self.embedding = torch.nn.Embedding(*tensors["embedding.weight"].shape)
        self.rnn = getattr(sru, module)(**config)
        V, D = tensors["output.weight"].shape
        self.output = torch.nn.Linear(D, V)


class Stream:
    """Runs the network over a text in parts, and keeps state and memory from part to part."""
    def __init__(self, net, window):
        self.net, self.window, self.c, self.memory = net, window, None, None

    def __call__(self, tokens):
        x = self.net.embedding(tokens.unsqueeze(1))
        if not self.window:
            h, self.c = self.net.rnn(x, self.c)
        else:
            M = len(self.memory[0]) if self.memory else 0
            h, self.c, kept = self.net.rnn(x, self.c, memory=self.memory,
                                           attn_mask=band(len(x), M, self.window))
            old = self.memory or [k[:0] for k in kept["saved_inputs"]]
            self.memory = [torch.cat(both)[max(0, M + len(x) + 1 - self.window):]
                           for both in zip(old, kept["saved_inputs"])]
        return self.net.output(h)[:, 0]


def charlm(program, arch, path, seconds):
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "charlm.safetensors")
        for command in (["train", path, "--model", model, "--seconds", seconds, "--arch", arch],
                        ["eval", model, path]):
            run = subprocess.run([program] + command, capture_output=True, text=True)
            if run.returncode:
                check(False, "charlm %s: %s" % (command[0], run.stderr.strip()))
                return
        bits = float(re.fullmatch(r"test ([\d.]+) bits per character",
                                  run.stdout.strip().splitlines()[-1]).group(1))
        tensors = load_file(model)
        with safe_open(model, "pt") as f:
            metadata = f.metadata()
    module = {"sru": "SRU", "srupp": "SRUpp"}[arch]
    check(metadata["module"] == module, "charlm's module is " + metadata["module"])
    net = Charlm(tensors, module, json.loads(metadata["config"])).eval()
    net.load_state_dict(tensors, strict=True)       # raises what is wrong
    check(True, "")
    stream = Stream(net, int(metadata.get("window", 0)))
    with open(path, "rb") as f:
        text = f.read()
    test = torch.frombuffer(bytearray(text[len(text)*95//100:]), dtype=torch.uint8).long()
    loss = 0.0
    with torch.no_grad():
        for at in range(0, len(test) - 1, 1000):
            x, y = test[at:at + 1000][:len(test) - 1 - at], test[at + 1:at + 1001]
            loss += torch.nn.functional.cross_entropy(stream(x).double(), y,
                                                      reduction="sum").item()
    there = loss/(len(test) - 1)/math.log(2)
    print("charlm --arch %s after %s s: %.4f bits per character here, %.4f in the reference"
          % (arch, seconds, bits, there))
    check(abs(bits - there) <= 1e-3, "bits per character: %.5f here, %.5f there" % (bits, there))


{"models": models, "charlm": charlm}[sys.argv[1]](*sys.argv[2:])
print("%d passed, %d failed" % (passed, failed))
sys.exit(failed > 0)
