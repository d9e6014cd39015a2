"""The tables of docs/results.md say what the files under results/ say."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from certifications import add_estimates, draw_rows, skip_wrong
from wave_runs import acr, add_run, lines

ROOT = Path(__file__).parents[2]


def test_a_wave_that_was_not_run_says_so(make: ModuleType) -> None:
    for name, kind in make.KINDS.items():
        if name != "overview":
            assert kind("nothing") == "Not run yet.\n"


def test_the_table_has_every_recipe_once(make: ModuleType, tmp_path: Path) -> None:
    wave = tmp_path / "mnist-0.25"
    for seed in (0, 1):
        add_run(wave, "a", seed)
    add_run(wave, "b", 0, rows=5)
    text = make.table("mnist-0.25")
    (a,), (b,) = lines(text, "a`"), lines(text, "b`")
    mean, half = (acr(1) + acr(2)) / 2, abs(acr(1) - acr(2)) / 2**0.5
    assert a[1:3] == [f"{mean:.3f} ± {half:.3f}", "2"]
    assert b[1].startswith(f"{acr(5):.3f} ± ")
    assert a[8:] == ["4.5 s (3 side by side)", "3", "40", "1,000"]
    assert "Consistency 0.928" in text
    assert "the paper's method 0.904" in text
    assert (tmp_path / "figures" / "results-mnist-0.25.png").read_bytes()[:4] == b"\x89PNG"


def test_truth_compares_on_the_same_images(make: ModuleType, tmp_path: Path) -> None:
    log = add_run(tmp_path / "wave", "a", 0)
    add_estimates(log, {"shared": {r["idx"]: 2 * r["radius"] for r in draw_rows(1, 0.25)}})
    (row,) = lines(make.truth("wave"), "a`")
    assert row[1] == "shared"
    assert float(row[3]) == pytest.approx(2 * float(row[2]), abs=2e-3)
    assert row[4:] == ["1.00", "1.00", "2.00 / 2.00 / 2.00"]


def test_wrong_guesses_that_were_not_bounded(make: ModuleType, tmp_path: Path) -> None:
    """They change no number of the table but N, and are no certified radii of 0."""
    add_run(tmp_path / "bounded", "a", 0)
    (full,) = lines(make.table("bounded"), "a`")
    log = add_run(tmp_path / "wave", "a", 0)
    add_estimates(log, {"shared": {r["idx"]: 2 * r["radius"] + 1 for r in draw_rows(1, 0.25)}})
    rows = skip_wrong(log)
    text = make.table("wave")
    (short,) = lines(text, "a`")
    assert short[:-1] == full[:-1]
    right = [row for row in rows if row["n"]]
    assert short[-1] == f"{1000 * len(right) / len(rows):,.0f} of 1,000"
    assert "whose guess was wrong" in text
    text = make.truth("wave")
    assert "were not bounded and are left out" in text
    (truth,) = lines(text, "a`")
    assert float(truth[2]) == pytest.approx(
        sum(row["radius"] for row in right) / len(right), abs=1e-3
    )
    assert truth[4] == "1.00"


def test_the_log_keeps_failures(make: ModuleType, tmp_path: Path) -> None:
    add_run(tmp_path / "wave", "a", 0)
    log = add_run(tmp_path / "wave", "b", 0, status="failed")
    log.unlink()
    text = make.log("wave")
    assert lines(text, "a`")[0][2] == "–"
    assert text.endswith("\nChanged in all of them: `train.lr=0.2`.\n")
    assert lines(text, "b`")[0][3] == "failed"
    table = make.table("wave")
    assert lines(table, "b`")[0][1] == "failed"
    add_run(tmp_path / "own", "d", 0)
    add_run(tmp_path / "own", "e", 0, rows=2, set=["train.lr=0.2", "train.momentum=0.8"])
    changes = {row[0]: row[2] for row in lines(make.log("own"), "")}
    assert (changes["`d`"], changes["`e`"]) == ("–", "`train.momentum=0.8`")
    add_run(tmp_path / "wave", "c", 0, status="failed")  # which certified some images before
    assert [row[1] for row in lines(make.table("wave"), "c`")] == ["failed"]
    said = tmp_path / "wave/b-seed0/job.log"
    said.write_text("epoch 1\ncovprop: Training diverged in epoch 7 at step 2")
    assert lines(make.table("wave"), "b`")[0][1] == "diverged in epoch 7"


def test_a_full_run_is_worked_out(make: ModuleType, tmp_path: Path) -> None:
    log = add_run(tmp_path / "wave", "a", 0)
    speeds = [10.0, 1000.0, 3000.0]  # the first epoch compiles and is left out
    rows = [{"epoch": i + 1, "seconds": 1, "images_per_second": s} for i, s in enumerate(speeds)]
    log.with_name("metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (row,) = lines(make.large("wave"), "a`")
    assert row[1:4] == ["2,000", "1,281,167", "120"]
    assert row[4] == "21 h 21 min"  # 120 · 1,281,167 / 2,000 s


def test_the_pages_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("real_results", ROOT / "docs/make_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "docs"))
    sys.modules["real_results"] = module
    try:
        spec.loader.exec_module(module)
        module.save = lambda name, draw: None  # pictures are not compared
        for path, text in module.pages():
            written = path.read_text(encoding="utf-8")
            assert written == text, f"{path.name} is out of date: run python docs/make_results.py"
    finally:
        sys.path.remove(str(ROOT / "docs"))
        del sys.modules["real_results"]
