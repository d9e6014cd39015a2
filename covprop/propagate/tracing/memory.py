"""Values that share memory: what a model writes into one in place, the others show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from covprop.propagate.registry import describe
from covprop.propagate.step import Step, refs
from covprop.propagate.tracing.faults import Fault
from covprop.propagate.tracing.look import LIKE, MADE, carries_noise


def hidden_writes(steps: list[Step], values: list[Any], output: int) -> list[Fault]:
    """Steps that change, in place, memory that is read later under another name, as in
    `y = x.view(…); y.relu_(); use(x)`: the steps would go on with the old x."""
    reads = [(n, slot, seen) for n in range(len(steps)) for slot, seen in read(n, steps, values)]
    reads.append((len(steps), output, values[output]))
    return [
        Fault(
            *(step.name, describe(step.operation), step.where),
            "it changes, in place, a view of a value that is read again later",
            "take the operation that makes a new tensor (relu instead of relu_)",
        )
        for number, step in enumerate(steps)
        if step.overwrites is not None
        and any(
            later > number >= slot and overlap(seen, values[step.overwrites])
            for later, slot, seen in reads
            if slot != step.overwrites
        )
    ]


def read(number: int, steps: list[Step], values: list[Any]) -> Iterator[tuple[int, Any]]:
    """The slots whose numbers a step reads, and what it reads of each: a view of one, only itself.

    Sizes and types are not read by this measure.
    """
    step, made = steps[number], values[number + 1]
    if step.operation in MADE or not carries_noise(made):
        return
    given = step.args[:1] if step.operation in LIKE else (step.args, step.kwargs)
    for slot in refs(given):
        yield slot, made if same_memory(made, values[slot]) else values[slot]


def same_memory(a: Any, b: Any) -> bool:
    """Whether both are tensors, one of which may be a view of the other."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return False
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def overlap(a: Any, b: Any) -> bool:
    """Whether both have a number in common; the two halves of a chunk do not."""
    if not same_memory(a, b):
        return False
    if a.dtype != b.dtype:
        return True
    held = torch.zeros(a.untyped_storage().nbytes() // a.element_size(), dtype=torch.bool)
    once = [1 if stride == 0 else size for size, stride in zip(a.shape, a.stride(), strict=True)]
    held.as_strided(once, a.stride(), a.storage_offset()).fill_(True)
    return bool(held.as_strided(b.shape, b.stride(), b.storage_offset()).any())
