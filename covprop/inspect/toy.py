"""A network small enough to see: two inputs, two hidden units, two logits.

Every layer is a plane, so that boxes, samples and ellipses can be drawn one upon the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from covprop.estimate.dense import propagate
from covprop.estimate.ibp import Box, boxes
from covprop.inspect import figures
from covprop.inspect.figures import Exhibit
from covprop.propagate.propagator import Propagator
from covprop.propagate.settings import PAPER
from covprop.propagate.tracing.trace import build

Array = NDArray[np.float64]
SIGMA = 0.5
STAGES = ("input", "hidden, before ReLU", "hidden, after ReLU", "logits")
COUNTS = tuple(int(n) for n in np.unique(np.geomspace(10, 30_000, 22).astype(int)))
REPEATS = 12


@dataclass(frozen=True)
class Stage:
    """One plane of the toy: where the noise is, as seen in four ways."""

    name: str
    draws: Array  # [n, 2]
    box_lower: Array
    box_upper: Array
    exact_mean: Array
    exact: Array
    tracked_mean: Array
    tracked: Array


@dataclass(frozen=True)
class Toy:
    stages: list[Stage]
    settling: Array  # [repeats, counts]: margin variance from so many samples, over the exact one
    tracked_ratio: float  # the propagated margin variance over the exact one


def network() -> nn.Sequential:
    """Weights chosen by hand: one hidden unit is cut by its ReLU, the other hardly."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.6], [-0.7, 1.1]]))
        first.bias.copy_(torch.tensor([0.6, -0.3]))
        second.weight.copy_(torch.tensor([[1.2, 0.4], [-0.5, 0.9]]))
        second.bias.copy_(torch.tensor([0.1, 0.0]))
    return nn.Sequential(first, nn.ReLU(), second).double().eval()


POINT = (0.5, 0.4)


def measure(samples: int = 8000, seed: int = 0) -> Toy:
    """Everything the figure shows."""
    model, x = network(), torch.tensor([POINT], dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    noisy = x + SIGMA * torch.randn(samples, 2, generator=generator, dtype=torch.float64)
    plan = build(model, (2,), PAPER)
    bounds = boxes(plan, Box(x - 2 * SIGMA, x + 2 * SIGMA))
    eye = SIGMA**2 * np.eye(2)
    stages = []
    with torch.no_grad():
        for depth, name in enumerate(STAGES):
            part, box = model[:depth], bounds[depth]
            assert box is not None
            if depth == 0:
                exact = tracked = (np.array(POINT), eye)
            else:
                exact = _pair(*propagate(build(part, (2,), PAPER), x[0], SIGMA))
                out = Propagator(part, SIGMA, (2,))(x)
                tracked = _pair(out.mean[0], out.cov)
            lower, upper = box.lower[0].numpy(), box.upper[0].numpy()
            stages.append(Stage(name, part(noisy).numpy(), lower, upper, *exact, *tracked))
    truth, tracked_var = _margin(stages[-1].exact), _margin(stages[-1].tracked)
    return Toy(stages, _settle(model, x, seed + 1) / truth, tracked_var / truth)


def _pair(mean: Tensor, cov: Tensor) -> tuple[Array, Array]:
    return mean.detach().numpy(), cov.detach().numpy()


def _margin(cov: Array) -> float:
    return float(cov[0, 0] + cov[1, 1] - 2 * cov[0, 1])


def _settle(model: nn.Module, x: Tensor, seed: int) -> Array:
    """The sampled margin variance of the first n samples, for each n and several repeats."""
    generator = torch.Generator().manual_seed(seed)
    shape = (REPEATS, COUNTS[-1], 2)
    with torch.no_grad():
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        logits = model((x + SIGMA * noise).flatten(0, 1)).view(shape)
    gap = (logits[..., 0] - logits[..., 1]).numpy()
    return np.stack([gap[:, :n].var(1, ddof=1) for n in COUNTS], 1)


COLUMNS = ("stage", "of", "mean 1", "mean 2", "variance 1", "variance 2", "covariance")


def exhibits(toy: Toy) -> list[Exhibit]:
    """Two figures: the four planes, and how sampling settles."""
    rows: list[tuple[figures.Cell, ...]] = []
    for stage in toy.stages:
        ways = {
            "samples": (stage.draws.mean(0), np.cov(stage.draws.T)),
            "exact": (stage.exact_mean, stage.exact),
            "tracked": (stage.tracked_mean, stage.tracked),
        }
        for way, (mean, cov) in ways.items():
            moments = (*mean, cov[0, 0], cov[1, 1], cov[0, 1])
            rows.append((stage.name, way, *map(float, moments)))
        for end, corner in (("lower", stage.box_lower), ("upper", stage.box_upper)):
            rows.append((stage.name, f"box {end}", *map(float, corner), None, None, None))
    planes = (
        "A network of two inputs, two hidden units and two logits, so that each layer is a plane. "
        "The box at the input reaches two standard deviations to each side; interval bounds carry "
        "it on: nothing that starts inside leaves, and most of the later boxes stays empty. "
        "Ellipses at one and two standard deviations: exact moments (purple) and tracked ones "
        "(orange). Up to the first ReLU both agree to the digit. The ReLU folds the cloud; its "
        "true variance shrinks, and the tracked one is kept as it was, which is the bound of the "
        "method."
    )
    settling = (
        "The variance of the margin between the two logits, estimated from more and more samples, "
        f"over its exact value; {REPEATS} independent repeats, the grey band is one standard error "
        "of a Gaussian's variance, √(2/n). Ten samples are off by a half, a thousand by a "
        "twentieth: propagation gives its (too large) answer at the cost of one sample, without "
        "scatter, and with a gradient."
    )
    names = [f"{stage.name}, {k}" for stage in toy.stages for k in (1, 2)]
    repeats = tuple(f"repeat {k + 1}" for k in range(REPEATS))
    return [
        Exhibit(
            "toy", "A toy to look through", planes, COLUMNS, rows, draw(toy.stages),
            raw={"draws": (names, np.concatenate([s.draws for s in toy.stages], 1).tolist())},
        ),
        Exhibit(
            "settling", "How sampling settles", settling, ("samples", *repeats, "tracked"),
            [(n, *map(float, toy.settling[:, k]), toy.tracked_ratio) for k, n in enumerate(COUNTS)],
            draw_settling(toy),
        ),
    ]  # fmt: skip


def draw(stages: Sequence[Stage]) -> figures.Figure:
    from matplotlib.patches import Rectangle

    with figures.look():
        figure = figures.new_figure(7.4, 2.5)
        for axes, stage in zip(figure.subplots(1, 4), stages, strict=True):
            figures.density(axes, stage.draws)
            size = stage.box_upper - stage.box_lower
            axes.add_patch(
                Rectangle(tuple(stage.box_lower), *size, fill=False, edgecolor=figures.BOX,
                          linewidth=1.6, label="interval bounds")
            )  # fmt: skip
            figures.ellipses(axes, stage.exact_mean, stage.exact, figures.EXACT, "exact")
            figures.ellipses(
                axes, stage.tracked_mean, stage.tracked, figures.TRACKED, "tracked", (6, 2.5)
            )
            axes.set(title=stage.name)
            corners = np.stack([stage.box_lower, stage.box_upper])
            inner = np.quantile(stage.draws, (0.001, 0.999), axis=0)
            curve = figures.ellipse_points(stage.tracked_mean, stage.tracked, 2)
            figures.square(axes, corners, inner, curve)
            axes.grid(True)
        handles, labels = axes.get_legend_handles_labels()
        handles.insert(0, figures.swatch(figures.SAMPLES))
        figure.legend(handles, ["samples", *labels], loc="outside upper center", ncols=4,
                      frameon=False)  # fmt: skip
    return figure


def draw_settling(toy: Toy) -> figures.Figure:
    with figures.look():
        figure = figures.new_figure(4.6, 2.9)
        axes = figure.subplots()
        n = np.array(COUNTS)
        error = np.sqrt(2 / (n - 1))
        axes.fill_between(n, 1 - error, 1 + error, color=figures.DIM, alpha=0.18, linewidth=0)
        for k, values in enumerate(toy.settling):
            label = "sampled, several repeats" if k == 0 else "_"
            axes.plot(n, values, color=figures.SAMPLES, linewidth=0.8, alpha=0.7, label=label)
        axes.axhline(1.0, color=figures.EXACT, linewidth=1.5, label="exact")
        axes.axhline(
            toy.tracked_ratio, color=figures.TRACKED, dashes=(6, 2.5), linewidth=1.5,
            label="tracked by propagation",
        )  # fmt: skip
        axes.set(xscale="log", xlabel="samples", ylabel="margin variance / exact", ylim=(0, None))
        axes.set_xlim(n[0], n[-1])
        axes.grid(True)
        axes.legend(frameon=False, loc="upper right")
    return figure
