"""Which samples are drawn next, so that every pass is full.

Images wait in a queue. An image gets a slot when there is room in a pass, and keeps it until it has
its answer. While it waits for the counts of a look, other images fill the passes. Counts are read
one pass late, so that the host does not wait for the device while there is work to hand out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from torch import Tensor

from covprop.certify.engine import Engine, Job
from covprop.certify.sample import Tallies
from covprop.noise import seed_of

IN_FLIGHT = 2  # passes under way before the counts of the oldest are read


@dataclass
class Image:
    """An image on its way: the stream it draws from, and how far it has to draw."""

    number: int  # its place in the queue
    index: int
    slot: int
    purpose: str
    target: int
    drawn: int = 0
    tally: Tallies | None = None
    done: bool = False


class Procedure(Protocol):
    """What is drawn for an image, from its first stream to its answer."""

    purpose: str
    first: int

    def advance(self, images: list[Image]) -> None:
        """Give every image, with its `tally` up to `target`, a new target, or set `done`."""


def run(
    engine: Engine, source: Iterator[tuple[int, Tensor]], procedure: Procedure, seed: int
) -> Iterator[list[Image]]:
    """Images as they get their answers, several at a time where they do so in the same pass."""
    number, free = count(), deque(range(engine.slots))
    ready: deque[Image] = deque()  # with samples still to hand out
    under_way: deque[list[Image]] = deque()  # of each pass, the images whose last samples it holds
    jobs: list[Job] = []
    last: list[Image] = []

    def admit() -> bool:
        """Let in the next image of the queue."""
        if not free or (entry := next(source, None)) is None:
            return False
        index, x = entry
        image = Image(next(number), index, free.popleft(), procedure.purpose, procedure.first)
        engine.load(image.slot, x, seed_of(seed, "certify", image.purpose, index))
        ready.append(image)
        return True

    def hand_out() -> None:
        """Fill the pass that is being put together."""
        while len(jobs) < engine.width and (ready or admit()):
            image = ready[0]
            taken = min(engine.block, image.target - image.drawn)
            jobs.append(Job(image.slot, image.drawn, taken))
            image.drawn += taken
            if image.drawn == image.target:
                last.append(ready.popleft())

    def collect() -> list[Image]:
        """Read the oldest pass; returns the images it settled."""
        counts, sums = engine.collect()
        asked = under_way.popleft()
        for image in asked:
            soft = (sums[:, image.slot : image.slot + 1]) if engine.soft else (None, None)
            row = counts[image.slot : image.slot + 1]
            image.tally = Tallies(image.target, row, soft[0], soft[1])
        streams = [image.purpose for image in asked]
        procedure.advance(asked)
        for image, stream in zip(asked, streams, strict=True):
            if image.done:
                free.append(image.slot)
                continue
            if image.purpose != stream:
                image.drawn = 0
                engine.load(image.slot, None, seed_of(seed, "certify", image.purpose, image.index))
            ready.append(image)
        return [image for image in asked if image.done]

    while True:
        hand_out()
        if jobs and (len(jobs) == engine.width or not under_way):
            engine.submit(jobs)
            under_way.append(last)
            jobs, last = [], []
            if len(under_way) < IN_FLIGHT:
                continue
        if not under_way:
            return
        if settled := collect():
            yield settled
