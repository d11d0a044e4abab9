"""Times a layer of sru_cuda.cu beside cuDNN's LSTM and the reference's CUDA kernel on this GPU.

    make bench-cuda                      needs a torch that sees the GPU; for the reference, pip
                                         install 'sru<3', whose CUDA source compiles with today's
                                         torch if its U.type() is changed to U.scalar_type()
    bench/peers_cuda.py [--seconds N]    after `make cuda`
    bench/peers_cuda.py --srupp          networks of SRU++ instead, with causal attention, beside
                                         the reference's 3.0-dev, to be changed likewise; in
                                         bfloat16 and float16 only products have that type

A case is a whole layer, product and recurrence, in one mode of products. Inference is timed as it
is called and, if possible, as replayed from a captured graph; training is forward and backward with
all gradients. In bfloat16 and float16, all arrays are stored in that type. The time of the
reference's recurrence alone is that of its kernel in the profiler; it is added to a graph's time,
for a graph lacks this kernel, which runs in the default stream. A ratio is the peer's time by ours.
"""
import argparse, json, os, signal, statistics, subprocess, sys
from peers import HERE, at_least, need

SHAPES = [(512, 32, 1024), (1024, 8, 3072), (512, 8, 512), (4096, 1, 3072), (512, 1, 512)]
NETWORKS = [(256, 4, 512, 128, 2), (1024, 1, 512, 128, 2), (512, 8, 1024, 256, 4),
            (512, 8, 3072, 768, 2)]
HALVES = ("bfloat16", "float16")
MODES = {"float32": "f32", "TF32": "tf32", "bfloat16": "bf16", "float16": "f16"}    # in bench_cuda


def ours(shape, seconds):
    """Microseconds of each case of build/roofline_cuda, under its name, what it does, its mode and
    whether its arrays are stored in this mode's type."""
    program = os.path.join(HERE, "..", "build", "roofline_cuda")
    out = subprocess.check_output([program, "--json", "--seconds", str(seconds), *map(str, shape)])
    cases = [json.loads(line) for line in out.splitlines()]
    return {(case["case"].split()[0], what, case["math"], "stored" in case["case"]): case["us"]
            for case in cases for what in ("inference", "training") if what in case["case"]}


def measure(torch, call, seconds):
    """Median microseconds of a call; up to ten calls in a row are timed between two events."""
    times, total, calls = [], 0, 0
    call()
    torch.cuda.synchronize()
    while len(times) < 21 or total < 1e3*seconds:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(max(calls, 1)):
            call()
        end.record()
        end.synchronize()
        if calls:
            times.append(begin.elapsed_time(end)*1e3/calls)
        else:                               # that was a trial: so many take about a millisecond
            calls = max(1, min(10, int(1/begin.elapsed_time(end))))
        total += begin.elapsed_time(end)
    return statistics.median(times)


def captured(torch, call, x):
    """The call as a graph, and whether that computes the whole result from x; None if it fails."""
    try:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call()
        x.mul_(0.5)
        graph.replay()
        torch.cuda.synchronize()
        result = result.clone()
        return graph.replay, torch.allclose(result, call(), 1e-2, 1e-3)
    except RuntimeError:
        torch.cuda.synchronize()
        return None


def kernel_alone(torch, call, name):
    """Microseconds that kernels whose names contain `name` take in a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            call()
        torch.cuda.synchronize()
    total = 0
    for event in profile.key_averages():
        if name in event.key:
            total += getattr(event, "self_device_time_total", None) or event.self_cuda_time_total
    return total/5


def peers(torch):
    found = {"LSTM (cuDNN)": lambda D: torch.nn.LSTM(D, D, 1)}
    try:
        import sru
        found["SRU %s" % sru.__version__] = lambda D: sru.SRU(D, D, 1)
    except ImportError:
        print("The reference is left out: it is not installed.", file=sys.stderr)
    return found


def compare_srupp(torch, seconds):
    """Prints a table of networks of SRU++."""
    import sru
    if not hasattr(sru, "SRUpp"):
        sys.exit("peers_cuda.py: sru %s has no SRU++: see --help" % sru.__version__)
    program = os.path.join(HERE, "..", "build", "bench_cuda")
    print("| | T, B, D, P, L | products | sru_cuda us | SRU++ %s us | ratio |" % sru.__version__)
    print("|---|---|---|---|---|---|")
    for what in ("inference", "training"):
        train = what == "training"
        torch.set_grad_enabled(train)
        for sizes in NETWORKS:
            T, B, D, P, L = sizes
            net = sru.SRUpp(D, D, P, L).to("cuda").train(train)
            x = torch.randn(T, B, D, device="cuda", requires_grad=train)
            grad = torch.randn(T, B, D, device="cuda")
            hidden = torch.full((T, T), -float("inf"), device="cuda").triu(1)
            for mode, name in MODES.items():
                us = 1e-3*json.loads(subprocess.check_output(
                    [program, "srupp", *map(str, sizes), "--type", name, "--seconds", str(seconds),
                     "--json"] + ["--train"]*train))["ns"]
                torch.backends.cuda.matmul.allow_tf32 = mode == "TF32"

                def call():
                    with torch.autocast("cuda", getattr(torch, mode, None), mode in HALVES):
                        h = net(x, None, None, hidden)[0]
                    if train:
                        h.backward(grad.to(h.dtype))
                peer = measure(torch, call, seconds)
                print("| %s | %d, %d, %d, %d, %d | %s | %.1f | %.1f | %.2f |"
                      % (what, *sizes, mode, us, peer, peer/us), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=at_least(0, float), default=0.5,
                        help="time of each case (0.5)")
    parser.add_argument("--srupp", action="store_true", help="time networks of SRU++ instead")
    options = parser.parse_args()
    seconds = options.seconds
    need("torch", *(["sru", "build/bench_cuda"] if options.srupp else ["build/roofline_cuda"]))
    import torch
    if not torch.cuda.is_available():
        sys.exit("peers_cuda.py: this torch sees no GPU")
    print("%s, torch %s, CUDA %s, cuDNN %s\n" % (torch.cuda.get_device_name(), torch.__version__,
                                                torch.version.cuda, torch.backends.cudnn.version()))
    if options.srupp:
        return compare_srupp(torch, seconds)
    print("| | T, B, D | products | sru_cuda us | peer | peer us | ratio | in a graph us | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    scans, mine, nets = [], {shape: ours(shape, seconds) for shape in SHAPES}, peers(torch)
    for what in ("inference", "training"):
        for shape in SHAPES:
            for mode in MODES:
                for name, make in nets.items():
                    print(row(torch, what, shape, mode, name, make, mine[shape], seconds, scans),
                          flush=True)
    print("\n| T, B, D | storage | sru_cuda's scan us | peer | its kernel us | ratio |")
    print("|---|---|---|---|---|---|")
    print("\n".join(scans))


def row(torch, what, shape, mode, name, make, mine, seconds, scans):
    """A line that compares a peer with us; one that compares recurrences alone goes to scans."""
    T, B, D = shape
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = mode == "TF32"
    kind = torch.float32 if mode == "TF32" else getattr(torch, mode)
    us = mine["layer", what, mode, kind != torch.float32]
    sizes = "%d, %d, %d" % shape
    line = "| %s | %s | %s | %.1f | %s |" % (what, sizes, mode, us, name)
    torch.set_grad_enabled(what == "training")
    try:
        net = make(D).to("cuda", kind).train(what == "training")
        x = torch.randn(T, B, D, device="cuda", dtype=kind, requires_grad=what == "training")
        grad = torch.randn(T, B, D, device="cuda", dtype=kind)
        call = (lambda: net(x)[0].backward(grad)) if what == "training" else lambda: net(x)[0]
        peer = measure(torch, call, seconds)
        line += " %.1f | %.2f |" % (peer, peer/us)
        replay, whole = (what == "inference" and captured(torch, call, x)) or (None, False)
        kernel = (kernel_alone(torch, call, "sru_cuda_forward")
                  if what == "inference" and name.startswith("SRU") else 0)
        if replay and (whole or kernel):
            graph = measure(torch, replay, seconds) + (0 if whole else kernel)
            line += " %.1f | %.2f |" % (graph, graph/us)
        else:
            line += " | |"
        scan = mine.get(("scan", "inference", mode, False))
        if kernel and scan:
            scans.append("| %s | %s | %.1f | %s | %.1f | %.2f |" % (sizes, mode, scan, name, kernel,
                                                                 kernel/scan))
    except (RuntimeError, TypeError) as e:                  # a type that the peer does not have
        line += " %s | | | |" % str(e).splitlines()[0][:60]
    return line


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)    # Ctrl-C ends it without a traceback
    main()
