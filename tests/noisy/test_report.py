"""What is written after training, from the files of a run alone."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from covprop.errors import InvalidInput
from covprop.noisy import suspects as listing
from covprop.noisy.report import accuracy, judge, sentences
from covprop.noisy.suspects import read_csv
from covprop.train import resolve, train


def trained(
    out: Path,
    labels: dict[str, Any],
    method: Any = "plain",
    epochs: int = 12,
    data: str | dict[str, Any] = "digits",
    batch_size: int = 100,
) -> Path:
    raw = {
        "data": {"name": data} if isinstance(data, str) else data,
        "labels": labels,
        "model": {"name": "lenet", "width": 4},
        "noise": {"sigma": 0.25},
        "method": {"name": method},
        "train": {"epochs": epochs, "batch_size": batch_size, "optimizer": "adamw", "lr": 0.01}
        | {"schedule": "constant", "device": "cpu"},
    }
    train(resolve(raw), out)
    return out


def test_a_report_finds_the_wrong_labels(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", {"name": "symmetric", "rate": 0.2})
    summary = judge(run)
    assert summary == json.loads((run / "summary.json").read_text())
    assert summary["noise_rate"]["low"] <= summary["noise_rate"]["true"]
    assert summary["noise_rate"]["true"] <= summary["noise_rate"]["high"]
    assert summary["suspects"]["precision"] > 0.7
    assert summary["suspects"]["recall"] > 0.7
    found = read_csv(run / "suspects.csv")
    assert found.clean is not None
    assert float((found.given != found.clean).mean()) == summary["noise_rate"]["true"]
    with np.load(run / "predictions.npz") as arrays:
        np.testing.assert_allclose(arrays["probability"].sum(1), 1, rtol=1e-5)
        own = arrays["probability"][np.arange(1437), arrays["given"]]
    np.testing.assert_allclose(own, found.quality, rtol=1e-5)
    with Image.open(run / "suspects.png") as picture:
        assert picture.size == (1200, 975)
    assert len(sentences(summary)) == 4
    assert "misleads all three" in sentences(summary)[2], "what the interval does not cover"
    compared = {"flagged": 12.0, "overlap": 0.5, "precision": 0.75, "recall": 0.25}
    assert sentences(summary | {"cleanlab": compared})[4] == (
        "cleanlab flags 12, 50% of all flagged by both; its precision 75%, recall 25%."
    )
    summary["noise_rate"]["estimate"] = 0.8
    assert "rather the network is wrong" in sentences(summary)[3]


def test_labels_of_unknown_quality(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", {"name": "none"}, epochs=6)
    summary = judge(run)
    assert summary["noise_rate"]["true"] is None
    assert summary["label_precision"] is None
    assert set(summary["suspects"]) == {"flagged"}
    assert summary["noise_rate"]["estimate"] < 0.15
    assert read_csv(run / "suspects.csv").clean is None
    assert "truly" not in " ".join(sentences(summary))


def test_own_files_are_named_and_shown_as_they_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split, count in (("train", 4), ("test", 1)):
        for name in ("cat", "dog"):
            folder = tmp_path / "own" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(folder / f"{number}.png")
    own = {"name": str(tmp_path / "own"), "image_shape": [1, 8, 8]}
    cats = tmp_path / "own" / "train" / "cat"
    (cats / "3.png").rename(cats / os.fsdecode(b"\xe9.png"))  # Latin-1, as on old disks
    run = trained(tmp_path / "run", {"name": "none"}, epochs=1, data=own, batch_size=4)
    shown: list[Any] = []
    grid = listing.picture_grid

    def show(found: Any, pictures: Any, classes: Any) -> bytes:
        shown.extend(picture.shape for picture in pictures)
        return grid(found, pictures, classes)

    monkeypatch.setattr(listing, "picture_grid", show)
    judge(run)
    assert shown
    assert set(shown) == {(8, 8, 1)}
    with (run / "suspects.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    named = [row["file"] for row in sorted(rows, key=lambda row: int(row["index"]))]
    files = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(4)]
    files[3] = r"cat/\udce9.png"
    assert named == files


def test_a_radius_is_listed_where_the_method_has_one(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", {"name": "pair", "rate": 0.2}, "radius", epochs=1)
    judge(run)
    found = read_csv(run / "suspects.csv")
    assert found.radius is not None
    unseen = np.isnan(found.radius)
    assert unseen.sum() == 37  # the incomplete last batch of the only epoch
    assert (found.quality[unseen] == 0.1).all(), "of these any class is as likely"
    with np.load(run / "predictions.npz") as arrays:
        np.testing.assert_allclose(arrays["probability"].sum(1), 1, rtol=1e-5)


def test_accuracy_is_that_of_the_last_ten_epochs() -> None:
    rows: list[dict[str, Any]] = [
        {"epoch": e + 1, "seconds": e, "kept": 1.0, "test_accuracy_clean": a}
        for e, a in enumerate([0.99, 0.98, *[0.5, 0.7] * 5])
    ]
    found = accuracy(rows)
    assert found["test_accuracy_mean"] == pytest.approx(0.6)
    assert found["test_accuracy_std"] == pytest.approx(0.1)
    assert (found["epochs_averaged"], found["epochs"]) == (10, 12)
    assert 0.99 not in found.values()
    for row in rows[::2]:
        del row["test_accuracy_clean"]
    assert accuracy(rows)["epochs_averaged"] == 5
    with pytest.raises(
        InvalidInput,
        match=r"no finished epoch in metrics\.jsonl .*; put that file back, .*--restart",
    ):
        accuracy([])


def test_another_kind_of_run(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[data]\nname = "digits"\n')
    with pytest.raises(InvalidInput, match=r"without \[labels\]"):
        judge(tmp_path)
