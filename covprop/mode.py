"""Run a model in another mode, or with other tensors, and leave it as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


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


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Every module's attributes as they are now, afterwards; yields what the model itself got new,
    and the parameters and buffers that any of its modules got or exchanged.

    A forward that keeps its features, counts in a buffer, or makes a grid at its first call, would
    keep what a trace put in their place. Attributes that are lists or dicts (modules hold their
    buffers in one) have the same things in them afterwards.
    """
    before = [(vars(module), dict(vars(module))) for module in model.modules()]
    inside = [
        (value, dict(value) if isinstance(value, dict) else list(value))
        for _, attributes in before
        for value in attributes.values()
        if isinstance(value, dict | list)
    ]
    made: dict[str, Any] = {}
    tensors = tensors_of(model)
    try:
        yield made
    finally:
        made |= {name: value for name, value in vars(model).items() if name not in before[0][1]}
        for name, value in tensors_of(model).items():
            if isinstance(value, Tensor) and value is not tensors.get(name):
                made[name] = value
        for now, then in [*before, *inside]:
            _put_back(now, then)


def _put_back(now: Any, then: Any) -> None:
    """Make a list or dict what it was, touching only what is another thing."""
    if isinstance(now, list):
        if len(now) != len(then) or any(a is not b for a, b in zip(now, then, strict=True)):
            now[:] = then
        return
    for name in now.keys() - then.keys():
        del now[name]
    for name, value in then.items():
        if name not in now or now[name] is not value:
            now[name] = value


def copied(model: Model) -> Model:
    """A deep copy; features that a forward kept on a module with their graph come without it.

    Torch refuses to copy these, so that a network could be copied before its first pass only.
    """
    kept = [value for module in model.modules() for value in vars(module).values()]
    for value in [value for value in kept if isinstance(value, dict | list | tuple)]:
        kept += value.values() if isinstance(value, dict) else value
    graphs = [value for value in kept if isinstance(value, Tensor) and value.grad_fn is not None]
    return copy.deepcopy(model, {id(value): value.detach() for value in graphs})


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; one that several modules share has several names."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules()
        for name, value in {**module._parameters, **module._buffers}.items()
        if value is not None
    }


def called_with(
    model: nn.Module, instead: Mapping[Tensor, Tensor], *arguments: Any, **options: Any
) -> Any:
    """What a model returns with other tensors in the place of its parameters and buffers.

    torch's functional_call alone would replace the tensors of a module with two names twice, and
    leave the new ones in it.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> called_with(layer, {layer.weight: torch.tensor([[3.0]])}, torch.tensor([2.0]))
        tensor([6.])
    """
    given = {name: instead[value] for name, value in tensors_of(model).items() if value in instead}
    return torch.func.functional_call(model, given, arguments, options, tie_weights=False)
