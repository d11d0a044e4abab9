"""Compares the C library with the reference; tests/pytorch/run calls it.

compare.py models RUN_MODEL N              N random models of the reference, run by C
compare.py charlm CHARLM TEXT SECONDS      a model trained by charlm, run by the reference
"""
import json, math, os, random, re, subprocess, sys, tempfile, types
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
import sru

passed = failed = 0


def check(ok, sentence):
    global passed, failed
    passed += bool(ok)
    failed += not ok
    if not ok:
        print("failed:", sentence)


def random_config(new):
    """The arguments of a constructor, at random, of 3.0-dev if new."""
    D, layers, both = random.randint(1, 40), random.randint(1, 4), random.random() < 0.4
    c = dict(input_size=random.choice([D, 2*D if both else D, random.randint(1, 50)]),
             hidden_size=D, num_layers=layers, bidirectional=both)
    if random.random() < 0.4:
        c["projection_size"] = random.randint(1, 12)
        if new and random.random() < 0.5:
            c["projection_size"] = [random.randint(0, 12) for _ in range(layers)]
    for name in ("use_tanh", "rescale", "v1", "layer_norm", "normalize_after",
                 "nn_rnn_compatible_return", "proj_input_to_hidden_first"):
        if random.random() < 0.35:
            c[name] = True
    if random.random() < 0.2:
        c["has_skip_term"] = False
    if random.random() < 0.5:
        c["highway_bias"] = random.choice([-3, -1.5, 0.25, 1])
    for name in ("dropout", "rnn_dropout"):
        if random.random() < 0.35:
            c[name] = random.choice([0.1, 0.5])
    if random.random() < 0.3:
        c["weight_c_init"] = random.choice([0.5, 1.5])
    return c


def ours(c, rnn):
    """A state of the reference as (B,S)."""
    L, K = rnn.num_layers, rnn.num_directions
    if c.shape[0] == L*K and K == 2 and rnn.nn_rnn_compatible_return:
        c = c.view(L, K, c.shape[1], -1).transpose(1, 2).flatten(2)
    return c.transpose(0, 1).flatten(1)


def distance(a, b):
    """Relative to the norm of b, which is 0 where there is nothing to be relative to."""
    a, b = a.double().flatten(), b.double().flatten()
    return ((a - b).norm()/(b.norm() or 1)).item()


def give_masks(rnn, B):
    """Makes the reference use, and returns, dropout masks that are drawn once."""
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


def one_model(program, folder, i, new):
    """One model of the reference: saved, run there and here."""
    torch.manual_seed(i)
    random.seed(i)
    config = random_config(new)
    what = "model %d, %s" % (i, config)
    T, B = random.randint(1, 20), random.randint(1, 5)
    rnn = sru.SRU(**config)
    with torch.no_grad():
        for name, p in rnn.named_parameters():      # so that each is away from what it starts as
            if p.requires_grad:
                p.add_(0.2*torch.randn_like(p))
    path, given, results = (os.path.join(folder, n) for n in ("rnn", "input", "output"))
    weights = {k: v.clone() for k, v in rnn.state_dict().items()}
    save_file(rnn.state_dict(), path, metadata={"module": "SRU", "config": json.dumps(config)})

    L, N = rnn.num_layers, rnn.output_size
    x = torch.randn(T, B, config["input_size"])
    c0 = torch.randn(L, B, N) if random.random() < 0.6 else None
    pad = torch.zeros(T, B)
    if random.random() < 0.4:
        for b in range(B):
            pad[random.randint(0, T):, b] = 1
    mask_pad = pad.bool() if pad.any() else None
    tensors = dict(x=x)
    if c0 is not None:
        tensors["c0"] = c0.transpose(0, 1).flatten(1)
    if mask_pad is not None:
        tensors["mask_pad"] = pad.to(torch.uint8)
    rnn.eval()
    with torch.no_grad():                           # the compiled operator, in float32
        h_eval, c_eval = rnn(x, c0, mask_pad=mask_pad)
        c_eval = ours(c_eval, rnn)

    if config.get("dropout") or config.get("rnn_dropout"):
        tensors["dropout_mask"], tensors["rnn_dropout_mask"] = give_masks(rnn, B)
        if not config.get("rnn_dropout"):
            del tensors["rnn_dropout_mask"]
    rnn.double().train()
    x64 = x.double().requires_grad_()
    c64 = torch.zeros(L, B, N).double() if c0 is None else c0.double()
    c64.requires_grad_()
    h, c = rnn(x64, c64, mask_pad=mask_pad)
    dh, dc = torch.randn(h.shape), torch.randn(c.shape)
    ((h*dh).sum() + (c*dc).sum()).backward()
    tensors.update(dh=dh, dc=ours(dc, rnn))
    save_file({k: v.contiguous() for k, v in tensors.items()}, given)

    run = subprocess.run([program, path, given, results], capture_output=True, text=True)
    if run.returncode:
        check(False, "%s: %s" % (what, run.stderr.strip() or run.returncode))
        return 0, 0
    out = load_file(results)
    values = {"h": (out["h"], h), "c": (out["c"], ours(c, rnn)),
              "h_inference": (out["h_inference"], h_eval),
              "c_inference": (out["c_inference"], c_eval)}
    gradients = {"dx": (out["dx"], x64.grad),
                 "dc0": (out["dc0"], c64.grad.transpose(0, 1).flatten(1))}
    for name, p in rnn.named_parameters():
        should = p.grad if p.grad is not None else torch.zeros_like(p)
        gradients["grad." + name] = out["grad." + name], should
    worst = [0, 0]
    for kind, pairs in enumerate((values, gradients)):
        for name, (a, b) in pairs.items():
            d = distance(a, b) if a.shape == b.shape else math.inf
            worst[kind] = max(worst[kind], d)
            check(d <= 1e-5, "%s: %s is off by %.3g" % (what, name, d))
    check(torch.equal(out["h_inference"], out["h_packed"])
          and torch.equal(out["c_inference"], out["c_packed"]), what + ": packed, other bits")

    back = {k[4:]: v for k, v in out.items() if k.startswith("rnn.")}
    check(back.keys() == weights.keys() and all(torch.equal(back[k], weights[k]) for k in weights),
          what + ": saved by C, it has other tensors")
    with safe_open(results, "pt") as f:
        saved = json.loads(f.metadata()["config"])
    try:
        again = sru.SRU(**saved)
        again.load_state_dict(back, strict=True)
        again.eval()
        with torch.no_grad():
            h_again, _ = again(x, c0, mask_pad=mask_pad)
        check(torch.equal(h_again, h_eval), what + ": saved by C, it gives other results there")
    except Exception as e:
        check(False, "%s: saved by C, it does not load: %s" % (what, e))
    return worst


def models(program, n):
    new = sru.__version__.startswith("3")
    largest = [0, 0]
    with tempfile.TemporaryDirectory() as folder:
        for i in range(int(n)):
            largest = [max(a, b) for a, b in zip(largest, one_model(program, folder, i, new))]
    print("%d models of sru %s: results within %.2e, gradients within %.2e of their norm"
          % (int(n), sru.__version__, *largest))


class Charlm(torch.nn.Module):
    """What charlm saves, as one would write it in PyTorch."""
    def __init__(self, tensors, config):
        super().__init__()
        self.embedding = torch.nn.Embedding(*tensors["embedding.weight"].shape)
        self.rnn = sru.SRU(**config)
        V, D = tensors["output.weight"].shape
        self.output = torch.nn.Linear(D, V)

    def forward(self, tokens, c=None):
        h, c = self.rnn(self.embedding(tokens), c)
        return self.output(h), c


def charlm(program, path, seconds):
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "charlm.safetensors")
        for command in (["train", path, "--model", model, "--seconds", seconds],
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
    check(metadata["module"] == "SRU", "charlm's module is " + metadata["module"])
    net = Charlm(tensors, json.loads(metadata["config"])).eval()
    net.load_state_dict(tensors, strict=True)       # raises what is wrong
    check(True, "")
    with open(path, "rb") as f:
        text = f.read()
    test = torch.frombuffer(bytearray(text[len(text)*95//100:]), dtype=torch.uint8).long()
    loss, c = 0.0, None
    with torch.no_grad():
        for at in range(0, len(test) - 1, 1000):    # the state is carried from piece to piece
            x, y = test[at:at + 1000][:len(test) - 1 - at], test[at + 1:at + 1001]
            logits, c = net(x.unsqueeze(1), c)
            loss += torch.nn.functional.cross_entropy(logits[:, 0].double(), y,
                                                      reduction="sum").item()
    there = loss/(len(test) - 1)/math.log(2)
    print("charlm after %s s: %.4f bits per character here, %.4f in the reference"
          % (seconds, bits, there))
    check(abs(bits - there) <= 1e-3, "bits per character: %.5f here, %.5f there" % (bits, there))


if len(sys.argv) < 4 or sys.argv[1] not in ("models", "charlm"):
    sys.exit(__doc__)
try:
    {"models": models, "charlm": charlm}[sys.argv[1]](*sys.argv[2:])
finally:
    print("%d passed, %d failed" % (passed, failed))
sys.exit(failed > 0)
