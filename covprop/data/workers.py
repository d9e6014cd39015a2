"""Processes that decode the images of class folders, kept from one epoch to the next.

Pixels come back through shared memory that is used again for every batch: allocating fresh pages
would take longer than copying the pixels.
"""

import hashlib
import math
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from covprop.data.decode import read_crop
from covprop.data.folders import FolderImages
from covprop.errors import InvalidInput

AHEAD = 2
"""Batches that are decoded ahead, and chunks for each process if that is more."""


class _Task(NamedTuple):
    """Decode `images`, which stand at `place`, `place` + 1, … of the epoch's order, to `slot`."""

    slot: int
    seeds: tuple[int, int]
    place: int
    images: NDArray[np.int64]


def mix(*parts: int) -> int:
    """A seed of 63 bits made of several numbers."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class Workers:
    """`count` processes that decode images of `data` (0: this one does) in batches of `batch`."""

    def __init__(self, data: FolderImages, augment: str, count: int, batch: int) -> None:
        self.key = augment, count, batch
        c, h, w = data.image_shape
        # Some images, so that the first batch is not the work of one process, and 8 MB at most.
        self.size = max(1, min(32, batch, 2**23 // (c * h * w)))
        # Chunks go to the processes in turn, so each has slots of its own: those in line and the
        # one that is being read.
        ahead = max(AHEAD, math.ceil(AHEAD * batch / (self.size * count))) if count else 0
        slots = (ahead + 1) * max(count, 1)
        self.slots = torch.empty(slots, self.size, h, w, c, dtype=torch.uint8)
        if count:
            _share(self.slots, count)
        self.tasks: list[_Task] = []
        self.loader = DataLoader(
            _Files(data, augment, self.slots),
            batch_size=None,
            sampler=self.tasks,
            num_workers=count,
            persistent_workers=count > 0,
            prefetch_factor=ahead or None,
            worker_init_fn=partial(_apart, os.getpid()),
            generator=torch.Generator(),  # its own, or it would draw from the global random state
        )

    def decode(
        self, order: NDArray[np.int64], batches: list[range], seeds: tuple[int, int]
    ) -> Iterator[Tensor]:
        """The images at these places of `order`, some at a time and never of two batches.

        They are uint8 [n, h, w, c] and last until the next are asked for.
        """
        self.tasks.clear()  # in place, since the loader holds this very list
        for batch in batches:
            for place in batch[:: self.size]:
                images = order[place : min(place + self.size, batch.stop)]
                slot = len(self.tasks) % len(self.slots)
                self.tasks.append(_Task(slot, seeds, place, images))
        for task, error in zip(self.tasks, self.loader, strict=True):
            if error:
                raise InvalidInput(error)
            yield self.slots[task.slot, : len(task.images)]


def _apart(trainer: int, worker: int) -> None:
    """Out of reach of what is sent to a whole group, as a closed terminal and Ctrl-C are, and of a
    SIGTERM to every process of a job, as batch systems send it: training takes these for a wish to
    stop, and needs its images until its checkpoint is written."""
    os.setpgrp()
    if hasattr(signal, "sigwaitinfo"):  # on Linux
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        threading.Thread(target=_end_with, args=[trainer], daemon=True).start()


def _end_with(trainer: int) -> None:
    """End this process when `trainer` says so; that it is gone is seen by the loader itself."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != trainer:
        pass
    os._exit(0)


class _Files(Dataset[str]):
    """Decodes chunks into their slots, in a worker process."""

    def __init__(self, data: FolderImages, augment: str, slots: Tensor) -> None:
        # A copy, since the set itself would never be freed if the processes kept for it held it.
        self.data, self.augment, self.slots = replace(data), augment, slots

    def __getitem__(self, task: _Task) -> str:
        """Empty, or what is wrong with an image: raised here it would arrive with a traceback."""
        c, h, w = shape = self.data.image_shape
        slot = self.slots[task.slot].numpy()
        for i, index in enumerate(task.images):
            # By its place: an image may come twice in an epoch.
            rng = random.Random(mix(*task.seeds, task.place + i))
            try:
                image = read_crop(self.data.path(index), self.augment, rng, shape)
            except InvalidInput as error:
                return str(error)
            slot[i] = np.asarray(image).reshape(h, w, c)
        return ""


def _share(slots: Tensor, count: int) -> None:
    try:
        slots.share_memory_()
    except RuntimeError:
        raise InvalidInput(
            f"{count} workers need {slots.numel() >> 20} MB of shared memory (/dev/shm); use fewer "
            "(data.workers), or give the container more (docker run --shm-size)."
        ) from None


_idle: WeakKeyDictionary[FolderImages, dict[tuple[str, int, int], Workers]] = WeakKeyDictionary()


def take(data: FolderImages, augment: str, count: int, batch: int) -> Workers:
    """Workers that `give_back` left, else new ones; starting a process takes 0.05 s and more."""
    key = augment, count, batch
    return _idle.get(data, {}).pop(key, None) or Workers(data, *key)


def give_back(data: FolderImages, workers: Workers) -> None:
    """Keep them for the next epoch, as long as `data` is kept."""
    _idle.setdefault(data, {})[workers.key] = workers
