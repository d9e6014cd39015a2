"""ACR against seconds of training."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from wave_runs import acr, add_run, lines


def test_time_to_acr_takes_the_shortest_run_that_is_there(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wave = tmp_path / "wave"
    best = max((1, 2), key=acr)
    for length, rows in ((5, 3 - best), (10, best)):
        log = add_run(wave, f"a-{length}epochs", 0, rows=rows, side_by_side=1)
        log.with_name("metrics.jsonl").write_text(
            json.dumps({"epoch": length, "seconds": 2.0 * length}) + "\n"
        )
    between = (acr(1) + acr(2)) / 2
    monkeypatch.setattr(make, "THRESHOLDS", (0.0, between, 9.0))
    text = make.time_table("wave", "points")
    above, below = text.split("Its points:")
    (row,) = lines(above, "a`")
    assert row[1:] == ["10.0 s", "20.0 s", "not reached", f"{acr(best):.3f}", "20.0 s"]
    points = [row[2:4] for row in lines(below, "a`")]
    assert [(seconds, value[:5]) for seconds, value in points] == [
        ("10.0 s", f"{acr(3 - best):.3f}"),
        ("20.0 s", f"{acr(best):.3f}"),
    ]


def test_seconds_beside_other_runs_are_no_time_to_acr(make: ModuleType, tmp_path: Path) -> None:
    wave = tmp_path / "wave"
    add_run(wave, "a-5epochs", 0, side_by_side=1)
    add_run(wave, "b-5epochs", 0, rows=2, side_by_side=2)
    for seed in (0, 1):  # one of the two had company
        add_run(wave, "c-5epochs", seed, side_by_side=1 + seed)
    text = make.time_table("wave")
    assert [len(lines(text, f"{job}`")) for job in "abc"] == [1, 0, 0]
    assert "left out: `b-5epochs`, `c-5epochs`.\n" in text
    (wave / "timing.tsv").write_text("job\tseconds_per_epoch\nb\t0.5\nc\t0.5\n")
    text = make.time_table("wave")
    assert [lines(text, f"{job}`")[0][-1] for job in "abc"] == ["4.5 s", "1.5 s", "1.5 s"]
    assert "left out" not in text
    add_run(tmp_path / "other", "d", 0)
    assert make.time_table("other").endswith("left out: `d`.\n")


def test_points_of_the_table_are_on_the_curve_of_their_method(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_run(tmp_path / "time-to-acr", "a-5epochs", 0)
    table = tmp_path / "cifar10-0.25"
    for job in ("a", "untimed"):
        add_run(table, job, 0, rows=2, set=["train.seed=0"])
    add_run(table, "changed", 0, set=["noise.share=0.85"])
    (table / "timing.tsv").write_text("job\tseconds_per_epoch\na\t10\nchanged\t10\n")
    curves = {}
    monkeypatch.setattr(make, "time_to_acr", lambda found, _: curves.update(found) or b"")
    text = make.time_table("time-to-acr", "points")  # both runs have 3 epochs
    assert curves == {"a": [(30.0, pytest.approx(acr(1))), (30.0, pytest.approx(acr(2)))]}
    row, *two = lines(text, "a`")
    assert len(two) == 2
    assert row[4:] == [f"{max(acr(1), acr(2)):.3f}", "30.0 s"]
