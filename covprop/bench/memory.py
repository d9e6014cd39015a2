"""Peak memory of a training step.

On a GPU it is the caching allocator's own peak, the work space of matrix products included: cuBLAS
keeps some for every thread and stream from its first product there on, 32 MiB on an H200, and it is
charged to every step that uses it, not to the first of the process alone. On the CPU the profiler
reports every allocation and release of torch's allocator, work space inside operations included;
their running sum is what is alive. Both leave out what the process needs besides tensors.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

HOW = {
    "cuda": "peak of torch.cuda.max_memory_allocated above what was allocated before, cuBLAS's "
    "work space included",
    "cpu": "weights, optimizer state and batch, plus the peak of torch's live allocations in a "
    "step (profiler)",
}


def settle() -> None:
    """Forget what earlier measurements left behind."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        forget_workspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def forget_workspaces() -> None:
    """Give back the work space of cuBLAS; the next product on a stream takes some anew.

    A CUDA graph goes on using the one it was recorded with. So a graph that is to outlive this has
    to be recorded between two calls: the first makes it take work space from its own memory, which
    no other gets while the graph lives, and the second keeps products outside of it from that.
    """
    torch._C._cuda_clearCublasWorkspaces()


def cuda_peak(before: int) -> int:
    """Bytes above `before` at the highest point since the last reset."""
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def cpu_peak(work: Callable[[], object], kept: Iterable[Tensor]) -> int:
    """Bytes of `kept` (what lives before, during and after) plus the peak that `work` adds.

    Runs `work` twice: in the second run everything it releases was seen being allocated.
    """
    total = sum(storage_bytes(tensor) for tensor in kept)
    with quiet_stderr():
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(
            activities=activities, profile_memory=True, acc_events=True
        ) as profile:
            work()
            work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    memory = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"])
    alive = peak = 0
    for event in memory:
        alive += event["args"]["Bytes"]
        peak = max(peak, alive)
    return total + peak


def storage_bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """The profiler's C++ side greets on stderr, and remarks on memory older than itself."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
