"""The tables of docs/results.md say what the files under results/ say."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from certifications import add_estimates, draw_rows, make_run, skip_wrong

ROOT = Path(__file__).parents[1]
PAPER_CIFAR10 = ["0.518", "0.543", "–"]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/make_results.py with an empty results folder."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs/make_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "make_results", module)  # its dataclasses look it up
    spec.loader.exec_module(module)
    published = (module.RESULTS / "published.toml").read_text(encoding="utf-8")
    (tmp_path / "published.toml").write_text(published, encoding="utf-8")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "FIGURES", tmp_path / "figures")
    return module


def add_run(
    wave: Path, job: str, seed: int, rows: int = 0, data: str = "mnist", **facts: object
) -> Path:
    """A finished job as benchmarks/results.py leaves it; `rows` is the seed of its made-up rows."""
    folder = wave / f"{job}-seed{seed}"
    log = make_run(folder, rows or seed + 1)
    config = (folder / "config.toml").read_text().replace("digits", data)
    lr = sum(map(ord, job))  # recipes of different jobs differ
    (folder / "config.toml").write_text(config + f"\n[train]\nlr = {lr}\nseed = {seed}\n")
    record = {"name": job, "status": "done", "recipe": "imagenet/gaussian-0.50", "epochs": 3}
    changes = {"set": ["train.epochs=3", "train.lr=0.2", "train.seed=0"], "side_by_side": 3}
    (folder / "run.json").write_text(json.dumps(record | changes | facts))
    return log


def acr(seed: int) -> float:
    rows = draw_rows(seed, 0.25)
    return sum(r["correct"] * r["radius"] for r in rows) / len(rows)


def lines(text: str, start: str) -> list[list[str]]:
    found = [line for line in text.splitlines() if line.startswith(f"| `{start}")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def test_a_wave_that_was_not_run_says_so(make: ModuleType) -> None:
    for name, kind in make.KINDS.items():
        if name != "overview":
            assert kind("nothing") == "Not run yet.\n"


def test_the_overview_has_the_best_row_of_every_method(make: ModuleType, tmp_path: Path) -> None:
    wave = tmp_path / "mnist-0.25"
    add_run(wave, "a", 0, rows=1)
    add_run(wave, "a-steps-lr0.5", 0, rows=2)
    add_run(wave, "a-reference", 0, rows=3)
    add_run(wave, "a-steps-sample", 0, rows=5)  # another method, not a schedule of the same
    add_run(tmp_path / "svhn-0.25", "a", 0, status="failed")
    ended = add_run(tmp_path / "svhn-0.50", "a-5epochs", 0, status="failed")
    ended.with_name("job.log").write_text("covprop: Training diverged in epoch 3 at step 1.\n")
    text = make.overview("a", "a-reference", "a-sample")
    titles, _, paper, *_ = [line.strip("| ").split(" | ") for line in text.splitlines()]
    assert titles[1] == "MNIST, σ = 0.25"
    assert paper == ["published by the paper", "0.904", "1.485", "0.509", "0.475", *PAPER_CIFAR10]
    (a,), (reference,), (sample,) = (lines(text, f"{n}`") for n in ("a", "a-reference", "a-sample"))
    assert a[1].startswith(f"{max(acr(1), acr(2)):.3f} ± ")
    assert a[2:5] == ["–", "failed", "diverged in epoch 3"]
    assert reference[1].startswith(f"{acr(3):.3f} ± ")
    assert sample[1].startswith(f"{acr(5):.3f} ± ")


def test_the_overview_takes_the_row_of_most_seeds_over_a_lucky_one(
    make: ModuleType, tmp_path: Path
) -> None:
    *several, lucky = sorted((1, 2, 3), key=acr)
    for seed, rows in enumerate(several):
        add_run(tmp_path / "mnist-0.25", "a", seed, rows=rows)
    add_run(tmp_path / "mnist-0.25", "a-44epochs", 0, rows=lucky)
    ((_, cell, *_),) = lines(make.overview("a"), "a`")
    mean = sum(map(acr, several)) / 2
    assert cell.startswith(f"{mean:.3f} ± ")
    assert cell.endswith(" (2 seeds)")


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


def test_the_price_of_an_epoch_alone_wins(make: ModuleType, tmp_path: Path) -> None:
    wave = tmp_path / "wave"
    add_run(wave, "a", 0)
    (wave / "timing.tsv").write_text("job\tseconds_per_epoch\na-5epochs\t0.5\n")
    assert lines(make.table("wave"), "a`")[0][8] == "1.5 s"  # three epochs


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


def test_a_run_certified_in_two_ways_is_two_rows_of_the_table_only(
    make: ModuleType, tmp_path: Path
) -> None:
    log = add_run(tmp_path / "wave", "a", 0)
    meta = json.loads(log.with_suffix(".json").read_text())
    (log.parent / "certify_fixed.json").write_text(json.dumps(meta | {"n": 5000}))
    log.with_name("certify_fixed.tsv").write_text(
        "\n".join(log.read_text().splitlines()[:11]) + "\n"
    )
    rows = lines(make.table("wave"), "a`")
    assert sorted(row[-2:] for row in rows) == [["10", "5,000"], ["40", "1,000"]]
    assert len(lines(make.log("wave"), "a`")) == 1


def test_truth_compares_on_the_same_images(make: ModuleType, tmp_path: Path) -> None:
    log = add_run(tmp_path / "wave", "a", 0)
    add_estimates(log, {"shared": {r["idx"]: 2 * r["radius"] for r in draw_rows(1, 0.25)}})
    (row,) = lines(make.truth("wave"), "a`")
    assert row[1] == "shared"
    assert float(row[3]) == pytest.approx(2 * float(row[2]), abs=2e-3)
    assert row[4:] == ["1.00", "1.00", "2.00 / 2.00 / 2.00"]


def test_wrong_guesses_that_were_not_bounded(make: ModuleType, tmp_path: Path) -> None:
    """They change no number of the table but N, and are no certified radii of 0."""
    log = add_run(tmp_path / "wave", "a", 0)
    add_estimates(log, {"shared": {r["idx"]: 2 * r["radius"] + 1 for r in draw_rows(1, 0.25)}})
    (full,) = lines(make.table("wave"), "a`")
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


def test_a_run_on_more_images_has_a_row_on_those_of_all_as_well(
    make: ModuleType, tmp_path: Path
) -> None:
    wave = tmp_path / "mnist-0.25"
    for seed in (0, 1):  # every other image of those that the third has
        log = add_run(wave, "a", seed)
        (head, *rows), journal = (
            file.read_text().splitlines(keepends=True)
            for file in (log, log.with_suffix(".rows.jsonl"))
        )
        log.write_text("".join([head, *rows[::2]]))
        log.with_suffix(".rows.jsonl").write_text("".join(journal[::2]))
    add_estimates(add_run(wave, "a", 2), {"linearized": {20 * i: 0.1 * i for i in range(40)}})
    shown = {row[10]: row for row in lines(make.table("mnist-0.25"), "a`")}

    def on(seed: int, images: slice) -> float:
        rows = draw_rows(seed, 0.25)[images]
        return sum(r["correct"] * r["radius"] for r in rows) / len(rows)

    few = sum(on(seed, slice(0, None, 2)) for seed in (1, 2, 3)) / 3
    assert shown.keys() == {"20", "40"}
    assert shown["20"][1].startswith(f"{few:.3f} ± ")
    assert shown["20"][2] == "3"
    assert shown["40"][1].startswith(f"{acr(3):.3f} ± ")
    assert shown["40"][2] == "1"
    (cell,) = (row[1] for row in lines(make.overview("a"), "a`"))
    assert cell.startswith(f"{few:.3f} ± ")
    (truth,) = lines(make.truth("mnist-0.25"), "a`")  # of the images of all
    assert truth[3] == f"{sum(0.1 * i for i in range(0, 40, 2)) / 20:.3f}"
