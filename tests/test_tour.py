"""The tour quotes the numbers of its figures, and shows every figure that was drawn."""

import csv
import importlib.util
import re
from pathlib import Path

import pytest
from scipy.stats import norm

ROOT = Path(__file__).parents[1]
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
FIGURES = ROOT / "docs" / "figures"


def rows(name: str) -> list[dict[str, str]]:
    with (FIGURES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_drawn_figure_is_shown() -> None:
    shown = re.findall(r"!\[[^\]]{20,}\]\(figures/(\w+\.svg)\)", TOUR)
    assert sorted(shown) == sorted(path.name for path in FIGURES.glob("*.svg"))
    assert all((FIGURES / name).stat().st_size < 200_000 for name in shown)


def test_the_layer_table_is_that_of_the_figure() -> None:
    quoted = re.findall(r"^\| (\d+) \((\w+)\) \| (.+) \|$", TOUR, re.M)
    found = rows("layers")
    assert len(quoted) == len(found) == 5
    for (number, name, cells), row in zip(quoted, found, strict=True):
        assert (number, f"1.{name}") == (row["layer"], row["name"])
        measured, propagated, ratio, share, correlation, r_max = cells.split(" | ")
        for cell, key in (
            (measured, "Monte Carlo variance"), (propagated, "propagated"), (ratio, "ratio"),
            (correlation, "correlation"), (r_max, "r_max"),
        ):  # fmt: skip
            assert cell == (f"{float(row[key]):.3g}" if row[key] else "–")
        assert share == f"{100 * float(row['p < 0.05']):.0f} %"


def test_what_the_text_says_of_single_images_is_so() -> None:
    found = rows("last_layer")
    estimated = [float(row["estimated radius"]) for row in found]
    certified = [float(row["certified radius"]) for row in found]
    by_gradient = [float(row["linearised estimate"]) for row in found]
    assert estimated == sorted(estimated)
    assert certified == sorted(certified)
    assert all(e < c < g for e, c, g in zip(estimated, certified, by_gradient, strict=True))
    most, seen = re.findall(
        r"no\s+more\s+than ([\d.]+) can\s.*?;\s([\d.]+) is the most here", TOUR, re.S
    )[0]
    assert float(seen) == pytest.approx(max(certified), abs=0.005)
    # All of n agree: the lower bound p solves pⁿ = α.
    assert float(most) == pytest.approx(0.25 * norm.ppf(0.001 ** (1 / 10_000)), abs=0.005)


def test_the_first_figure_can_be_drawn_again() -> None:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "make_figures.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    (drawn,) = make.smoothing().rows
    (kept,) = rows("smoothing")
    assert list(drawn) == pytest.approx([float(value) for value in kept.values()], abs=0.03)
