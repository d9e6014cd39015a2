"""Values of a recipe that contradict each other."""

from typing import Any

import pytest

from covprop.errors import InvalidInput
from covprop.train.options import TrainOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"milestones": (2, 2)}, "increasing"),
        ({"milestones": (5,)}, "the run ends after 5"),
        ({"warmup_epochs": 5.0}, "warmup_epochs"),
        ({"schedule": "one-cycle", "warmup_epochs": 1.0}, "rises by itself"),
        ({"schedule": "linear", "decay_from": 5}, "lies behind the 5 epochs"),
        ({"decay_from": 2}, 'go with schedule = "linear" only'),
        ({"schedule": "linear", "late_beta1": 0.1}, 'needs optimizer = "adamw"'),
        ({"optimizer": "adamw", "betas": (1.0, 0.9)}, "lie below 1"),
        ({"schedule": "linear", "optimizer": "adamw", "late_beta1": 1.0}, "lie below 1"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov"),
    ],
)
def test_values_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        TrainOptions(epochs=5, **options).check()
