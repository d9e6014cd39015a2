"""Images as they come: answers of `certify` and `predict`, whatever the way."""

from collections.abc import Iterator
from dataclasses import fields

import pytest
import torch
from tiny import SIGMA, images, network
from torch import Tensor, nn

from covprop.certify import SampleWarning, certify, certify_each, predict, predict_each
from covprop.errors import InvalidInput


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("options", [{}, {"delta": 0.1}, {"at_least": 0.3}, {"soft": True}])
def test_one_by_one_is_all_at_once(options: dict, fast: bool) -> None:
    """Also the looks are the same, which come after whole blocks."""
    model, x, index = network(), images(5), [4, 9, 2, 0, 7]
    given = {"sigma": SIGMA, "n": 2000, "seed": 4, "fast": fast, "batch_size": 512, **options}
    whole = certify(model, x, index=index, **given)
    for places, found in certify_each(model, zip(index, x, strict=True), 5, **given):
        for field in fields(found):
            assert torch.equal(getattr(found, field.name), getattr(whole, field.name)[places])


@pytest.mark.parametrize("fast", [False, True])
def test_predictions_too(fast: bool) -> None:
    model, x, index = network(), images(5), [4, 9, 2, 0, 7]
    given = {"sigma": SIGMA, "n": 1000, "seed": 4, "fast": fast, "batch_size": 512}
    whole = predict(model, x, index=index, **given)
    for places, found in predict_each(model, zip(index, x, strict=True), 5, **given):
        for field in fields(found):
            assert torch.equal(getattr(found, field.name), getattr(whole, field.name)[places])


class Pooled(nn.Module):
    """Takes images of any size, and notes how many come at once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)
        self.passes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        self.passes.append(len(x))
        return self.linear(x.amax((2, 3)))


@pytest.mark.parametrize("each", [certify_each, predict_each])
def test_one_after_the_other_the_network_is_probed_once(each: type) -> None:
    model = Pooled()
    probes = []
    for count in (1, 6):
        model.passes.clear()
        assert len(list(each(model, enumerate(images(count)), count, sigma=SIGMA, n=500))) == count
        probes.append(model.passes.count(2))
    assert probes[0] == probes[1] > 0
    assert model.training


def test_a_network_that_fails_on_the_way_is_left_as_it_was() -> None:
    model = Pooled()

    def source() -> Iterator[tuple[int, Tensor]]:
        yield 0, images(1)[0]
        del model.linear
        yield 1, images(1)[0]

    found = certify_each(model, source(), 2, sigma=SIGMA, n=500)
    assert next(found)[0] == [0]
    with pytest.raises(AttributeError, match="linear") as failed:
        next(found)
    assert failed.traceback  # which holds what the call held
    assert model.training


def test_images_come_one_at_a_time_and_in_any_shape() -> None:
    model, asked = Pooled(), []
    x = [*images(2), torch.rand(3, 8, 6), torch.rand(3, 8, 6), *images(1)]

    def source() -> Iterator[tuple[int, Tensor]]:
        for i, image in enumerate(x):
            asked.append(i)
            yield 10 + i, image

    given = {"sigma": SIGMA, "n": 2000, "delta": 0.1}
    for places, found in certify_each(model, source(), len(x), **given):
        (place,) = places
        assert asked[-1] == place
        alone = certify(model, x[place], index=10 + place, **given)
        assert all(getattr(found, f.name)[0] == getattr(alone, f.name) for f in fields(found))


@pytest.mark.parametrize("each", [certify_each, predict_each])
def test_one_after_the_other_images_are_checked_too(each: type) -> None:
    """See `test_fast.py` for those of a queue."""
    for wrong, message in (
        (images(1)[0] + 2, "must lie in"),
        (images(1), r"must be float images .* not float32 \[1, 1, 3, 4, 4\]"),
        (images(1)[0].long(), "not int64"),
    ):
        found = each(network(), [(0, images(1)[0]), (7, wrong)], 2, sigma=SIGMA, n=500)
        assert next(found)[0] == [0]
        with pytest.raises(InvalidInput, match=message):
            next(found)
    with pytest.raises(InvalidInput, match="index cannot be negative"):
        next(each(network(), [(-1, images(1)[0])], 1, sigma=SIGMA, n=500))
    assert list(each(network(), [], 0, sigma=SIGMA, n=500)) == []


@pytest.mark.parametrize("fast", [False, True])
def test_too_few_samples_are_told_once(fast: bool) -> None:
    with pytest.warns(SampleWarning, match="every image abstains") as told:
        list(certify_each(network(), enumerate(images(3)), 3, sigma=SIGMA, n=9, fast=fast))
    assert len(told) == 1
    assert told[0].filename == __file__
