"""Differences between runs, against scipy's paired t-test and by hand."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from certifications import make_run
from scipy import stats

from covprop.report.cells import Column, by_row
from covprop.report.differences import difference, difference_columns
from covprop.report.read import read
from covprop.report.seeds import by_recipe
from covprop.report.summary import summarize
from covprop.report.tables import latex, tables


def radii_of(log: Path) -> np.ndarray:
    """What each image counts for in the ACR."""
    rows = [json.loads(line) for line in log.with_suffix(".rows.jsonl").read_text().splitlines()]
    return np.array([row["radius"] if row["correct"] else 0.0 for row in rows])


def seeded(folder: Path, seed: int) -> Path:
    log = make_run(folder, seed)
    with (folder / "config.toml").open("a") as file:
        file.write(f"\n[train]\nseed = {seed}\n")
    return log


def compared(folder: Path) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of the table of differences."""
    radii, summaries = summarize(read([folder])[0])
    table: list[Column] = difference_columns(radii[:1], by_recipe(summaries))
    shown = [[f"{c.text} {c.plus_minus}".strip() for c in row] for row in by_row(table)]
    return [column.title for column in table], shown


def test_a_difference_is_scipys_paired_t(tmp_path: Path) -> None:
    one, other = make_run(tmp_path / "a", 1), make_run(tmp_path / "b", 2)
    _, summaries = summarize(read([tmp_path])[0])
    first, second = by_recipe(summaries)
    found = difference(first, second)
    expected = stats.ttest_rel(radii_of(one), radii_of(other))
    interval = expected.confidence_interval(0.95)
    assert found.images == 40
    assert found.mean == pytest.approx((interval.low + interval.high) / 2)
    assert found.half == pytest.approx((interval.high - interval.low) / 2)
    assert found.error == pytest.approx(found.mean / expected.statistic)
    at = difference(first, second, 0.1)
    reached = [radii_of(log) >= 0.1 for log in (one, other)]
    assert at.mean == pytest.approx(reached[0].mean() - reached[1].mean())
    assert at.error == pytest.approx(
        np.std(reached[0].astype(float) - reached[1], ddof=1) / np.sqrt(40)
    )


def test_images_are_matched_by_their_number(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a", 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for file in (tmp_path / "b" / log.name, (tmp_path / "b" / log.name).with_suffix(".rows.jsonl")):
        lines = file.read_text().splitlines(keepends=True)
        head = 1 if file.suffix == ".tsv" else 0
        file.write_text("".join(lines[:head] + lines[head:][::-1]))
    _, summaries = summarize(read([tmp_path])[0])
    found = difference(*by_recipe(summaries))
    assert (found.mean, found.error) == (0.0, 0.0)
    assert compared(tmp_path)[1] == [["b", "a", "0.000", "0.0", "40"]]


def test_seeds_enter_by_their_mean(tmp_path: Path) -> None:
    logs = [seeded(tmp_path / f"a-seed{seed}", seed) for seed in (1, 2, 3)]
    other = make_run(tmp_path / "b", 4, method="macer")
    _, summaries = summarize(read([tmp_path])[0])
    groups = by_recipe(summaries)
    assert [group.name for group in groups] == ["a", "b"]
    mean = np.mean([radii_of(log) for log in logs], axis=0)
    expected = stats.ttest_rel(mean, radii_of(other)).confidence_interval(0.95)
    assert difference(*groups).half == pytest.approx((expected.high - expected.low) / 2)


def test_every_run_beside_the_best(tmp_path: Path) -> None:
    logs = {name: make_run(tmp_path / name, seed) for seed, name in enumerate("abc")}
    acr = {name: radii_of(log).mean() for name, log in logs.items()}
    best, second, third = sorted(acr, key=lambda name: -acr[name])
    titles, rows = compared(tmp_path)
    assert titles == ["recipe", "best", "ACR", "r=0", "images"]
    assert [row[:2] for row in rows] == [[second, best], [third, best]]
    for row in rows:
        value, _, half = row[2].partition(" ±")
        interval = stats.ttest_rel(radii_of(logs[row[0]]), radii_of(logs[best]))
        low, high = interval.confidence_interval(0.95)
        assert value == f"{acr[row[0]] - acr[best]:.3f}".replace("-", "−")
        assert half == f"{(high - low) / 2:.3f}"


@pytest.mark.parametrize(
    "settings",
    [
        {"n": 10**5},
        {"alpha": 0.01},
        {"mode": "hard, sequential to within 0.05"},
        {"split": "train"},
    ],
)
def test_other_certificates_do_not_compare(tmp_path: Path, settings: dict[str, object]) -> None:
    make_run(tmp_path / "a", 1)
    make_run(tmp_path / "b", 2)
    for name in "ab":
        (meta,) = (tmp_path / name).glob("certify_*.json")
        meta.write_text(json.dumps(json.loads(meta.read_text()) | {"n": 10**6, "mode": "hard"}))
    assert len(compared(tmp_path)[1]) == 1
    meta.write_text(json.dumps(json.loads(meta.read_text()) | settings))
    assert len(read([tmp_path])[0]) == 2
    assert compared(tmp_path) == ([], [])


def test_other_noise_and_other_images_do_not_compare(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 1, 0.25)
    make_run(tmp_path / "b", 2, 0.5)
    log = make_run(tmp_path / "c", 3, 0.25)
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:30]))
    assert compared(tmp_path) == ([], [])


def test_a_single_image_has_no_interval(tmp_path: Path) -> None:
    for seed in (1, 2):
        log = make_run(tmp_path / f"a{seed}", seed)
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
    _, ((_, _, acr, _, images),) = compared(tmp_path)
    assert (images, "±" in acr) == ("1", False)


def test_reports_have_the_table(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 1)
    assert len(tables(*summarize(read([tmp_path])[0]))) == 2  # the runs, and their p_A
    make_run(tmp_path / "b", 2)
    _, (table, note), _ = tables(*summarize(read([tmp_path])[0]))
    assert [column.title for column in table[:3]] == ["recipe", "best", "ACR"]
    assert "paired t" in note
    assert "& $-$0." in latex(table, note)


def test_settings_that_are_no_numbers_compare_by_their_text(tmp_path: Path) -> None:
    """A list in an edited .json ended the report on all other runs too."""
    for name, seed in (("a", 1), ("b", 2)):
        path = make_run(tmp_path / name, seed).with_suffix(".json")
        path.write_text(json.dumps(json.loads(path.read_text()) | {"n": [100]}))
    assert len(compared(tmp_path)[1]) == 1
