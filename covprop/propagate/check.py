"""Is a model fit for propagation? `check` names every fault at once, `fix` mends what it can."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import nn

from covprop.layers import ActNorm
from covprop.propagate.inputs import check_shape
from covprop.propagate.settings import PAPER
from covprop.propagate.trace import build


def check(model: nn.Module, input_shape: Sequence[int]) -> None:
    """Raise `UnsupportedModel` listing every operation that cannot be propagated.

    Each fault names the module or node, the source line, the reason and the remedy. The model is
    not run and not changed.

    Example:
        >>> check(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), input_shape=(1, 2, 2))
    """
    build(model, check_shape(input_shape), PAPER)


UNDILATED = (1, (1,), (1, 1), (1, 1, 1))


def average_pool(layer: nn.Module) -> nn.Module | None:
    """The average pool with a max pool's windows; padding does not count, as it never wins."""
    for dimension in ("1d", "2d", "3d"):
        if type(layer) is getattr(nn, f"MaxPool{dimension}") and layer.dilation in UNDILATED:
            pool = getattr(nn, f"AvgPool{dimension}")
            options = {"ceil_mode": layer.ceil_mode, "count_include_pad": False}
            return pool(layer.kernel_size, layer.stride, layer.padding, **options)
        if type(layer) is getattr(nn, f"AdaptiveMaxPool{dimension}"):
            return getattr(nn, f"AdaptiveAvgPool{dimension}")(layer.output_size)
    return None


def act_norm(layer: nn.Module) -> nn.Module | None:
    """ActNorm over the same channels as a norm that works image by image."""
    if isinstance(layer, nn.GroupNorm):
        return ActNorm(layer.num_channels)
    if isinstance(layer, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d):
        return ActNorm(layer.num_features)
    if isinstance(layer, nn.LayerNorm):
        return ActNorm(layer.normalized_shape[0])
    return None


def no_softmax(layer: nn.Module) -> nn.Module | None:
    """Nothing, in the place of a softmax: the propagation works on logits."""
    return nn.Identity() if isinstance(layer, nn.Softmax | nn.LogSoftmax) else None


def nearest_upsampling(layer: nn.Module) -> nn.Module | None:
    """Nearest up-sampling in the place of interpolation."""
    if isinstance(layer, nn.Upsample) and not str(layer.mode).startswith("nearest"):
        return nn.Upsample(layer.size, layer.scale_factor, mode="nearest")
    return None


REPAIRS = (average_pool, act_norm, no_softmax, nearest_upsampling)


def fix(model: nn.Module, log: Callable[[str], None] = print) -> nn.Module:
    """A repaired copy of a model, and a line for each change.

    Max pools become average pools; group, instance and layer norms become ActNorm (which sets
    itself from the first training batch); a softmax is removed; interpolation becomes nearest.
    These change what the network computes, so train it afterwards. Functional calls
    (`F.max_pool2d`) cannot be replaced: `check` names their source lines.

    Args:
        model: the model; it stays as it is.
        log: what to do with each line; `print` by default.

    Example:
        >>> mended = fix(nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2)))
        1: MaxPool2d became AvgPool2d
    """
    mended = copy.deepcopy(model)
    made: dict[nn.Module, nn.Module] = {}  # a module used twice stays one module
    for name, layer in list(mended.named_modules(remove_duplicate=False)):
        new = made.get(layer) or next((n for r in REPAIRS if (n := r(layer)) is not None), None)
        if new is None:
            continue
        like = next(chain(layer.parameters(), model.parameters()), torch.empty(0))
        made[layer] = replacement = new.to(like.device, like.dtype).train(layer.training)
        parent, _, child = name.rpartition(".")
        if name == "":
            mended = replacement
        else:
            setattr(mended.get_submodule(parent), child, replacement)
        log(f"{name or 'the model'}: {type(layer).__name__} became {type(replacement).__name__}")
    return mended
