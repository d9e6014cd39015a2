"""Measure on noisy samples, at every layer, channel variances and correlation of neighbours."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.layers import widened
from covprop.mode import switched
from covprop.propagate.inputs import check_samples, type_named
from covprop.propagate.plan import Plan


class LayerNoise(NamedTuple):
    """The noise measured after one layer."""

    variance: Tensor  # [channels], averaged over images and pixels
    correlation: float  # largest |correlation| of a pixel with a neighbour


def neighbour_correlation(noise: Tensor) -> float:
    """max over offsets of |Σ_c Cov(u_c(p), u_c(p + offset))| / Σ_c Var(u_c).

    `noise` is [b, samples, C, *spatial] with zero mean over samples. The ratio of traces is the
    correlation of neighbouring pixels as vectors, averaged over channels by their variance: no
    more than the largest over all directions, which the bound asks for. Offsets are the neighbours
    in the window of the next layer: one step along each axis.
    """
    largest = 0.0
    for axis in range(3, noise.ndim):
        if noise.shape[axis] < 2:
            continue
        size = noise.shape[axis] - 1
        left, right = noise.narrow(axis, 0, size), noise.narrow(axis, 1, size)
        power = 0.5 * (left.square().mean() + right.square().mean())
        largest = max(largest, abs(float((left * right).mean() / power.clamp_min(1e-30))))
    return min(largest, 1.0)


def measure(
    plan: Plan, model: nn.Module, x: Tensor, sigma: float, samples: int
) -> dict[int, LayerNoise]:
    """Run `samples` noisy copies of each image through the network itself, in eval mode."""
    check_samples(samples)
    batch = x.shape[0]
    if batch == 0:
        raise InvalidInput(
            "the batch to measure noise on is empty: give a batch of at least one image."
        )
    copies = x.repeat_interleave(samples, dim=0)
    noisy = copies + sigma * torch.randn_like(copies)
    found: dict[int, LayerNoise] = {}

    def visit(slot: int, value: Tensor) -> None:
        count = plan.steps[slot - 1].channels
        noise = widened(value).unflatten(0, (batch, samples))
        noise = noise - noise.mean(1, keepdim=True)
        if value.shape[1] != count:
            noise = noise.unflatten(2, (count, -1))
        dims = [0, 1, *range(3, noise.ndim)]
        variance = noise.square().mean(dims) * (samples / (samples - 1))
        found[slot] = LayerNoise(variance, neighbour_correlation(noise))

    with switched(model, training=False), type_named(x, model):
        plan.run_plain(noisy, visit)
    for slot, layer in found.items():
        if not bool(layer.variance.isfinite().all()):
            raise InvalidInput(
                f"the noise measured after {plan.steps[slot - 1].name} is not finite: look for nan "
                "and inf in the images and, as of training that diverged, in the weights."
            )
    return found
