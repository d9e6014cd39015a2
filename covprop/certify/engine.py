"""The same pass again and again: noise, network and counts over a batch of one shape.

Only a small table changes from pass to pass: which image a block of samples belongs to, its first
sample, and how many of its samples count. So the pass is prepared once, compiled if that pays, and
replayed as one CUDA graph. The host writes the table, and reads counts while the next pass runs. On
a device without graphs the same pass runs plainly.
"""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from covprop import cudagraph
from covprop.certify.affine import affine
from covprop.certify.count import add_outcomes
from covprop.certify.fold import folded
from covprop.certify.philox import add_noise
from covprop.errors import first_line
from covprop.logits import Classifier

if TYPE_CHECKING:
    from covprop.certify.bounds import Ints

COMPILE_PAYS = 25.0  # seconds of work; compiling takes 2 to 13 and saves two to four fifths
TRIAL = 5  # passes that are timed, to estimate how long all will take


@dataclass(frozen=True)
class Job:
    """A block of samples: the slot its image is in, its first sample, and how many count."""

    slot: int
    first: int
    taken: int


@dataclass(frozen=True)
class Snapshot:
    """What was counted of every slot up to some pass: [slots, classes + 1], and sums if soft."""

    counts: Tensor
    sums: Tensor
    ready: torch.cuda.Event | None

    def read(self) -> tuple[Ints, np.ndarray]:
        """Counts and sums (Σp and Σp², [2, slots, classes]) on the host, once they are there."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.counts.numpy(), self.sums.numpy()


class Engine:
    """Slots for images, and passes over `width` blocks of samples of any of them."""

    def __init__(
        self,
        model: Classifier,
        image_shape: Sequence[int],
        *,
        sigma: float,
        classes: int,
        block: int,
        width: int,
        slots: int,
        device: torch.device,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
        soft: bool = False,
    ) -> None:
        self.sigma, self.block, self.width, self.slots = sigma, block, width, slots
        self.device, self.dtype, self.soft = device, dtype, soft
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.given, self.layout = model, layout
        self.model = _in_dtype(model, dtype, layout)
        self.network: Classifier = self._network

        def room(*shape: int, kind: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        def copies(count: int) -> Tensor:
            # `contiguous` would leave images of one channel as they are.
            shape = (count, *image_shape)
            made = torch.empty(shape, dtype=torch.float32, device=device, memory_format=layout)
            return made.zero_()

        self.x, self.noisy = copies(slots), copies(width * block)
        self.seeds = room(slots, kind=torch.int64)
        self.table = room(3, width, kind=torch.int64)
        self.counts = room(slots, classes + 1, kind=torch.int64)
        self.sums = room(2, slots if soft else 0, classes, kind=torch.float64)
        self.run: Callable[[], object] = self._pass
        self.passes = 0
        self.wanted = 0
        self.snapshots: deque[Snapshot] = deque()

    @torch.no_grad()
    def load(self, slot: int, x: Tensor | None, seed: int) -> None:
        """Put an image into a slot, or start another stream of the one in it; counts start at 0."""
        if x is not None:
            # From pageable memory the copy would wait for the passes under way.
            x = x.pin_memory() if self.device.type == "cuda" and not x.is_cuda else x
            self.x[slot].copy_(x, non_blocking=True)
        self.seeds[slot].fill_(seed)  # an assignment would wait for the passes as well
        self.counts[slot].zero_()
        if self.soft:
            self.sums[:, slot].zero_()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Start a pass over these jobs, filled up with samples that do not count."""
        table = [(job.slot, job.first, job.taken) for job in jobs]
        table += [(0, 0, 0)] * (self.width - len(table))
        rows = torch.tensor(table, dtype=torch.int64).T.contiguous()
        if self.device.type == "cuda":
            rows = rows.pin_memory()  # kept by the allocator until the copy is done
        self.table.copy_(rows, non_blocking=True)
        self.run()
        self.passes += 1
        self.wanted += sum(job.taken for job in jobs)
        self.snapshots.append(self._snapshot())

    def collect(self) -> tuple[Ints, np.ndarray]:
        """What was counted up to the oldest pass not yet collected."""
        return self.snapshots.popleft().read()

    def close(self) -> None:
        """Free the memory at once: pass and engine refer to each other."""
        while self.snapshots:
            self.collect()
        del self.run, self.network

    def speed_up(self, samples: int, *, compiling: bool | None = None) -> None:
        """Capture the pass; compile it first if told to, or if so many samples take long enough.

        A model that cannot be captured, for instance because it reads a tensor on the host, runs
        plainly.
        """
        if self.device.type != "cuda" or (compiling is not True and not self._capture()):
            return
        if compiling is None:
            passes = samples / (self.width * self.block)
            compiling = passes * self._seconds_a_pass() > COMPILE_PAYS
        if compiling:
            plain, self.model = self.model, self._simplified()
            self.network = torch.compile(self._network, dynamic=False)
            if not self._capture():
                self.model, self.network = plain, self._network
                self._capture()

    def _simplified(self) -> Classifier:
        """The network in fewer steps: norms folded into weights, which are rounded afterwards."""
        half = self.dtype is not None and self.dtype.itemsize == 2
        cudnn = torch.backends.cudnn
        if not (half and torch.version.cuda and cudnn.enabled) or cudnn.deterministic:
            return affine(self.model)
        two = self.x[:2]
        sample = torch.linspace(-2, 2, two.numel(), device=self.device, dtype=two.dtype)
        # Any numbers would do.
        return _in_dtype(folded(self.given, sample.view_as(two)), self.dtype, self.layout)

    def _capture(self) -> bool:
        """Make `run` a graph of the pass, if it can be one."""
        self.table.zero_()  # nothing counts while it warms up
        stream = torch.cuda.Stream(self.device)
        try:
            with torch.cuda.device(self.device), _tuned():
                for _ in range(cudagraph.WARMUP):
                    cudagraph.aside(self._pass, stream)
                if cudagraph.waits(lambda: cudagraph.aside(self._pass, stream)):
                    raise RuntimeError("the host waits for the GPU in it")
                self.run = cudagraph.capture(self._pass, stream=stream)
        except RuntimeError as error:
            warnings.warn(
                f"sampling goes on without a CUDA graph: {first_line(error)}", stacklevel=4
            )
            self.run = self._pass
            return False
        return True

    def _seconds_a_pass(self) -> float:
        stream = torch.cuda.current_stream(self.device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        for _ in range(TRIAL):
            self.run()
        end.record(stream)
        end.synchronize()
        return start.elapsed_time(end) / 1000 / TRIAL

    @torch.no_grad()
    def _pass(self) -> None:
        slot, first, taken = self.table
        add_noise(self.noisy, self.x, self.seeds, slot, first, self.sigma)
        logits = self.network(self.noisy)
        add_outcomes(logits, slot, taken, self.counts, self.sums if self.soft else None)

    def _network(self, noisy: Tensor) -> Tensor:
        if self.dtype in (None, torch.float32):
            return self.model(noisy).float()
        with torch.autocast(self.device.type, dtype=self.dtype, cache_enabled=False):
            return self.model(noisy).float()

    def _snapshot(self) -> Snapshot:
        if self.device.type != "cuda":
            return Snapshot(self.counts.clone(), self.sums.clone(), None)
        counts, sums = (
            torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True)
            for t in (self.counts, self.sums)
        )
        ready = torch.cuda.Event()
        # The stream of this device, which need not be the current one.
        ready.record(torch.cuda.current_stream(self.device))
        return Snapshot(counts, sums, ready)


@contextmanager
def _tuned() -> Iterator[None]:
    """One shape for thousands of passes: cuDNN tries its algorithms and keeps the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.deterministic
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _in_dtype(
    model: Classifier, dtype: torch.dtype | None, layout: torch.memory_format
) -> Classifier:
    """A copy whose convolutions and linear layers hold their weights in autocast's precision.

    Otherwise every pass would cast them, one kernel a layer.
    """
    if not isinstance(model, nn.Module) or dtype in (None, torch.float32):
        return model
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
            layer.to(dtype)
    return model.to(memory_format=layout)  # type: ignore[call-overload]
