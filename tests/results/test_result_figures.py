"""The curves and points that are drawn."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from certifications import draw_rows
from wave_runs import acr, add_run


def test_the_curve_is_the_share_certified_at_each_radius(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr("result_figures._png", lambda figure: drawn.append(figure) or b"")
    for seed in (0, 1):
        add_run(tmp_path / "wave", "a", seed)
    make.table("wave")
    (line,) = drawn[0].axes[0].lines
    assert line.get_drawstyle() == "steps-pre"
    rows = [row for seed in (1, 2) for row in draw_rows(seed, 0.25)]
    (*radii, last), (*shares, end) = line.get_xdata(), line.get_ydata()
    assert (radii[0], end, last) == (0.0, 0.0, radii[-1])
    assert len(radii) > 20
    for radius, share in zip(radii, shares, strict=True):
        reached = [row["correct"] and row["radius"] >= radius - 1e-9 for row in rows]
        assert share == pytest.approx(sum(reached) / len(rows))
    assert f"ACR {(acr(1) + acr(2)) / 2:.3f}" in line.get_label()


def test_bins_of_the_calibration_hold_estimated_against_certified(make: ModuleType) -> None:
    estimated, certified = np.arange(16.0)[::-1], np.arange(16.0)[::-1] * 10
    x, y = sys.modules["result_figures"].binned(estimated, certified)
    assert x == [2 * k + 0.5 for k in range(8)]
    assert y == [20 * k + 5 for k in range(8)]


def test_a_method_has_one_colour_and_its_variants_differ_by_dashes(make: ModuleType) -> None:
    look = sys.modules["result_figures"].method_look
    colours = [look(name)["color"] for name in sys.modules["result_figures"].METHODS]
    assert len(set(colours)) == len(colours)
    for method in ("late", "radius-reference"):
        variants = [look(method + end) for end in ("", "-muon", "-sample")]
        assert len({one["color"] for one in variants}) == 1
        assert len({one.get("dashes") for one in variants}) == 3
