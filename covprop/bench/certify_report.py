"""The table and figure of `covprop bench certify`."""

from __future__ import annotations

from collections.abc import Sequence

from covprop.bench import plots
from covprop.bench.certify import DELTA, LOOP, SEQUENTIAL, Side, Task
from covprop.bench.machine import Facts
from covprop.bench.report import Report, Table


def certify_report(
    sides: Sequence[Side], task: Task, name: str, trained: bool, facts: Facts
) -> Report:
    """Everything `covprop bench certify` has to say."""
    loop = next(side for side in sides if side.name == LOOP)
    speedup = {side.name: loop.time.median / side.time.median for side in sides}
    rows = [
        [
            side.name,
            f"{side.time.median / side.images:.3f}",
            f"{side.samples:,.0f}",
            f"{1e6 * side.seconds_a_sample:.3g}",
            f"{speedup[side.name]:.2f}",
            f"{100 * side.share:.1f}",
        ]
        for side in sides
    ]
    kind = "bf16" if task.device.type == "cuda" else "fp32"
    columns = ["way", "seconds an image", "samples an image", "µs a sample"]
    columns += ["times as fast as the loop", f"% of the {kind} ceiling"]
    title = f"Certifying {name}: {len(task.x)} images, N = {task.n:,}, α = {task.alpha:g}"
    notes = [
        f"Ceiling: a large {kind} matrix product in the same run, "
        f"{loop.ceiling / 1e12:,.3g} TFLOP/s; a sample takes {loop.flops / 1e9:.4g} GFLOP.",
        f"Sequential: stops when all N samples would certify at most {DELTA} more; the same α.",
    ]
    if not trained:
        notes.append(
            f"The network is untrained: how soon {SEQUENTIAL} stops says nothing about a trained "
            "one; give a run folder."
        )
    return Report(
        verb="certify",
        name=name,
        facts=facts,
        settings={
            "sigma": task.sigma,
            "n0": task.n0,
            "n": task.n,
            "alpha": task.alpha,
            "batch": task.batch,
            "images": len(task.x),
            "trained": trained,
            "flops_a_sample": loop.flops,
            "ceiling_flops": loop.ceiling,
        },
        rows=[
            {
                "way": side.name,
                "seconds": side.time.as_dict(),
                "samples_an_image": side.samples,
                "seconds_a_sample": side.seconds_a_sample,
                "times_as_fast": speedup[side.name],
                "share_of_ceiling": side.share,
            }
            for side in sides
        ],
        tables=[Table(title, columns, rows)],
        notes=notes,
        figures=lambda: {
            "ways": plots.bars(
                {side.name: side.time.median / side.images for side in sides}, "seconds an image"
            )
        },
    )
