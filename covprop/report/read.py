"""Reads certifications in run folders and bare logs: everything a report says about them.

A report reads files only: `certify_sigma_S.tsv` and, where they lie beside it,
`certify_sigma_S.rows.jsonl` (the same rows in full precision), `certify_sigma_S.json` (how it was
certified), `config.toml`, `metrics.jsonl` and `estimated.tsv`.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from covprop.errors import InvalidInput
from covprop.files import moved
from covprop.report.find import left_out, logs_under, named_itself, set_aside
from covprop.report.images import different_images
from covprop.report.sidecars import (
    Journal,
    most_certified,
    read_config,
    read_estimates,
    read_journal,
    read_json,
    read_metrics,
    section,
)
from covprop.report.tsv import Rows, read_tsv

Floats = NDArray[np.float64]

_SIGMA = re.compile(r"sigma_(\d+(?:\.\d+)?)")
RECORDED = "recorded at certification"
INVERTED = "inverted from the radius"


@dataclass(frozen=True)
class Certification:
    """One certification log with what is known about the run behind it."""

    name: str
    path: Path
    rows: Rows
    sigma: float | None = None
    data: str = ""
    method: str = ""
    config_text: str = ""
    meta: dict[str, Any] = field(default_factory=dict)
    p_lower: Floats | None = None  # lower bound of p_A for each row; NaN where unknown
    p_source: str = ""
    samples: float | None = None  # mean number of samples an image
    train_seconds: float | None = None
    epochs: int | None = None
    planned: int | None = None  # epochs that the recipe asks for
    estimates: dict[str, Floats] = field(default_factory=dict)  # estimated radii, NaN = none
    warnings: tuple[str, ...] = ()

    @property
    def images_of(self) -> str:
        """The data set, and which split of it unless that is the usual one."""
        split = self.meta.get("split", "test")
        return self.data if split == "test" else f"{self.data} ({_printable(str(split))})"

    @property
    def unfinished(self) -> str:
        """`62 of 400 epochs` for a run that was not trained to its end, else nothing."""
        if self.epochs is None or self.planned is None or self.epochs >= self.planned:
            return ""
        return f"{self.epochs:,} of {self.planned:,} epochs"

    @property
    def folder(self) -> Path:
        """Where the run lies, beside others: above its own folder, or where a bare log is."""
        up = self.path.resolve().parent
        return up.parent if self.path.name.startswith("certify_") else up


def read(paths: Iterable[str | Path]) -> tuple[list[Certification], list[str]]:
    """Every certification under the given run folders, folders of runs and logs, and warnings.

    A damaged log found in a folder among others is left out with a warning; one that was named,
    or that leaves nothing to report, raises `InvalidInput`.

    Example: `certifications, warnings = read(["runs/digits", "cohen/sigma_0.25.tsv"])`.
    """
    logs: dict[Path, Path] = {}
    named: set[Path] = set()
    warnings: list[str] = []
    for path in map(Path, paths):
        found, notes = logs_under(path)
        warnings += notes
        for log in found:
            logs.setdefault(log.resolve(), log)
        named |= {log.resolve() for log in found if named_itself(path, log)}
    if not logs:
        raise InvalidInput("nothing to report; give a run folder or a certification log.")
    readable, damaged = _read_all(logs, named)
    certifications = _with_distinct_names(readable)
    warnings += damaged
    for certification in certifications:
        warnings += certification.warnings
    warnings += different_images(certifications)
    return certifications, list(dict.fromkeys(warnings))


def _read_all(logs: dict[Path, Path], named: set[Path]) -> tuple[list[Certification], list[str]]:
    """Every log by its resolved path, and a warning for each damaged one that was not named."""
    certifications: list[Certification] = []
    warnings: list[str] = []
    first: InvalidInput | None = None
    for place, log in logs.items():
        try:
            certifications.append(_read_one(log))
        except InvalidInput as error:
            if place in named:
                raise
            first = first or error
            warnings.append(left_out(log, error))
    if first is not None and not certifications:
        raise first
    return certifications, warnings


def _read_one(path: Path) -> Certification:
    meta = read_json(_beside(path, ".json"))
    rows = read_tsv(path, most_certified(meta))
    config_text, config = read_config(path.with_name("config.toml"))
    trained_with = section(config, "noise").get("sigma")
    sigma = _sigma(path, meta, trained_with)
    journal, warnings = read_journal(_beside(path, ".rows.jsonl"), rows)
    warnings += rows.warnings
    if journal is not None:
        # Rounding to three digits can lift a radius over the r of a column; the truth cannot.
        rows = replace(rows, radius=journal.radius)
        if met_nan := np.count_nonzero(journal.nan):
            warnings.append(f"{path}: the model returned NaN under noise on {met_nan} images.")
    _, sequential, asked = str(meta.get("mode", "")).partition("at least ")
    if sequential:
        warnings.append(
            f"{path} only asked whether radii are at least {asked}, so its radii, their mean and "
            "p_A are lower bounds."
        )
    p_lower, p_source = _p_lower(rows, journal, sigma)
    estimates, notes = _estimates(path, rows, sigma, trained_with, meta)
    train_seconds, trained = read_metrics(path.with_name("metrics.jsonl"))
    epochs, planned = _epochs(meta, config, trained)
    return Certification(
        name=_name(path, sigma),
        path=path,
        rows=rows,
        sigma=sigma,
        data=_printable(str(meta.get("data") or section(config, "data").get("name", ""))),
        method=_printable(str(section(config, "method").get("name", ""))),
        config_text=config_text,
        meta=meta,
        p_lower=p_lower,
        p_source=p_source,
        samples=None if journal is None else float(journal.samples.mean()),
        train_seconds=train_seconds,
        epochs=epochs,
        planned=planned,
        estimates=estimates,
        warnings=(*warnings, *notes),
    )


def _beside(path: Path, suffix: str) -> Path:
    """A companion of a log; published logs may lack an ending (`sigma_0.25`).

    What lay beside a log that `covprop certify --restart` set aside was renamed like it.
    """
    old = re.search(r"(\.old-\d+)?$", path.name)
    aside = old[0] if old else ""
    return path.with_name(path.name.removesuffix(aside).removesuffix(".tsv") + suffix + aside)


def _epochs(
    meta: dict[str, Any], config: dict[str, Any], trained: int | None
) -> tuple[int | None, int | None]:
    """Epochs trained and planned; as noted with the log first, since training may have gone on."""
    noted, planned = meta.get("epochs"), meta.get("epochs_planned")
    if isinstance(noted, int) and isinstance(planned, int):
        return noted, planned
    planned = section(config, "train").get("epochs")
    return trained, planned if isinstance(planned, int) else None


def _sigma(path: Path, meta: dict[str, Any], trained_with: object) -> float | None:
    """σ of the certification: as recorded, else from the file's name, else the run's own."""
    in_name = _SIGMA.findall(path.name)
    for value in (meta.get("sigma"), float(in_name[-1]) if in_name else None, trained_with):
        if isinstance(value, int | float) and value > 0:
            return float(value)
    return None


def _p_lower(rows: Rows, journal: Journal | None, sigma: float | None) -> tuple[Floats | None, str]:
    """Lower bounds of p_A: the recorded ones, or Φ(R/σ) from the (rounded) radius."""
    if journal is not None:
        return journal.p_lower, RECORDED
    if sigma is None:
        return None, ""
    unknown = rows.abstained | rows.skipped
    return np.where(unknown, np.nan, ndtr(rows.radius / sigma)), INVERTED


def _estimates(
    path: Path, rows: Rows, sigma: float | None, trained_with: object, meta: dict[str, Any]
) -> tuple[dict[str, Floats], list[str]]:
    """Estimated radii beside the log, if they are for the same σ, images and weights.

    Where nothing says what they are for, they are for the σ of training.
    """
    stem, found, _ = path.name.partition("certify_")
    estimated = path.with_name(f"{stem if found else ''}estimated.tsv")
    made = read_json(estimated.with_suffix(".json"))
    known = dict(meta) if sigma is None else meta | {"sigma": sigma}
    hashes = {"images": "images", "weights": "weights", "model_code": "code of its model"}
    if moved(made, known):  # an own set is known by its images, wherever it lay
        known["data"] = made.get("data")
    for key in ("sigma", "data", "split", *hashes):
        if estimated.is_file() and key in made and made[key] != known.get(key, made[key]):
            what = f"other {hashes[key]}" if key in hashes else f"{key} = {made[key]}"
            return {}, [f"{estimated} is for {what} and was not compared with {path.name}."]
    if not made and trained_with is not None and sigma not in (None, trained_with):
        if not estimated.is_file():
            return {}, []
        return {}, [f"{estimated} is for σ = {trained_with} and was not compared with {path.name}."]
    estimates, notes = read_estimates(estimated, rows)
    if "estimators" not in made:  # its noise came not in pairs, nor had each point its runner-up
        estimates = {
            f"{name} (earlier)" if name.startswith("linearized:") else name: radii
            for name, radii in estimates.items()
        }
    return estimates, notes


def _printable(text: str) -> str:
    """The text without control characters, which could play tricks on a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _name(path: Path, sigma: float | None) -> str:
    """A run is called like its folder (with σ where it is certified at several, with the name of
    a log that has one of its own: certify_NAME.tsv), a log like its file."""
    if not path.name.startswith("certify_"):
        return _printable(path.stem if path.suffix == ".tsv" else path.name)
    own = path.stem.removeprefix("certify_")
    if own.startswith("sigma_"):
        siblings = [
            p for p in path.parent.glob("certify_sigma_*.tsv") if not set_aside(Path(p.name))
        ]
        own = f"σ = {sigma:g}" if len(siblings) > 1 and sigma is not None else ""
    return _printable(path.resolve().parent.name + (f" ({own})" if own else ""))


def _with_distinct_names(certifications: list[Certification]) -> list[Certification]:
    """Equal names get the folder above in front; if that is not enough, a number behind."""
    counts = Counter(c.name for c in certifications)
    named = []
    for c in certifications:
        folder = c.folder.name
        again = counts[c.name] > 1 and folder
        named.append(replace(c, name=f"{_printable(folder)}/{c.name}") if again else c)
    taken: Counter[str] = Counter()
    for i, c in enumerate(named):
        taken[c.name] += 1
        if taken[c.name] > 1:
            named[i] = replace(c, name=f"{c.name} ({taken[c.name]})")
    return named
