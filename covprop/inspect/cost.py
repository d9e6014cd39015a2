"""What it costs to keep every covariance, and what it costs to share one: counted.

Memory is counted in numbers, not bytes. `PAPER_MEMORY` holds the figures printed in the paper for
PreActResNet-18 on 224-pixel images; the table recomputes each from the model's own shapes and says
which of them do not follow from their own formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from covprop.inspect import figures
from covprop.inspect.figures import Exhibit
from covprop.propagate.plan import Plan
from covprop.propagate.settings import PAPER
from covprop.propagate.tracing.trace import build


@dataclass(frozen=True)
class Memory:
    """Numbers to keep for one image at one place in a network."""

    name: str
    shape: tuple[int, ...]
    plain: int  # one for each unit
    brute: int  # half the square of that, as the paper counts: all pairs of units
    ours: int  # one for each unit, and one channel covariance


def memory_of(name: str, shape: tuple[int, ...], channels: int | None = None) -> Memory:
    """The three counts for a value of a shape (channels first).

    Example:
        >>> memory_of("input", (3, 224, 224)).ours
        150537
    """
    units = math.prod(shape)
    channels = shape[0] if channels is None else channels
    return Memory(name, shape, units, units**2 // 2, units + channels**2)


def layer_memory(plan: Plan, wanted: dict[str, str] | None = None) -> list[Memory]:
    """The counts at the input and after steps: those of `wanted` (title -> step name), or every
    step that computes (a convolution, a sum, a linear layer)."""
    rows = [memory_of("input", plan.input_shape)]
    steps = {step.name: step for step in plan.steps if step.rule is not None}
    names = wanted or {
        name: name for name, step in steps.items()
        if isinstance(step.target, nn.Conv2d | nn.Linear)
    }  # fmt: skip
    for title, name in names.items():
        rows.append(memory_of(title, steps[name].out_shape, steps[name].channels))
    return rows


PAPER_MEMORY = {
    "input": (150528, 11329339392, 150537),
    "1st convolution": (802816, 644513529856, 806912),
    "1st residual stage": (200704, 322256764928, 204800),
    "2nd residual stage": (100352, 5035261952, 116736),
    "3rd residual stage": (50176, 1258815488, 115712),
    "4th residual stage": (25088, 314703872, 287232),
}
REMARKS = {
    "1st convolution": "the paper prints the whole square; its own formula has the factor ½",
    "1st residual stage": "the paper prints the value of the first convolution (half the square "
    "of 802,816), 16 times too large",
}


def paper_memory() -> list[Memory]:
    """The table of the paper, from the shapes of the model itself."""
    from covprop import models

    model = models.build("preact_resnet18", num_classes=1000, image_shape=(3, 224, 224)).eval()
    plan = build(model, (3, 224, 224), PAPER)
    sums = [step.name for step in plan.steps if step.name.startswith("add")]
    wanted = {"1st convolution": "stem.0"}
    wanted |= {
        f"{ordinal} residual stage": sums[2 * stage + 1]
        for stage, ordinal in enumerate(("1st", "2nd", "3rd", "4th"))
    }
    return layer_memory(plan, wanted)


def verdict(row: Memory) -> str:
    """Whether the paper's three figures for a row follow from the shapes."""
    same = (row.plain, row.brute, row.ours) == PAPER_MEMORY[row.name]
    return "as printed" if same else REMARKS[row.name]


@dataclass(frozen=True)
class Terms:
    """Matrices needed q layers before the last one, for the covariance of one last pixel."""

    back: int
    covariances: int  # one Σ a pixel
    cross: int  # one E a pair of different pixels
    paper_cross: int  # n(n + 1)/2
    offsets: int  # different E if Σ and E do not depend on the place
    nonzero: int  # pairs whose fields of view at the image overlap: the others are 0


def count_terms(kernel: int, stride: int, depth: int) -> list[Terms]:
    """Count by following every term back through `depth` 1-D convolutions.

    Cov(h_m, h_n) of two output pixels is a sum over Cov(x_{sm+a}, x_{sn+b}), a, b = 0 … k − 1.

    Example: overlapping windows of three.
        >>> [(t.covariances, t.cross) for t in count_terms(3, 1, 3)]
        [(1, 0), (3, 3), (5, 10), (7, 21)]
    """
    pairs, found = {(0, 0)}, []
    for back in range(depth + 1):
        different = [(m, n) for m, n in pairs if m != n]
        pixels = {m for pair in pairs for m in pair}
        field, jump = 1, 1
        for _ in range(depth - back):
            field, jump = field + (kernel - 1) * jump, jump * stride
        found.append(
            Terms(
                back,
                len(pixels),
                len(different),
                len(pixels) * (len(pixels) + 1) // 2,
                len({n - m for m, n in different}),
                sum((n - m) * jump < field for m, n in different),
            )
        )
        reached = {
            (stride * m + a, stride * n + b)
            for m, n in pairs
            for a in range(kernel)
            for b in range(kernel)
        }
        pairs = {(min(pair), max(pair)) for pair in reached}
    return found


def formula(kernel: int, stride: int, back: int) -> tuple[int, int]:
    """(Σ, E) in closed form: n = (k − 1)q + 1 pixels with overlap (stride 1), kᵠ without
    (stride k), and n(n − 1)/2 pairs of them."""
    n = (kernel - 1) * back + 1 if stride == 1 else kernel**back
    return n, n * (n - 1) // 2


def memory_exhibit(rows: Sequence[Memory], against_paper: bool) -> Exhibit:
    caption = (
        "Numbers to hold for one image: a plain network keeps one for each unit; brute force a "
        "covariance for every pair of units (half the square, as the paper counts); shared "
        "propagation one for each unit and a single channel covariance, C × C."
    )
    columns: tuple[str, ...] = ("place", "shape", "plain", "brute force", "shared")
    table: list[tuple[figures.Cell, ...]] = [
        (r.name, "×".join(map(str, (*r.shape[1:], r.shape[0]))), r.plain, r.brute, r.ours)
        for r in rows
    ]
    if against_paper:
        columns = (*columns, "brute force as printed", "verdict")
        table = [
            (*cells, PAPER_MEMORY[r.name][1], verdict(r))
            for cells, r in zip(table, rows, strict=True)
        ]
        caption += (
            " PreActResNet-18 at 224 pixels, from the model's own shapes. Of the paper's eighteen "
            "figures sixteen come out to the digit; the two that do not are brute-force entries, "
            "and the correct values are smaller. (Σ is shared by the images of a batch as well, "
            "so the addition counts once a batch, not once an image.)"
        )
    name = "memory_paper" if against_paper else "memory"
    title = "Memory, the paper's table" if against_paper else "Memory, this network"
    return Exhibit(name, title, caption, columns, table, draw_memory(rows), True)


def terms_exhibit(kernel: int = 3, depth: int = 5) -> Exhibit:
    """Both kinds of 1-D convolutions, counted and by formula."""
    rows: list[tuple[figures.Cell, ...]] = []
    kinds = {"overlap (stride 1)": 1, f"no overlap (stride {kernel})": kernel}
    counted = {}
    for kind, stride in kinds.items():
        counted[kind] = count_terms(kernel, stride, depth)
        for t in counted[kind]:
            sigma, cross = formula(kernel, stride, t.back)
            rows.append(
                (kind, t.back, t.covariances, sigma, t.cross, cross, t.paper_cross, t.offsets,
                 t.nonzero)
            )  # fmt: skip
    caption = (
        f"How many matrices the covariance of one pixel of the last layer needs, q layers before "
        f"it, through 1-D convolutions of width {kernel}. Every term was followed back and "
        "counted; n pixels need n covariances Σ and n(n − 1)/2 cross-correlations E, since "
        "E of (m, n) is the transpose of E of (n, m) and a pixel with itself is its Σ. The paper "
        "writes n(n + 1)/2, which counts the n covariances a second time (and does not give the 3 "
        "it names for q = 1); and without overlap the count grows like k^(2q)/2, not like k^q. Two "
        "remarks that the count makes plain: if pixels share one Σ, E depends on the offset "
        "alone, and (k − 1)q matrices do; and with noise that is independent at the image, E is "
        f"zero wherever two pixels see no common part of it (last column, {depth} layers in all): "
        "without overlap always. Overlap is what makes tracking expensive, and what r_max pays "
        "for."
    )
    columns = (
        *("windows", "q", "Σ counted", "Σ formula", "E counted", "E = n(n−1)/2"),
        *("paper's n(n+1)/2", "E by offset", "E not zero"),
    )
    return Exhibit("terms", "Terms to track", caption, columns, rows, draw_terms(counted), True)


def draw_memory(rows: Sequence[Memory]) -> figures.Figure:
    with figures.look():
        figure = figures.new_figure(6.6, 2.9)
        axes = figure.subplots()
        at = np.arange(len(rows))
        kinds = (
            ("plain", [r.plain for r in rows], figures.OTHER, "o"),
            ("shared Σ", [r.ours for r in rows], figures.SAMPLES, "s"),
            ("brute force", [r.brute for r in rows], figures.TRACKED, "^"),
        )
        for label, values, colour, marker in kinds:
            axes.plot(at, values, marker=marker, color=colour, label=label, ms=5, linewidth=1.3,
                      linestyle="none" if label == "plain" else "-",
                      fillstyle="none" if label == "plain" else "full")  # fmt: skip
        names = [r.name.replace(" residual", "\nresidual").replace(" conv", "\nconv") for r in rows]
        every = -(-len(rows) // 12)
        turn, side = (30, "right") if len(rows) > 7 else (0, "center")  # long names side by side
        axes.set_xticks(at[::every], names[::every], fontsize=7.5, rotation=turn, ha=side)
        axes.set(yscale="log", ylabel="numbers an image")
        axes.grid(True, axis="y")
        figure.legend(frameon=False, loc="outside upper center", ncols=3)
    return figure


def draw_terms(counted: dict[str, list[Terms]]) -> figures.Figure:
    with figures.look():
        figure = figures.new_figure(7.0, 3.0)
        for axes, (kind, terms) in zip(
            figure.subplots(1, 2, sharey=True), counted.items(), strict=True
        ):
            q = [t.back for t in terms]
            lines = (
                ("covariances Σ", [t.covariances for t in terms], figures.SAMPLES, "o-"),
                ("cross-correlations E", [t.cross for t in terms], figures.TRACKED, "s--"),
                ("E in the paper", [t.paper_cross for t in terms], figures.DIM, "x:"),
                ("E not zero", [t.nonzero for t in terms], figures.LINEAR, "^-."),
            )
            for label, values, colour, look in lines:
                shown = [v if v > 0 else np.nan for v in values]
                axes.plot(q, shown, look, color=colour, label=label, ms=5, linewidth=1.4)
            axes.set(yscale="log", title=kind, xlabel="layers before the last, q")
            axes.set_xticks(q)
            axes.grid(True)
        axes.figure.axes[0].set_ylabel("matrices")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, loc="outside upper center", ncols=4)
    return figure
