"""Is a model fit for propagation? `check` names every fault at once, `fix` mends what it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import nn

from covprop.mode import copied
from covprop.propagate.inputs import check_shape
from covprop.propagate.plans import Plans
from covprop.propagate.repairs import called, repair, why_not
from covprop.propagate.settings import PAPER
from covprop.propagate.tracing.trace import check_module


def check(model: nn.Module, input_shape: Sequence[int]) -> None:
    """Raise `UnsupportedModel` listing every operation that cannot be propagated.

    Each fault names the module or node, the source line, the reason and the remedy. The model is
    not run and not changed. In training mode it is checked for evaluation too; in evaluation mode,
    what it does in training only is an error once it is trained.

    Example:
        >>> check(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), input_shape=(1, 2, 2))
    """
    Plans(model, check_shape(input_shape), PAPER)


def fix(model: nn.Module, log: Callable[[str], None] = print) -> nn.Module:
    """A repaired copy of a model, and a line for each change.

    Max pools become average pools; group and instance norms, and layer norms over whole images
    [channels, height, width], become ActNorm (which sets itself from the first training batch); a
    softmax is removed; interpolation becomes nearest. These change what the network computes, so
    train it afterwards. A dilated max pool, and a layer norm over fewer dimensions, whose features
    may lie in any of them, stay, with a line that says so. Functional calls (`F.max_pool2d`) cannot
    be replaced: `check` names their source lines.

    Args:
        model: the model; it stays as it is.
        log: what to do with each line; `print` by default.

    Example:
        >>> mended = fix(nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2)))
        1: MaxPool2d became AvgPool2d
    """
    check_module(model)
    mended = copied(model)
    made: dict[nn.Module, nn.Module] = {}  # a module used twice stays one module
    for name, layer in list(mended.named_modules(remove_duplicate=False)):
        new = made.get(layer) or repair(layer)
        if new is None:
            if reason := why_not(layer):
                log(f"{name or 'the model'}: {called(layer)} stays: {reason}")
            continue
        like = next(chain(layer.parameters(), model.parameters()), torch.empty(0))
        made[layer] = replacement = new.to(like.device, like.dtype).train(layer.training)
        parent, _, child = name.rpartition(".")
        if name == "":
            mended = replacement
        else:
            setattr(mended.get_submodule(parent), child, replacement)
        log(f"{name or 'the model'}: {called(layer)} became {called(replacement)}")
    return mended
