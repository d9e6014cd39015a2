"""One process or many: the same code under `python -m covprop` and under `torchrun`."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from covprop.device import choose_device, rank_and_world
from covprop.errors import CovpropError

_JOINED = count()
"""Numbers the groups of this process: in all of them a group has the same one."""


@dataclass(frozen=True)
class World:
    """Where this process stands among those of the run."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, everywhere; the tensor itself is left alone."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def gather(self, tensor: Tensor) -> Tensor:
        """The processes' equally long tensors, one after the other in the order of the ranks."""
        if self.size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def first_does(self, work: Callable[[], Any]) -> None:
        """The first process does `work` while the others wait; if it fails, all do."""
        failure: list[str | None] = [None]
        if self.first:
            try:
                work()
            except CovpropError as error:
                if self.size == 1:
                    raise
                failure[0] = str(error)
        if self.size > 1:
            dist.broadcast_object_list(failure)
            if failure[0] is not None:
                raise CovpropError(failure[0])


@contextmanager
def world(device: str = "auto") -> Iterator[World]:
    """Join the processes that torchrun started, or be alone; see `choose_device` for `device`."""
    rank, size = rank_and_world()
    chosen = choose_device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if size == 1:
        yield World(0, 1, chosen)
        return
    # What an earlier group left in the store, such as addresses, would be taken for this one's.
    store, _, _ = next(dist.rendezvous("env://", rank, size))
    store = dist.PrefixStore(f"covprop {next(_JOINED)}", store)
    backend, place = ("nccl", chosen) if chosen.type == "cuda" else ("gloo", None)
    dist.init_process_group(backend, rank=rank, world_size=size, store=store, device_id=place)
    try:
        yield World(rank, size, chosen)
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        # A DDP module that outlives its process group can abort the interpreter at exit, so
        # nothing may refer to one here, not even the frames of an exception.
        gc.collect()
        dist.destroy_process_group()
