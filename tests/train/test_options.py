"""Options are checked against signatures: unknown keys, types, ranges, missing values."""

from typing import Annotated, Any, Literal

import pytest

from covprop.errors import InvalidInput
from covprop.train.options import (
    DataOptions,
    NoiseOptions,
    Range,
    TrainOptions,
    accepted,
    check_options,
    check_value,
)


def test_defaults_are_filled_in_and_given_values_kept() -> None:
    values = check_options("train", {"epochs": 3, "milestones": [1, 2]}, accepted(TrainOptions))
    assert values["milestones"] == (1, 2)
    assert TrainOptions(**values) == TrainOptions(epochs=3, milestones=(1, 2))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("epocs", 3, 'did you mean "epochs"'),
        ("epochs", 0, "train.epochs must be at least 1, not 0"),
        ("epochs", 2.5, "train.epochs must be a whole number"),
        ("epochs", True, "train.epochs must be a whole number"),
        ("lr", 0, "train.lr must be above 0"),
        ("lr", float("nan"), "train.lr must be a number"),
        ("lr", float("inf"), "train.lr must be above 0"),
        ("lr", "0.1", "train.lr must be a number"),
        ("momentum", 1.5, "train.momentum must be at least 0 and at most 1"),
        ("optimizer", "sdg", 'did you mean "sgd"'),
        ("optimizer", 3, "must be one of 'sgd', 'adamw'"),
        ("milestones", 3, r"must be a list such as \[1, 2\]"),
        ("milestones", [0], "at least 1"),
        ("betas", [0.9], "a list of 2 values"),
        ("compile", 1, "must be one of 'auto', true, false, not 1"),
        ("compile", "atuo", 'true, false, not .atuo. .did you mean "auto"'),
        ("fast", 1, "true or false"),
    ],
)
def test_a_wrong_value_is_one_sentence_naming_the_key(key: str, value: Any, message: str) -> None:
    given = {"epochs": 3} | {key: value}
    with pytest.raises(InvalidInput, match=message) as caught:
        check_options("train", given, accepted(TrainOptions))
    assert "\n" not in str(caught.value)


def test_a_missing_value_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"lacks noise\.sigma"):
        check_options("noise", {}, accepted(NoiseOptions))


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
        ({"nesterov": True, "momentum": 0.0}, "nesterov"),
    ],
)
def test_values_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        TrainOptions(epochs=5, **options).check()


def test_any_signature_is_a_schema() -> None:
    def net(
        width: int = 8,
        kind: Literal["a", "b"] = "a",
        scale: Annotated[float, Range(0)] | None = None,
        other: "Unknown" = None,  # type: ignore[name-defined] # noqa: F821
    ) -> None: ...

    assert check_options("model", {}, accepted(net)) == {"width": 8, "kind": "a"}
    values = check_options("model", {"scale": 1, "other": "x"}, accepted(net))
    assert values["other"] == "x"

    def takes_all(**more: Any) -> None: ...

    assert check_options("model", {"anything": [1]}, accepted(takes_all)) == {"anything": [1]}


def test_optional_values_are_checked_too() -> None:
    with pytest.raises(InvalidInput, match="at least 2"):
        check_options("data", {"name": "x", "num_classes": 1}, accepted(DataOptions))
    assert check_value("k", [1, 2], tuple[float, ...] | None) == (1.0, 2.0)
