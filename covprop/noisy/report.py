"""After training: what the run reached, how many labels are wrong, and which ones.

Written into the run folder: summary.json, suspects.csv, suspects.png and predictions.npz (the
class probabilities averaged over the epochs, `probability` [n, k], and the labels `given` [n]).
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covprop import data
from covprop.data.decode import read_image
from covprop.data.label_noise import read_table
from covprop.errors import InvalidInput
from covprop.files import write as write_file
from covprop.noisy import suspects as listing
from covprop.noisy.rate import Floats, estimate_rate
from covprop.run import Run
from covprop.train import checkpoint

LAST = 10
"""Epochs at the end of a run over which its accuracy is averaged."""
PICTURES = 40


def judge(
    folder: Path | str, data_root: Path | None = None, *, cleanlab: bool = False
) -> dict[str, Any]:
    """Judge a finished run, write the files, and return what summary.json holds.

    With `cleanlab`, also what that package makes of the same labels and predictions.

    Example:
        >>> judge("runs/noisy/digits/coteaching-pair-0.45")["noise_rate"]     # doctest: +SKIP
    """
    run = Run(folder)
    if "labels" not in run.config:
        raise InvalidInput(f"{folder} was trained without [labels]; `covprop noisy` makes others.")
    labels = read_table(run.folder / "labels.tsv")
    probability, radius = _remembered(run.folder)
    given = labels.noisy.numpy()
    rate = estimate_rate(given, probability)
    clean = None if labels.clean is None else labels.clean.numpy()
    found = listing.find(given, probability, rate.rate, radius=radius, clean=clean)
    summary = {
        "method": run.config["method"]["name"],
        **accuracy(run.metrics()),
        "noise_rate": {
            "true": labels.rate,
            "estimate": rate.rate,
            "low": rate.low,
            "high": rate.high,
            "confident_joint": rate.confident_joint.rate,
            "mixture": rate.mixture.rate,
            "contradicted": rate.contradicted,
        },
        "suspects": {"flagged": int(found.flagged.sum()), **_numbers(found.scores())},
    }
    if cleanlab:
        from covprop.noisy.cleanlab import compare

        summary["cleanlab"] = _numbers(compare(found, probability))
    write(run, summary, found, probability, data_root)
    return summary


def accuracy(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of the clean test accuracy over the last ten epochs.

    The best epoch is not among the numbers: choosing it takes the test labels.
    """
    if not rows:
        raise InvalidInput(
            "The run has no finished epoch in metrics.jsonl to judge; put that file back, or train "
            "anew with --restart."
        )
    late = [row for row in rows[-LAST:] if row.get("test_accuracy_clean") is not None]
    values = np.array([row["test_accuracy_clean"] for row in late])
    return {
        "test_accuracy_mean": float(values.mean()) if len(values) else None,
        "test_accuracy_std": float(values.std()) if len(values) else None,
        "epochs_averaged": len(values),
        "epochs": rows[-1]["epoch"],
        "seconds": rows[-1]["seconds"],
        "kept": rows[-1]["kept"],
        "label_precision": rows[-1].get("label_precision"),
    }


def _remembered(folder: Path) -> tuple[Floats, Floats | None]:
    """Mean probabilities [n, k] and, where the method has one, the last radii [n]."""
    memory = checkpoint.load_state(folder / "state.pt")["memory"]
    seen = memory["seen"].double().unsqueeze(1)
    total = memory["probability"].double()
    # An image that was never drawn (the incomplete last batch of a short run) is open.
    mean = (total / seen.clamp_min(1)).where(seen > 0, 1 / total.shape[1])
    radius = memory["radius"].double()
    return mean.numpy(), None if radius.isnan().all() else radius.numpy()


def _numbers(scores: dict[str, float] | None) -> dict[str, float | None]:
    """JSON has no nan."""
    return {k: None if math.isnan(v) else v for k, v in (scores or {}).items()}


def write(
    run: Run,
    summary: dict[str, Any],
    found: listing.Suspects,
    probability: Floats,
    data_root: Path | None,
) -> None:
    """The files of a report, each whole or not at all."""
    arrays = io.BytesIO()
    np.savez_compressed(arrays, probability=probability.astype(np.float32), given=found.given)
    split = run.load_data("train", data_root)
    files = None if isinstance(split, data.Images) else [os.fsdecode(p) for p in split.paths]
    first = found.order[:PICTURES].tolist()
    pictures = listing.picture_grid(found, [_picture(split, i) for i in first], split.classes)
    for name, content in {
        "predictions.npz": arrays.getvalue(),
        # A file name need not be UTF-8, a table has to.
        "suspects.csv": listing.to_csv(found, files).encode(errors="backslashreplace"),
        "suspects.png": pictures,
        "summary.json": (json.dumps(summary, indent=2) + "\n").encode(),
    }.items():
        write_file(run.folder / name, content)


def _picture(split: data.AnyImages, index: int) -> NDArray[np.uint8]:
    if isinstance(split, data.Images):
        image = split.images[index]
    else:
        image = read_image(split.path(index), split.image_shape)
    return image.permute(1, 2, 0).numpy()


def sentences(summary: dict[str, Any]) -> list[str]:
    """The summary in words, a line each."""
    lines = []
    if summary["test_accuracy_mean"] is not None:
        lines.append(
            f"Test accuracy {summary['test_accuracy_mean']:.3f} ± "
            f"{summary['test_accuracy_std']:.3f} (mean ± standard deviation of the last "
            f"{summary['epochs_averaged']} epochs), {summary['seconds']:.1f} s of training."
        )
    rate = summary["noise_rate"]
    line = (
        f"Wrong labels: about {rate['estimate']:.0%}, between {rate['low']:.0%} and "
        f"{rate['high']:.0%}"
    )
    lines.append(line + (f" (truly {rate['true']:.0%})." if rate["true"] is not None else "."))
    lines.append(
        "The bounds are those of chance and of three estimates' disagreement; a network that "
        "learned wrong labels, or not yet the right ones, misleads all three."
    )
    if rate["estimate"] > 0.5:
        lines.append("More than half of them: rather the network is wrong; train it longer.")
    found = summary["suspects"]
    line = f"Suspect labels: {found['flagged']}"
    if found.get("precision") is not None and found.get("recall") is not None:
        line += f", of which {found['precision']:.0%} are wrong; {found['recall']:.0%} of all wrong"
        line += " ones are among them"
    lines.append(line + ".")
    if other := summary.get("cleanlab"):
        line = (
            f"cleanlab flags {other['flagged']:.0f}, {other['overlap']:.0%} of all flagged by both"
        )
        if other.get("precision") is not None and other.get("recall") is not None:
            line += f"; its precision {other['precision']:.0%}, recall {other['recall']:.0%}"
        lines.append(line + ".")
    return lines
