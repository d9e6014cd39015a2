"""Where the time of a training step goes, kernel by kernel, and how far it is from the floor.

    python benchmarks/profile_step.py --norm none --batch 256 --out results/bench
    python benchmarks/profile_step.py --device cpu --model lenet --batch 64      (what the CPU does)

Every method with every trick runs in turn with the fastest plain step, then a few more times under
torch.profiler, which sees the kernels of a graph replay too. `shared-frozen` is the mean pass
alone: its Σ was computed before. JSON and a table go to --out after every method.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from step_floor import floor
from step_kernels import GROUPS, Kernel, kernels_of, sigma_products

from covprop.allocator import keep_freed_memory
from covprop.bench import machine
from covprop.bench.report import Report, Table, mebibytes, milliseconds
from covprop.bench.step import Ready, prepare, reason
from covprop.bench.subject import Subject, subject
from covprop.bench.timing import Effort, Timing, interleaved, seconds_of
from covprop.bench.tricks import TrainingStep
from covprop.device import choose_device
from covprop.train.diverge import finite

METHODS = ("plain", "shared", "shared-detached", "shared-frozen")


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
    # The method's own way to compile is for both passes; the mean pass is for torch.compile.
    vars(base.method)["compile_for"] = lambda model: False


def profile_one(
    method: str, trick: str, ready: Ready, plain: Ready, where: Subject, effort: Effort, calls: int
) -> Profile:
    times = interleaved({"plain": plain.run, "this": ready.run}, where.device, effort)
    kernels, busy = kernels_of(ready.run, where.device.type == "cuda", calls)
    note = "" if finite(ready.base.model) else "the weights diverged"
    return Profile(method, trick, times["this"], times["plain"], ready.bytes, kernels, busy, note)


def build(method: str, where: Subject, batch: int, trick: str) -> Ready:
    if method == "shared-frozen":
        return prepare("shared", where, batch, trick, freeze)
    return prepare(method, where, batch, trick)


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
        [p.method, p.trick, milliseconds(p.time),
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
    device = choose_device(options.device)
    where = subject(
        options.model, device, width=options.width, norm=options.norm, image=options.image
    )
    tricks = (options.tricks or "captured,compiled+captured").split(",")
    if device.type == "cpu" and not options.tricks:
        tricks = ["eager"]
    chosen = list(dict.fromkeys(["plain", *options.methods.split(",")]))
    effort = Effort(rounds=options.rounds)
    profiles: list[Profile] = []

    def done(one: Profile) -> None:
        profiles.append(one)
        shown = milliseconds(one.time) if one.time else one.note
        print(f"{one.method:16s} {one.trick:18s} {shown}", flush=True)
        report(profiles, [], {}, where, options).save(options.out)

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
