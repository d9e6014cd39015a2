"""A model as a flat tuple of plain steps, and the passes over them.

The passes loop over these steps instead of interpreting the fx graph. Such a loop compiles, trains
under DDP, can be deep-copied and works with functional_call, because a step refers to the user's
own module. `tracing/` makes the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from covprop.gaussian import Gaussian
from covprop.layers import ActNorm
from covprop.propagate.channels import channel_std, expand_pixels
from covprop.propagate.registry import Call, Layer, Rule, Unsupported, kind
from covprop.propagate.settings import Settings
from covprop.propagate.tracing.links import Link

Correct = Callable[[int, Tensor], Tensor]
"""(slot, propagated covariance) -> corrected covariance."""

Deviation = Tensor | tuple[Tensor, Tensor] | None
"""Standard deviations of a step's input, perhaps with their inverses; None if it needs none."""


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


@dataclass(frozen=True)
class Plan:
    """The steps of a model for one input shape. Slot 0 is the image; step k writes slot k + 1."""

    steps: tuple[Step, ...]
    output: int
    input_shape: tuple[int, ...]
    root: nn.Module  # the model that was traced
    links: tuple[Link, ...] = ()  # where in the model the steps' modules were

    def covariances(
        self, cov: Tensor, settings: Settings, correct: Correct | None = None
    ) -> list[Tensor | None]:
        """The covariance of every slot, from the weights and σ alone."""
        covs: list[Tensor | None] = [cov]
        values: list[Any] = [stand_in(self.typed(cov), self.input_shape)]
        self.extend_covariances(covs, values, len(self.steps), settings, correct)
        return covs

    def extend_covariances(
        self, covs: list[Tensor | None], values: list[Any], stop: int, settings: Settings,
        correct: Correct | None = None,
    ) -> None:  # fmt: skip
        """Continue a covariance pass up to step `stop`; `values` are those without noise, computed
        for a batch of one image: what they are for an image does not depend on the batch."""
        for slot in range(len(covs), stop + 1):
            step = self.steps[slot - 1]
            if step.rule is None:
                covs.append(None)
                values.append(step.run(values))
                continue
            out = step.covariance(step.layer(values), covs, values, settings)
            covs.append(correct(slot, out) if correct else out)
            values.append(stand_in(self.typed(out), step.out_shape) if step.sized else None)

    def typed(self, cov: Tensor) -> Tensor:
        """A tensor of the type of the weights, which may be another than that of Σ."""
        return next((p for p in self.root.parameters() if p.is_floating_point()), cov)

    def logit_covariance(self, cov: Tensor | None) -> Tensor:
        """The output's covariance over classes: logits may be the pixels of a flattened image."""
        assert cov is not None
        return expand_pixels(
            cov, self.steps[self.output - 1].out_shape[0] if self.output else len(cov)
        )

    def deviations(self, covs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """What the mean pass needs from the covariances: one vector for each nonlinear step."""
        return [step.deviation(covs) for step in self.steps]

    def means(self, x: Tensor, deviations: Sequence[Tensor | None], settings: Settings) -> Tensor:
        """The mean of the output, given the deviations at every nonlinear step."""
        values: list[Any] = [x]
        self.extend_means(values, deviations, settings)
        return values[self.output]

    def extend_means(
        self, values: list[Any], deviations: Sequence[Deviation], settings: Settings
    ) -> None:
        """Continue a mean pass for as many steps as there are deviations."""
        start = len(values) - 1
        for step, std in zip(self.steps[start : start + len(deviations)], deviations, strict=True):
            if std is None:
                values.append(step.run(values))
            elif step.rule is not None and step.rule.beside is not None:
                slot = step.random[0]
                pair = std if isinstance(std, tuple) else (std, None)
                out, values[slot] = step.rule.beside(values[slot], *pair, step.read_again)
                values.append(out)
            else:
                assert isinstance(std, Tensor)
                values.append(step.mean(step.layer(values), std, values, settings))
            for slot in step.frees:
                values[slot] = None

    def needs_image(self) -> bool:
        """Whether Σ depends on the images: it does if a rule needs the mean, as batch norm does in
        training."""
        return any(step.needs_image() for step in self.steps)

    def run(
        self, x: Tensor, cov: Tensor, settings: Settings, correct: Correct | None = None
    ) -> Gaussian:
        """Mean and covariance side by side, for rules that need the mean to map a covariance."""
        values: list[Any] = [x]
        covs: list[Tensor | None] = [cov]
        for slot, step in enumerate(self.steps, start=1):
            if step.rule is None:
                values.append(step.run(values))
                covs.append(None)
            else:
                layer = step.layer(values)
                with full_precision(x):
                    out = step.covariance(layer, covs, values, settings)
                    covs.append(correct(slot, out) if correct else out)
                    std = step.deviation(covs)
                values.append(step.mean(layer, std, values, settings))
            for slot_done in step.frees:
                values[slot_done] = None
        return Gaussian(values[self.output], self.logit_covariance(covs[self.output]))

    def run_plain(self, x: Tensor, visit: Callable[[int, Tensor], None]) -> None:
        """Run the network step by step, calling `visit(slot, value)` for every random value."""
        values: list[Any] = [x]
        for slot, step in enumerate(self.steps, start=1):
            values.append(step.run(values))
            if step.rule is not None:
                visit(slot, values[slot])
            for slot_done in step.frees:
                values[slot_done] = None


def stand_in(like: Tensor, shape: tuple[int, ...], batch: int = 1) -> Tensor:
    """Zeros of a noisy value's shape, for steps that read its size; they take no memory."""
    return like.new_zeros(()).expand(batch, *shape)


def full_precision(x: Tensor) -> torch.autocast:
    """Turn autocast off, which is for the mean; `Settings.products` sets the precision of Σ."""
    return torch.autocast(device_type=x.device.type, enabled=False)
