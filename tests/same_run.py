"""What a finished run holds, and whether two are the same."""

import json
from pathlib import Path
from typing import Any

import torch

from covprop.run import Run

TIMES = ("seconds", "images_per_second")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return Run(folder).load_model().state_dict()


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def assert_same_run(one: Path, two: Path) -> None:
    left, right = weights(one), weights(two)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[k], right[k]) for k in left)
    assert rows(one) == rows(two)
