"""A training step as one CUDA graph: recorded once, then replayed without the host's work.

Before a replay the batch is copied to where the recorded step reads it, and generators are seeded;
the learning rate is a tensor. See `covprop.cudagraph`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

import torch

from covprop.cudagraph import WARMUP, Work, aside, capture, waits
from covprop.data import Batch
from covprop.errors import first_line
from covprop.train.update import Update


class Recorder(Protocol):
    """What `Fast` needs of a GPU."""

    def run(self, work: Work) -> None:
        """Run `work` in a way that prepares for recording it."""

    def waits(self, work: Work) -> bool:
        """The same, and say whether the host had to wait within it."""

    def record(self, work: Work, update: Update) -> Callable[[], None]:
        """`work` as something that can be called again and again; RuntimeError if it cannot."""

    def recover(self, update: Update) -> None:
        """Clean up after a `record` that failed."""


class Gpu:
    """Runs and records on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def run(self, work: Work) -> None:
        aside(work, self.stream)

    def waits(self, work: Work) -> bool:
        return waits(lambda: aside(work, self.stream))

    def record(self, work: Work, update: Update) -> Callable[[], None]:
        return capture(work, update.optimizer, update.generator, stream=self.stream)

    def recover(self, update: Update) -> None:
        # Generators of a failed capture still wait for its end, so they get a fresh state.
        for generator in (*update.defaults, update.generator):
            if generator.device.type == "cuda":
                fresh = torch.Generator(self.device).manual_seed(generator.initial_seed())
                generator.graphsafe_set_state(fresh.graphsafe_get_state())
        update.optimizer.zero_grad(set_to_none=True)


class Fast:
    """Runs the first steps of a phase plainly, then records a step and replays it.

    The plain steps train and warm up what will be recorded. If a step cannot be recorded, all
    further ones run plainly, and `say` is told once.
    """

    def __init__(self, update: Update, say: Callable[[str], None], recorder: Recorder) -> None:
        self.update, self.say, self.recorder = update, say, recorder
        self.possible = True
        self.phase: Hashable = None
        self.left = 0
        self.batch: Batch | None = None
        self.replay: Callable[[], None] | None = None

    def __call__(self, batch: Batch, epoch: int) -> None:
        """One step on `batch`, after `update.prepare`."""
        phase = self.update.phase(epoch) if self.possible else None
        if phase != self.phase:
            self.replay = None
            self.update.optimizer.zero_grad(set_to_none=True)  # gradients may be the graph's memory
            self.phase, self.left = phase, WARMUP
        if phase is None:
            self.update(batch, epoch)
        elif self.left:
            self._warm(batch, epoch)
        elif self.replay is not None or self._record(batch, epoch):
            assert self.replay is not None
            assert self.batch is not None
            for mine, given in zip(self.batch, batch, strict=True):
                mine.copy_(given, non_blocking=True)
            self.replay()
        else:
            self.update(batch, epoch)

    def _warm(self, batch: Batch, epoch: int) -> None:
        self.left -= 1
        if self.left:
            self.recorder.run(lambda: self.update(batch, epoch))
        elif self.recorder.waits(lambda: self.update(batch, epoch)):
            self._give_up("the host waits for the GPU in it")

    def _record(self, batch: Batch, epoch: int) -> bool:
        self.batch = fixed = Batch(*(tensor.clone() for tensor in batch))
        try:
            self.replay = self.recorder.record(lambda: self.update(fixed, epoch), self.update)
        except RuntimeError as error:
            self.recorder.recover(self.update)
            self._give_up(_first_cause(error))
        return self.replay is not None

    def _give_up(self, why: str) -> None:
        self.possible = False
        self.phase = self.replay = self.batch = None
        self.say(
            f"This step cannot be recorded as a CUDA graph ({why}); training goes on without, "
            "slower but the same."
        )


def _first_cause(error: BaseException) -> str:
    """The first line of the first error: ending a broken capture raises another one."""
    while error.__context__ is not None:
        error = error.__context__
    return first_line(error)
