"""Operations that move values without mixing channels: Σ passes through."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.propagate.registry import Call, Layer, Unsupported, option, rule
from covprop.propagate.settings import Settings


@rule(
    nn.Identity,
    *(torch.Tensor.contiguous, torch.Tensor.clone, torch.clone),
    *(torch.Tensor.float, torch.Tensor.double, torch.Tensor.half, torch.Tensor.to),
)
def identity(layer: Layer, cov: Tensor, settings: Settings) -> Tensor:
    """Σ."""
    return cov


@rule(
    *(nn.Flatten, torch.flatten, torch.Tensor.flatten),
    *(nn.Unflatten, torch.unflatten, torch.Tensor.unflatten),
    *(torch.Tensor.view, torch.Tensor.reshape, torch.reshape),
    *(torch.squeeze, torch.Tensor.squeeze, torch.unsqueeze, torch.Tensor.unsqueeze),
)
def reshape(
    layer: Layer, cov: Tensor, settings: Settings, shape: tuple, out_shape: tuple
) -> Tensor:
    """Σ stays: channels keep their pixels, or become one vector, channel after channel."""
    channels = cov.shape[0]
    flattened = len(out_shape) == 1
    if flattened or (out_shape and out_shape[0] in (shape[0], channels)):
        return cov
    raise Unsupported(
        f"it turns {list(shape)} into {list(out_shape)}, which splits or mixes the channels",
        "keep the channels in dimension 1, or flatten everything after the batch",
    )


@rule(
    *(torch.permute, torch.Tensor.permute, torch.transpose, torch.Tensor.transpose),
    *(torch.swapaxes, torch.Tensor.swapaxes, torch.swapdims, torch.Tensor.swapdims),
    *(torch.movedim, torch.Tensor.movedim, torch.moveaxis, torch.Tensor.moveaxis),
    *(torch.t, torch.Tensor.t, torch.adjoint, torch.Tensor.adjoint),
)
def permute(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Σ: pixels change places, channels must not."""
    numbered = torch.empty(tuple(range(len(shape) + 1)), device="meta")  # sizes 0, 1, 2, …
    if call(numbered).shape[:2] != (0, 1):
        raise Unsupported("it moves the channels", "keep the channels in dimension 1")
    return cov


@rule(getattr)
def attribute(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """As a permutation: x.mT and its like."""
    if (name := call.get(1, "name")) not in ("T", "mT", "H", "mH"):
        raise Unsupported(f"it reads .{name} of a noisy value", "use the value itself")
    return permute(call, cov, settings, shape)


SINGLE = ("it picks single channels", "slice them instead, as in x[:, 0:1]")


@rule(operator.getitem)
def index(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Slices: of channels cut Σ, of pixels leave it."""
    key = call.get(1, "key")
    key = key if isinstance(key, tuple) else (key,)
    if Ellipsis in key:
        at = key.index(Ellipsis)
        fill = len(shape) + 1 - sum(part is not None for part in key if part is not Ellipsis)
        key = (*key[:at], *(slice(None),) * fill, *key[at + 1 :])
    batch, channel = (*key, slice(None))[:2]
    if batch is None or channel is None:
        raise Unsupported("it adds a dimension before the channels", "keep them in dimension 1")
    if batch != slice(None):
        raise Unsupported("it picks images of the batch", "leave dimension 0 whole, as in x[:, 1:]")
    if not isinstance(channel, slice):
        raise Unsupported(*SINGLE)
    if channel == slice(None):
        return cov
    if cov.shape[0] != shape[0]:
        raise Unsupported("it slices a flattened image", "slice channels before flattening")
    return cov[channel, channel]


def piece(x: Tensor, index: int, split: Any, *how: Any, **options: Any) -> Tensor:
    """One of the tensors that `split(x, …)` makes."""
    return split(x, *how, **options)[index]


@rule(piece)
def part(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """One part of a `chunk` or `split`: of channels it cuts Σ, of pixels it leaves it."""
    _, index, split, *sizes = call.args
    sizes = sizes[:1] or [value for name, value in call.kwargs.items() if name != "dim"]
    if not _along_channels("split", call.get(4, "dim", 0), cov, shape):
        return cov
    return split(split(cov, *sizes, dim=0)[index], *sizes, dim=1)[index]


@rule(torch.narrow, torch.Tensor.narrow)
def narrow(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """As a slice."""
    if not _along_channels("cut", call.get(1, "dim"), cov, shape):
        return cov
    start, length = call.get(2, "start"), call.get(3, "length")
    return cov.narrow(0, start, length).narrow(1, start, length)


@rule(torch.select, torch.Tensor.select)
def select(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Σ of one row of pixels."""
    if _along_channels("cut", call.get(1, "dim"), cov, shape):
        raise Unsupported(*SINGLE)
    return cov


@rule(torch.index_select, torch.Tensor.index_select)
def index_select(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Σ; of channels that are picked, in the order in which they are."""
    if not _along_channels("cut", call.get(1, "dim"), cov, shape):
        return cov
    order = call.get(2, "index")
    return cov[order][:, order]


def _along_channels(does: str, dim: int, cov: Tensor, shape: tuple) -> bool:
    """Whether `dim` is that of the channels; where Σ cannot follow, what it `does` is refused."""
    dim %= len(shape) + 1
    if dim == 0:
        raise Unsupported(f"it {does}s the batch", f"{does} channels or pixels, not dimension 0")
    if dim == 1 and cov.shape[0] != shape[0]:
        raise Unsupported(f"it {does}s a flattened image", f"{does} channels before flattening")
    return dim == 1


@rule(torch.flip, torch.Tensor.flip)
def flip(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Σ; channels that change places change them in Σ too."""
    given = call.args[1:] or (call.kwargs["dims"],)
    dims = given[0] if isinstance(given[0], list | tuple) else given
    channels = [_along_channels("flip", dim, cov, shape) for dim in dims]
    return cov.flip(0, 1) if any(channels) else cov


@rule(torch.roll, torch.Tensor.roll)
def roll(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Σ; channels that change places change them in Σ too."""
    shifts, dims = call.get(1, "shifts"), call.get(2, "dims")
    if dims is None or dims == ():
        raise Unsupported("it shifts values from image to image", "give it dims, as in (2, 3)")
    shifts, dims = ((v,) if isinstance(v, int) else v for v in (shifts, dims))
    for shift, dim in zip(shifts, dims, strict=True):
        if _along_channels("shift", dim, cov, shape):
            cov = cov.roll((shift, shift), (0, 1))
    return cov


@rule(torch.Tensor.expand, torch.Tensor.repeat)
def copies(call: Call, cov: Tensor, settings: Settings, shape: tuple, out_shape: tuple) -> Tensor:
    """Copied channels share their noise: Σ again and again; copies of pixels leave it."""
    if len(out_shape) != len(shape):
        raise Unsupported("it adds a dimension", "copy along the dimensions there are")
    if out_shape[0] != shape[0] and cov.shape[0] != shape[0]:
        raise Unsupported("it copies a flattened image", "copy channels before flattening")
    times = out_shape[0] // shape[0]
    return cov.repeat(times, times)


@rule(torch.repeat_interleave, torch.Tensor.repeat_interleave)
def copies_in_turn(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """As copies are, each beside the one it is of."""
    times, dim = call.get(1, "repeats"), call.get(2, "dim")
    if dim is None:
        raise Unsupported("it lines up the images of a batch", "give it dim, as in (2, dim=1)")
    if not _along_channels("repeat", dim, cov, shape):
        return cov
    return cov.repeat_interleave(times, 0).repeat_interleave(times, 1)


@rule(
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
    *(nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
)
def pad(layer: nn.ZeroPad2d, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Padding of pixels leaves Σ; zeros added as channels carry no noise."""
    return padded(cov, layer.padding, "constant", shape)


@rule(
    *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
    *(nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
)
def pad_with_copies(
    layer: nn.ReflectionPad2d, cov: Tensor, settings: Settings, shape: tuple
) -> Tensor:
    """Σ: no pixel that is added has more noise."""
    return padded(cov, layer.padding, "copies", shape)


@rule(F.pad)
def functional_pad(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """As by a layer."""
    return padded(cov, call.get(1, "pad"), call.get(2, "mode", "constant"), shape)


def padded(cov: Tensor, widths: Sequence[int], mode: str, shape: tuple) -> Tensor:
    """Σ after padding by these widths, before and after, the last dimension first."""
    spatial = 2 * (len(shape) - 1)
    before, after = (*widths[spatial : spatial + 2], 0, 0)[:2]
    if any(widths[spatial + 2 :]) or min(before, after) < 0:
        raise Unsupported("it pads the batch or cuts channels", "pad pixels or add channels")
    if not (before or after):
        return cov
    if cov.shape[0] != shape[0]:
        raise Unsupported("it pads a flattened image", "pad before flattening")
    if mode != "constant":
        raise Unsupported("it repeats channels", "pad channels with zeros, or pixels")
    return F.pad(cov, (before, after, before, after))


@rule(nn.Upsample, nn.UpsamplingNearest2d, F.interpolate)
def upsample(layer: Layer, cov: Tensor, settings: Settings) -> Tensor:
    """Σ: pixels are copied (mode "nearest")."""
    mode = option(layer, 3, "mode", "nearest")
    if mode not in ("nearest", "nearest-exact"):
        raise Unsupported(f"it interpolates in mode {mode!r}", 'use mode="nearest"')
    return cov


@rule(
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d),
)
def dropout(layer: Layer, cov: Tensor, settings: Settings) -> Tensor:
    """Σ in evaluation; in training variances grow by 1/(1 − p)."""
    return dropped(cov, option(layer, 1, "p", 0.5) if option(layer, 2, "training", True) else 0.0)


def dropped(cov: Tensor, p: float) -> Tensor:
    """The noise covariance averaged over masks m with E[m] = 1 and E[m²] = 1/(1 − p):
    off-diagonals stay, variances grow by 1/(1 − p)."""
    if p == 0.0:
        return cov
    if p == 1.0:  # nothing is left, and no noise
        return torch.zeros_like(cov)
    return cov + torch.diag_embed(torch.diagonal(cov) * (p / (1.0 - p)))
