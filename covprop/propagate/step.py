"""One step of a network: an operation, its operands, and the rule that maps its covariance.

Passes loop over steps instead of interpreting an fx graph. Such a loop compiles, trains under DDP,
can be deep-copied and works with functional_call, because a step refers to the user's own module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from covprop.layers import ActNorm
from covprop.propagate.channels import channel_std
from covprop.propagate.registry import Call, Layer, Rule, Unsupported, kind
from covprop.propagate.settings import Settings


@dataclass(frozen=True)
class Ref:
    """In a step's arguments: the value of an earlier step."""

    slot: int


@dataclass(frozen=True)
class Attribute:
    """A parameter, buffer or constant of a module, read in every pass."""

    owner: nn.Module
    name: str
    copied: bool = False  # a later step writes into it, which is for the pass only


@dataclass(frozen=True, eq=False)  # by identity: not every value has a hash
class Constant:
    """A value fixed by the trace: a default argument of forward, or a tensor made in forward."""

    value: Any


@dataclass(frozen=True)
class Step:
    """One operation of the network, with the rule that maps its covariance."""

    name: str  # qualified name for a module, node name otherwise
    does: tuple[Any]  # (target,): torch.compile (2.11) loses a Tensor method outside a tuple
    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    where: str = ""  # the user's source line
    overwrites: int | None = None  # the slot whose value the model itself changes in place here
    random: tuple[int, ...] = ()  # slots of its random operands
    operands: tuple[int | None, ...] = ()  # slot of each operand, None for a constant
    shapes: tuple[tuple[int, ...], ...] = ()  # shape of each operand, without the batch
    out_shape: tuple[int, ...] = ()
    rule: Rule | None = None  # None: the step's value carries no noise
    channels: int = 0  # of the covariance after the step
    sized: bool = False  # a step without noise reads the size of its value
    frees: tuple[int, ...] = ()  # slots no later step reads

    @property
    def target(self) -> Any:
        """A module, a function, an Attribute or a Constant."""
        return self.does[0]

    @property
    def reads(self) -> list[int]:
        """The slots of its arguments, in order."""
        return refs((self.args, self.kwargs))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first random operand, without the batch."""
        return self.shapes[self.operands.index(self.random[0])]

    @property
    def operation(self) -> Any:
        """What a rule is registered for: the type of a module, or the function itself."""
        return kind(self.target) if isinstance(self.target, nn.Module) else self.target

    def run(self, values: list[Any]) -> Any:
        """The step itself, on plain values."""
        if isinstance(self.target, Attribute):
            found = getattr(self.target.owner, self.target.name)
            return found.clone() if self.target.copied else found
        if isinstance(self.target, Constant):
            made = self.target.value
            on = values[0].device if isinstance(values[0], Tensor) else None
            return made.to(on) if isinstance(made, Tensor) else made
        args = fill(self.args, values)
        return self.target(*args, **fill(self.kwargs, values))

    def layer(self, values: list[Any]) -> Layer:
        """What a rule sees: the module, or the functional call with its constant arguments."""
        if isinstance(self.target, nn.Module):
            return self.target
        given: dict[Any, Any] = {**dict(enumerate(self.args)), **self.kwargs}
        noisy = next(
            (k for k, arg in given.items() if refs(arg) and refs(arg)[0] in self.random), 0
        )
        return Call(self.target, fill(self.args, values), fill(self.kwargs, values), noisy)

    def covariance(
        self, layer: Layer, covs: Sequence[Tensor | None], values: list[Any], settings: Settings
    ) -> Tensor:
        """Apply the covariance rule, with the extra arguments it asks for."""
        assert self.rule is not None
        extras: dict[str, Any] = {}
        for name in self.rule.extras:
            extras[name] = values[self.random[0]] if name == "mean" else getattr(self, name)
        settings = settings.of_layer(self.name)
        if self.rule.several:
            given = tuple(None if slot is None else covs[slot] for slot in self.operands)
            return self.rule.cov(layer, given, settings, **extras)
        if len(self.random) > 1:
            raise Unsupported("it combines several random values", "register a rule for it")
        return self.rule.cov(layer, covs[self.random[0]], settings, **extras)

    def needs_image(self) -> bool:
        """Whether the covariance rule uses the mean of its input here."""
        if self.rule is None or "mean" not in self.rule.extras:
            return False
        if isinstance(self.target, ActNorm):
            return self.target.pending
        settled = getattr(self.target, "running_var", None) is not None
        return not settled or self.target.training

    def mean(
        self, layer: Layer, std: Tensor | None, values: list[Any], settings: Settings
    ) -> Tensor:
        """Apply the mean rule, or the step itself where the layer maps the mean."""
        if self.rule is None or self.rule.mean is None:
            return self.run(values)
        return self.rule.mean(layer, values[self.random[0]], std, settings)

    @property
    def read_again(self) -> bool:
        """Whether a later step reads the input too, and the rule has a `beside` form for that."""
        known = self.rule is not None and self.rule.beside is not None
        return known and self.random[0] not in self.frees

    def deviation(self, covs: Sequence[Tensor | None]) -> Tensor | None:
        """The deviation of the input's features, for a step whose mean depends on it."""
        if self.rule is None or self.rule.mean is None:
            return None
        cov = covs[self.random[0]]
        assert cov is not None
        return channel_std(cov, self.shape[0])


def fill(arg: Any, values: list[Any]) -> Any:
    """Arguments with every Ref replaced by its value."""
    if isinstance(arg, Ref):
        return values[arg.slot]
    if isinstance(arg, tuple):
        return tuple(fill(item, values) for item in arg)
    if isinstance(arg, list):
        return [fill(item, values) for item in arg]
    if isinstance(arg, dict):
        return {key: fill(item, values) for key, item in arg.items()}
    if isinstance(arg, slice):
        return slice(fill(arg.start, values), fill(arg.stop, values), fill(arg.step, values))
    return arg


def refs(arg: Any) -> list[int]:
    """Every slot an argument refers to, in order."""
    if isinstance(arg, Ref):
        return [arg.slot]
    if isinstance(arg, dict):
        return refs(list(arg.values()))
    if isinstance(arg, slice):
        return refs([arg.start, arg.stop, arg.step])
    if isinstance(arg, tuple | list):
        return [slot for item in arg for slot in refs(item)]
    return []
