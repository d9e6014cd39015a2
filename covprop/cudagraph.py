"""Work on a GPU as one CUDA graph: recorded once, then replayed without the host's work.

A graph repeats the same operations on the same memory, so everything that changes between replays
must be in tensors that stay in place. Random numbers come from generators that are seeded before
each replay: torch passes seed and offset to the graph at every replay.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

WARMUP = 4
"""Times that work runs before it is recorded: by then every library has chosen its kernels."""

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
    """`work` as one CUDA graph; what it reads must stay in place. Nothing is executed.

    Args:
        optimizer: its gradients are dropped first, so that the graph has its own.
        generator: what `work` draws from, besides the default generator.
        warmup: how often to run `work` first.
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
        # This thread only: another one may pin the next batches meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
    except RuntimeError:
        torch.cuda.set_stream(here)  # a capture that cannot be ended leaves its own behind
        torch.cuda.synchronize()
        _release(pool)
        raise
    # Recording passes the generators' seeds on its own stream; the first replay must come later.
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
    """Run `work` on another stream, ordered with the work on the current one."""
    here = torch.cuda.current_stream()
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        work()
    here.wait_stream(stream)


def waits(work: Work) -> bool:
    """Run `work`; returns whether the host waited for the GPU, which no graph can repeat."""
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
