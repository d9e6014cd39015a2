"""The table and the curves of several runs, from small files written by hand."""

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from covprop.errors import InvalidInput
from covprop.noisy import compare


def write_run(folder: Path, name: str, accuracy: float, seconds: list[float], data: str) -> None:
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.toml").write_text(f'[data]\nname = "{data}"\n')
    rows = [
        {"epoch": i + 1, "seconds": s, "test_accuracy_clean": accuracy, "label_precision": 0.5}
        for i, s in enumerate(seconds)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {
        "test_accuracy_mean": accuracy,
        "test_accuracy_std": 0.004,
        "label_precision": 0.5,
        "suspects": {"flagged": 3, "average_precision": 0.25},
    }
    (run / "summary.json").write_text(json.dumps(summary))


def test_a_table_by_hand(tmp_path: Path) -> None:
    write_run(tmp_path, "plain-seed0", 0.50, [9.0, 10.0, 12.0, 13.0], "cifar10")
    write_run(tmp_path, "coteaching-seed0", 0.70, [5.0, 7.0, 9.0], "cifar10")
    write_run(tmp_path, "coteaching-seed1", 0.80, [5.0, 7.0, 9.0], "cifar10")
    (tmp_path / "unfinished-seed0").mkdir()
    lines = compare.table(compare.read(tmp_path)).splitlines()
    assert lines[2:] == [
        "| coteaching | 0.750 ± 0.050 | 2 | 0.500 | 0.250 | 2.00 | 0.726 |",
        "| plain | 0.500 ± 0.004 | 1 | 0.500 | 0.250 | 1.00 |  |",
    ]


def test_curves_are_a_picture(tmp_path: Path) -> None:
    write_run(tmp_path, "plain-seed0", 0.5, [1.0, 2.0], "digits")
    write_run(tmp_path, "plain-seed1", 0.6, [1.0, 2.0, 3.0], "digits")
    with Image.open(io.BytesIO(compare.curves(compare.read(tmp_path)))) as picture:
        assert (picture.format, picture.size) == ("PNG", (1320, 540))


def test_a_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no finished run"):
        compare.read(tmp_path)
