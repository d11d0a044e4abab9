"""Draws learning curves of build/charlm and, in PyTorch, nn.LSTM, nn.GRU and the reference's SRU.
One after the other, they train a language model of characters on the same text for the same time.

    make learning FILE=text SECONDS=120
    build/venv/bin/python bench/learning.py FILE [--seconds 120] [--threads 2] [--only PATTERN]

All see what charlm sees, in the same order: 90 % of the file for training, as 16 streams of pieces,
with the state carried from update to update; 5 % for validation; the last 5 % for the test. All use
AdamW, a learning rate that rises for 5 % of the time and then falls along a cosine, and gradients
clipped at 1. The time includes validations. With --bf16, the peers also train under torch.autocast,
with products, and the whole of nn.LSTM and nn.GRU, in bfloat16. The curves, their picture and a
table are written to build/learning.
"""
import argparse, copy, csv, math, os, re, shutil, signal, subprocess, sys, time, warnings
import peers


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--seconds", type=peers.at_least(0.01, float), default=120,
                        help="time of each training (120)")
    parser.add_argument("--threads", type=peers.at_least(1), default=2, help="in each training (2)")
    parser.add_argument("--charlm", default=[""], nargs="+", metavar="OPTIONS",
                        help="train charlm once with each of these, as in \"\" \" --arch srupp\"")
    parser.add_argument("--bf16", action="store_true", help="add peers under torch.autocast")
    parser.add_argument("--limit", action="store_true", help="also train charlm, with the first "
                        "OPTIONS, for as many updates as it would make at the machine's limit")
    parser.add_argument("--only", default="", metavar="PATTERN", type=peers.pattern,
                        help="train only what has a name that contains this regular expression")
    parser.add_argument("--out", default=os.path.join(peers.HERE, "../build/learning"),
                        help="folder for the results (build/learning)")
    return parser.parse_args()


if __name__ == "__main__":
    o = arguments()                     # --help needs no torch
    peers.need("build/bench", "build/charlm", "torch", "sru", "matplotlib")
warnings.filterwarnings("ignore")       # many come from the reference, for things it still does
import torch

CHUNK, PARTS = 1024, 16 # a validation, as in charlm, is of at most so many parts of 1024 characters
VALIDATE = 0.05         # there is at most one in this share of the time,
BETWEEN = 4*PARTS*CHUNK # and none before so many more characters of training
PIECE = 64              # batches in a piece, which are read one after another
GOLDEN = 0.618034       # the share of the text that lies between one piece and the next

# name, class, units, layers, learning rate, and whether under torch.autocast: the best that were
# found for 120 seconds; for nn.LSTM in bfloat16, the machine decides which are best
NETWORKS = [("nn.LSTM 1 x 256", "lstm", 256, 1, 0.005),
            ("nn.GRU 1 x 256", "gru", 256, 1, 0.005),
            ("reference SRU 2 x 256", "sru", 256, 2, 0.01)]
NETWORKS_BF16 = [("nn.LSTM 1 x 256, bfloat16", "lstm", 256, 1, 0.005, True),
                 ("nn.LSTM 1 x 384, bfloat16", "lstm", 384, 1, 0.005, True),
                 ("nn.GRU 1 x 384, bfloat16", "gru", 384, 1, 0.005, True),
                 ("reference SRU 2 x 384, bfloat16", "sru", 384, 2, 0.01, True)]
BATCH, LENGTH = 16, 64
CHARLM = 192, 3         # units and layers that charlm has unless it is told otherwise
LIMIT = "charlm, if it ran at the machine's limit"


class Network(torch.nn.Module):
    def __init__(self, kind, D, L):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, D)
        if kind == "sru":
            import sru
            self.rnn = sru.SRU(D, D, L, layer_norm=True, normalize_after=True)
        else:
            self.rnn = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](D, D, L)
        self.output = torch.nn.Linear(D, 256)
        # the reference uses its compiled operator only in scripted modules, and only to infer
        self.fast = torch.jit.script(self.rnn) if kind == "sru" else self.rnn

    def forward(self, tokens, state):
        h, state = (self.rnn if self.training else self.fast)(self.embedding(tokens), state)
        return self.output(h), state


def bits(logits, targets, reduction="mean"):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(),
                                             reduction=reduction)/math.log(2)


class Trainer:
    def __init__(self, kind, D, L, B, T, rate, bf16=False):
        torch.manual_seed(1)
        self.bf16 = bf16
        self.net, self.B, self.T, self.rate = Network(kind, D, L), B, T, rate
        self.adamw = torch.optim.AdamW(self.net.parameters(), lr=rate, betas=(0.9, 0.99),
                                       weight_decay=0.1, fused=True)
        self.state, self.random = None, torch.randint(256, (2, T, B))

    def update(self, x, y, share=0.5):
        """One update on x, y (T,B), at this share of the training. Returns bits per character."""
        for group in self.adamw.param_groups:
            group["lr"] = self.rate*(share/0.05 if share < 0.05 else
                                     0.5 + 0.5*math.cos(math.pi*(share - 0.05)/0.95))
        with torch.enable_grad():
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                logits, state = self.net.train()(x, self.state)
            loss = bits(logits.float(), y)
            self.state = tuple(s.detach() for s in state) if isinstance(state, tuple) \
                else state.detach()
            self.adamw.zero_grad()
            (loss*math.log(2)).backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1)
        self.adamw.step()
        return loss.item()

    def update_random(self):
        return self.update(*self.random)

    @torch.no_grad()
    def evaluate(self, text, stride=CHUNK):
        """Bits per character of the first CHUNK in every `stride`; the state is carried through."""
        self.net.eval()
        total, count, state = 0, 0, None
        for at in range(0, len(text) - 1, stride):
            y = text[at + 1:at + 1 + CHUNK]
            logits, state = self.net(text[at:at + len(y)].unsqueeze(1), state)
            total += bits(logits, y.unsqueeze(1), "sum").item()
            count += len(y)
        return total/count


def progress(name, share, seconds, characters, validation):
    peers.status("%-24.24s %3.0f %%  %.0f a second  validation %.3f  %.0f s left"
                 % (name, 100*share, characters/seconds, validation, seconds*(1 - share)/share),
                 last=share >= 1)


def places(n, step):
    """Where in n characters of text the streams read in this step, as in charlm's next_batch()."""
    batches = min(PIECE, n//(LENGTH*BATCH))
    pieces = n//(LENGTH*batches)
    stride = 1 + int(GOLDEN*pieces)
    while math.gcd(stride, pieces) > 1:
        stride += 1
    turn = step//batches*BATCH + torch.arange(BATCH)
    moved = turn//pieces*(batches//3 + 1)
    return (turn%pieces*stride%pieces*batches + moved + step%batches)*LENGTH


def train(name, network, path, seconds, curve):
    """Trains a network, and returns its bits per character in the test, and characters a second."""
    with open(path, "rb") as f:
        text = torch.frombuffer(bytearray(f.read()), dtype=torch.uint8).long()
    n = len(text)*90//100
    validation, test = text[n:len(text)*95//100], text[len(text)*95//100:]
    t = Trainer(*network[:3], BATCH, LENGTH, *network[3:])
    if t.net.fast is not t.net.rnn:
        for _ in range(3):              # compiles it before the clock starts
            t.evaluate(validation[:2000])
    steps = torch.arange(LENGTH + 1).unsqueeze(1)
    stride = max(CHUNK, math.ceil(len(validation)/PARTS))
    start, step, last, shown = time.time(), 0, 0, 0
    losses, best, lowest, value, share = [], t.net.state_dict(), math.inf, 8, 0
    curve.writerow(["seconds", "characters", "training", "validation"])
    while share < 1:
        at = (places(n, step) + steps)%n
        losses.append(t.update(text[at[:-1]], text[at[1:]], share))
        step += 1
        share = min(1, (time.time() - start)/seconds)
        if share >= 1 or (share - last >= VALIDATE and len(losses)*BATCH*LENGTH >= BETWEEN):
            value, last = t.evaluate(validation, stride), share
            if value < lowest:
                lowest, best = value, copy.deepcopy(t.net.state_dict())
            elapsed = time.time() - start
            curve.writerow(["%.2f" % elapsed, step*BATCH*LENGTH,
                            "%.4f" % (sum(losses)/len(losses)), "%.4f" % value])
            losses = []
        if share >= 1 or time.time() - shown > 0.5:
            progress(name, share, time.time() - start, step*BATCH*LENGTH, value)
            shown = time.time()
    t.net.load_state_dict(best)
    return t.evaluate(test), step*BATCH*LENGTH/elapsed


def updates_at_limit(options, seconds, threads, out):
    """How many updates charlm could make if its products took no longer than as many operations in
    registers, its scans no longer than their arithmetic, and everything else took no time."""
    if {"--arch", "--type", "--batch", "--length"} & set(options):
        sys.exit("learning.py: --limit is that of an SRU in float32, of batches as they are")
    D, L = (int(options[options.index(name) + 1]) if name in options else usual
            for name, usual in zip(("--hidden", "--layers"), CHARLM))
    V, rows = 256, BATCH*LENGTH
    flops = 3*2*(3*D*D*(V + (L - 1)*rows) + rows*V*D)       # the first layer multiplies V rows
    peak = peers.Peak(peers.Ours(None, out).isa, out)
    return int(1e9*seconds/min(peak.time("flops %d + gates %d" % (flops, 2*L*rows*D), threads, 0.5)
                               for _ in range(8)))


def charlm(options, path, seconds, threads, csv_path):
    """The same as train(), by build/charlm."""
    model = csv_path[:-len(".csv")] + ".safetensors"
    command = ["build/charlm", "train", path, "--model", model, "--threads", str(threads)] + options
    command += [] if "--steps" in options else ["--seconds", str(seconds)]
    name = " ".join(["charlm"] + options)
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    shown = test = None
    for line in run.stdout:
        last = re.match(r"test ([\d.]+) bits per character", line)
        test = float(last.group(1)) if last else test
        if "training" in line:
            shown = "%-24.24s %s" % (name, line.strip())
            peers.status(shown)
    if shown:
        peers.status(shown, last=True)
    if run.wait() or test is None:
        sys.exit("learning.py: charlm failed")
    shutil.copyfile(model + ".csv", csv_path)
    with open(csv_path, newline="") as f:
        last = list(csv.DictReader(f))[-1]
    return test, float(last["characters"])/float(last["seconds"])


def draw(results, seconds, threads, path, out):
    import pictures
    figure, axes = pictures.plt.subplots(figsize=(8, 5 + 0.2*len(results)))
    for name, (test, rate, points) in results.items():
        axes.plot([p[0] for p in points], [p[1] for p in points],
                  lw=2.5 if name.startswith("charlm") else 1.5,
                  ls=":" if name == LIMIT else "--" if "bf" in name else "-",
                  label="%s: test %.2f, %.0f thousand characters a second"
                  % (name, test, 1e-3*rate))
    low = min(min(p[1] for p in points) for _, _, points in results.values())
    axes.set_ylim(low - 0.1, low + 1.5)
    axes.set_xlim(0, seconds)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("validation, bits per character")
    axes.set_title("Language models of the characters of %s\n%s, threads: %d"
                   % (os.path.basename(path), peers.processor(), threads), fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), frameon=False)
    pictures.save(figure, os.path.join(out, "learning.png"))


def main(o):
    if not os.path.isfile(o.file):
        sys.exit("learning.py: there is no file '%s'" % o.file)
    if os.path.getsize(o.file) < 2*BATCH*LENGTH:
        sys.exit("learning.py: '%s' is too short" % o.file)
    o.file, o.out = os.path.abspath(o.file), os.path.abspath(o.out)
    os.chdir(os.path.dirname(peers.HERE))
    os.makedirs(o.out, exist_ok=True)
    os.environ["TORCH_EXTENSIONS_DIR"] = os.path.abspath("build/torch_2")
    os.environ["PATH"] = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]     # for ninja
    torch.set_num_threads(o.threads)
    results = {}
    networks = [(" ".join(["charlm"] + options.split()), options.split()) for options in o.charlm]
    if o.limit:
        options = networks[0][1]
        steps = updates_at_limit(options, o.seconds, o.threads, o.out)
        networks.append((LIMIT, options + ["--steps", str(steps)]))
    networks += NETWORKS + (NETWORKS_BF16 if o.bf16 else [])
    networks = [n for n in networks if o.only.search(n[0])]
    if not networks:
        sys.exit("learning.py: nothing is called '%s', a regular expression" % o.only.pattern)
    for name, *network in networks:
        path = os.path.join(o.out, re.sub(r"\W+", "_", name) + ".csv")
        if len(network) > 1:
            with open(path, "w", newline="") as f:
                test, rate = train(name, network, o.file, o.seconds, csv.writer(f))
        else:
            test, rate = charlm(network[0], o.file, o.seconds, o.threads, path)
        with open(path) as f:
            points = [(float(r["seconds"]), float(r["validation"])) for r in csv.DictReader(f)]
        if name == LIMIT:
            slower = points[-1][0]/o.seconds
            rate, points = rate*slower, [(seconds/slower, bits) for seconds, bits in points]
        results[name] = test, rate, points
    table = ["| %g s on %d threads, %s | test, bits per character | characters a second |"
             % (o.seconds, o.threads, os.path.basename(o.file)), "|---|---|---|"]
    table += ["| %s | %.3f | %s |" % (name, test, format(rate, ",.0f"))
              for name, (test, rate, _) in results.items()]
    with open(os.path.join(o.out, "learning.md"), "w") as f:
        f.write("\n".join(table) + "\n")
    print("\n".join(table))
    draw(results, o.seconds, o.threads, o.file, o.out)
    print("picture: " + os.path.join(o.out, "learning.png"))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)    # Ctrl-C ends it without a traceback
    main(o)
