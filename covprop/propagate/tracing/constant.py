"""Values of a network that carry no noise: they must be the same for every image and batch.

Σ is one for a batch and is computed without one, so that a factor must not depend on how many
images there are, nor be drawn at random for each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from covprop.mode import called_with
from covprop.propagate.plan import stand_in
from covprop.propagate.registry import Unsupported, describe
from covprop.propagate.step import Step
from covprop.propagate.tracing.faults import Fault
from covprop.propagate.tracing.look import FAILURES, Look
from covprop.propagate.tracing.memory import same_memory

BY_SIZE = (
    "it computes with the size of the batch, so an image's logits would depend on it",
    "take a number there that is the same for every batch",
)
DRAWN = (
    "it computes with numbers drawn at random, so the covariance would differ by image and pass",
    "call model.eval(), or give the block that draws them a rule (covprop.rule)",
)


def with_sizes(steps: list[Step]) -> list[Step]:
    """The steps, noting with each that carries noise whether one without noise reads its size."""
    read = {slot for step in steps if step.rule is None for slot in step.reads}
    return [replace(step, sized=slot in read) for slot, step in enumerate(steps, start=1)]


def batch_dependent(steps: list[Step], seen: Look, image: Tensor) -> list[Fault]:
    """Steps whose covariance needs a value that changes with the batch, as in `x / x.shape[0]`, or
    from pass to pass, as in stochastic depth. `image` tells shape, type and device."""
    one, drawn = _plain_values(seen.model, steps, image, 1)
    two, _ = _plain_values(seen.model, steps, image, 2)
    noisy = {0, *(slot for slot, step in enumerate(steps, start=1) if step.rule is not None)}
    varying = {
        slot for slot in range(len(one)) if slot not in noisy and not _same(one[slot], two[slot])
    }
    faults = []
    for step in steps:
        for slots, words in ((drawn, DRAWN), (varying, BY_SIZE)):
            if step.rule is None or slots.isdisjoint(step.reads):
                continue
            values = [None if slot in slots else value for slot, value in enumerate(seen.values)]
            try:
                step.covariance(step.layer(values), seen.covs, values, seen.settings)
            except (Unsupported, *FAILURES):
                faults.append(Fault(step.name, describe(step.operation), step.where, *words))
                break
    return faults


class _Plain(nn.Module):
    """Computes the values without noise, and the slots of those drawn at random. A module, so that
    it can be run on copies of the model's buffers."""

    def __init__(self, model: nn.Module, steps: list[Step]) -> None:
        super().__init__()
        self.model, self.steps = model, steps

    def forward(self, image: Tensor, batch: int) -> tuple[list[Any], set[int]]:
        values: list[Any] = [stand_in(image, tuple(image.shape), batch)]
        drawn: set[int] = set()
        state = _generators(image)
        for slot, step in enumerate(self.steps, start=1):
            if step.rule is not None:
                values.append(stand_in(image, step.out_shape, batch))
                continue
            values.append(step.run(values))
            before, state = state, _generators(image)
            moved = any(not torch.equal(a, b) for a, b in zip(before, state, strict=True))
            if moved or not drawn.isdisjoint(step.reads):
                drawn |= {n for n, value in enumerate(values) if same_memory(value, values[slot])}
                drawn.add(slot)
        return values, drawn


@torch.no_grad()
def _plain_values(
    model: nn.Module, steps: list[Step], image: Tensor, batch: int
) -> tuple[list[Any], set[int]]:
    """What `_Plain` finds for a batch of this size."""
    copies = {buffer: buffer.clone() for buffer in model.buffers()}
    return called_with(_Plain(model, steps), copies, image, batch)


def _generators(image: Tensor) -> list[Tensor]:
    """Where torch's generators are."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(image.device)] if image.is_cuda else states


def _same(one: Any, two: Any) -> bool:
    """Whether a value for a batch of one is that for two images, up to the number of copies."""
    if isinstance(one, tuple | list) and isinstance(two, tuple | list):
        return len(one) == len(two) and all(map(_same, one, two))
    if not isinstance(one, Tensor):
        return type(one) is type(two) and bool(one == two)
    if one.is_meta or one.ndim != two.ndim:
        return one.is_meta
    fits = all(a in (1, b) for a, b in zip(one.shape, two.shape, strict=True))
    return fits and _close(one.expand_as(two), two)


def _close(one: Tensor, two: Tensor) -> bool:
    """Equal, up to rounding: a layer may add in another order for another size of the batch."""
    if not one.is_floating_point() or not one.numel():
        return torch.equal(one, two)
    tolerance = torch.finfo(one.dtype).eps ** 0.5
    largest = one.detach().nan_to_num(0.0, 0.0, 0.0).abs().max()
    return torch.allclose(one, two, tolerance, tolerance * float(largest), equal_nan=True)
