"""A training step as one CUDA graph: recorded once, replayed without the host's part of the work.

A graph repeats the same operations on the same memory. So a recorded step has its batch copied to
where it is read, its learning rate in a tensor, and its random numbers from generators that are
seeded anew before each replay: torch hands seed and offset to the graph whenever it is replayed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from covprop.data import Batch
from covprop.errors import first_line
from covprop.train.update import Update

WARMUP = 4
"""Steps of a phase that run before it is recorded: by then every library has chosen its kernels."""

Work = Callable[[], object]


@dataclass
class Captured:
    """A graph, together with what it reads: the graph itself keeps no tensor alive."""

    graph: torch.cuda.CUDAGraph
    work: Work

    def __call__(self) -> None:
        self.graph.replay()


def capture(
    work: Work,
    optimizer: torch.optim.Optimizer | None = None,
    generator: torch.Generator | None = None,
    *,
    warmup: int = 0,
    stream: torch.cuda.Stream | None = None,
    before: Callable[[], None] = lambda: None,
) -> Callable[[], None]:
    """`work` as one CUDA graph; all that it reads stays where it is. Nothing is executed.

    Args:
        optimizer: its gradients are dropped first, so that the graph has its own.
        generator: what `work` draws from, besides the default generator.
        warmup: times to run `work` first, where that was not done already.
        stream: what to record on.
        before: called when all is ready.
    """
    here, stream = torch.cuda.current_stream(), stream or torch.cuda.Stream()
    for _ in range(warmup):
        aside(work, stream)
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
    before()
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    if generator is not None:
        graph.register_generator_state(generator)
    try:
        # Of this thread only: another that pins the next batches meanwhile is no part of it.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
    except RuntimeError:
        torch.cuda.set_stream(here)  # a capture that cannot be ended leaves its own behind
        torch.cuda.synchronize()
        _release(pool)
        raise
    # Recording hands the generators' seeds to the graph on its own stream, which could come after
    # the first replay's.
    here.wait_stream(stream)
    return Captured(graph, work)


def _release(pool: Any) -> None:
    """Tell the allocator that a failed capture is over, which some versions of torch forget."""
    device = torch.cuda.current_device()
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError:
        return  # it knows
    torch._C._cuda_releasePool(device, pool)


def aside(work: Work, stream: torch.cuda.Stream) -> None:
    """Run `work` on another stream, in its turn."""
    here = torch.cuda.current_stream()
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        work()
    here.wait_stream(stream)


def waits(work: Work) -> bool:
    """Run `work`, and say whether the host waited for the GPU in it, which no graph can repeat."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    other = [w for w in seen if "ynchroniz" not in str(w.message)]
    for warning in other:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return any("called a synchronizing" in str(warning.message) for warning in seen)


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
    """The real one: all on a stream of its own."""

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
        # Generators that took part in a failed capture still wait for its end.
        for generator in (*update.defaults, update.generator):
            if generator.device.type == "cuda":
                fresh = torch.Generator(self.device).manual_seed(generator.initial_seed())
                generator.graphsafe_set_state(fresh.graphsafe_get_state())
        update.optimizer.zero_grad(set_to_none=True)


class Fast:
    """Steps that are recorded as soon as they are the same as the last ones, then replayed.

    The first steps of a phase run as they are: they warm up what will be recorded, and train.
    A step that cannot be recorded runs as it is, to the end of the run; `say` hears of it once.
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
            self.update.optimizer.zero_grad(set_to_none=True)  # they may live in the graph
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
    """The first line of what went wrong first: ending a broken capture fails as well."""
    while error.__context__ is not None:
        error = error.__context__
    return first_line(error)
