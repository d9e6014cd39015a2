"""Linear layers: Σ_out = W Σ Wᵀ, with the pixels of a flattened image taken as independent."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.propagate.channels import constant_in
from covprop.propagate.registry import Call, Layer, Unsupported, option, rule
from covprop.propagate.rules.conv import sum_over_taps
from covprop.propagate.settings import Settings


def apply_linear(cov: Tensor, weight: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Covariance after a linear layer with weight [o, f].

    A feature vector of f = N·M entries under an [N, N] covariance is a flattened image of M
    pixels (channel by channel), so this is a convolution whose kernel is the whole image:
    Σ_out = Σ_m W_m Σ W_mᵀ, with no factor since there is a single output pixel.
    """
    if len(shape) > 1:
        raise Unsupported(
            f"a linear layer on a {len(shape) + 1}-dimensional tensor acts on its last dimension, "
            "which is not the channels",
            "flatten or average the spatial dimensions first, or use a 1×1 convolution",
        )
    weight = constant_in(weight, cov, settings)
    pixels = weight.shape[1] // cov.shape[0]
    by_pixel = weight.view(weight.shape[0], cov.shape[0], pixels).transpose(1, 2)
    factor = settings.correlation_factor(pixels) if settings.multi_block and pixels > 1 else 1.0
    return factor * sum_over_taps(cov, by_pixel)


@rule(nn.Linear, F.linear)
def linear(layer: Layer, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """W Σ Wᵀ; of a flattened image, summed over its pixels."""
    return apply_linear(cov, option(layer, 1, "weight"), settings, shape)


@rule(torch.matmul, torch.Tensor.matmul, operator.matmul)
def matmul(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Wᵀ Σ W, for x @ W with a constant matrix W."""
    weight = call.get(1, "other")
    if call.noisy != 0 or weight.ndim != 2:
        raise Unsupported(
            "only x @ W with a constant matrix W is linear in the channels", "use nn.Linear"
        )
    return apply_linear(cov, weight.T, settings, shape)
