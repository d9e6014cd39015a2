"""Normalisation by a channel-wise affine map: Σ_out = Σ ∘ (s sᵀ)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.layers import ActNorm, all_but_channels, per_channel, widened
from covprop.models.normalize import Normalize
from covprop.propagate.channels import constant_in, scale_channels
from covprop.propagate.registry import Call, Unsupported, rule
from covprop.propagate.settings import Settings

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


class _BatchVariance(torch.autograd.Function):
    """Variance and mean over batch and pixels, in float32 or wider.

    For the backward pass it saves only the input, which the norm itself saves too. On the CPU it
    takes a mean of squares, since torch's one-pass variance is an order of magnitude slower there.
    """

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        wide, dims = widened(x), all_but_channels(x)
        if x.device.type != "cpu":
            variance, mean = torch.var_mean(wide, dims, correction=0)
            return variance, mean
        mean = wide.mean(dims)
        return (wide - per_channel(mean, x)).square_().mean(dims), mean

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> Tensor | None:
        if grad is None:
            return None
        x, mean = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: keep the path to the input
            mean = widened(x).mean(all_but_channels(x))
        slope = grad * (2.0 * x.shape[1] / x.numel())
        if x.device.type == "cpu":  # two steps, each with one number a channel, keep torch's speed
            return (widened(x) - per_channel(mean, x)).mul_(per_channel(slope, x)).to(x.dtype)
        shift = per_channel(-slope * mean, x)
        return torch.addcmul(shift, widened(x), per_channel(slope, x)).to(x.dtype)


def batch_variance(mean: Tensor) -> Tensor:
    """The variance over batch and pixels that batch normalisation divides by."""
    if mean.numel() == mean.shape[1]:
        raise InvalidInput(
            "a batch norm in training has one value a channel here, which has no variance: give a "
            "batch of two images or more, or call model.eval()."
        )
    return _BatchVariance.apply(mean)[0]


def normalise(
    cov: Tensor, weight: Tensor | None, variance: Tensor, eps: float, settings: Settings
) -> Tensor:
    """Σ ∘ (s sᵀ) with s = γ/√(v + ε)."""
    scale = torch.rsqrt(variance.to(cov.dtype) + eps)
    if weight is not None:
        scale = scale * weight.to(cov.dtype)
    return scale_channels(cov, constant_in(scale, cov, settings))


@rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def batch_norm(layer: BatchNorm, cov: Tensor, settings: Settings, mean: Tensor | None) -> Tensor:
    """s = γ/√(v + ε): v is the running variance in eval, the batch's own in training.

    A covariance computed without an image (`frozen`, `covariances`) uses the running variance.
    """
    if layer.running_var is None:
        raise Unsupported(
            "a batch norm without running statistics scales by the batch at hand, in evaluation "
            "too, so an image's logits depend on the others",
            "build it with track_running_stats=True",
        )
    batch = mean if layer.training else None
    variance = layer.running_var if batch is None else batch_variance(batch)
    return normalise(cov, layer.weight, variance, layer.eps, settings)


@rule(F.batch_norm)
def functional_batch_norm(
    call: Call, cov: Tensor, settings: Settings, mean: Tensor | None
) -> Tensor:
    """s sᵀ ⊙ Σ with s = γ/√(v + ε), as of the layer."""
    batch = mean if call.get(5, "training", False) else None
    variance = call.get(2, "running_var") if batch is None else batch_variance(batch)
    if variance is None:
        raise Unsupported("F.batch_norm has no running variance here", "give it one")
    weight, eps = call.get(3, "weight"), call.get(7, "eps", 1e-5)
    return normalise(cov, weight, variance, eps, settings)


@rule(ActNorm)
def act_norm(layer: ActNorm, cov: Tensor, settings: Settings, mean: Tensor | None) -> Tensor:
    """s sᵀ ⊙ Σ, s the scale of each channel."""
    if layer.pending and mean is not None and not mean.is_meta:
        layer.initialize(mean)  # the first batch of a training run
    return scale_channels(cov, constant_in(layer.log_scale.exp(), cov, settings))


@rule(Normalize)
def normalize(layer: Normalize, cov: Tensor, settings: Settings) -> Tensor:
    """σ is on the pixel scale, so dividing pixels by their standard deviation scales Σ too.

    One std serves all channels, and one channel is the same noise under every std.
    """
    scale = 1.0 / layer.std.flatten().to(cov.dtype)
    if 1 in (len(cov), len(scale)):
        return cov * (scale[:, None] * scale[None, :])
    return scale_channels(cov, scale)
