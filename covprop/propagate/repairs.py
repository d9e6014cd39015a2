"""Replacements for layers that cannot be propagated."""

from __future__ import annotations

from torch import nn

from covprop.layers import ActNorm

UNDILATED = (1, (1,), (1, 1), (1, 1, 1))


def average_pool(layer: nn.Module) -> nn.Module | None:
    """The average pool with a max pool's windows; padding, never the max, is not counted."""
    for dimension in ("1d", "2d", "3d"):
        if type(layer) is getattr(nn, f"MaxPool{dimension}") and layer.dilation in UNDILATED:
            pool = getattr(nn, f"AvgPool{dimension}")
            options = {"ceil_mode": layer.ceil_mode, "count_include_pad": False}
            return pool(layer.kernel_size, layer.stride, layer.padding, **options)
        if type(layer) is getattr(nn, f"AdaptiveMaxPool{dimension}"):
            return getattr(nn, f"AdaptiveAvgPool{dimension}")(layer.output_size)
    return None


def act_norm(layer: nn.Module) -> nn.Module | None:
    """ActNorm over the same channels as a norm that works image by image.

    A layer norm is given the sizes of the last dimensions. Of three, the first is the channels of
    an image; fewer may be the features of tokens, which are not in dimension 1.
    """
    if isinstance(layer, nn.GroupNorm):
        return ActNorm(layer.num_channels)
    if isinstance(layer, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d):
        return ActNorm(layer.num_features)
    if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) > 2:
        return ActNorm(layer.normalized_shape[0])
    return None


def no_softmax(layer: nn.Module) -> nn.Module | None:
    """An identity for a softmax: the propagation works on logits."""
    return nn.Identity() if isinstance(layer, nn.Softmax | nn.LogSoftmax) else None


def nearest_upsampling(layer: nn.Module) -> nn.Module | None:
    """Nearest up-sampling for interpolation."""
    if isinstance(layer, nn.Upsample) and not str(layer.mode).startswith("nearest"):
        return nn.Upsample(layer.size, layer.scale_factor, mode="nearest")
    return None


REPAIRS = (average_pool, act_norm, no_softmax, nearest_upsampling)


def repair(layer: nn.Module) -> nn.Module | None:
    """What `covprop.fix` replaces a layer by; None if it leaves it."""
    return next((new for one in REPAIRS if (new := one(layer)) is not None), None)


def why_not(layer: nn.Module) -> str | None:
    """Why `covprop.fix` leaves a layer although it replaces others of its kind, else None."""
    if repair(layer) is not None:
        return None
    if isinstance(layer, nn.LayerNorm):
        return (
            f"whether its {layer.normalized_shape[0]} features lie in dimension 1 depends on the "
            "input; if so, write covprop.ActNorm there"
        )
    if isinstance(layer, nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d):
        return "no average pool has a dilation; write another pool there"
    return None


def called(layer: nn.Module) -> str:
    """A layer's name in the lines of `covprop.fix`."""
    mode = f"(mode={layer.mode!r})" if isinstance(layer, nn.Upsample) else ""
    return f"{type(layer).__name__}{mode}"
