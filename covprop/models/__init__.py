"""Classifiers by name: the shipped ones, or a function in the user's own Python file.

Example:
    >>> net = build("lenet", num_classes=10, image_shape=(1, 28, 28), mean=(0.13,), std=(0.31,))
    >>> [type(layer).__name__ for layer in net]
    ['Normalize', 'LeNet']
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from covprop.errors import CovpropError, InvalidInput
from covprop.models.cifar_resnet import CifarResNet
from covprop.models.cnn9 import CNN9
from covprop.models.lenet import LeNet
from covprop.models.normalize import Normalize
from covprop.models.own import failed, load_function, settle
from covprop.models.preact_resnet import PreActResNet
from covprop.names import unknown
from covprop.options import call, is_whole

MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet": LeNet,
    "preact_resnet18": functools.partial(PreActResNet, 18),
    "preact_resnet34": functools.partial(PreActResNet, 34),
    "preact_resnet50": functools.partial(PreActResNet, 50),
    "preact_resnet101": functools.partial(PreActResNet, 101),
    "cnn9": CNN9,
    "cifar_resnet20": functools.partial(CifarResNet, 20),
    "cifar_resnet110": functools.partial(CifarResNet, 110),
}
"""Name -> builder taking num_classes, image_shape and the model's own options by keyword."""


def build(
    name: str,
    *,
    num_classes: int,
    image_shape: tuple[int, int, int],
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **options: Any,
) -> nn.Module:
    """The model called `name`, with `Normalize(mean, std)` before it when these are given.

    Args:
        name: a name in `MODELS`, or `"my_net.py:build"`: the function `build` of that file. It is
            called with those of `num_classes` and `image_shape` that it names as parameters, and
            with the options.
        image_shape: (channels, height, width) of the input.
        options: the model's own settings, such as `width=32`.

    The normalised model is `Sequential(Normalize, net)`, whose state_dict keys start with `0.`
    and `1.`, as is usual in the randomized-smoothing literature.
    """
    image_shape = _checked_shape(image_shape)
    if not is_whole(num_classes) or num_classes < 2:
        raise InvalidInput(
            f"A classifier needs a whole number of at least two classes, not {num_classes!r}."
        )
    facts = {"num_classes": num_classes, "image_shape": image_shape}
    try:
        net = call("model", find(name), facts, options)
        if isinstance(net, nn.Module):
            settle(net, image_shape)
    except (Exception, SystemExit) as error:
        if isinstance(error, CovpropError) or ".py:" not in name:
            raise
        raise failed(name, error) from error
    if not isinstance(net, nn.Module):
        raise InvalidInput(
            f'Model "{name}" returned an object of type {type(net).__name__}, but must return an '
            "nn.Module."
        )
    if ".py:" in name and any(t.is_meta for t in (*net.parameters(), *net.buffers())):
        raise InvalidInput(
            f'Model "{name}" is on the meta device, where there are no numbers; make it on the CPU.'
        )
    if mean is None and std is None:
        return net
    if mean is None or std is None:
        raise InvalidInput(f'Model "{name}" got only one of mean and std; give both or neither.')
    if len(mean) != image_shape[0]:
        raise InvalidInput(
            f'Model "{name}" got {len(mean)} channel means for images of {image_shape[0]} '
            "channels; give one mean and one std per channel."
        )
    return nn.Sequential(Normalize(mean, std), net)


def find(name: str) -> Callable[..., nn.Module]:
    """What builds the model called `name`."""
    if ".py:" in name:
        return load_function(name)
    if name not in MODELS:
        raise unknown("model", name, [*MODELS, "a function as my_net.py:build"])
    return MODELS[name]


def _checked_shape(image_shape: Sequence[int]) -> tuple[int, int, int]:
    three = isinstance(image_shape, Sequence) and len(image_shape) == 3
    if not three or not all(is_whole(n) and n > 0 for n in image_shape):
        raise InvalidInput(f"image_shape must be (channels, height, width), not {image_shape!r}.")
    channels, height, breadth = image_shape
    return channels, height, breadth
