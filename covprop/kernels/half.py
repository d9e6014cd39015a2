"""The moment-ReLU in half precision on a GPU, where arithmetic costs as much as memory.

With z = μ/s and a = |z|, out = max(μ, 0) + s·h(a) where h(a) = φ(a) − aΦ(−a), and log h is nearly a
polynomial. u = out/s grows with z, so ∂out/∂μ = Φ(z) and ∂out/∂s = φ(z) follow from the output: as
for a plain ReLU the backward pass needs nothing that the next layer does not keep anyway. With
E = exp(−u²/2), Φ(−z) = E·q(√u) and φ(z) = p(√(Φ(z)Φ(−z))). h, q and p are minimax fits, good to
the rounding of bfloat16 or better: out/s to 3e-6, Φ from an exact output to 4e-4, φ to 1.2e-3.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from covprop.layers import all_but_channels, per_channel

HAVE_TRITON = importlib.util.find_spec("triton") is not None
WANTED = os.environ.get("COVPROP_FUSED") != "0"

TAIL = (-1.3257392, -1.80839, -0.41067657, -0.044468173, 4.1905178e-03, -1.8668314e-04)
"""log₂ h(a), fitted to 0 ≤ a ≤ 6; beyond, it keeps falling, so a needs no bound."""
TAIL_OF_OUTPUT = (1.0002987, -0.047386443, -2.4672019, 3.0402206, -1.4999072, 0.27793453)
"""q(√u), u = out/s ≤ 4.6; beyond, E is next to nothing."""
DENSITY = (0.0, 0.036431926, 2.5979564, -3.1625492, 2.0297110)
"""p(w)."""
MOST = 10.0


def polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """By Horner's rule, lowest coefficient first."""
    total = coefficients[-1] * x + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        total = total * x + coefficient
    return total


def inverse_of(std: Tensor) -> Tensor:
    """1/s, finite where s is 0. Computed once a channel: a division a number costs a quarter of
    all the arithmetic."""
    return std.detach().clamp_min(torch.finfo(std.dtype).tiny).reciprocal()


def relu_mean(mean: Tensor, s: Tensor, inverse: Tensor) -> Tensor:
    """max(μ, 0) + s·h(|μ|/s). In a compiled kernel an abs is free and a clamp, which must let NaN
    through, is three instructions."""
    tail = torch.exp2(polynomial((mean * inverse).abs(), TAIL))
    return 0.5 * mean + 0.5 * mean.abs() + s * tail


def slopes(out: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Φ(z) and φ(z) from the output."""
    u = (out / s.clamp_min(torch.finfo(s.dtype).tiny)).clamp(0.0, MOST)
    tail = torch.exp(-0.5 * u * u) * polynomial(torch.sqrt(u), TAIL_OF_OUTPUT)
    tail = tail.clamp(0.0, 1.0)
    return 1.0 - tail, polynomial(torch.sqrt(tail * (1.0 - tail)), DENSITY)


def is_matrix(x: Tensor) -> bool:
    """Whether x lies in memory as [pixels, channels]: a vector batch, or channels last."""
    if x.ndim == 2:
        return x.is_contiguous()
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


def takes(mean: Tensor, std: Tensor) -> bool:
    """Whether this form is for these tensors."""
    half = mean.dtype in (torch.bfloat16, torch.float16)
    return WANTED and half and mean.is_cuda and std.dtype == torch.float32


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in this precision, without any call if it has it already.

    For the result of a Function's forward: `.to` would return its argument, and torch.compile
    (2.11) then gives the gradient to that argument instead of the Function.
    """
    return x if x.dtype == dtype else x.to(dtype)


# Any layout will do, so that the compiler has no reason to copy feature maps to the one it traced.
@torch.library.custom_op(
    "covprop::half_relu_backward", mutates_args=(), tags=(torch.Tag.flexible_layout,)
)
def backward(
    out: Tensor, std: Tensor, grad: Tensor, beside: Tensor | None, want_std: bool
) -> tuple[Tensor, Tensor]:
    """grad·Φ(z) + beside, and the gradient of std [channels]; an operator, so that a compiled
    step runs the one kernel too, which reads and writes every feature map once."""
    if HAVE_TRITON and out.is_cuda and is_matrix(out):
        from covprop.kernels import triton_half

        return triton_half.backward(out, std, grad, beside, want_std)
    cdf, density = slopes(out.to(std.dtype), per_channel(std, out))
    grad_mean = grad * cdf if beside is None else grad * cdf + beside
    total = (grad * density).sum(all_but_channels(out)) if want_std else torch.zeros_like(std)
    return torch.empty_like(out).copy_(grad_mean), total


@backward.register_fake
def _(out: Tensor, std: Tensor, grad: Tensor, beside: Tensor | None, want_std: bool) -> tuple:
    return torch.empty_like(out), torch.empty_like(std)


def forward(mean: Tensor, std: Tensor, inverse: Tensor) -> Tensor:
    """The mean after a ReLU, by one kernel or, for the compiler to fuse, by the formula."""
    if HAVE_TRITON and mean.is_cuda and is_matrix(mean) and not torch.compiler.is_compiling():
        from covprop.kernels import triton_half

        return triton_half.forward(mean, std)
    wide, s, one_over_s = mean.to(std.dtype), per_channel(std, mean), per_channel(inverse, mean)
    return cast(relu_mean(wide, s, one_over_s), mean.dtype)


class _HalfReLU(torch.autograd.Function):
    """The moment-ReLU; differentiable once: a second derivative needs the float32 path."""

    @staticmethod
    def forward(mean: Tensor, std: Tensor, inverse: Tensor) -> Tensor:
        return forward(mean, std, inverse)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        want_std = ctx.needs_input_grad[1]
        grad_mean, grad_std = backward(*ctx.saved_tensors, grad, None, want_std)
        return grad_mean, grad_std if want_std else None, None


class _HalfReLUBeside(torch.autograd.Function):
    """The same, and its input unchanged."""

    @staticmethod
    def forward(mean: Tensor, std: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        return forward(mean, std, inverse), mean.view_as(mean)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]
    ) -> None:
        ctx.save_for_backward(output[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, beside: Tensor) -> tuple[Tensor, Tensor | None, None]:
        want_std = ctx.needs_input_grad[1]
        grad_mean, grad_std = backward(*ctx.saved_tensors, grad, beside, want_std)
        return grad_mean, grad_std if want_std else None, None


def half_relu(
    mean: Tensor, std: Tensor, inverse: Tensor | None, again: bool
) -> tuple[Tensor, Tensor]:
    """The mean after a ReLU, and the mean before it; see `moment_relu_beside`."""
    inverse = inverse_of(std) if inverse is None else inverse
    if again:
        return _HalfReLUBeside.apply(mean, std, inverse)
    return _HalfReLU.apply(mean, std, inverse), mean
