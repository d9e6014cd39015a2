"""The grid of noisy-label runs: what is run, and what is brought home."""

import argparse
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts import benchmark

from covprop import data
from covprop.bench import machine
from covprop.train import load

page = benchmark("noisy_page")
noisy = benchmark("noisy")


def test_a_run_is_of_the_length_the_settings_and_the_seed_asked_for(tmp_path: Path) -> None:
    options = argparse.Namespace(
        dataset="digits", out=tmp_path, data=None, epochs=None, set=["a=1"]
    )
    (job,) = noisy.planned(options, [("plain", 3)], end=9.0)
    assert job.changes == ["a=1", "train.seed=3"]
    options.epochs = 20
    (job,) = noisy.planned(options, [("plain", 3)], end=9.0)
    assert (job.changes[0], job.changes[-2:]) == ("train.epochs=20", ["a=1", "train.seed=3"])
    assert job.out == tmp_path / "plain-seed3"


def test_the_archive_has_no_weights(tmp_path: Path) -> None:
    out = tmp_path / "digits-pair-0.45"
    run = out / "plain-seed0"
    run.mkdir(parents=True)
    (run / "config.toml").write_text('[data]\nname = "digits"\n[model]\nname = "lenet"\n')
    row = {"epoch": 1, "seconds": 2.0, "test_accuracy_clean": 0.5, "label_precision": 0.6}
    (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    summary = {"test_accuracy_mean": 0.5, "test_accuracy_std": 0.0, "label_precision": 0.6}
    (run / "summary.json").write_text(json.dumps(summary | {"epochs": 1, "suspects": {}}))
    (run / "state.pt").write_bytes(b"large")
    options = argparse.Namespace(dataset="digits", out=out, archive=tmp_path / "a.tar.gz")
    page.tell_machine(options, [], machine.facts(torch.device("cpu")))
    page.conclude(options)
    with tarfile.open(options.archive) as archive:
        names = {name.removeprefix("digits-pair-0.45/") for name in archive.getnames()}
    kept = {f"plain-seed0/{name}" for name in ("config.toml", "metrics.jsonl", "summary.json")}
    assert names == {"README.md", "curves.png", "machine.json"} | kept
    assert "| plain | 1 | 0.500 ± 0.000 | 1 | 0.600 |" in (out / "README.md").read_text()


def test_commands_that_went_on_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = argparse.Namespace(out=tmp_path)
    words = ["digits", "--out", "/home/me/o", "--data", "d", "--archive", "a.tgz", "--jobs", "2"]
    monkeypatch.setattr("sys.argv", ["noisy.py", *words])
    facts = machine.facts(torch.device("cpu"))
    for commit, runs in (("one", ["plain-seed1"]), ("two", []), ("three", ["plain-seed1"])):
        monkeypatch.setenv("COVPROP_COMMIT", commit)
        page.tell_machine(options, runs, facts)
    found = json.loads((tmp_path / "machine.json").read_text())
    said = "python benchmarks/noisy.py digits --out OUT --data DATA --archive ARCHIVE --jobs 2"
    assert (found["command"], found["commit"]) == (said, "one")
    (later,) = found["later"]  # with nothing left to do only the page is written anew
    assert (later["commit"], later["runs"]) == ("three", ["plain-seed1"])


def test_epochs_that_fit() -> None:
    options = argparse.Namespace(seeds=[0, 4], main=("plain",))
    pairs = noisy.grid(options, ["coteaching", "plain"])
    assert pairs == [("coteaching", 0), ("plain", 0), ("plain", 4)]
    timing = {"coteaching": 2.0, "plain": 1.0}
    assert noisy.fitting(100.0, pairs, timing, 200) == int(100 / (4 * noisy.EVALUATED))
    assert noisy.fitting(1e6, pairs, timing, 200) == 200
    assert noisy.fitting(1.0, pairs, timing, 200) == 10


def test_an_epoch_is_worked_out_from_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Trainer:
        def __init__(self, recipe: Any, folder: Path, split: Any, *_: object) -> None:
            self.folder = folder
            seen.append(len(split) // recipe.train.batch_size)

        def fit(self) -> None:
            rows = [json.dumps({"seconds": seconds}) for seconds in (9.0, 10.0, 12.0)]
            (self.folder / "metrics.jsonl").write_text("\n".join(rows))

    monkeypatch.setattr(noisy, "Trainer", Trainer)
    monkeypatch.setattr(noisy, "TIMED_STEPS", 2)
    recipe = "noisy/digits/plain-pair-0.45"
    options = argparse.Namespace(set=["train.device=cpu"], data=None)
    seconds = noisy.epoch_seconds(options, recipe)
    steps = len(data.load("digits", "train")) // load(recipe).train.batch_size
    assert seen == [2]
    assert steps > 2
    assert seconds == pytest.approx(2.0 / 2 * steps)  # the third epoch: two steps in two seconds
