"""The grid of noisy-label runs: what is run, and for how long."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from scripts import benchmark

from covprop import data
from covprop.train import load

benchmark("noisy_page")  # noisy imports it
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
