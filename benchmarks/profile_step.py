"""Where the time of a training step goes, kernel by kernel, and how far it is from the floor.

    python benchmarks/profile_step.py --norm none --batch 256 --out results/bench
    python benchmarks/profile_step.py --device cpu --model lenet --batch 64      (what the CPU does)

Every method with every trick runs in turn with the fastest plain step, then a few more times under
torch.profiler, which sees the kernels of a graph replay too. `shared-frozen` is the mean pass
alone: its Σ was computed before. JSON and a table go to --out after every method.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from covprop.allocator import keep_freed_memory
from covprop.bench import machine
from covprop.bench.certify import matrix_product
from covprop.bench.layers import count_flops
from covprop.bench.report import Report, Table, mebibytes, milliseconds
from covprop.bench.step import Ready, prepare, reason, training_step
from covprop.bench.subject import SIGMA, Subject, subject
from covprop.bench.timing import Effort, Timing, interleaved, seconds_of
from covprop.bench.tricks import TrainingStep
from covprop.propagate.propagator import Propagator

GROUPS = {
    "optimizer": r"multi_tensor_apply|foreach|[Ss]gd",
    "compiled pointwise": r"^triton_poi_",
    "compiled reduction": r"^triton_(red|per)_",
    "norm": r"bn_|batch_norm",
    "convolution": r"fprop|dgrad|wgrad|conv|cudnn",
    "matrix product": r"gemm|nvjet|gemv|splitK|cutlass|cublas|aten::(add|b|badd)?b?mm$|triton_tem",
    "moment-ReLU": r"moment|Moment|^_(forward|backward)|aten::(erf|exp_?)$",
    "copy or cast": r"copy|Memcpy|Memset|memset|CatArray|ranspose|nchw|nhwc|[Ff]ill|clone",
    "random numbers": r"distribution|random|philox|normal_",
    "reduction": r"reduce|aten::(sum|mean|norm)",
    "pointwise": r"elementwise|vectorized|aten::(add|mul|div|neg|pow|clamp|threshold)",
}
"""Group -> what a kernel's name contains, the first that fits. torch.compile puts the moment-ReLU
into the pointwise and reduction kernels of its neighbours; a matrix product that a plain step does
not have belongs to Σ."""

METHODS = ("plain", "shared", "shared-detached", "shared-frozen")


@dataclass
class Kernel:
    """All launches of one kernel in a step."""

    name: str
    seconds: float
    launches: float

    @property
    def group(self) -> str:
        return next((g for g, pattern in GROUPS.items() if re.search(pattern, self.name)), "other")


@dataclass
class Profile:
    """One method with one trick: its time in turn with plain, and its kernels."""

    method: str
    trick: str
    time: Timing | None = None
    plain: Timing | None = None
    bytes: int = 0
    kernels: Sequence[Kernel] = ()
    busy: float = 0.0
    """Seconds of a step in which some kernel runs; streams may overlap, so kernels may add up to
    more, and the step may take longer where the GPU waits for the host."""
    note: str = ""

    def groups(self) -> dict[str, float]:
        found = dict.fromkeys([*GROUPS, "other"], 0.0)
        for kernel in self.kernels:
            found[kernel.group] += kernel.seconds
        return found


def freeze(base: TrainingStep) -> None:
    """Compute Σ now and leave it at that."""
    held = base.method.propagator(base.model).frozen()  # type: ignore[attr-defined]
    held.__enter__()
    vars(base)["held"] = held  # its end, by garbage collection too, would thaw Σ


def kernels_of(work: Callable[[], None], cuda: bool, calls: int) -> tuple[list[Kernel], float]:
    """Kernels on a GPU (operators' own time on the CPU) by their total time, and busy seconds."""
    work()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as found:
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


def profile_one(
    method: str, trick: str, ready: Ready, plain: Ready, where: Subject, effort: Effort, calls: int
) -> Profile:
    times = interleaved({"plain": plain.run, "this": ready.run}, where.device, effort)
    kernels, busy = kernels_of(ready.run, where.device.type == "cuda", calls)
    note = "" if ready.base.healthy() else "the weights diverged"
    return Profile(method, trick, times["this"], times["plain"], ready.bytes, kernels, busy, note)


def build(method: str, where: Subject, batch: int, trick: str) -> Ready:
    if method == "shared-frozen":
        return prepare("shared", where, batch, trick, freeze)
    return prepare(method, where, batch, trick)


def sigma_products(where: Subject) -> Table:
    """The matrix products of the Σ pass, forward and backward, by shape: eager, one by one."""
    base = training_step("shared", where, 2)
    prop = Propagator(base.model.eval(), SIGMA, where.image_shape)

    def work() -> None:
        base.optimizer.zero_grad(set_to_none=True)
        cov = prop.covariances()[prop.plan.output]
        assert isinstance(cov, Tensor)
        cov.trace().backward()

    cuda = where.device.type == "cuda"
    for _ in range(3):
        work()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, record_shapes=True) as found:
        work()
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


def floor(where: Subject, batch: int) -> dict[str, float]:
    """Operations and bytes a step cannot do without, over what this machine reaches."""
    cuda = where.device.type == "cuda"
    size = 8192 if cuda else 1024
    wide = torch.randn(size, size, device=where.device)
    half = torch.empty(2**28 if cuda else 2**22, device=where.device, dtype=torch.bfloat16)
    other = torch.empty_like(half)
    product = matrix_product(where.device, size)
    sides = {"product": product, "wide": lambda: wide @ wide, "copy": lambda: other.copy_(half)}
    times = interleaved(sides, where.device, Effort(warmup=3, rounds=10))
    rate, sigma_rate = (2 * size**3 / times[side].low for side in ("product", "wide"))
    bandwidth = 2 * 2 * half.numel() / times["copy"].low

    base = training_step("shared", where, 2)
    base()
    sigma_flops = sigma_pass_flops(where)
    per_image = (count_flops(base) - sigma_flops) / 2
    relu, maps = map_numbers(where)
    number = 2 if where.precision == "bf16" else 4
    return {
        "matrix product, TFLOP/s": rate / 1e12,
        "float32 (TF32 on a GPU) matrix product, TFLOP/s": sigma_rate / 1e12,
        "copy, GB/s (read and written)": bandwidth / 1e9,
        "network, forward and backward, GFLOP": batch * per_image / 1e9,
        "network at that rate, ms": 1e3 * batch * per_image / rate,
        "Σ pass, forward and backward, GFLOP": sigma_flops / 1e9,
        "Σ pass at that rate, ms": 1e3 * sigma_flops / sigma_rate,
        "all feature maps, MiB": batch * maps * number / 2**20,
        "inputs of ReLUs, MiB": batch * relu * number / 2**20,
        "ReLUs alone (2 maps forward, 3 backward), ms": 1e3 * 5 * batch * relu * number / bandwidth,
        "each map written, read, read again; so its gradient, ms": (
            1e3 * 6 * batch * maps * number / bandwidth
        ),
    }


def sigma_pass_flops(where: Subject) -> int:
    """Of the Σ pass and its backward: the step's on 4 images is twice that on 2, less this."""
    two, four = training_step("shared", where, 2), training_step("shared", where, 4)
    two()
    four()
    return 2 * count_flops(two) - count_flops(four)


def map_numbers(where: Subject) -> tuple[int, int]:
    """Numbers of an image's feature maps: those a ReLU reads, and all."""
    prop = Propagator(where.build().eval(), SIGMA, where.image_shape)
    relu = sum(_size(step.out_shape) for step in prop.plan.steps if step.rule and step.rule.mean)
    return relu, sum(_size(step.out_shape) for step in prop.plan.steps if step.rule)


def _size(shape: Sequence[int]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


def report(
    profiles: Sequence[Profile], extra: Sequence[Table], limits: dict[str, float], where: Subject,
    options: argparse.Namespace,
) -> Report:  # fmt: skip
    facts = machine.facts(where.device)
    facts["command"] = shlex.join(["python", *sys.argv])
    done = [p for p in profiles if p.time]
    tables = [_steps(done), _by_group(done), *extra]
    tables += [_kernel_table(p, options.top) for p in done]
    floors = Table("The floor", ["what", "figure"], [[k, f"{v:,.3f}"] for k, v in limits.items()])
    rows: list[dict[str, Any]] = [
        {
            "method": p.method,
            "trick": p.trick,
            "seconds": p.time.as_dict() if p.time else None,
            "plain_seconds": p.plain.as_dict() if p.plain else None,
            "peak_bytes": p.bytes,
            "busy_seconds": p.busy,
            "groups": p.groups(),
            "kernels": [vars(k) | {"group": k.group} for k in p.kernels[: options.top]],
            "note": p.note,
        }
        for p in profiles
    ]
    return Report(
        verb="profile",
        name=f"{where.name}_b{options.batch}",
        facts=facts,
        settings={"batch": options.batch, "precision": where.precision, "floor": limits},
        rows=rows,
        tables=[tables[0], floors, *tables[1:]],
        notes=[f"{p.method}, {p.trick}: {p.note}." for p in profiles if p.note],
    )


def _steps(done: Sequence[Profile]) -> Table:
    columns = ["method", "trick", "ms a step", "over plain", "busy ms", "kernels", "peak MiB"]
    rows = [
        [p.method, p.trick, milliseconds(p.time.median, p.time.low, p.time.high),
         f"{p.time.median / p.plain.median:.3f}", f"{1e3 * p.busy:.3f}",
         f"{sum(k.launches for k in p.kernels):.0f}", mebibytes(p.bytes)]
        for p in done if p.time and p.plain
    ]  # fmt: skip
    return Table("A training step, in turn with the fastest plain one", columns, rows, left=2)


def _by_group(done: Sequence[Profile]) -> Table:
    """Milliseconds by group, and how much more than the plain step with the same trick."""
    plain = {p.trick: p.groups() for p in done if p.method == "plain"}
    names = [*GROUPS, "other"]
    rows = []
    for group in names:
        if not any(p.groups()[group] for p in done):
            continue
        cells = []
        for p in done:
            mine, theirs = p.groups()[group], plain[p.trick][group]
            more = f" ({1e3 * (mine - theirs):+.3f})" if p.method != "plain" else ""
            cells.append(f"{1e3 * mine:.3f}{more}")
        rows.append([group, *cells])
    columns = ["ms a step (over plain)", *(f"{p.method}, {p.trick}" for p in done)]
    return Table("Kernel time by group", columns, rows)


def _kernel_table(one: Profile, top: int) -> Table:
    rows = [
        [k.name if len(k.name) < 110 else k.name[:107] + "…", k.group, f"{k.launches:.0f}",
         f"{1e6 * k.seconds:.1f}"]
        for k in one.kernels[:top]
    ]  # fmt: skip
    columns = ["kernel", "group", "launches", "µs a step"]
    return Table(f"{one.method}, {one.trick}", columns, rows, left=2)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="preact_resnet18")
    parser.add_argument("--width", type=int)
    parser.add_argument("--norm", help="batch, none or act; the model's own by default")
    parser.add_argument("--image", type=int)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--tricks", help="captured,compiled+captured on a GPU; eager on the CPU")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=5, help="steps under the profiler")
    parser.add_argument("--top", type=int, default=25, help="kernels listed a step")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    return parser.parse_args()


def main() -> None:
    options = parse()
    keep_freed_memory()  # as the program does
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cudnn.benchmark = True
    device = machine.choose_device(options.device)
    where = subject(
        options.model, device, width=options.width, norm=options.norm, image=options.image
    )
    tricks = (options.tricks or "captured,compiled+captured").split(",")
    if device.type == "cpu" and not options.tricks:
        tricks = ["eager"]
    chosen = list(dict.fromkeys(["plain", *options.methods.split(",")]))
    effort = Effort(rounds=options.rounds)
    profiles: list[Profile] = []

    def done(
        one: Profile, extra: Sequence[Table] = (), limits: dict[str, float] | None = None
    ) -> None:
        profiles.append(one)
        shown = milliseconds(one.time.median, one.time.low, one.time.high) if one.time else one.note
        print(f"{one.method:16s} {one.trick:18s} {shown}", flush=True)
        report(profiles, extra, limits or {}, where, options).save(options.out)

    ready = {trick: build("plain", where, options.batch, trick) for trick in tricks}
    once = {trick: seconds_of(one.run, device, 3) for trick, one in ready.items()}
    plain = ready[min(once, key=lambda trick: once[trick])]
    for trick, one in ready.items():
        done(profile_one("plain", trick, one, plain, where, effort, options.calls))
    ready.clear()
    for method in chosen[1:]:
        for trick in tricks:
            try:
                one = build(method, where, options.batch, trick)
                done(profile_one(method, trick, one, plain, where, effort, options.calls))
            except Exception as error:  # one that does not run must not cost the others
                done(Profile(method, trick, note=reason(error)))
    final = report(profiles, [sigma_products(where)], floor(where, options.batch), where, options)
    final.print(Console(width=180))
    for path in final.save(options.out):
        print("wrote", path)


if __name__ == "__main__":
    main()
