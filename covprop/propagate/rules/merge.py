"""Operations on two or more values: sums, differences, constant factors, concatenation.

Two random operands are taken as independent, as the paper does for residual branches; one value
given twice is the same noise.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from covprop.propagate.channels import constant_in, expand_pixels, scale_channels
from covprop.propagate.registry import Call, Unsupported, rule
from covprop.propagate.settings import Settings

Covs = tuple[Tensor | None, ...]


def same_layout(covs: list[Tensor], shapes: list[tuple]) -> list[Tensor]:
    """Covariances over the same channels: where flattened images of different pixel counts
    meet, each is expanded to its features. A single channel broadcasts by itself."""
    pixels = {shape[0] // cov.shape[0] for cov, shape in zip(covs, shapes, strict=True)}
    if len(pixels) == 1:
        return covs
    return [expand_pixels(cov, shape[0]) for cov, shape in zip(covs, shapes, strict=True)]


@rule(
    *(operator.add, operator.sub, torch.add, torch.sub),
    *(torch.Tensor.add, torch.Tensor.sub),
)
def add(call: Call, covs: Covs, settings: Settings, shapes: tuple, out_shape: tuple) -> Tensor:
    """Σ_a + α²Σ_b for a ± αb of random operands; a constant adds nothing."""
    alpha = call.kwargs.get("alpha", 1)
    random = [(cov, shape) for cov, shape in zip(covs, shapes, strict=True) if cov is not None]
    laid_out = same_layout([cov for cov, _ in random], [shape for _, shape in random])
    second_is_random = covs[-1] is not None
    if alpha != 1 and second_is_random:
        laid_out[-1] = laid_out[-1] * alpha**2
    total = sum(laid_out[1:], start=laid_out[0])
    return common_noise(total, [shape for _, shape in random], out_shape)


def common_noise(cov: Tensor, shapes: list[tuple], out_shape: tuple) -> Tensor:
    """The covariance where a single channel was broadcast to many: all of them share its noise."""
    if all(shape[0] == 1 for shape in shapes) and out_shape[0] > 1:
        return cov.expand(out_shape[0], out_shape[0])
    return cov


def constant_factor(cov: Tensor, factor: Any, shape: tuple, settings: Settings) -> Tensor:
    """Σ after multiplication by a constant: a number, or one number a channel or pixel.

    Of factors that differ between pixels the largest of each channel bounds the variances.
    """
    if not isinstance(factor, Tensor):
        return cov * factor**2
    factor = constant_in(factor, cov, settings)
    if factor.numel() == 1:
        return cov * factor.reshape(()) ** 2
    while factor.ndim > len(shape):
        factor = factor[0]  # the same for all images, else the network was refused
    if factor.ndim < len(shape):
        factor = factor.reshape(*(1,) * (len(shape) - factor.ndim), *factor.shape)
    pixels = factor.flatten(1) if factor.ndim > 1 else factor[:, None]
    largest = pixels.detach().abs().argmax(1, keepdim=True)
    factor = pixels.gather(1, largest).flatten() if pixels.shape[1] > 1 else pixels[:, 0]
    if shape[0] == 1:  # one channel, broadcast to as many as there are factors
        return scale_channels(cov.expand(len(factor), len(factor)), factor)
    return scale_channels(cov, factor.expand(shape[0]))


@rule(operator.mul, torch.mul, torch.Tensor.mul)
def multiply(call: Call, covs: Covs, settings: Settings, shapes: tuple) -> Tensor:
    """c cᵀ ⊙ Σ for a constant factor, one number or one for each channel."""
    if all(cov is not None for cov in covs):
        raise Unsupported(
            "the product of two random values is not Gaussian",
            "replace the gate by a constant or a learned scale",
        )
    random = 0 if covs[0] is not None else 1
    factor = call.get(1 - random, "other" if random == 0 else "input")
    cov = covs[random]
    assert cov is not None
    return constant_factor(cov, factor, shapes[random], settings)


@rule(operator.truediv, torch.div, torch.Tensor.div)
def divide(call: Call, covs: Covs, settings: Settings, shapes: tuple) -> Tensor:
    """Σ / (c cᵀ) for a constant divisor, one number or one for each channel."""
    if covs[0] is None or (len(covs) > 1 and covs[1] is not None):
        raise Unsupported("dividing by a random value is not linear", "divide by a constant")
    if call.kwargs.get("rounding_mode") is not None:
        raise Unsupported("rounding is not linear", "divide without rounding_mode")
    return constant_factor(covs[0], 1.0 / call.get(1, "other"), shapes[0], settings)


@rule(operator.neg, torch.neg, torch.Tensor.neg, operator.pos)
def negate(call: Call, cov: Tensor, settings: Settings) -> Tensor:
    """Σ: a sign changes no covariance."""
    return cov


@rule(torch.cat, torch.concat, torch.concatenate)
def concatenate(
    call: Call, covs: Covs, settings: Settings, shapes: tuple, operands: tuple
) -> Tensor:
    """Channel concatenation: a block diagonal of Σ; a value that stands there twice is one."""
    dim = call.get(1, "dim", call.kwargs.get("axis", 0))
    if dim % (len(shapes[0]) + 1) != 1:
        raise Unsupported(
            f"it concatenates along dimension {dim}, not along the channels",
            "concatenate along dimension 1",
        )
    first = next(cov for cov in covs if cov is not None)
    blocks = [
        first.new_zeros(shape[0], shape[0]) if cov is None else cov
        for cov, shape in zip(covs, shapes, strict=True)
    ]
    blocks = same_layout(blocks, list(shapes))
    random = [slot for slot in operands if slot is not None]
    if len(set(random)) == len(random):
        return torch.block_diag(*blocks)

    def between(i: int, j: int) -> Tensor:
        if i == j or (operands[i] is not None and operands[i] == operands[j]):
            return blocks[i]
        return blocks[i].new_zeros(len(blocks[i]), len(blocks[j]))

    order = range(len(blocks))
    return torch.cat([torch.cat([between(i, j) for j in order], 1) for i in order])
