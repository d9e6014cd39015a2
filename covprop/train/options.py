"""What a recipe may say: the trainer's own options, and the check of any option by signature.

The keys of `[model]`, `[method]` and `[weighting]` are the parameters of the function or class
they name, so there is no second list to keep; `[data]`, `[labels]`, `[noise]` and `[train]` are
the dataclasses below. Ranges stand beside the types, as `Annotated[int, Range(1)]`.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from covprop.errors import InvalidInput
from covprop.names import nearest


class Range(NamedTuple):
    """low ≤ value ≤ high, or low < value with `strict`."""

    low: float = -math.inf
    high: float = math.inf
    strict: bool = False

    def admits(self, value: float) -> bool:
        above = value > self.low if self.strict else value >= self.low
        return above and value <= self.high and math.isfinite(value)

    def __str__(self) -> str:
        low = f"{'above' if self.strict else 'at least'} {self.low:g}"
        high = f"at most {self.high:g}"
        parts = [low] * (self.low > -math.inf) + [high] * (self.high < math.inf)
        return " and ".join(parts) or "finite"


Positive = Annotated[float, Range(0, strict=True)]
NotNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]


@dataclass(frozen=True)
class DataOptions:
    """[data]: a registered set, an .npz file or a folder of class folders, and its augmentation.

    `holdout` training images, evenly spaced, are left out of training; they take the place of the
    test images after an epoch, and `covprop certify RUN --split holdout` certifies them.
    `num_classes`, `image_shape`, `mean` and `std` are facts of the set, filled in when it is
    loaded; an own data set may give its `mean` and `std` per channel.
    """

    name: str
    augment: Literal["none", "flip", "crop-flip"] = "none"
    workers: Annotated[int, Range(0)] = 0
    normalize: bool = True
    holdout: Annotated[int, Range(1)] | None = None
    num_classes: Annotated[int, Range(2)] | None = None
    image_shape: tuple[int, int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[Positive, ...] | None = None


@dataclass(frozen=True)
class NoiseOptions:
    """[noise]: standard deviation of the Gaussian noise on the [0, 1] pixel scale."""

    sigma: Positive


@dataclass(frozen=True)
class LabelOptions:
    """[labels]: what becomes of the training labels before anything sees them.

    "pair" and "symmetric" make a share `rate` of them wrong; "matrix" draws them by the transition
    matrix in `file`; "file" takes the given labels in `file`. In all these the data set's own
    labels count as the truth. "none" leaves the labels alone and the truth unknown.
    """

    name: Literal["pair", "symmetric", "matrix", "file", "none"]
    rate: Fraction | None = None
    file: str | None = None
    seed: int = 0
    """Of the labels alone: runs that differ in train.seed still see the same labels."""

    def check(self) -> None:
        """What no single value shows; raises InvalidInput."""
        for key, kinds in (("rate", ("pair", "symmetric")), ("file", ("matrix", "file"))):
            given = getattr(self, key) is not None
            if given != (self.name in kinds):
                what = "does not take" if given else "needs"
                raise InvalidInput(f'labels.name = "{self.name}" {what} labels.{key}.')


@dataclass(frozen=True)
class TrainOptions:
    """[train]: everything the trainer itself does."""

    epochs: Annotated[int, Range(1)]
    batch_size: Annotated[int, Range(1)] = 128
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: Positive = 0.01
    momentum: Fraction = 0.9
    nesterov: bool = False
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    weight_decay: NotNegative = 5e-4
    decay_all: bool = True
    """Decay biases and norm weights too, as most code of the field does."""
    schedule: Literal["constant", "step", "cosine", "one-cycle", "linear"] = "step"
    milestones: tuple[Annotated[int, Range(1)], ...] = ()
    gamma: Positive = 0.1
    warmup_epochs: NotNegative = 0.0
    peak: Annotated[float, Range(0, 1, strict=True)] = 0.3
    """Share of a one-cycle run after which its largest lr is reached."""
    decay_from: Annotated[int, Range(0)] = 0
    """Epoch, counted from 0, at which schedule = "linear" begins to fall towards 0."""
    late_beta1: Fraction | None = None
    """AdamW's first beta from `decay_from` on, where it differs."""
    clip_norm: NotNegative = 0.0
    """Largest norm of the whole gradient; 0 leaves it alone."""
    ema: Fraction = 0.0
    """Decay of the running average of the weights, which is then what is saved; 0 is off."""
    seed: int = 0
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    channels_last: bool = False
    compile: Literal["auto", True, False] = "auto"
    """Have torch.compile fuse a step; "auto": on a GPU, where the run is long enough to gain."""
    fast: bool = True
    """On a GPU, record the step as a CUDA graph and replay it, where the method allows it; false
    also means that "auto" compiles nothing."""
    eval_every: Annotated[int, Range(0)] = 1
    """Epochs between measurements on the test split; 0 measures after the last one only."""
    checkpoint_minutes: NotNegative = 5.0
    """At most this long between checkpoints; 0 writes one after every step. The end of an epoch
    writes one too, unless the last is less than ten seconds old."""
    max_loss: Positive = 1e4
    """A mean loss above this counts as divergence and stops the run."""
    tensorboard: bool = False

    def check(self) -> None:
        """What no single value shows; raises InvalidInput."""
        if list(self.milestones) != sorted(set(self.milestones)):
            raise InvalidInput(
                f"train.milestones must be increasing epochs, not {list(self.milestones)}."
            )
        if self.schedule == "step" and self.milestones and self.milestones[-1] >= self.epochs:
            raise InvalidInput(
                f"train.milestones names epoch {self.milestones[-1]}, but the run ends after "
                f"{self.epochs}; lower it or raise train.epochs."
            )
        if self.warmup_epochs >= self.epochs:
            raise InvalidInput(
                f"train.warmup_epochs = {self.warmup_epochs:g} leaves nothing of the "
                f"{self.epochs} epochs; lower it."
            )
        if self.schedule == "one-cycle" and self.warmup_epochs:
            raise InvalidInput(
                'train.warmup_epochs goes with other schedules; "one-cycle" rises by itself '
                "until train.peak."
            )
        if self.decay_from >= self.epochs:
            raise InvalidInput(
                f"train.decay_from = {self.decay_from} lies behind the {self.epochs} epochs; "
                "lower it."
            )
        if self.schedule != "linear" and (self.decay_from or self.late_beta1 is not None):
            raise InvalidInput(
                'train.decay_from and train.late_beta1 go with schedule = "linear" only.'
            )
        if self.late_beta1 is not None and self.optimizer != "adamw":
            raise InvalidInput('train.late_beta1 needs optimizer = "adamw".')
        if self.nesterov and (self.momentum == 0 or self.optimizer != "sgd"):
            raise InvalidInput('train.nesterov needs optimizer = "sgd" and a momentum above 0.')


def accepted(
    target: Callable[..., Any], skip: Collection[str] = ()
) -> dict[str, inspect.Parameter]:
    """The keyword parameters of a function or class, with evaluated annotations."""
    try:
        signature = inspect.signature(target, eval_str=True)
    except NameError:  # an own file may annotate with names it does not import
        signature = inspect.signature(target)
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if name not in skip and parameter.kind is not parameter.VAR_POSITIONAL
    }


def check_options(
    section: str, given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """Every value checked against its parameter, with the defaults filled in.

    Defaults that a recipe cannot express (None, objects) are left out: absent means default.

    Example:
        >>> check_options("noise", {"sigma": 1}, accepted(NoiseOptions))
        {'sigma': 1.0}
    """
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n: p for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    for key in given:
        if key not in named and not takes_any:
            known = ", ".join(named) or "no keys here"
            raise InvalidInput(
                f"Unknown recipe key {section}.{key}{nearest(key, named)}; "
                f"[{section}] takes {known}."
            )
    values: dict[str, Any] = {}
    for name, parameter in named.items():
        if name in given:
            annotation = Any if isinstance(parameter.annotation, str) else parameter.annotation
            values[name] = check_value(f"{section}.{name}", given[name], annotation)
        elif parameter.default is parameter.empty:
            raise InvalidInput(f"The recipe lacks {section}.{name}; add it, or --set it.")
        elif _expressible(parameter.default):
            values[name] = parameter.default
    return values | {key: value for key, value in given.items() if key not in named}


def check_value(where: str, value: Any, annotation: Any) -> Any:
    """`value` as the annotated type, or InvalidInput naming the key."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        value = check_value(where, value, args[0])
        for bounds in args[1:]:
            if isinstance(bounds, Range) and not bounds.admits(value):
                raise InvalidInput(f"{where} must be {bounds}, not {value!r}.")
        return value
    if origin is Literal:
        if not any(type(value) is type(a) and value == a for a in args):  # 1 == True
            options = ", ".join(str(a).lower() if a in (True, False) else repr(a) for a in args)
            hint = nearest(value, [a for a in args if isinstance(a, str)]) if _text(value) else ""
            raise InvalidInput(f"{where} must be one of {options}, not {value!r}{hint}.")
        return value
    if origin in (typing.Union, types.UnionType):
        return _check_union(where, value, args)
    if origin in (tuple, list) or getattr(origin, "__name__", "") in ("Sequence", "Iterable"):
        return _check_sequence(where, value, args)
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    if annotation not in plain:
        return value
    if annotation is float and type(value) is int:
        return float(value)
    if type(value) is not annotation:
        raise InvalidInput(f"{where} must be {plain[annotation]}, not {value!r}.")
    if annotation is float and math.isnan(value):
        raise InvalidInput(f"{where} must be a number, not nan.")
    return value


def _check_union(where: str, value: Any, members: tuple[Any, ...]) -> Any:
    errors = []
    for member in members:
        if member is type(None):
            continue
        try:
            return check_value(where, value, member)
        except InvalidInput as error:
            errors.append(error)
    raise errors[0] if errors else InvalidInput(f"{where} cannot be set, not even to {value!r}.")


def _check_sequence(where: str, value: Any, members: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"{where} must be a list such as [1, 2], not {value!r}.")
    if (len(members) == 2 and members[1] is Ellipsis) or len(members) < 2:
        members = (members[0] if members else Any,) * len(value)
    if len(members) != len(value):
        raise InvalidInput(f"{where} must be a list of {len(members)} values, not {list(value)}.")
    return tuple(check_value(where, v, m) for v, m in zip(value, members, strict=True))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _expressible(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_expressible(v) for v in value)
    return isinstance(value, bool | int | float | str)
