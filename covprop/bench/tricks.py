"""One training step, and the tricks that make it faster: the same ones for every method.

`TRICKS` maps a name to a function that takes a `TrainingStep` and gives a callable doing the same
work. A faster way to train is measured by adding it there:

    >>> from covprop.bench.tricks import TRICKS
    >>> TRICKS["mine"] = lambda step: step          # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covprop import cudagraph
from covprop.bench import memory
from covprop.bench.subject import Subject
from covprop.methods import Method
from covprop.train.flat import FlatStep

CAPTURE_WARMUP = 11
"""Steps before a capture: every library has chosen its kernels by then."""


class Unavailable(Exception):
    """This trick does not go with this method or this machine; the message says why."""


@dataclass
class TrainingStep:
    """All that one step needs; calling it runs the step in eager code, as the trainer does."""

    name: str
    subject: Subject
    model: nn.Module
    method: Method
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor
    generator: torch.Generator

    def loss(self) -> Tensor:
        """Forward pass and mean loss."""
        with self.subject.autocast():
            losses = self.method(self.model, self.x, self.y, epoch=0, generator=self.generator)
        return losses.per_sample.float().mean()

    def update(self, loss: Callable[[], Tensor]) -> None:
        """Forward, backward and the optimizer's step, with `loss` for the forward pass."""
        self.optimizer.zero_grad(set_to_none=True)
        made = loss()
        with torch.autograd.set_multithreading_enabled(False):
            made.backward()
        self.optimizer.step()

    def __call__(self) -> None:
        self.update(self.loss)

    def kept(self) -> Iterator[Tensor]:
        """What stays in memory from step to step; gradients are made anew in each."""
        yield from self.model.parameters()
        yield from self.model.buffers()
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
        yield self.x
        yield self.y


Trick = Callable[[TrainingStep], Callable[[], None]]


def eager(step: TrainingStep) -> Callable[[], None]:
    """As it is."""
    return step


def compiled(step: TrainingStep) -> Callable[[], None]:
    """Forward pass, loss and their backward by torch.compile."""
    if step.name == "calibrated":
        raise Unavailable("what the method measures changes in every step, so it recompiles")
    torch.compiler.reset()
    own = getattr(step.method, "compile_for", None)
    if own is not None and own(step.model):
        return step
    step()  # a propagator is built at the first call, which is not for the compiler
    if step.name == "linearized":
        return _flat(step)
    loss = torch.compile(step.loss, dynamic=False)
    return lambda: step.update(loss)


def _flat(step: TrainingStep) -> Callable[[], None]:
    """The same for a loss that contains a gradient, which torch.compile alone does not take."""

    def work(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor]:
        with step.subject.autocast():
            losses = step.method(step.model, x, y, epoch=0, generator=generator)
        return (losses.per_sample.float().mean(),)

    flat = FlatStep(step.model, work, [step.x, step.y])

    def run() -> None:
        flat(step.x, step.y, generator=step.generator)
        step.optimizer.step()

    return run


def captured(step: TrainingStep) -> Callable[[], None]:
    """The whole step as one CUDA graph."""
    return _capture(step, step)


def compiled_captured(step: TrainingStep) -> Callable[[], None]:
    """The compiled step, optimizer included, as one CUDA graph."""
    return _capture(step, compiled(step))


TRICKS: dict[str, Trick] = {
    "eager": eager,
    "compiled": compiled,
    "captured": captured,
    "compiled+captured": compiled_captured,
}


def available(device: torch.device) -> list[str]:
    """The tricks that a device knows; on the CPU compiling is asked for by name."""
    return list(TRICKS) if device.type == "cuda" else ["eager"]


def _capture(step: TrainingStep, work: Callable[[], None]) -> Callable[[], None]:
    if step.x.device.type != "cuda":
        raise Unavailable("CUDA graphs need a GPU")
    if step.name == "calibrated":
        raise Unavailable("the method reads a seed back to the host in every step")
    return capture(work, step.optimizer, step.generator)


def capture(
    work: Callable[[], object],
    optimizer: torch.optim.Optimizer | None = None,
    generator: torch.Generator | None = None,
) -> Callable[[], None]:
    """`work` as one CUDA graph; from here on the peak is what the graph itself holds.

    Its work space is in its own memory, so `memory.settle` may be called while it lives.
    """
    made = cudagraph.capture(
        work, optimizer, generator, warmup=CAPTURE_WARMUP, before=memory.settle
    )
    memory.forget_workspaces()
    return made
