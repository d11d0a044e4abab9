"""Draws what peers.py has measured; a part of that program."""
import os
import matplotlib, matplotlib.ticker
matplotlib.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image

STYLE = {"sru.h": ("C3", 2.5, "-"), "nn.LSTM": ("C0", 1.3, "-"), "nn.GRU": ("C0", 1.3, "--"),
         "onnxruntime LSTM": ("C2", 1.3, "-"), "onnxruntime GRU": ("C2", 1.3, "--"),
         "reference SRU": ("C1", 1.3, "-"), "reference SRU++": ("C1", 1.3, "-")}


def plot(axes, points):
    """Draws a line for each name in points, which are (name, x, y)."""
    for name in dict.fromkeys(p[0] for p in points):
        color, width, dashes = STYLE[name]
        axes.plot(*zip(*[p[1:] for p in points if p[0] == name]), color=color, lw=width, ls=dashes,
                  marker="o", ms=3, label=name)


def save(figure, path):
    figure.savefig(path, dpi=140, bbox_inches="tight")
    plt.close(figure)
    Image.open(path).quantize(64).save(path, optimize=True)     # takes a quarter of the bytes


def finish(figure, axes, lines, path):
    for a in axes:
        a.set_axisbelow(True)
        a.grid(alpha=0.3, which="both", axis="x" if a.containers else "both")
    axes[0].annotate("\n".join(lines[:2]), (0, 0), (0, -42), xycoords="axes fraction",
                     textcoords="offset points", fontsize=7, va="top", color="0.4")
    save(figure, path)
    return path


def log_ticks(axes, values):
    """A logarithmic x axis with marks at these values only."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, ["%g" % v for v in values])
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())


def log_scale(axes, label):
    """A logarithmic y axis with plain numbers at 1, 2 and 5 times powers of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    axes.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_ylabel(label)


def ratios(rows, lines, path):
    """How many times as fast as each peer sru.h is."""
    rows = [r for r in rows if not r["limit"]]
    threads = sorted({r["threads"] for r in rows})
    labels = list(dict.fromkeys((r["work"], r["against"]) for r in rows))
    height, colors = 0.8/len(threads), ["C3", "#f4a582", "#fddbc7"]
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.36*len(labels)))
    for r in rows:
        k = threads.index(r["threads"])
        y = labels.index((r["work"], r["against"])) + (k - (len(threads) - 1)/2)*height
        axes.barh(y, r["ratio"], height, color=colors[min(k, 2)])
        axes.text(r["ratio"]*1.03, y, "%.3g" % r["ratio"], va="center", fontsize=6)
        if r["target"]:
            axes.plot([r["target"]]*2, [y - height/2, y + height/2], color="black", lw=1.5)
    axes.set_yticks(range(len(labels)), ["%s\nagainst %s" % l for l in labels], fontsize=7)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    log_ticks(axes, [0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128])
    axes.set_xlim(min([r["ratio"]*0.7 for r in rows] + [0.5]), max(r["ratio"]*1.6 for r in rows))
    axes.axvline(1, color="0.3", lw=0.8)
    axes.set_xlabel("times as fast as they are; the black lines are the targets")
    axes.legend([plt.Rectangle((0, 0), 1, 1, color=c) for c in colors[:len(threads)]],
                ["%d thread%s" % (n, "s" if n > 1 else "") for n in threads], loc="lower right")
    axes.set_title("sru.h beside its peers")
    return finish(figure, [axes], lines, path)


MOST_SHARE = 150        # percent, where the axis ends


def shares(rows, lines, path):
    """What share of the machine's limit sru.h reaches, and its peers where they are measured."""
    limits = [r for r in rows if r["limit"]]
    threads = sorted({r["threads"] for r in limits})
    works = list(dict.fromkeys(r["work"] for r in limits))
    figure, all_axes = plt.subplots(1, len(threads), sharey=True, squeeze=False,
                                    figsize=(5.5*len(threads), 1.5 + 0.6*len(works)))
    colors = {"sru.h": "C3", "MKL": "C0", "OpenBLAS": "C2"}
    for axes, n in zip(all_axes[0], threads):
        for i, work in enumerate(works):
            limit = [r for r in limits if r["work"] == work and r["threads"] == n]
            if not limit:
                continue
            shown = [("sru.h", limit[0]["ratio"])] + [
                (r["against"], limit[0]["theirs"]/r["theirs"]) for r in rows
                if r["work"] == work and r["threads"] == n and r is not limit[0]]
            height = 0.8/len(shown)
            for k, (name, share) in enumerate(shown):
                y = i + (k - (len(shown) - 1)/2)*height
                axes.barh(y, 100*share, height, color=colors.get(name, "0.7"))
                text = "%.0f %%%s" % (100*share, "" if name in colors else "  " + name)
                inside = name == "sru.h" or 100*share > 0.9*MOST_SHARE
                axes.text(min(100*share, MOST_SHARE) + (-1 if inside else 1), y, text, va="center",
                          ha="right" if inside else "left", fontsize=6,
                          color="white" if name == "sru.h" else "black")
        kinds = {r["work"]: r["against"] for r in reversed(limits)}         # the first of each work
        axes.set_yticks(range(len(works)), ["%s\n%s is 100 %%" % (w, kinds[w]) for w in works],
                        fontsize=7)
        axes.set_ylim(len(works) - 0.4, -0.6)
        axes.axvline(100, color="black", lw=1)
        axes.set_xlim(0, MOST_SHARE)
        axes.set_xlabel("share of the machine's limit, %")
        axes.set_title("%d thread%s" % (n, "s" if n > 1 else ""))
    used = [c for c in colors if c == "sru.h" or any(r["against"] == c for r in rows)]
    all_axes[0][0].legend([plt.Rectangle((0, 0), 1, 1, color=colors[c]) for c in used], used,
                          loc="lower right", fontsize=7)
    return finish(figure, list(all_axes[0]), lines, path)


def times(curve, lines, path):
    """Time of inference against d, T, B and threads."""
    panels = [("d", "hidden units d", "(T,B,L) = (128,8,2), 1 thread"),
              ("T", "time steps T", "(B,d,L) = (1,256,2), 1 thread"),
              ("B", "sequences B", "(T,d,L) = (128,256,2), 1 thread"),
              ("threads", "threads", "(T,B,d,L) = (128,8,512,2)")]
    panels = [p for p in panels if any(c[0] == p[0] for c in curve)]
    columns, rows = min(len(panels), 2), (len(panels) + 1)//2
    figure, all_axes = plt.subplots(rows, columns, figsize=(4.5*columns, 4*rows), squeeze=False,
                                    layout="constrained")
    for axes in all_axes.flat[len(panels):]:
        axes.remove()
    for axes, (axis, label, title) in zip(all_axes.flat, panels):
        here = [c for c in curve if c[0] == axis]
        plot(axes, [(c[3], c[1], c[4]*1e-6) for c in here])
        log_ticks(axes, sorted({c[1] for c in here}))
        log_scale(axes, "ms")
        axes.set_xlabel(label)
        axes.set_title("inference, " + title, fontsize=9)
    all_axes[0][0].legend(fontsize=7)
    return finish(figure, [all_axes[-1][0]] + list(all_axes.flat[:len(panels)]), lines, path)


def scaling(curve, memory, lines, path):
    """Time of a step, and memory, as sequences grow."""
    panels = [p for p in ("T", "T, SRU++") if any(c[0] == p for c in curve)]
    figure, all_axes = plt.subplots(1, len(panels) + bool(memory), squeeze=False,
                                    figsize=(5*(len(panels) + bool(memory)), 4),
                                    layout="constrained")
    for axes, axis in zip(all_axes[0], panels):
        here = [c for c in curve if c[0] == axis]
        plot(axes, [(c[3], c[1], c[4]*1e-3/c[1]) for c in here])
        log_ticks(axes, sorted({c[1] for c in here}))
        log_scale(axes, "us for each step")
        axes.set_xlabel("time steps T")
        axes.set_title("SRU++ (B,d,P,L) = (1,256,64,2), causal" if "++" in axis
                       else "inference (B,d,L) = (1,256,2)", fontsize=9)
        axes.legend(fontsize=7)
    if memory:
        axes = all_axes[0][-1]
        plot(axes, [(m[0], m[1], m[2]/2**20) for m in memory])
        T = sorted({m[1] for m in memory})
        axes.plot(T, [2*4*256*t/2**20 for t in T], color="0.5", ls=":",
                  label="input and output alone")
        log_ticks(axes, T)
        log_scale(axes, "MB")
        axes.set_xlabel("time steps T")
        axes.set_title("memory of inference (B,d,L) = (1,256,2)", fontsize=9)
        axes.legend(fontsize=7)
    return finish(figure, list(all_axes[0]), lines, path)


def draw(out, lines, rows, curve, memory):
    """Draws all pictures that there are results for, and yields their paths."""
    path = lambda name: os.path.join(out, name)
    if any(not r["limit"] for r in rows):
        yield ratios(rows, lines, path("ratios.png"))
    if any(r["limit"] for r in rows):
        yield shares(rows, lines, path("peak.png"))
    if any("++" not in c[0] for c in curve):
        yield times(curve, lines, path("times.png"))
    if memory or any(c[0].startswith("T") for c in curve):
        yield scaling(curve, memory, lines, path("scaling.png"))
