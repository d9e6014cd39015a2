"""Layer by layer: what noisy samples show against what was propagated.

Layers are numbered along the longest chain of convolutions and linear layers from the image to
the logits, so that a 1×1 shortcut beside a residual branch has no number: PreActResNet-18 has
convolutions 1 to 17 and its linear layer is number 18.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from covprop.errors import InvalidInput
from covprop.estimate.ibp import WEIGHTED
from covprop.inspect import figures
from covprop.inspect.figures import Exhibit
from covprop.layers import widened
from covprop.mode import switched
from covprop.pixels import check_range
from covprop.propagate.inputs import check_images, check_samples, type_named
from covprop.propagate.measure import neighbour_correlation
from covprop.propagate.plan import Plan
from covprop.propagate.propagator import Propagator
from covprop.propagate.rules import linear

LINEAR = (linear.linear, linear.matmul)
BUDGET = {"cpu": 1 << 22, "cuda": 1 << 27}  # entries of the largest layer in one pass
UNITS = 64  # of a layer and image whose draws are tested
DRAWS = 1000  # of each of them: the power of a test depends on their number


@dataclass(frozen=True)
class Layer:
    """One convolution or linear layer of a network."""

    slot: int
    name: str
    kind: str  # "conv" or "linear"
    number: int | None  # along the longest chain; None beside it


@dataclass(frozen=True)
class LayerRow:
    """A layer's noise as measured and as propagated."""

    layer: Layer
    measured: float  # variance, mean over images, pixels and channels
    propagated: float  # mean of diag Σ
    skewness: float  # median of the absolute values over units
    kurtosis: float  # excess, median over units
    p_median: float  # of D'Agostino's K² over units
    p_rejected: float  # share of units with p < 0.05; 0.05 of truly Gaussian ones
    correlation: float | None  # of neighbouring pixels; None for vectors
    r_max: float | None

    @property
    def ratio(self) -> float:
        return self.propagated / self.measured if self.measured > 0 else float("inf")


def find_layers(plan: Plan) -> list[Layer]:
    """Every convolution and linear layer, in order, numbered along the longest chain."""
    weighted = [step.rule is not None and step.rule.cov in WEIGHTED for step in plan.steps]
    depth, came_from = [0] * (len(plan.steps) + 1), [-1] * (len(plan.steps) + 1)
    for slot, step in enumerate(plan.steps, start=1):
        if step.random:
            came_from[slot] = max(step.random, key=lambda s: depth[s])
            depth[slot] = depth[came_from[slot]] + weighted[slot - 1]
    chain, slot = set(), plan.output
    while slot > 0:
        chain.add(slot)
        slot = came_from[slot]
    found, number = [], 0
    for slot, step in enumerate(plan.steps, start=1):
        if weighted[slot - 1] and step.rule is not None:
            number += slot in chain
            kind = "linear" if step.rule.cov in LINEAR else "conv"
            found.append(Layer(slot, step.name, kind, number if slot in chain else None))
    return found


def choose_layers(layers: Sequence[Layer], chosen: str = "all") -> list[Layer]:
    """Layers by number or name ("1,5,blocks.2.shortcut"), "all", or "paper": five convolutions,
    evenly spaced from the first to the last (1, 5, 9, 13, 17 of PreActResNet-18; 1, 9, 17, 25, 33
    of PreActResNet-34)."""
    if chosen == "all":
        return list(layers)
    numbered = [la for la in layers if la.number is not None]
    if chosen == "paper":
        among = [la for la in numbered if la.kind == "conv"] or numbered
        places = np.unique(np.linspace(0, len(among) - 1, 5).round().astype(int))
        return [among[i] for i in places]
    names = {la.name: la for la in layers} | {str(la.number): la for la in numbered}
    picked = []
    for word in (part.strip() for part in chosen.split(",")):
        if word not in names:
            raise InvalidInput(
                f"there is no layer {word!r}: give numbers from 1 to {len(numbered)}, names such "
                f"as {layers[0].name}, all, or paper."
            )
        picked.append(names[word])
    return picked


def noisy_chunks(
    prop: Propagator, image: Tensor, samples: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Noisy copies of one image, as many at a time as memory likes; never one alone."""
    largest = max(int(np.prod(step.out_shape)) for step in prop.plan.steps if step.rule)
    size = max(32, BUDGET.get(image.device.type, 1 << 22) // largest)
    parts = -(-samples // size)
    for k in range(parts):
        count = samples * (k + 1) // parts - samples * k // parts
        noise = torch.randn(count, *image.shape, generator=generator, dtype=image.dtype)
        yield image + prop.sigma * noise.to(image.device)


class _Tally:
    """Sums over images and samples for one layer."""

    def __init__(self, units: Tensor) -> None:
        self.units = units
        self.squares, self.freedom = 0.0, 0
        self.correlations: list[tuple[float, int]] = []
        self.draws: list[Tensor] = []
        self.tests: list[np.ndarray] = []  # [3, units]: skewness, kurtosis, p of one image

    def add(self, value: Tensor) -> None:
        value = widened(value)
        noise = value - value.mean(0, keepdim=True)
        self.squares += float(noise.square().flatten(1).mean(1).sum())
        self.freedom += len(value) - 1
        if max(value.shape[2:], default=1) > 1:
            self.correlations.append((neighbour_correlation(noise[None]), len(value)))
        self.draws.append(value.flatten(1)[:, self.units.to(value.device)].double().cpu())

    def end_image(self) -> None:
        """Test each unit's draws; units that never move (dead ones) are left out."""
        draws = torch.cat(self.draws)[:DRAWS].numpy()
        self.draws = []
        draws = draws[:, draws.std(0) > 1e-6 * np.abs(draws).max(initial=1e-30)]
        if len(draws) >= 20 and draws.shape[1]:
            test = stats.normaltest(draws, axis=0)
            moments = (stats.skew(draws, 0), stats.kurtosis(draws, 0), test.pvalue)
            self.tests.append(np.stack(moments))


def layer_table(
    prop: Propagator,
    x: Tensor,
    layers: Sequence[Layer] | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> list[LayerRow]:
    """Measure every layer on `samples` noisy copies of each image of x, against Σ.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        >>> prop = Propagator(model.eval(), sigma=0.25, input_shape=(1, 8, 8))
        >>> rows = layer_table(prop, torch.rand(2, 1, 8, 8), samples=100)
        >>> [row.layer.name for row in rows]
        ['0', '3']
    """
    check_samples(samples, least=20)
    check_images(x, prop.input_shape, prop.model)
    if not len(x):
        raise InvalidInput("the batch to measure layers on is empty: give at least one image.")
    check_range(x, (-math.inf, math.inf))
    generator = torch.Generator().manual_seed(seed)
    with switched(prop.model, training=False), type_named(x, prop.model), torch.no_grad():
        plan = prop.plan
        layers = find_layers(plan) if layers is None else layers
        tallies = {}
        for layer in layers:
            size = int(np.prod(plan.steps[layer.slot - 1].out_shape))
            tallies[layer.slot] = _Tally(torch.randperm(size, generator=generator)[:UNITS])

        def visit(slot: int, value: Tensor) -> None:
            if slot in tallies:
                tallies[slot].add(value)

        for image in x:
            for noisy in noisy_chunks(prop, image, samples, generator):
                plan.run_plain(noisy, visit)
            for tally in tallies.values():
                tally.end_image()
        covs = prop.covariances()
    return [_row(prop, layer, tallies[layer.slot], covs[layer.slot]) for layer in layers]


def _row(prop: Propagator, layer: Layer, tally: _Tally, cov: Tensor | None) -> LayerRow:
    assert cov is not None
    tests = np.concatenate(tally.tests, 1) if tally.tests else np.full((3, 1), np.nan)
    spatial = bool(tally.correlations)
    weights = [count for _, count in tally.correlations]
    r_max = prop.r_max if prop.settings.r_max == "estimated" else None
    settings = prop.settings if r_max is None else prop.settings.but(r_max=r_max)
    bound = settings.of_layer(layer.name).r_max
    return LayerRow(
        layer=layer,
        measured=tally.squares / tally.freedom,
        propagated=float(torch.diagonal(cov).mean()),
        skewness=float(np.median(np.abs(tests[0]))),
        kurtosis=float(np.median(tests[1])),
        p_median=float(np.median(tests[2])),
        p_rejected=float(np.mean(tests[2] < 0.05)) if tally.tests else float("nan"),
        correlation=float(np.average([r for r, _ in tally.correlations], weights=weights))
        if spatial
        else None,
        r_max=float(bound) if spatial and isinstance(bound, int | float) else None,
    )


COLUMNS = (
    *("layer", "name", "Monte Carlo variance", "propagated", "ratio", "|skewness|"),
    *("excess kurtosis", "median p", "p < 0.05", "correlation", "r_max"),
)


def cells(row: LayerRow) -> tuple[figures.Cell, ...]:
    """A row of the table, in the order of `COLUMNS`."""
    return (
        *(row.layer.number, row.layer.name, row.measured, row.propagated, row.ratio),
        *(row.skewness, row.kurtosis, row.p_median, row.p_rejected, row.correlation, row.r_max),
    )


def exhibit(rows: Sequence[LayerRow], images: int, samples: int) -> Exhibit:
    """The table with its figure."""
    caption = (
        f"Each layer's noise on {images} images, {samples:,} noisy copies each: the variance that "
        "samples show against the mean of diag Σ that was propagated without any sample. A ratio "
        "above 1 means that the propagated value is an upper estimate there; each layer adds its "
        "share. Skewness and kurtosis are 0 for a Gaussian; p is that of D'Agostino's K² "
        f"test on {min(samples, DRAWS):,} draws of single units before the activation, and 5 % of "
        "truly Gaussian units have p < 0.05. The correlation is that of neighbouring pixels; "
        "r_max is what the propagation allows for."
    )
    return Exhibit(
        "layers", "Layer by layer", caption, COLUMNS, [cells(r) for r in rows], draw(rows), True
    )


def draw(rows: Sequence[LayerRow]) -> figures.Figure:
    with figures.look():
        figure = figures.new_figure(7.4, 3.0)
        variance, normal, pixels = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
        at = np.arange(len(rows))
        measured, propagated = [r.measured for r in rows], [r.propagated for r in rows]
        blue, orange = {"color": figures.SAMPLES}, {"color": figures.TRACKED}
        variance.plot(at, measured, "o-", ms=4, label="Monte Carlo", **blue)
        variance.plot(at, propagated, "s--", ms=4, label="propagated", **orange)
        variance.set(yscale="log", title="variance of a unit")
        low, high = variance.get_ylim()
        variance.set_ylim(low, high * (high / low) ** 0.25)  # room for the legend
        normal.bar(at, [r.p_rejected for r in rows], width=0.7, label="measured", **blue)
        normal.axhline(0.05, dashes=(6, 2.5), linewidth=1.4, label="of Gaussian units", **orange)
        normal.set(ylim=(0, 1.25), title="share of units with p < 0.05")
        seen = [(i, r) for i, r in enumerate(rows) if r.correlation is not None]
        places = [i for i, _ in seen]
        found = [r.correlation or 0.0 for _, r in seen]
        allowed = [np.nan if r.r_max is None else r.r_max for _, r in seen]
        pixels.bar(places, found, width=0.7, label="measured", **blue)
        pixels.plot(places, allowed, "_", ms=11, mew=2, label="r_max", **orange)
        pixels.set(ylim=(0, 1.25), title="neighbours' correlation")
        numbered = [i for i, r in enumerate(rows) if r.layer.number]
        ticks = numbered[:: -(-len(numbered) // 9)] if numbered else []
        for axes in (variance, normal, pixels):
            axes.set_xlim(-0.6, len(rows) - 0.4)
            axes.set_xticks(ticks, [str(rows[i].layer.number) for i in ticks])
            axes.set_xlabel("layer")
            axes.grid(True, axis="y")
            axes.legend(frameon=False, loc="upper left")
        for axes in (normal, pixels):
            axes.set_yticks(np.linspace(0, 1, 6))
    return figure
