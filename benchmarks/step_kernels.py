"""What runs inside a step, as torch.profiler sees it: kernels by name, group and shape."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from covprop.bench.layers import propagator, sigma_pass_and_backward
from covprop.bench.memory import quiet_stderr
from covprop.bench.report import Table
from covprop.bench.subject import Subject

GROUPS = {
    "optimizer": r"multi_tensor_apply|foreach|[Ss]gd",
    "compiled pointwise": r"^triton_poi_",
    "compiled reduction": r"^triton_(red|per)_",
    "norm": r"bn_|batch_norm",
    "convolution": r"fprop|dgrad|wgrad|conv|cudnn",
    "matrix product": r"gemm|nvjet|gemv|splitK|cutlass|cublas|aten::(add|b|badd)?b?mm$|triton_tem",
    "moment-ReLU": r"moment|Moment|^_(forward|backward|sum_parts)|aten::(erf|exp_?)$",
    "copy or cast": r"copy|Memcpy|Memset|memset|CatArray|ranspose|nchw|nhwc|[Ff]ill|clone",
    "random numbers": r"distribution|random|philox|normal_",
    "reduction": r"reduce|aten::(sum|mean|norm)",
    "pointwise": r"elementwise|vectorized|aten::(add|mul|div|neg|pow|clamp|threshold)",
}
"""Group -> what a kernel's name contains, the first that fits. torch.compile puts the moment-ReLU
into the pointwise and reduction kernels of its neighbours; a matrix product that a plain step does
not have belongs to Σ."""


@dataclass
class Kernel:
    """All launches of one kernel in a step."""

    name: str
    seconds: float
    launches: float

    @property
    def group(self) -> str:
        return next((g for g, pattern in GROUPS.items() if re.search(pattern, self.name)), "other")


def kernels_of(work: Callable[[], None], cuda: bool, calls: int) -> tuple[list[Kernel], float]:
    """Kernels on a GPU (operators' own time on the CPU) by their total time, and busy seconds."""
    work()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with quiet_stderr(), profile(activities=activities, acc_events=True) as found:
        for _ in range(calls):
            work()
        if cuda:
            torch.cuda.synchronize()
    if not cuda:
        rows = [
            Kernel(e.key, e.self_cpu_time_total / 1e6 / calls, e.count / calls)
            for e in found.key_averages()
        ]
        return sorted(rows, key=lambda k: -k.seconds), sum(k.seconds for k in rows)
    events = on_device(found)
    seconds: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for event in events:
        seconds[event["name"]] += event["dur"]
        launches[event["name"]] += 1
    listed = [Kernel(n, s / 1e6 / calls, launches[n] / calls) for n, s in seconds.most_common()]
    return listed, busy_time(events) / 1e6 / calls


def on_device(found: profile) -> list[dict[str, Any]]:
    """What ran on the GPU, in order."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    return sorted((e for e in events if e.get("cat") in kinds), key=lambda e: e["ts"])


def busy_time(events: Sequence[dict[str, Any]]) -> float:
    """Length of the union of the events' intervals, in microseconds."""
    total = end = 0.0
    for event in events:
        stop = event["ts"] + event["dur"]
        total += max(0.0, stop - max(end, event["ts"]))
        end = max(end, stop)
    return total


def sigma_products(where: Subject) -> Table:
    """The matrix products of the Σ pass, forward and backward, by shape: eager, one by one."""
    prop = propagator(where)
    cuda = where.device.type == "cuda"
    for _ in range(3):
        sigma_pass_and_backward(prop, where)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    options: dict[str, Any] = {"record_shapes": True, "acc_events": True}
    with quiet_stderr(), profile(activities=activities, **options) as found:
        sigma_pass_and_backward(prop, where)
        if cuda:
            torch.cuda.synchronize()
    rows = []
    for event in found.key_averages(group_by_input_shape=True):
        if event.key not in ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"):
            continue
        shapes = [s for s in event.input_shapes if len(s) > 1][-2:]
        seconds = (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e6
        flops = 2 * event.count * shapes[0][-2] * shapes[0][-1] * shapes[1][-1]
        flops *= shapes[0][0] if len(shapes[0]) == 3 else 1
        rows.append((seconds, event.count, flops, shapes))
    rows.sort(key=lambda row: -row[0])
    lines = [
        ["×".join(map(str, s[0])) + " · " + "×".join(map(str, s[1])), str(n), f"{1e6 * t:.1f}",
         f"{f / 1e9:.3f}", f"{f / max(t, 1e-9) / 1e12:.2f}"]
        for t, n, f, s in rows
    ]  # fmt: skip
    total, count, flops = (sum(column) for column in list(zip(*rows, strict=True))[:3])
    rate = flops / max(total, 1e-9) / 1e12
    lines.append(["all", str(count), f"{1e6 * total:.1f}", f"{flops / 1e9:.3f}", f"{rate:.2f}"])
    columns = ["shapes", "count", "µs in all", "GFLOP", "TFLOP/s"]
    return Table("Matrix products of the Σ pass and its backward", columns, lines)
