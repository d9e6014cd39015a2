"""One row a method: its best certified row, and the lead of the best method."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from certifications import draw_rows
from scipy import stats
from wave_runs import acr, add_run, lines

PAPER_CIFAR10 = ["0.518", "0.543", "–"]


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


def per_image(seed: int) -> list[float]:
    return [row["correct"] * row["radius"] for row in draw_rows(seed, 0.25)]


def test_the_lead_is_a_paired_difference(make: ModuleType, tmp_path: Path) -> None:
    better, worse = sorted((1, 2), key=acr, reverse=True)
    wave = tmp_path / "mnist-0.25"
    add_run(wave, "a-muon-9epochs", 0, rows=better)
    add_run(wave, "b", 0, rows=worse)
    text = make.leads("x-muon", "a-muon", "over", "b", "c")
    titles, _, best, over_b, over_c = [
        line.strip("| ").split(" | ") for line in text.splitlines()[:5]
    ]
    assert titles[:3] == ["lead in ACR", "MNIST, σ = 0.25", "MNIST, σ = 0.50"]
    assert best[:3] == ["best", "`a-muon-9epochs`", "–"]
    expected = stats.ttest_rel(per_image(better), per_image(worse))
    mean = np.mean(per_image(better)) - np.mean(per_image(worse))
    assert over_b[:3] == ["over `b`", f"{mean:+.3f} ± {mean / expected.statistic:.3f}", "–"]
    assert over_c[:2] == ["over `c`", "–"]


@pytest.mark.parametrize("change", [{"n": 10**5}, {"mode": "hard, sequential to within 0.05"}])
def test_certified_in_another_way_there_is_no_lead(
    make: ModuleType, tmp_path: Path, change: dict[str, object]
) -> None:
    wave = tmp_path / "mnist-0.25"
    for seed, job, settings in ((0, "a", {}), (1, "b", {}), (2, "c", change)):
        meta = add_run(wave, job, seed).with_suffix(".json")
        known = json.loads(meta.read_text()) | {"n": 10**6, "mode": "hard"}
        meta.write_text(json.dumps(known | settings))
    (b,), (c,) = (
        [line for line in make.leads("a", "over", job).splitlines() if line.startswith("| over")]
        for job in ("b", "c")
    )
    assert b.startswith(f"| over `b` | {acr(1) - acr(2):+.3f} ± ".replace("-", "−"))
    assert c.startswith("| over `c` | – |")
