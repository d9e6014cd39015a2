"""What `certify` and `predict` share: options checked, the way chosen, answers brought in order."""

from collections.abc import Sequence
from dataclasses import Field, fields, replace
from typing import Any, ClassVar, Protocol, SupportsIndex, TypeVar

import numpy as np
import torch
from torch import Tensor

from covprop.certify.bounds import Question, certified_radius, looks, most_lower
from covprop.certify.given import device_of, dtype_of
from covprop.certify.noise import block_size
from covprop.certify.sample import Way, blocks_a_pass
from covprop.errors import InvalidInput
from covprop.logits import Classifier
from covprop.pixels import check_sigma

RECORDING_PAYS = 100  # passes; to warm up and record one takes about as long as ten


class Answer(Protocol):
    """A dataclass of tensors, one entry an image."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Result = TypeVar("Result", bound=Answer)


def on_fast_path(model: Classifier, x: Tensor, way: Way, fast: bool | None, samples: int) -> bool:
    """Whether passes are replayed: as told, else on a GPU where recording one pays."""
    if dtype_of(model) not in (torch.float32, way.dtype):  # a recorded pass casts to `dtype` only
        return False
    if fast is not None:
        return fast
    shape = tuple(x.shape[-3:])
    passes = samples / (blocks_a_pass(shape, way.batch_size) * block_size(shape))
    return device_of(model, x, way.device).type == "cuda" and passes >= RECORDING_PAYS


def in_order(parts: list[tuple[list[int], Result]]) -> Result:
    """The parts put together, in the order of the places they come with."""
    order = torch.tensor([place for places, _ in parts for place in places]).argsort()
    first = parts[0][1]
    whole = {f.name: torch.cat([getattr(part, f.name) for _, part in parts]) for f in fields(first)}
    return replace(first, **{name: value[order] for name, value in whole.items()})


def first(result: Result) -> Result:
    """The answer for one image alone."""
    return replace(result, **{f.name: getattr(result, f.name)[0] for f in fields(result)})


def check_options(
    sigma: float,
    n0: int,
    n: int,
    alpha: float,
    *,
    soft: bool = False,
    delta: float | None = None,
    at_least: float | Sequence[float] | None = None,
    step: int = 1,
) -> Question | None:
    """Refuse what cannot be meant; the question that a sequential certificate answers, if any.

    `step` is how many samples come at a time, on which it depends when counts are looked at.
    """
    check_sigma(sigma)
    if isinstance(alpha, str) or not 0 < alpha < 1:
        raise InvalidInput(f"alpha is a probability between 0 and 1, not {alpha!r}")
    if not (isinstance(n0, SupportsIndex) and isinstance(n, SupportsIndex)):
        raise InvalidInput(
            f"samples are counted in whole numbers, not n0 = {n0!r} and n = {n!r}; "
            "write 1000 for 1e3"
        )
    if n < 1 or n0 < 1:
        raise InvalidInput(f"at least one sample is needed, not n0 = {n0} and n = {n}")
    if delta is None and at_least is None:
        return None
    asked = () if at_least is None else np.atleast_1d(np.asarray(at_least, dtype=float))
    if at_least is not None and not len(asked):
        raise InvalidInput("at_least names no radius; leave it out, or give one or several")
    plan = looks(n, alpha, sequential=True, step=step)
    largest = float(certified_radius(most_lower(plan, soft=soft), sigma))
    for radius in asked:
        if radius > largest:
            times = f"{len(plan.sizes)} time{'s' * (len(plan.sizes) > 1)}"
            raise InvalidInput(
                f"n = {n} samples, looked at {times}, certify a radius of {largest:.4g} at most, "
                f"so at_least = {radius:g} is out of reach; take more samples"
            )
    return Question(delta=delta, at_least=tuple(float(radius) for radius in asked))
