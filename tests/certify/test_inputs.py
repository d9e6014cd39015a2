"""What a caller gives that cannot be meant."""

import pytest
import torch
from torch import Tensor, nn

from covprop.certify import certify, certify_each, predict
from covprop.certify.bounds import best_lower, certified_radius
from covprop.certify.inputs import as_index, check_label_range, check_labels, check_options
from covprop.errors import InvalidInput

X = torch.rand(2, 1, 4, 4)
NET = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()


@pytest.mark.parametrize("model", ["net.pt", None])
@pytest.mark.parametrize("fast", [False, True])
def test_what_cannot_be_asked_for_logits_is_refused(model: object, fast: bool) -> None:
    expected = f"^model is a {type(model).__name__}; give a module or a function from images"
    for ask in (certify, predict):
        with pytest.raises(InvalidInput, match=expected):
            ask(model, X, sigma=0.25, n=1000, fast=fast)  # type: ignore[operator]


def test_a_model_of_two_inputs_is_refused_in_a_sentence() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    with pytest.raises(InvalidInput, match=r"^the model fails .* missing 1 required"):
        certify(Two(), X, sigma=0.25, n=1000)


@pytest.mark.parametrize("fast", [False, True])
def test_a_label_that_is_no_class_is_refused_where_classes_are_not_told(fast: bool) -> None:
    asked = {"sigma": 0.25, "n": 1000, "fast": fast, "skip_wrong": True}
    with pytest.raises(InvalidInput, match="from 0 to 2, but one of them is 3"):
        certify(NET, X, labels=[0, 3], **asked)  # type: ignore[arg-type]
    assert len(certify(NET, X, labels=[0, 2], **asked).radius) == 2  # type: ignore[arg-type]


def test_labels_are_those_of_the_images() -> None:
    assert check_labels(torch.tensor([2, 0]), 2, 3, skip=True) == [2, 0]
    with pytest.raises(InvalidInput, match="2 images need 2 labels, not 1"):
        check_labels([1], 2, None, skip=True)
    with pytest.raises(InvalidInput, match="from 0, but one of them is -1"):
        check_label_range([0, -1], None)
    check_label_range(None, 3)


@pytest.mark.parametrize("index", [[0.5, 1], torch.tensor([0.0, 1.0]), ["a", "b"]])
def test_images_are_named_by_whole_numbers(index: list) -> None:
    with pytest.raises(InvalidInput, match=r"^images are named by whole numbers, not"):
        as_index(index, 2)
    assert as_index(torch.tensor([7, 3]), 2) == [7, 3]


def test_images_without_an_index_are_no_source() -> None:
    with pytest.raises(InvalidInput, match=r"as by enumerate\(images\)"):
        list(certify_each(NET, X, 2, sigma=0.25, n=1000))  # type: ignore[arg-type]


@pytest.mark.parametrize("n", ["100", None, 100.5])
def test_samples_are_counted(n: int) -> None:
    with pytest.raises(InvalidInput, match=f"whole numbers, not n0 = 100 and n = {n!r}"):
        certify(NET, X, sigma=0.25, n=n)


def test_no_question_is_asked_by_default() -> None:
    assert check_options(0.25, 100, 1000, 0.001) is None


@pytest.mark.parametrize("delta", [None, 0.1])
def test_no_radius_at_all_is_refused(delta: float | None) -> None:
    with pytest.raises(InvalidInput, match="at_least names no radius"):
        check_options(0.25, 100, 1000, 0.001, delta=delta, at_least=[])


@pytest.mark.parametrize(("soft", "between"), [(False, 0.945), (True, 0.885)])
def test_a_radius_is_out_of_reach_where_no_look_can_certify_it(soft: bool, between: float) -> None:
    """Looks share α, so the last one certifies less than a single one of all samples would."""
    n, alpha, sigma = 100_000, 0.001, 0.25
    single = float(certified_radius(best_lower(1.0, n, alpha, soft=soft), sigma))
    assert between < single
    with pytest.raises(InvalidInput, match=r"looked at \d+ times, .* out of reach"):
        check_options(sigma, 100, n, alpha, soft=soft, at_least=between, step=256)
    check_options(sigma, 100, 200, alpha, at_least=0.45, step=256)  # one look


@pytest.mark.parametrize(("asked", "radii"), [(0.25, (0.25,)), ([0.25, 0.5], (0.25, 0.5))])
def test_one_radius_or_several(asked: float | list[float], radii: tuple[float, ...]) -> None:
    question = check_options(0.25, 100, 10_000, 0.001, at_least=asked)
    assert question is not None
    assert question.at_least == radii
    assert question.delta is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"x": torch.zeros(4, 1, 0, 8)}, r"images of \[1, 0, 8\] have no pixels"),
        ({"x": torch.zeros(2, 1, 4, 4).to_sparse()}, "the images are a sparse tensor"),
        ({"alpha": None}, "alpha is a probability"),
        ({"alpha": [0.1]}, "alpha is a probability"),
        ({"at_least": "a"}, "at_least is a radius"),
        ({"at_least": [[0.1]]}, "at_least is a radius"),
        ({"delta": "a"}, "delta is a radius"),
        ({"n": torch.tensor(200)}, "counted in whole numbers"),
        ({"n": True}, "counted in whole numbers"),
        ({"labels": ["a"] * 2, "skip_wrong": True}, "labels are whole numbers"),
        ({"seed": 1.5}, "seed is a whole number, not 1.5"),
        ({"seed": None}, "seed is a whole number, not None"),
        ({"num_classes": 3.0}, "num_classes is a whole number, not 3.0"),
        ({"device": 99}, "cuda:99"),
    ],
)
def test_other_kinds_of_things_are_one_sentence(given: dict, said: str) -> None:
    """They ended in errors of torch and numpy, or were taken without a word."""
    options = {"x": X, "n": 100, "num_classes": 3} | given
    with pytest.raises(InvalidInput, match=said):
        certify(NET, options.pop("x"), sigma=0.25, **options)
