"""Run a model's steps on meta tensors: find every shape, and every operation without a rule.

No numbers are computed, and the model is neither run nor changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from covprop.errors import UnsupportedModel, first_line
from covprop.mode import called_with, tensors_of
from covprop.propagate.registry import Unsupported, describe, find, has_rule, option
from covprop.propagate.settings import Settings
from covprop.propagate.step import Ref, Step, fill, refs
from covprop.propagate.tracing.faults import Fault, explain, unsupported
from covprop.propagate.tracing.hooks import CHANGES, PATCHED, SUBCLASS, WRITE_OUT, patched, watched

NOT_REAL = (
    "it makes truth values, whole or complex numbers of a noisy value",
    "write it as an activation (x * (x > 0) is relu), or give the block a rule (covprop.rule)",
)
BY_MASK = (
    "how many values it takes depends on the numbers of a mask",
    "take them by slices or by a list of numbers, as in x[:, :, [0, 2]]",
)
MADE = {
    *(torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like),
    *(torch.rand_like, torch.randn_like),
    *(Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty, Tensor.new_tensor),
}
"""Functions that read a tensor's type and device, but none of its values."""
LIKE = {Tensor.to, Tensor.type_as, Tensor.expand_as, Tensor.view_as, Tensor.reshape_as}
"""Methods that read type, device or sizes of a second tensor, but none of its values."""
FAILURES = (RuntimeError, TypeError, IndexError, ValueError, AttributeError)


class Look(nn.Module):
    """Interprets the steps on meta tensors, fills in shapes and rules, and collects faults."""

    def __init__(self, model: nn.Module, steps: list[Step], settings: Settings) -> None:
        super().__init__()
        self.model, self.steps, self.settings = model, steps, settings
        self.faults: list[Fault] = []
        self.done: list[Step] = []
        self.values: list[Any] = []
        self.covs: list[Tensor | None] = []
        self.guessed = False  # whether the shape of the last value is an assumption

    def forward(self, x: Tensor) -> None:
        values, covs = self.values, self.covs
        values.append(x)
        covs.append(torch.eye(x.shape[1], device="meta", dtype=x.dtype))
        for step in self.steps:
            value = self.look(step, values)
            values.append(value.to("meta") if isinstance(value, Tensor) else value)
            step, cov = self.resolve(step, values, covs)
            self.done.append(step)
            covs.append(cov)

    def look(self, step: Step, values: list[Any]) -> Any:
        """A step's value on meta tensors. A user's layer that has a rule may fail on them (if it
        branches on data); its output is then assumed to have its input's shape, with the number
        of channels that its rule gives."""
        target, self.guessed = step.target, False
        try:
            if not isinstance(target, nn.Module):
                return step.run(values)
            where = (step.name, describe(step.operation), step.where)
            if has_rule(target) and patched(target):
                self.faults.append(Fault(*where, PATCHED, SUBCLASS))
            with watched(target) as watch:
                value = step.run(values)
            if watch.changed(fill(step.args, values), value):
                self.faults.append(Fault(*where, CHANGES, WRITE_OUT))
            return value
        except RuntimeError as error:
            own = isinstance(target, nn.Module) and has_rule(target)
            if not (own and ("meta tensor" in str(error) or patched(target))):
                raise
            self.guessed = True
            return torch.empty_like(values[refs(step.args)[0]])

    def apply_rule(self, step: Step, values: list[Any], covs: list[Tensor | None]) -> Tensor:
        """The covariance that a step's rule gives, or the fault of the rule."""
        assert step.rule is not None
        rule = step.rule.cov.__name__
        try:
            cov = step.covariance(step.layer(values), covs, values, self.settings)
        except FAILURES as error:
            if self.faults:  # one of which may be the reason
                return unknown(values[-1])
            what = type(error).__name__
            raise UnsupportedModel(
                f"the rule {rule} of {step.name} failed with {what}: {error}"
            ) from error
        if not isinstance(cov, Tensor) or cov.ndim != 2 or cov.shape[0] != cov.shape[1]:
            found = list(cov.shape) if isinstance(cov, Tensor) else f"a {type(cov).__name__}"
            raise UnsupportedModel(
                f"the rule {rule} of {step.name} returned {found}, not a covariance [N, N]."
            )
        return cov

    def resolve(
        self, step: Step, values: list[Any], covs: list[Tensor | None]
    ) -> tuple[Step, Tensor | None]:
        """A step with its operands, shapes and rule, and its covariance, None without noise."""
        used = step.reads
        random = tuple(slot for slot in used if covs[slot] is not None)
        value = values[-1]
        made = step.operation in MADE or (step.operation in LIKE and used[0] not in random)
        if not random or made or not carries_noise(value):
            return step, None
        given = operands_of(step)
        operands = tuple(
            arg.slot if isinstance(arg, Ref) and arg.slot in random else None for arg in given
        )
        shapes = tuple(_shape(fill(arg, values)) for arg in given)
        step = replace(
            step, random=random, operands=operands, shapes=shapes,
            out_shape=_shape(value), rule=find(step.operation),
        )  # fmt: skip
        if not all(keeps_batch(values[slot], values[0]) for slot in random):
            return step, unknown(value)  # the operation that lost it is a fault already
        try:
            return self.follow(step, values, covs)
        except Unsupported as error:
            what = describe(step.operation)
            self.faults.append(Fault(step.name, what, step.where, error.why, error.remedy))
            return step, unknown(value)

    def follow(
        self, step: Step, values: list[Any], covs: list[Tensor | None]
    ) -> tuple[Step, Tensor]:
        """A step with noise and its covariance, or Unsupported."""
        value = values[-1]
        if isinstance(value, Tensor) and not value.is_floating_point():
            raise Unsupported(*NOT_REAL)
        if step.kwargs.get("out") is not None:  # F.normalize passes None
            raise Unsupported("it writes into the tensor given as out=", "use what it returns")
        if (rule := step.rule) is None:
            raise Unsupported(*explain(step.operation, step.target))
        cov = self.apply_rule(step, values, covs)
        if not keeps_batch(value, values[0]):
            why = "its output does not keep the batch in dimension 0"
            raise Unsupported(why, "keep one row an image")
        if self.guessed and len(cov) != len(covs[step.random[0]]):  # type: ignore[arg-type]
            value = values[-1] = value.new_empty(len(value), len(cov), *value.shape[2:])
            step = replace(step, out_shape=_shape(value))
        if not self.faults and not fits(step, cov, covs):
            raise UnsupportedModel(
                f"the rule {rule.cov.__name__} of {step.name} returned a covariance of "
                f"{len(cov)} channels for an output of {step.out_shape[0]}."
            )
        return replace(step, channels=len(cov)), cov


def keeps_batch(value: Any, x: Tensor) -> bool:
    """Whether a value is one tensor with a row for each image."""
    return isinstance(value, Tensor) and value.shape[:1] == x.shape[:1]


def fits(step: Step, cov: Tensor, covs: list[Tensor | None]) -> bool:
    """Whether a covariance fits a step's output: it covers all channels, or, once the image is
    flattened (here or earlier), the channels it had before."""
    if not step.out_shape:
        return True
    noisy = [
        (covs[slot], shape)
        for slot, shape in zip(step.operands, step.shapes, strict=True)
        if slot is not None
    ]
    flat = any(
        len(step.out_shape) < len(shape) or len(before) < shape[0]  # type: ignore[arg-type]
        for before, shape in noisy
    )
    return step.out_shape[0] % len(cov) == 0 if flat else step.out_shape[0] == len(cov)


def unknown(value: Any) -> Tensor:
    """A placeholder for a covariance that cannot be computed, so that the look can go on."""
    width = value.shape[1] if isinstance(value, Tensor) and value.ndim > 1 else 1
    return torch.empty(width, width, device="meta")


def operands_of(step: Step) -> list[Any]:
    """The operands of a call: the list that cat takes, or the first two arguments, not counting
    `alpha`, which scales the second operand of a sum."""
    if "tensors" in step.kwargs:
        return list(step.kwargs["tensors"])
    named = sorted(step.kwargs, key=lambda name: name != "input")
    given = [*step.args, *(step.kwargs[name] for name in named if name != "alpha")]
    if given and isinstance(given[0], tuple | list):
        return list(given[0])
    return given[:2]


def normed_by_the_batch(steps: list[Step], seen: Look) -> list[Fault]:
    """Steps of a network in evaluation that yet normalise an image by the others in its batch."""
    return [
        Fault(
            *(step.name, describe(step.operation), step.where),
            "it takes the statistics of the batch in evaluation too, so an image's logits depend "
            "on the others",
            "write training=self.training",
        )
        for step in steps
        if step.operation is nn.functional.batch_norm
        and step.random  # of weights it is a way to standardise them
        and not seen.model.training
        and option(step.layer(seen.values), 5, "training", False)
    ]


def carries_noise(value: Any) -> bool:
    """Whether a value computed from a random one is random itself: sizes and dtypes are not."""
    values = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(v, Tensor) for v in values)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape[1:]) if isinstance(value, Tensor) and value.ndim else ()


def float_type(model: nn.Module) -> torch.dtype:
    """The type of the model's weights, and of its images."""
    state = (*model.parameters(), *model.buffers())
    return next((value.dtype for value in state if value.is_floating_point()), torch.float32)


def look(
    model: nn.Module, steps: list[Step], input_shape: tuple[int, ...], settings: Settings
) -> Look:
    """Interpret the steps on meta tensors for a batch of two images."""
    abstract = settings if not isinstance(settings.r_max, str) else settings.but(r_max=0.0)
    seen = Look(model, steps, abstract)
    on_meta = {value: value.detach().to("meta") for value in tensors_of(model).values()}
    x = torch.empty(2, *input_shape, device="meta", dtype=float_type(model))
    try:
        called_with(seen, on_meta, x)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        failed = steps[len(seen.done)]
        if "torch.nonzero" in str(error):
            fault = Fault(failed.name, describe(failed.operation), failed.where, *BY_MASK)
            raise unsupported(type(model).__name__, [*seen.faults, fault]) from error
        raise UnsupportedModel(
            f"{type(model).__name__} does not accept an input of shape {list(input_shape)}: "
            f"{failed.name} ({describe(failed.operation)}) says: {first_line(error)}"
        ) from error
    return seen
