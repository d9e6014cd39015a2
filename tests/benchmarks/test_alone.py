"""What an epoch costs with the machine to itself, by the rows that the run leaves."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripts import benchmark

jobs = benchmark("jobs")
alone = benchmark("alone")

WAVE = """
recipe = "digits/gaussian-0.25"
set = ["model.width=4", "train.device=cpu"]
[[job]]
name = "good"
[[job]]
name = "as good"
epochs = 7
[[job]]
name = "bad"
set = ["train.max_loss=0.01"]
"""


@pytest.fixture
def wave(tmp_path: Path) -> list[Any]:
    (tmp_path / "first.toml").write_text(WAVE)
    listed = jobs.read_wave(tmp_path / "first.toml")
    assert [job.name for job in listed] == ["good", "as good", "bad"]
    return list(listed)


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_an_epoch_alone_is_timed(wave: list[Any], tmp_path: Path) -> None:
    seconds, speed = alone.epoch_seconds(wave[0], tmp_path, None)
    rows = metrics(tmp_path / "good")
    assert len(rows) == 3
    assert seconds == pytest.approx((rows[2]["seconds"] - rows[0]["seconds"]) / 2)
    images = rows[2]["images_per_second"] * (rows[2]["seconds"] - rows[1]["seconds"])
    assert speed == pytest.approx(images / seconds)


def test_the_price_of_an_epoch_counts_both_phases(wave: list[Any], tmp_path: Path) -> None:
    changes = ("model.width=4", "train.device=cpu", "train.epochs=8", "method.from_epoch=2")
    job = replace(wave[0], recipe="digits/radius-0.25", set=changes)
    seconds, _ = alone.epoch_seconds(job, tmp_path, None)
    rows = metrics(tmp_path / "good")
    config = tomllib.loads((tmp_path / "good/config.toml").read_text())
    assert (config["train"]["epochs"], config["method"]["from_epoch"]) == (6, 3)
    at = [row["seconds"] for row in rows]
    before, after = (at[2] - at[0]) / 2, (at[5] - at[3]) / 2
    assert seconds == pytest.approx(0.25 * before + 0.75 * after)  # from epoch 2 of 8 on
    longer = ("model.width=4", "train.device=cpu", "train.epochs=16", "method.from_epoch=4")
    assert alone.price(replace(job, set=longer)) == alone.price(job)
    later = ("model.width=4", "train.device=cpu", "train.epochs=8", "method.from_epoch=6")
    assert alone.price(replace(job, set=later)) != alone.price(job)


def test_the_price_is_that_of_the_part_that_begins_last(wave: list[Any]) -> None:
    begins = ("method.from_epoch=2", "weighting.from_epoch=6", "train.epochs=10")
    job = replace(wave[0], recipe="digits/radius-0.25", set=("weighting=radius", *begins))
    assert alone.price(job)[-1] == 0.6


def test_one_job_of_each_price_is_timed_and_one_that_fails_is_told(
    wave: list[Any], tmp_path: Path
) -> None:
    said = list(alone.time_epochs(wave, tmp_path / "first", None, {"device": "a machine"}))
    header, row = (tmp_path / "first/timing.tsv").read_text().splitlines()
    found = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    assert (found["job"], found["ratio_to_first"], found["device"]) == (
        "good",
        "1.000",
        "a machine",
    )
    assert said[0] == row
    assert [line.partition(":")[0] for line in said[1:]] == ["bad"]
    assert json.loads((tmp_path / "first/timing.json").read_text()) == {"device": "a machine"}
