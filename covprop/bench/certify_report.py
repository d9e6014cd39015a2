"""The table and figure of `covprop bench certify`."""

from __future__ import annotations

from collections.abc import Sequence

from covprop.bench import plots
from covprop.bench.certify import LOOP, LOOP_TF32, Side, Task
from covprop.bench.machine import Facts
from covprop.bench.report import Report, Table

SETS = (500, 2000)  # test images: CIFAR-10 certified as usual, and four times as many


def certify_report(
    sides: Sequence[Side], task: Task, name: str, weights: str, facts: Facts
) -> Report:
    """Everything `covprop bench certify` has to say; `weights` is how the model got its own."""
    loops = [side for base in (LOOP, LOOP_TF32) for side in sides if side.name == base]
    kind = "bf16" if task.device.type == "cuda" else "fp32"
    heading = f"Certifying {name}: N = {task.n:,}, α = {task.alpha:g}, σ = {task.sigma:g}"
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
            "weights": weights,
            "flops_a_sample": loops[0].flops,
            "ceiling_flops": loops[0].ceiling,
        },
        rows=[_row(side, loops) for side in sides],
        tables=[_table(heading, sides, loops, kind)],
        notes=_notes(task, loops[0], weights, kind),
        figures=lambda: {
            "ways": plots.bars(
                {side.name: side.seconds_an_image for side in sides}, "seconds an image"
            )
        },
    )


def _row(side: Side, loops: Sequence[Side]) -> dict[str, object]:
    return {
        "way": side.name,
        "images": side.images,
        "seconds": side.time.as_dict(),
        "setup_seconds": side.setup,
        "samples_an_image": side.samples,
        "seconds_a_sample": side.seconds_a_sample,
        "seconds_an_image": side.seconds_an_image,
        "times_as_fast": {f"than {base.name}": _times(base, side) for base in loops},
        "share_of_ceiling": side.share,
        "share_of_samples_used": side.fill,
        "seconds_for_images": {str(images): side.seconds(images) for images in SETS},
    }


def _table(heading: str, sides: Sequence[Side], loops: Sequence[Side], kind: str) -> Table:
    columns = ["way", "images", "samples an image", "µs a sample", "seconds an image"]
    columns += [f"times as fast as the {base.name}" for base in loops]
    columns += [f"% of the {kind} ceiling", "% of samples used", "set-up, s"]
    columns += [f"{images:,} images" for images in SETS]
    rows = [
        [
            side.name,
            f"{side.images}",
            f"{side.samples:,.0f}",
            f"{1e6 * side.seconds_a_sample:.3g}",
            f"{side.seconds_an_image:.4g}",
            *(f"{_times(base, side):.2f}" for base in loops),
            f"{100 * side.share:.1f}",
            f"{100 * side.fill:.1f}",
            f"{side.setup:.1f}",
            *(_clock(side.seconds(images)) for images in SETS),
        ]
        for side in sides
    ]
    return Table(heading, columns, rows)


def _notes(task: Task, loop: Side, weights: str, kind: str) -> list[str]:
    notes = [
        f"Ceiling: large {kind} matrix products in the same run, "
        f"{loop.ceiling / 1e12:,.3g} TFLOP/s; a sample takes {loop.flops / 1e9:.4g} GFLOP.",
        "The usual loop: one image after the other, 1,000 copies a pass, counted on the host one "
        "by one"
        + (
            "; in fp32 as on the GPUs it was written for, and with TF32 for products and "
            "convolutions."
            if task.device.type == "cuda"
            else "."
        ),
        f"Times as fast: seconds an image, set-up left out. {' and '.join(map(str, SETS))} images: "
        "that, with set-up.",
        "Sequential: the same α in all; stops when all N samples would be expected to certify at "
        "most so much more, or when it is known which of the radii are reached.",
        f"Weights: {weights}.",
    ]
    if weights.startswith("untrained"):
        notes.append(
            "How soon a sequential certificate stops says nothing about a trained network here; "
            "give a run folder."
        )
    return notes


def _times(base: Side, side: Side) -> float:
    return base.seconds_an_image / side.seconds_an_image


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
