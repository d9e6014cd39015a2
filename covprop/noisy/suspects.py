"""A ranked list of labels that may be wrong: scores, CSV in cleanlab's columns, pictures.

The score is cleanlab's `label_quality`: the probability of the given label, here averaged over
the epochs; low is suspect.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covprop.data.tables import read_rows
from covprop.errors import InvalidInput
from covprop.noisy.rate import Floats, Integers, check
from covprop.options import Fraction, check_value
from covprop.report.style import any_letters

COLUMNS = ("is_label_issue", "label_quality", "given_label", "predicted_label")
QUALITY_NAMES = ("label_quality", "label_score")
"""What the score is called by cleanlab's CleanLearning and by its Datalab."""
EXTRA = ("estimated_radius", "clean_label")


@dataclass(frozen=True, eq=False)
class Suspects:
    """One entry an image, in the order of the data set; `order` ranks them, most suspect first."""

    quality: Floats
    given: Integers
    predicted: Integers
    flagged: NDArray[np.bool_]
    radius: Floats | None = None
    clean: Integers | None = None

    @property
    def order(self) -> Integers:
        return np.argsort(self.quality, kind="stable")

    def scores(self) -> dict[str, float] | None:
        """Precision and recall of the flagged labels, and average precision of the whole ranking.

        None where the truth is not known; a score that has no meaning (no wrong label, none
        flagged) is nan.
        """
        if self.clean is None:
            return None
        wrong = self.given != self.clean
        hits = float((wrong & self.flagged).sum())
        flagged, total = float(self.flagged.sum()), float(wrong.sum())
        ranked = wrong[self.order]
        share = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
        return {
            "precision": hits / flagged if flagged else float("nan"),
            "recall": hits / total if total else float("nan"),
            "average_precision": float(share[ranked].mean()) if total else float("nan"),
        }


def find(
    given: Integers,
    probability: Floats,
    rate: float,
    *,
    radius: Floats | None = None,
    clean: Integers | None = None,
) -> Suspects:
    """Rank all labels and flag the share `rate` of lowest quality.

    Example:
        >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
        >>> found = find(np.array([0, 1, 1]), p, rate=1 / 3)
        >>> found.order.tolist(), found.flagged.tolist()
        ([2, 1, 0], [False, False, True])
    """
    given, probability = check(given, probability)
    rate = check_value("rate", rate, Fraction)
    radius = _an_image("radius", radius, len(given))
    clean = _an_image("clean", clean, len(given))
    quality = probability[np.arange(len(given)), given]
    flagged = np.zeros(len(given), dtype=bool)
    flagged[np.argsort(quality, kind="stable")[: round(rate * len(given))]] = True
    return Suspects(quality, given, probability.argmax(1), flagged, radius, clean)


def _an_image(name: str, values: Any, count: int) -> Any:
    """What is known of each image as an array [count]; None stays None."""
    if values is None:
        return None
    values = np.asarray(values)
    if values.shape != (count,):
        raise InvalidInput(
            f"{name} has shape {list(values.shape)} for {count} images; give one value an image."
        )
    return values


def to_csv(suspects: Suspects, files: Sequence[str] | None = None) -> str:
    """The list, most suspect first: `index`, cleanlab's four columns, and what else is known.

    `files` are the images' own, in the order of the data set, for a last column `file`.
    """
    extra = {"estimated_radius": suspects.radius, "clean_label": suspects.clean}
    known = {name: values for name, values in extra.items() if values is not None}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", *COLUMNS, *known, *(["file"] if files is not None else [])])
    for i in suspects.order.tolist():
        values = [bool(suspects.flagged[i]), repr(float(suspects.quality[i]))]
        labels = [int(suspects.given[i]), int(suspects.predicted[i])]
        more = [v[i].item() for v in known.values()] + ([files[i]] if files is not None else [])
        writer.writerow([i, *values, *labels, *more])
    return text.getvalue()


def read_csv(path: Path | str) -> Suspects:
    """A list from `to_csv`, or a table of label issues that cleanlab's `to_csv` wrote."""
    try:
        rows = read_rows(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from None
    except ValueError as error:
        raise _no_list(path, error) from None
    try:
        return _from_rows(rows)
    except KeyError as error:
        raise _no_list(path, f"no column {error}") from None
    except (ValueError, OverflowError) as error:
        raise _no_list(path, error) from None


def _no_list(path: Path | str, why: object) -> InvalidInput:
    return InvalidInput(
        f"{path} is no list of suspect labels ({why}); it needs the columns {', '.join(COLUMNS)} "
        "and, if it is sorted, index."
    )


def _from_rows(rows: Sequence[Mapping[str, str]]) -> Suspects:
    """Rows in the order of the data set."""
    if not rows:
        raise ValueError("it has no rows")
    score = next((name for name in QUALITY_NAMES if name in rows[0]), QUALITY_NAMES[0])

    def column(name: str) -> list[str]:
        return [row[name] for row in rows]

    known = [name in rows[0] for name in EXTRA]
    return Suspects(
        np.array([_known(v) for v in column(score)]),
        np.array([int(v) for v in column("given_label")], dtype=np.int64),
        np.array([int(v) for v in column("predicted_label")], dtype=np.int64),
        np.array([_truth(v) for v in column("is_label_issue")]),
        np.array([float(v) for v in column(EXTRA[0])]) if known[0] else None,
        np.array([int(v) for v in column(EXTRA[1])], dtype=np.int64) if known[1] else None,
    )


def _known(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"a score of {text} ranks nothing")
    return value


def _truth(text: str) -> bool:
    found = {"true": True, "false": False, "1": True, "0": False}.get(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is neither True nor False")
    return found


def picture_grid(
    suspects: Suspects,
    images: Sequence[NDArray[np.uint8]],
    classes: Sequence[str],
    columns: int = 8,
) -> bytes:
    """A PNG of the first suspects; `images` [h, w, c] are theirs, in the order of the ranking.

    Over each: its place in the data set, and given → predicted; where the truth is known, wrong
    labels are marked ✗ and right ones ✓.
    """
    from matplotlib.figure import Figure

    rows = -(-len(images) // columns)
    figure = Figure(figsize=(1.5 * columns, 1.95 * rows), dpi=100, layout="constrained")
    for number, (i, image) in enumerate(zip(suspects.order.tolist(), images, strict=False)):
        axes = figure.add_subplot(rows, columns, number + 1)
        grey = image.shape[2] == 1
        axes.imshow(image[:, :, 0] if grey else image, cmap="gray" if grey else None)
        title = f"#{i}  {suspects.quality[i]:.2f}\n"
        title += f"{classes[suspects.given[i]]} → {classes[suspects.predicted[i]]}"
        colour = "black"
        if suspects.clean is not None:
            wrong = suspects.given[i] != suspects.clean[i]
            title += " ✗" if wrong else " ✓"
            colour = "#D55E00" if wrong else "#0072B2"
        axes.set_title(title, fontsize=8, color=colour, parse_math=False)  # "$" is a name's own
        axes.set_axis_off()
    content = io.BytesIO()
    with any_letters():
        figure.savefig(content, format="png")
    return content.getvalue()
