"""A run on digits that takes a fraction of a second."""

from collections.abc import Callable
from typing import Any

import pytest

from covprop.train import Recipe, resolve

Make = Callable[..., Recipe]


@pytest.fixture
def tiny() -> Make:
    """`tiny(method=…, weighting=…, model=…, **train)` is a checked recipe."""

    def make(
        method: Any = "gaussian", weighting: Any = None, model: Any = None, **train: Any
    ) -> Recipe:
        raw = {
            "data": {"name": "digits"},
            "model": model or {"name": "lenet", "width": 2},
            "noise": {"sigma": 0.25},
            "method": {"name": method} if isinstance(method, str) else method,
            "train": {"epochs": 2, "batch_size": 200, "optimizer": "adamw", "lr": 0.01}
            | {"schedule": "cosine", "device": "cpu"}
            | train,
        }
        return resolve(raw | ({"weighting": weighting} if weighting else {}))

    return make
