"""Options are checked against signatures: unknown keys, types, ranges, missing values."""

from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch

from covprop.errors import InvalidInput
from covprop.options import Range, accepted, call, check_options, check_value, is_whole
from covprop.train.options import DataOptions, NoiseOptions, TrainOptions


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
        ("lr", float("inf"), r"train.lr must be at most 3.4e\+38, not inf"),
        ("lr", 1e308, r"train.lr must be at most 3.4e\+38, not 1e\+308"),
        ("lr", -float("inf"), "train.lr must be above 0, not -inf"),
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
    with pytest.raises(InvalidInput, match=r"noise\.sigma has no value"):
        check_options("noise", {}, accepted(NoiseOptions))


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
    assert check_value("k", None, tuple[float, ...] | None) is None


def test_without_a_type_that_of_the_default_counts() -> None:
    def net(width=8, scale=0.5, mask=None): ...

    assert check_options("model", {"scale": 1, "mask": "x"}, accepted(net))["scale"] == 1.0
    with pytest.raises(InvalidInput, match=r"model\.width must be a whole number, not 'x'"):
        check_options("model", {"width": "x"}, accepted(net))


def test_a_call_gets_the_facts_it_asks_for() -> None:
    facts = {"classes": 3, "size": 9}
    assert call("net", lambda classes, width=2: (classes, width), facts, {"width": 4}) == (3, 4)
    assert call("net", lambda **all_of_it: all_of_it, facts, {"more": 1}) == {**facts, "more": 1}
    with pytest.raises(InvalidInput, match=r"no option net\.size; net takes width"):
        call("net", lambda classes, width=2: width, facts, {"size": 4})


def test_a_list_stays_one_where_the_signature_says_list() -> None:
    def net(widths: list[int], sizes: tuple[int, ...]) -> None: ...

    given = {"widths": [1, 2], "sizes": [3, 4]}
    assert check_options("model", given, accepted(net)) == {"widths": [1, 2], "sizes": (3, 4)}


@pytest.mark.parametrize("wrong", ["pytest.nonsense", "int | 'Unknown'"])
def test_annotations_that_cannot_be_evaluated_check_nothing(wrong: str) -> None:
    def net(width: int = 8) -> None: ...

    net.__annotations__["width"] = wrong
    assert check_options("model", {"width": "any"}, accepted(net)) == {"width": "any"}


def test_whole_numbers_are_those_of_python_and_numpy() -> None:
    assert all(is_whole(value) for value in (0, -3, np.int64(3), np.uint8(3)))
    others = (True, np.True_, 3.0, np.float64(3), "3", None, torch.tensor(3), np.array(3))
    assert not any(is_whole(value) for value in others)
