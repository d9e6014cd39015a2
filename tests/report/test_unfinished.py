"""Runs that were not trained to their end are marked wherever their numbers stand."""

import json
from pathlib import Path

import pytest
from certifications import make_run

from covprop.report.page import render
from covprop.report.read import Certification, read
from covprop.report.seeds import by_recipe
from covprop.report.summary import summarize
from covprop.report.tables import columns, markdown, tables


def planned(folder: Path, epochs: object, seed: int = 1, sigma: float = 0.25) -> Path:
    """A run of 3 epochs that was to have so many."""
    log = make_run(folder, seed, sigma)
    with (folder / "config.toml").open("a") as file:
        file.write(f"\n[train]\nseed = {seed}\nepochs = {epochs}\n")
    return log


def only(log: Path) -> Certification:
    return read([log])[0][0]


@pytest.mark.parametrize(
    ("epochs", "mark"),
    [(400, "3 of 400 epochs"), (4, "3 of 4 epochs"), (3, ""), (2, ""), ("'many'", "")],
)
def test_what_recipe_and_metrics_say(tmp_path: Path, epochs: object, mark: str) -> None:
    log = planned(tmp_path / "a", epochs)
    assert only(log).unfinished == mark
    log.with_name("metrics.jsonl").unlink()
    assert only(log).unfinished == ""


def test_what_was_noted_with_the_log_holds_though_training_went_on(tmp_path: Path) -> None:
    log = planned(tmp_path / "a", 3)
    meta = log.with_suffix(".json")
    noted = {"epochs": 2, "epochs_planned": 3}
    meta.write_text(json.dumps(json.loads(meta.read_text()) | noted))
    assert only(log).unfinished == "2 of 3 epochs"


def test_tables_and_page_are_marked(tmp_path: Path) -> None:
    planned(tmp_path / "done", 3)
    planned(tmp_path / "unfinished", 400)
    radii, summaries = summarize(read([tmp_path])[0])
    training = next(c for c in columns(radii, summaries) if c.title == "training")
    assert [cell.text for cell in training.cells] == ["4.5 s", "4.5 s, 3 of 400 epochs"]
    assert [cell.value for cell in training.cells] == [4.5, 4.5]
    text = markdown(*tables(radii, summaries)[0])
    assert [line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| unf")] == [
        "4.5 s, 3 of 400 epochs |"
    ]
    assert render(radii, summaries).count("4.5 s, 3 of 400 epochs") == 2  # table and details


def test_a_run_without_its_time_is_marked_too(tmp_path: Path) -> None:
    log = planned(tmp_path / "a", 400)
    log.with_name("metrics.jsonl").write_text('{"epoch": 62}\n')
    radii, summaries = summarize(read([log])[0])
    assert columns(radii, summaries)[-1].cells[0].text == "62 of 400 epochs"


def test_they_are_not_taken_together_with_others(tmp_path: Path) -> None:
    for seed in (1, 2, 3, 4):
        log = planned(tmp_path / f"a-seed{seed}", 3, seed)
    log.with_name("metrics.jsonl").write_text('{"epoch": 1, "seconds": 1}\n')
    planned(tmp_path / "elsewhere" / "a-seed1", 3, 1, 0.5)
    radii, summaries = summarize(read([tmp_path])[0])
    groups = {group.name.split("/")[-1]: len(group.members) for group in by_recipe(summaries)[:2]}
    assert groups == {"a": 3, "a (1 of 3 epochs)": 1}
    over_seeds, over_sigmas = (table for table, _ in tables(radii, summaries)[1:3])
    assert [cell.text for cell in over_seeds[1].cells] == ["3"]
    mean = sum(s.acr.value for s in summaries[:3]) / 3
    assert over_seeds[2].cells[0].text == f"{mean:.3f}"
    assert [cell.text for cell in over_sigmas[1].cells] == [f"{mean:.3f}"]
