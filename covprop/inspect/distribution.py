"""Two units of a layer under noise: samples, the tracked covariance, the linearised one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covprop.errors import InvalidInput
from covprop.inspect import figures
from covprop.inspect.figures import Exhibit
from covprop.inspect.layers import Layer, noisy_chunks
from covprop.mode import switched
from covprop.propagate.propagator import Propagator

Array = NDArray[np.float64]
OUT_OF_VIEW = 8  # an ellipse this much wider than the samples would leave nothing of them to see


@dataclass(frozen=True)
class Pair:
    """Two channels of one pixel of a layer, for one image."""

    layer: Layer
    channels: tuple[int, int]
    pixel: tuple[int, ...]
    draws: Array  # [samples, 2]
    tracked_mean: Array  # [2]
    tracked: Array  # [2, 2]
    linear_mean: Array
    linear: Array


def step_means(prop: Propagator, x: Tensor) -> list[Any]:
    """The propagated mean after every step, beside `Propagator.covariances`."""
    deviations = prop.plan.deviations(prop.covariances())
    values: list[Any] = [x]
    for step, std in zip(prop.plan.steps, deviations, strict=True):
        if std is None:
            values.append(step.run(values))
        else:
            values.append(step.mean(step.layer(values), std, values, prop.settings))
    return values


def pairs(
    prop: Propagator,
    image: Tensor,
    layers: Sequence[Layer],
    channels: tuple[int, int] | None = None,
    samples: int = 4000,
    seed: int = 0,
) -> list[Pair]:
    """Draws and covariances of two channels at the middle pixel of each layer.

    Without `channels`, the two channels whose draws vary most are taken in each layer.
    """
    with switched(prop.model, training=False):
        with torch.no_grad():
            covs, means = prop.covariances(), step_means(prop, image[None])
        draws = _draws(prop, image, layers, samples, seed)
        point = image[None].detach().clone().requires_grad_(True)
        clean: dict[int, Tensor] = {}
        with torch.enable_grad():
            prop.plan.run_plain(point, lambda slot, value: clean.update({slot: _middle(value)}))
            found = []
            for layer in layers:
                cov = covs[layer.slot]
                assert cov is not None
                chosen = _choose(channels, draws[layer.slot], layer)
                units = clean[layer.slot][0][list(chosen)]
                rows = [
                    torch.autograd.grad(u, point, retain_graph=True)[0].flatten() for u in units
                ]
                slopes = torch.stack(rows)
                places = [c * len(cov) // clean[layer.slot].shape[1] for c in chosen]
                found.append(
                    Pair(
                        layer,
                        chosen,
                        tuple(n // 2 for n in prop.plan.steps[layer.slot - 1].out_shape[1:]),
                        draws[layer.slot][:, list(chosen)],
                        _numpy(_middle(means[layer.slot])[0][list(chosen)]),
                        _numpy(cov[places][:, places]),
                        _numpy(units),
                        _numpy(prop.sigma**2 * slopes @ slopes.T),
                    )
                )
    return found


def _draws(
    prop: Propagator, image: Tensor, layers: Sequence[Layer], samples: int, seed: int
) -> dict[int, Array]:
    """All channels of the middle pixel, [samples, channels] for each layer."""
    kept: dict[int, list[Tensor]] = {layer.slot: [] for layer in layers}

    def visit(slot: int, value: Tensor) -> None:
        if slot in kept:
            kept[slot].append(_middle(value).cpu())

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for noisy in noisy_chunks(prop, image, samples, generator):
            prop.plan.run_plain(noisy, visit)
    return {slot: _numpy(torch.cat(parts)) for slot, parts in kept.items()}


def _middle(value: Tensor) -> Tensor:
    """The middle pixel, [b, channels]."""
    while value.ndim > 2:
        value = value.select(-1, value.shape[-1] // 2)
    return value


def _choose(channels: tuple[int, int] | None, draws: Array, layer: Layer) -> tuple[int, int]:
    if channels is None:
        most = np.argsort(-draws.var(0), kind="stable")[:2]
        return int(most.min()), int(most.max())
    if not all(0 <= c < draws.shape[1] for c in channels) or channels[0] == channels[1]:
        raise InvalidInput(
            f"channels are {channels[0]} and {channels[1]}: {layer.name} has channels 0 to "
            f"{draws.shape[1] - 1}; give two different ones."
        )
    return channels


def _numpy(value: Tensor) -> Array:
    return value.detach().double().cpu().numpy()


COLUMNS = (
    *("layer", "name", "channels", "pixel", "of", "mean 1", "mean 2"),
    *("variance 1", "variance 2", "covariance"),
)


def exhibit(found: Sequence[Pair], image: int) -> Exhibit:
    """The figure: one panel a layer. The CSV holds the moments, not the draws."""
    rows: list[tuple[figures.Cell, ...]] = []
    for pair in found:
        sample = (pair.draws.mean(0), np.cov(pair.draws.T))
        for name, (mean, cov) in {
            "samples": sample,
            "tracked": (pair.tracked_mean, pair.tracked),
            "linearised": (pair.linear_mean, pair.linear),
        }.items():
            where = (pair.layer.number, pair.layer.name, "{} {}".format(*pair.channels))
            pixel = " ".join(map(str, pair.pixel))
            moments = (*mean, cov[0, 0], cov[1, 1], cov[0, 1])
            rows.append((*where, pixel, name, *map(float, moments)))
    caption = (
        f"Two channels of the middle pixel of image {image} at several depths, before the "
        f"activation. Blue: {len(found[0].draws):,} noisy copies of the image, the denser the "
        "darker. Orange: mean and covariance tracked by propagation, which all pixels and images "
        "of a layer share. Green: the covariance σ²JJᵀ of the network linearised at this image. "
        "Ellipses stand at one and two standard deviations, so the outer one should hold 86 % of "
        "the samples; a larger one overstates the noise, and is left out where it would dwarf them."
    )
    names = [f"{p.layer.name} channel {c}" for p in found for c in p.channels]
    draws = np.concatenate([pair.draws for pair in found], 1).tolist()
    return Exhibit(
        "distribution", "Two units under noise", caption, COLUMNS, rows, draw(found),
        raw={"draws": (names, draws)},
    )  # fmt: skip


def draw(found: Sequence[Pair]) -> figures.Figure:
    with figures.look():
        across = min(4, len(found))
        down = -(-len(found) // across)
        figure = figures.new_figure(2.3 * across + 0.5, 2.5 * down + 0.5)
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat[len(found) :]:
            axes.set_visible(False)
        for axes, pair in zip(grid.flat, found, strict=False):
            figures.density(axes, pair.draws)
            figures.ellipses(
                axes, pair.tracked_mean, pair.tracked, figures.TRACKED, "tracked", (6, 2.5)
            )
            figures.ellipses(axes, pair.linear_mean, pair.linear, figures.LINEAR, "linearised")
            number = f"layer {pair.layer.number}" if pair.layer.number else pair.layer.name
            axes.set(xlabel=f"channel {pair.channels[0]}")
            axes.set_ylabel(f"channel {pair.channels[1]}")
            inner = np.quantile(pair.draws, (0.001, 0.999), axis=0)
            curve = figures.ellipse_points(pair.tracked_mean, pair.tracked, 2)
            slope = figures.ellipse_points(pair.linear_mean, pair.linear, 2)
            if np.ptp(curve, 0).max() > OUT_OF_VIEW * np.ptp(inner, 0).max():
                number += ": tracked is far larger"
                curve = slope
            axes.set_title(number)
            figures.square(axes, inner, curve, slope)
            axes.grid(True)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        handles.insert(0, figures.swatch(figures.SAMPLES))
        figure.legend(handles, ["samples", *labels], loc="outside upper center", ncols=3,
                      frameon=False)  # fmt: skip
    return figure
