"""Run a model in another mode, or with other tensors, and leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def switched(model: nn.Module, training: bool) -> Iterator[None]:
    """The model in another mode; afterwards every module is in its own mode again.

    Both switches call `train()`, since some networks do more there than set a flag (for example
    merge adapters).
    """
    modes = [(module, module.training) for module in model.modules()]
    before = model.training
    _switch(model, training)
    try:
        yield
    finally:
        _switch(model, before)
        for module, mode in modes:
            module.training = mode


def _switch(model: nn.Module, training: bool) -> None:
    try:
        model.train(training)
    except NotImplementedError:  # a program of torch.export has its mode in its graph
        return


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; one that several modules share has several names."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules()
        for name, value in {**module._parameters, **module._buffers}.items()
        if value is not None
    }


def called_with(model: nn.Module, instead: Mapping[Tensor, Tensor], *arguments: Any) -> Any:
    """What a model returns with other tensors in the place of its parameters and buffers.

    torch's functional_call alone would replace the tensors of a module with two names twice, and
    leave the new ones in it.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> called_with(layer, {layer.weight: torch.tensor([[3.0]])}, torch.tensor([2.0]))
        tensor([6.])
    """
    given = {name: instead[value] for name, value in tensors_of(model).items() if value in instead}
    return torch.func.functional_call(model, given, arguments, tie_weights=False)
