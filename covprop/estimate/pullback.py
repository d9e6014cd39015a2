"""A covector pulled back to the input, at a price that leaves room to train on it.

Training on ‖g‖², g = ∇ₓ gap, differentiates a backward pass. What that must cost, in passes over
the network: 1 forward, 1 to pull the covector back to the input, 1 to push the tangent g forward
through the same gates, 1 for the weight gradients between the tangent entering a layer and the
covector leaving it, and 2 for the backward pass of the loss itself. That is 6, where plain
training has 3.

Autograd gets there but for three operations, which are replaced while a `Pullback` is active:

- the derivative of a convolution's backward pass is done with transposed and regrouped
  convolutions, many times slower than the ordinary kernels;
- a batch norm in training couples the images of a batch. Here an image does not move the statistics
  that normalise it: what is pulled back is the network that takes these numbers as they are, as it
  will in evaluation. They still follow the weights, so that the loss sees them change with these
  (otherwise it would try to shrink weights whose size the norm undoes);
- a ReLU's gate is a constant, for which autograd adds zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from covprop.errors import InvalidInput
from covprop.layers import per_channel, per_dimension

aten = torch.ops.aten

Shape = tuple[list[int], list[int], list[int], bool, list[int], int]
"""aten's arguments after a convolution's weights: stride, padding, dilation, transposed,
output_padding, groups."""


class Pullback(TorchFunctionMode):
    """While active, the network runs in operations whose backward pass is cheap to differentiate.

    Args:
        training: whether batch norms that take the batch's own statistics hold these still. They
            do not in evaluation, where such a norm is of one image (AdaIN has it written so).

    Example:
        >>> net, x = torch.nn.Conv2d(1, 2, 3), torch.rand(4, 1, 3, 3, requires_grad=True)
        >>> with Pullback() as pullback:
        ...     gap = net(x).flatten(1).diff(dim=1)
        >>> pullback(gap, x, create_graph=True).square().sum().backward()
    """

    pulling = False  # during the pull itself; the loss's own backward pass comes later

    def __init__(self, training: bool = True) -> None:
        super().__init__()
        self.training = training

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        run = REPLACED.get(func)
        out = NotImplemented if run is None else run(self, *args, **kwargs or {})
        return func(*args, **kwargs or {}) if out is NotImplemented else out

    def __call__(self, gap: Tensor, at: Tensor, create_graph: bool) -> Tensor:
        """∇ gap at every row of `at`; differentiable in the weights with `create_graph`."""
        self.pulling = True
        try:
            return torch.autograd.grad(gap.sum(), at, create_graph=create_graph)[0]
        finally:
            self.pulling = False


class Convolution(torch.autograd.Function):
    """A convolution; pulled back, it gives the gradient of its input only."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape, pullback: Pullback
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.shape, ctx.pullback = shape, pullback
        ctx.sizes = None if bias is None else list(bias.shape)
        return aten.convolution(x, weight, bias, *shape)

    @staticmethod
    def backward(ctx: Any, covector: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if ctx.pullback.pulling:
            pulled = ConvolutionPulled.apply(covector, x.detach(), weight, ctx.shape)
            return pulled, None, None, None, None
        to_x, *to_weights = ctx.needs_input_grad[:3]
        rest = (x, weight, ctx.sizes, *ctx.shape)
        # Two calls: a recorded step drops the first where nothing trains below.
        dx = aten.convolution_backward(covector, *rest, [True, False, False])[0] if to_x else None
        made = aten.convolution_backward(covector, *rest, [False, *to_weights])
        return dx, made[1], made[2], None, None


class ConvolutionPulled(torch.autograd.Function):
    """A convolution's covector pulled back: linear in the covector and in the weights, so its
    derivative is one convolution of the tangent and one ordinary weight gradient."""

    @staticmethod
    def forward(ctx: Any, covector: Tensor, x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
        ctx.save_for_backward(covector, weight)
        ctx.shape = shape
        mask = [True, False, False]
        return aten.convolution_backward(covector, x, weight, None, *shape, mask)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, tangent: Tensor) -> tuple[Tensor | None, ...]:
        covector, weight = ctx.saved_tensors
        pushed = aten.convolution(tangent, weight, None, *ctx.shape)
        if not ctx.needs_input_grad[2]:
            return pushed, None, None, None
        mask = [False, True, False]
        made = aten.convolution_backward(covector, tangent, weight, None, *ctx.shape, mask)
        return pushed, None, made[1], None


class BatchNorm(torch.autograd.Function):
    """Batch norm in training, and 1/√(variance + eps) of the batch; pulled back, it is the affine
    map with the batch's statistics."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None,
        var: Tensor | None, momentum: float, eps: float, pullback: Pullback,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        out, centre, scale = torch.native_batch_norm(
            x, weight, bias, mean, var, True, momentum, eps
        )
        ctx.save_for_backward(x, weight, centre, scale)
        ctx.eps, ctx.pullback = eps, pullback
        ctx.set_materialize_grads(False)
        return out, scale

    @staticmethod
    def backward(
        ctx: Any, covector: Tensor | None, to_scale: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, weight, centre, scale = ctx.saved_tensors
        made: list[Tensor | None] = [None, None, None]
        if ctx.pullback.pulling:
            if covector is not None:
                slope = scale if weight is None else weight * scale
                made[0] = (covector * per_channel(slope, x)).to(covector.dtype)
            return *made, *(None,) * 5
        if covector is not None:
            wanted = list(ctx.needs_input_grad[:3])
            made = list(
                aten.native_batch_norm_backward(
                    covector, x, weight, None, None, centre, scale, True, ctx.eps, wanted
                )
            )
        if to_scale is not None:  # d scale/dx = −scale³(x − centre)/n
            factor = to_scale * scale**3 * (-x.shape[1] / x.numel())
            moved = ((x - per_channel(centre, x)) * per_channel(factor, x)).to(x.dtype)
            made[0] = moved if made[0] is None else made[0] + moved
        return *made, *(None,) * 5


class Relu(torch.autograd.Function):
    """max(0, x), whose gate is a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.relu(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, covector: Tensor) -> Tensor:
        return aten.threshold_backward(covector, ctx.saved_tensors[0].detach(), 0)


def convolve(
    pullback: Pullback, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """F.conv1d, 2d and 3d; padding by name and an image without a batch are left to torch."""
    dims = weight.ndim - 2
    if isinstance(padding, str) or input.ndim != weight.ndim:
        return NotImplemented
    if torch.is_autocast_enabled(input.device.type):
        dtype = torch.get_autocast_dtype(input.device.type)
        input, weight, bias = (_lowered(value, dtype) for value in (input, weight, bias))
    stride, padding, dilation = (
        per_dimension(value, dims) for value in (stride, padding, dilation)
    )
    shape: Shape = (stride, padding, dilation, False, [0] * dims, groups)
    return Convolution.apply(input, weight, bias, shape, pullback)


def normalize(
    pullback: Pullback, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """F.batch_norm in training; with running statistics it is left to torch."""
    if not (training and pullback.training):
        return NotImplemented
    if input.numel() == input.shape[1]:  # torch says what one value a channel is
        return NotImplemented
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    if hooks and "checkpoint" in getattr(hooks[0], "__qualname__", ""):
        raise InvalidInput(
            "linearized does not go with batch norm in training within torch.utils.checkpoint, "
            "which would run it again in another way: take the norm out of the checkpoint, or "
            "call model.eval()."
        )
    out, _ = BatchNorm.apply(
        input, weight, bias, running_mean, running_var, momentum, eps, pullback
    )
    return out


def gate(pullback: Pullback, input: Tensor, inplace: bool = False) -> Any:
    """relu; what is overwritten in place is left to torch."""
    return NotImplemented if inplace else Relu.apply(input)


def _lowered(value: Any, dtype: torch.dtype) -> Any:
    """As autocast does it, which leaves doubles alone."""
    return value if value is None or value.dtype == torch.float64 else value.to(dtype)


REPLACED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), convolve),
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu), gate),
    F.batch_norm: normalize,
}
