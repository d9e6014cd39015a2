"""Which operation has which rule: exact look-up by module type or function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Operation = type[nn.Module] | Callable[..., Any]
"""What a rule is registered for: a type of module, or a function."""

_EXTRAS = ("mean", "shape", "out_shape", "shapes", "operands")
"""Further parameters a rule may name: the mean of its input, and attributes of its step."""


class Unsupported(Exception):
    """Raised by a rule that cannot handle this use of its operation: why, and what to do."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


@dataclass(frozen=True)
class Rule:
    """How one operation maps a covariance, and, where the layer itself will not do, a mean."""

    cov: Callable[..., Tensor]
    mean: Callable[..., Tensor] | None
    several: bool  # takes the covariances of all operands (None for a constant)
    extras: tuple[str, ...]  # which of _EXTRAS it asks for
    beside: Callable[..., tuple[Tensor, Tensor]] | None = None
    """A fused form of `mean`: see `rule`."""


_RULES: dict[Operation, Rule] = {}


class Call:
    """A functional call, seen by a rule as `layer`: its arguments, and itself as a function.

    `call.get(1, "stride", 1)` reads an argument by position or name; `call(x)` runs the call
    with x in the place of its random operand.
    """

    def __init__(self, function: Callable[..., Any], args: tuple, kwargs: dict, noisy: int | str):
        self.function, self.args, self.kwargs, self.noisy = function, args, kwargs, noisy

    def get(self, position: int, name: str, default: Any = None) -> Any:
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(self.noisy, str):
            return self.function(*self.args, **{**self.kwargs, self.noisy: x})
        return self.function(
            *self.args[: self.noisy], x, *self.args[self.noisy + 1 :], **self.kwargs
        )


Layer = nn.Module | Call
"""What a rule sees: a module, or a functional call."""


def option(layer: Layer, position: int, name: str, default: Any = None) -> Any:
    """An option of a layer, whether it came as a module or as a functional call."""
    return layer.get(position, name, default) if isinstance(layer, Call) else getattr(layer, name)


def rule(
    *operations: Operation,
    mean: Callable[..., Tensor] | None = None,
    beside: Callable[..., tuple[Tensor, Tensor]] | None = None,
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register how operations map a covariance.

    The decorated function has the signature `(layer, cov, settings) -> cov`: `layer` is the module
    (or the functional call, a `Call`), `cov` the [N, N] covariance of its input over channels.
    It may ask for more by naming further parameters: `shape` and `out_shape` (of the input and the
    output, without the batch), `mean` (the mean of the input, None when Σ is computed without an
    image). An operation on several tensors names its second parameter `covs` and gets a tuple,
    None for an operand without noise, and may ask for `shapes` and `operands` (a number for each
    random value, None for others: the same number twice is the same noise).

    The mean is mapped by the layer itself, unless `mean=` gives a function
    `(layer, mean, std, settings) -> mean`, with std the deviation [features] of the input's
    entries along dimension 1. `beside=` may give a faster form of it,
    `(mean, std, inverse, again) -> (mean of the output, mean of the input)`, where `inverse` is
    1/std or None. With `again`, later layers read the input too; they get the second result, so
    that a single kernel adds up the gradients of both uses.

    Example: a layer that doubles its input.
        >>> class Double(nn.Module):
        ...     def forward(self, x):
        ...         return 2 * x
        >>> @rule(Double)
        ... def double(layer, cov, settings):
        ...     return 4 * cov
    """

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        names = list(inspect.signature(function).parameters)
        if len(names) < 3:
            raise TypeError(
                f"the rule {function.__name__} takes ({', '.join(names)}): a rule's signature is "
                f"(layer, cov, settings), optionally followed by any of {', '.join(_EXTRAS)}."
            )
        unknown = [name for name in names[3:] if name not in _EXTRAS]
        if unknown:
            raise TypeError(
                f"the rule {function.__name__} asks for {', '.join(unknown)}: "
                f"a rule may ask for {', '.join(_EXTRAS)}."
            )
        entry = Rule(function, mean, names[1] == "covs", tuple(names[3:]), beside)
        for operation in dict.fromkeys(operations):
            if isinstance(operation, nn.Module) or not callable(operation):
                raise TypeError(
                    f"a rule is for a type of module (nn.ReLU) or a function (torch.relu), "
                    f"not for {operation!r}."
                )
            if operation in _RULES:
                raise ValueError(
                    f"{describe(operation)} has a rule already "
                    f"({_RULES[operation].cov.__module__}.{_RULES[operation].cov.__name__}): "
                    "subclass the layer and register the subclass."
                )
            _RULES[operation] = entry
        return function

    return register


def find(operation: Operation) -> Rule | None:
    """The rule of an operation, by exact type; None where there is none."""
    return _RULES.get(operation)


def has_rule(module: nn.Module) -> bool:
    """Whether a module is one step of the propagation, rather than traced into."""
    return kind(module) in _RULES


def kind(module: nn.Module) -> type[nn.Module]:
    """A module's type; if its weights are parametrized (weight norm, spectral norm), the type it
    had before, whose rule applies: rules read the resulting weight."""
    return parametrize.type_before_parametrizations(module)


def registered() -> dict[Operation, Rule]:
    """Every operation that has a rule, and the rule."""
    return dict(_RULES)


def describe(operation: Any) -> str:
    """The name of an operation as a user writes it."""
    if isinstance(operation, type):
        torch_s = operation.__module__.startswith("torch.nn")
        return f"nn.{operation.__name__}" if torch_s else operation.__name__
    name = getattr(operation, "__name__", str(operation))
    if getattr(torch.Tensor, name, None) is operation:
        return f"Tensor.{name}"
    if getattr(nn.functional, name, None) is operation:
        return f"F.{name}"
    if getattr(torch, name, None) is operation:
        return f"torch.{name}"
    return name
