"""Wrong labels on purpose: transition matrices, their draw from a fixed seed, and files of labels.

A transition matrix P has P[i, j] = P(given label j | true label i). Image n of a set gets its own
uniform number, a function of the seed and n alone; its given label is where that number falls in
the cumulated row of its true label. So the labels do not depend on the method, and a higher rate
keeps the labels wrong that a lower one made wrong (for pair flips: all of them).
"""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, SupportsFloat

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from covprop.data.images import check_labels
from covprop.data.tables import read_rows
from covprop.errors import InvalidInput
from covprop.names import unknown
from covprop.options import Range, check_value

Matrix = NDArray[np.float64]
NEEDS = {"pair": "rate", "symmetric": "rate", "matrix": "file", "file": "file", "none": None}
"""The ways to make labels wrong, and what each needs to be told."""
COLUMNS = ("index", "clean", "noisy")
LABEL_COLUMNS = ("noisy", "given_label", "label")
"""Which column of a table has the given labels: the first of these."""
UNREADABLE = (OSError, ValueError, EOFError, csv.Error, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, eq=False)
class NoisyLabels:
    """`noisy` int64 [n], the labels that training sees; `clean` [n] where the truth is known."""

    noisy: Tensor
    clean: Tensor | None

    @property
    def rate(self) -> float | None:
        """Share of labels that are wrong; None where the truth is not known."""
        if self.clean is None:
            return None
        return float((self.noisy != self.clean).double().mean())


def pair(num_classes: int, rate: float) -> Matrix:
    """Each class is taken for the next one with probability `rate`, the last for the first.

    >>> pair(3, 0.25)
    array([[0.75, 0.25, 0.  ],
           [0.  , 0.75, 0.25],
           [0.25, 0.  , 0.75]])
    """
    kept = np.eye(num_classes)
    return (1 - _checked(rate)) * kept + rate * np.roll(kept, 1, axis=1)


def symmetric(num_classes: int, rate: float) -> Matrix:
    """Each class is taken for any other one, all alike, with probability `rate` in total.

    >>> symmetric(3, 0.5)
    array([[0.5 , 0.25, 0.25],
           [0.25, 0.5 , 0.25],
           [0.25, 0.25, 0.5 ]])
    """
    kept = np.eye(num_classes)
    return (1 - _checked(rate)) * kept + rate / (num_classes - 1) * (1 - kept)


def _checked(rate: float) -> float:
    if not isinstance(rate, SupportsFloat) or not 0 <= rate <= 1:
        raise InvalidInput(f"A noise rate is a share between 0 and 1, not {rate}.")
    return rate


def read_matrix(path: Path | str, num_classes: int) -> Matrix:
    """A transition matrix from .npy, or from text: a row a line, numbers apart by , or blanks."""
    path = Path(path)
    try:
        if path.suffix.lower() == ".npy":
            values = _read_npy(path)
        else:
            text = path.read_text(encoding="utf-8-sig").replace(",", " ").replace(";", " ")
            values = np.loadtxt(io.StringIO(text), ndmin=2)
        matrix = np.asarray(values, dtype=np.float64)
    except UNREADABLE as error:
        raise InvalidInput(f"Transition matrix {path} cannot be read: {error}.") from None
    if matrix.shape != (num_classes, num_classes):
        raise InvalidInput(
            f"Transition matrix {path} has shape {list(matrix.shape)}; "
            f"{num_classes} classes need {num_classes} rows of {num_classes} probabilities."
        )
    wrong = np.flatnonzero((matrix < 0).any(1) | ~np.isclose(matrix.sum(1), 1, atol=1e-6))
    if len(wrong):
        raise InvalidInput(
            f"Transition matrix {path}: row {wrong[0]} is no probability distribution "
            f"(sum {matrix[wrong[0]].sum():g}); give P(given label | true label) in each row."
        )
    return matrix


def draw(labels: Tensor, matrix: Matrix, seed: int) -> Tensor:
    """Given labels for true ones: one draw an image from its class's row of the matrix.

    >>> draw(torch.tensor([0, 1, 2]), pair(3, 1.0), seed=0)
    tensor([1, 2, 0])
    """
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(len(labels), dtype=torch.float64, generator=generator)
    steps = torch.from_numpy(matrix).cumsum(1)
    order = labels.cpu().argsort(stable=True)
    counts = labels.cpu().bincount(minlength=len(steps)).tolist()
    given = torch.empty(len(labels), dtype=torch.int64)
    # Class by class: a row of steps for every image would be a table of images × classes.
    for places, row in zip(order.split(counts), steps, strict=True):
        given[places] = torch.searchsorted(row, uniform[places], right=True)
    # Rounding may leave a row's sum a little under 1: the last class takes what is left over.
    given.clamp_max_(matrix.shape[1] - 1)
    return given.to(labels)


def corrupt(
    labels: ArrayLike | Tensor,
    num_classes: int,
    *,
    name: str,
    rate: float | None = None,
    file: Path | str | None = None,
    seed: int = 0,
) -> NoisyLabels:
    """What training sees instead of a set's own `labels`, and the truth where it is known.

    Args:
        name: "pair" or "symmetric" with a `rate`; "matrix" with a `file` of probabilities;
            "file" with a `file` of given labels; "none" keeps the labels and knows no truth.

    >>> labels = corrupt(torch.arange(10).repeat(100), 10, name="pair", rate=0.2)
    >>> abs(labels.rate - 0.2) < 0.05
    True
    """
    if name not in NEEDS:
        raise unknown("label noise", str(name), NEEDS)
    num_classes = check_value("num_classes", num_classes, Annotated[int, Range(2)])
    labels = _as_labels(labels, num_classes)
    if name == "none":
        return NoisyLabels(labels, None)
    if NEEDS[name] == "rate" and rate is not None:
        matrix = {"pair": pair, "symmetric": symmetric}[name](num_classes, rate)
    elif NEEDS[name] == "file" and file is not None:
        if name == "file":
            return NoisyLabels(read_labels(file, len(labels), num_classes), labels)
        matrix = read_matrix(file, num_classes)
    else:
        raise InvalidInput(f'label noise "{name}" needs a {NEEDS[name]}; give {NEEDS[name]}=….')
    return NoisyLabels(draw(labels, matrix, seed), labels)


def _as_labels(labels: ArrayLike | Tensor, num_classes: int) -> Tensor:
    """One class number an image, int64 [n]."""
    try:
        found = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            f"the labels are no list of whole numbers ({type(labels).__name__}); give one class "
            "number an image."
        ) from None
    if found.ndim != 1 or found.is_floating_point() or found.dtype == torch.bool:
        raise InvalidInput(
            f"the labels are {found.dtype} {list(found.shape)}; give one class number an image."
        )
    check_labels(found.cpu().numpy(), num_classes, "labels")
    return found.long()


def read_labels(path: Path | str, count: int, num_classes: int) -> Tensor:
    """Given labels of `count` training images, in the order of the data set.

    Files: .npy [n]; .npz with an array `noisy` or `labels`; a table (.csv, .tsv) with a column
    `noisy`, `given_label` or `label`; or one label a line and nothing else. A table whose column
    `index`, `idx` or without a name numbers the images is read in that order.
    """
    path = Path(path)
    try:
        values = _READERS.get(path.suffix.lower(), _read_text)(path)
    except UNREADABLE as error:
        raise InvalidInput(f"Labels {path} cannot be read: {error}.") from None
    if values.shape != (count,) or not np.issubdtype(values.dtype, np.integer):
        raise InvalidInput(
            f"Labels {path}: {values.dtype} {list(values.shape)}, but the training set needs "
            f"{count} whole numbers, one an image in its order."
        )
    check_labels(values, num_classes, path)
    return torch.from_numpy(values.astype(np.int64))


def _read_npy(path: Path) -> NDArray[Any]:
    with path.open("rb") as file:  # np.load would take an archive for one, and leave it open
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _read_npz(path: Path) -> NDArray[Any]:
    with path.open("rb") as raw:
        if not zipfile.is_zipfile(raw):  # np.load would take one array, or a pickle, for it
            raise ValueError("it is no .npz archive")
        raw.seek(0)
        with np.load(raw, allow_pickle=False) as file:
            for name in ("noisy", "labels"):
                if name in file.files:
                    return np.asarray(file[name])
            raise ValueError(f"it holds {', '.join(file.files) or 'nothing'}, but no array noisy")


def _read_table(path: Path) -> NDArray[Any]:
    rows = read_rows(path)
    names = list(rows[0]) if rows else []
    if len(names) == 1 and names[0].isdecimal():  # no head: the first line is a label too
        return _numbers([names[0], *(row[names[0]] for row in rows)])
    column = next((c for c in LABEL_COLUMNS if c in names), None)
    if column is None:
        raise ValueError(f"its columns are {', '.join(names) or 'none'}; it needs one called noisy")
    return _numbers([row[column] for row in rows])


def _read_text(path: Path) -> NDArray[Any]:
    return _numbers(path.read_text(encoding="utf-8-sig").split())


def _numbers(words: Sequence[str]) -> NDArray[Any]:
    return np.array([int(word) for word in words])


_READERS = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_table, ".tsv": _read_table}


def table(labels: NoisyLabels) -> bytes:
    """The labels as tab-separated text, which `read_labels` reads; `clean` is empty if unknown."""
    clean = labels.clean.tolist() if labels.clean is not None else [""] * len(labels.noisy)
    rows = zip(range(len(clean)), clean, labels.noisy.tolist(), strict=True)
    lines = ["\t".join(COLUMNS), *("\t".join(map(str, row)) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


def read_table(path: Path) -> NoisyLabels:
    """What `table` wrote."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        noisy = torch.tensor([int(row["noisy"]) for row in rows])
        known = bool(rows) and rows[0]["clean"] != ""
        clean = torch.tensor([int(row["clean"]) for row in rows]) if known else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is not the label table of a run ({error}).") from None
    return NoisyLabels(noisy, clean)
