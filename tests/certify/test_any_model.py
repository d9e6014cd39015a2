"""Networks as engineers have them: of any precision, exported, with one output, without weights."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covprop
from covprop.errors import InvalidInput

X = torch.full((2, 1, 4, 4), 0.8)


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, outputs)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fast", [None, True])
def test_a_network_of_another_precision_is_certified_as_that_in_float32(
    dtype: torch.dtype, fast: bool | None
) -> None:
    plain = covprop.certify(network(), X, sigma=0.25, n=500, num_classes=3)
    model = network().to(dtype)
    for x in (X, X.to(dtype)):
        found = covprop.certify(model, x, sigma=0.25, n=500, num_classes=3, fast=fast)
        assert found.prediction.tolist() == plain.prediction.tolist()
        # The same noise: counts differ by samples next to the boundary alone.
        assert (found.count - plain.count).abs().max() <= (1 if dtype is torch.float64 else 15)
    voted = covprop.predict(model, X, sigma=0.25, n=500, fast=fast)
    assert voted.prediction.tolist() == plain.prediction.tolist()


def test_a_single_output_certifies_nothing() -> None:
    for classes in (None, 1):
        with pytest.raises(InvalidInput, match=r"single output .* stacking it with zeros"):
            covprop.certify(network(1), X, sigma=0.25, n=100, num_classes=classes)
    with pytest.raises(InvalidInput, match="single output"):
        covprop.predict(network(1), X, sigma=0.25, n=100)

    one = network(1).eval()

    def two(x: Tensor) -> Tensor:
        out = one(x)
        return torch.cat([0 * out, out], 1)

    found = covprop.certify(two, X, sigma=0.25, n=100, alpha=0.01)
    assert (found.prediction == (one(X)[:, 0] > 0).long()).all()


def test_an_exported_program_is_certified_as_its_network() -> None:
    model = network().eval()
    program = torch.export.export(
        model,
        (X.new_zeros(2, 1, 4, 4),),
        dynamic_shapes=({0: torch.export.Dim("batch", min=2)},),
        strict=False,
    ).module()
    expected = covprop.certify(model, X, sigma=0.25, n=200)
    assert torch.equal(covprop.certify(program, X, sigma=0.25, n=200).count, expected.count)


def test_what_a_network_cannot_take_is_one_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"fails on images of shape \[3, 4, 4\]: .*channels"):
        covprop.certify(network(), torch.rand(2, 3, 4, 4), sigma=0.25, n=100)
    with pytest.raises(InvalidInput, match=r"float32 \[2, 5\]; rows of n numbers .* nn.Flatten"):
        covprop.certify(nn.Linear(5, 3), torch.rand(2, 5), sigma=0.25, n=100)
    table = nn.Sequential(nn.Flatten(), nn.Linear(5, 3))
    rows = torch.randn(2, 5)[:, :, None, None]
    found = covprop.certify(table, rows, sigma=0.01, n=100, alpha=0.01, value_range=None)
    assert found.prediction.tolist() == table(rows).argmax(1).tolist()


def test_the_meta_device_holds_no_numbers() -> None:
    with torch.device("meta"):
        empty = network()
    with pytest.raises(InvalidInput, match="model is on the meta device"):
        covprop.certify(empty, X, sigma=0.25, n=100)
    with pytest.raises(InvalidInput, match="images are on the meta device"):
        covprop.certify(network(), X.to("meta"), sigma=0.25, n=100)
    with pytest.raises(InvalidInput, match="images are on the meta device"):
        covprop.margin(network(), X.to("meta"), sigma=0.25)


def test_a_batch_norm_by_the_batch_certifies_nothing() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.Flatten(),
        nn.Linear(16, 3),
    ).eval()
    with pytest.raises(InvalidInput, match="batch norm 1 keeps no statistics"):
        covprop.certify(model, X, sigma=0.25, n=100)
    with pytest.raises(InvalidInput, match="batch norm 1 keeps no statistics"):
        covprop.predict(model, X, sigma=0.25, n=100)


def test_a_function_around_a_network_in_training_mode_certifies_nothing() -> None:
    """Only a module can be put in eval mode; samples that share a batch would share their fate."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    for fast in (None, True):
        with pytest.raises(InvalidInput, match=r"what else is in the batch.* eval mode"):
            covprop.certify(lambda x: model(x), X, sigma=0.25, n=100, fast=fast)
        with pytest.raises(InvalidInput, match="what else is in the batch"):
            covprop.predict(model.forward, X, sigma=0.25, n=100, fast=fast)
    expected = covprop.certify(model, X, sigma=0.25, n=100)
    model.eval()
    assert torch.equal(covprop.certify(model.forward, X, sigma=0.25, n=100).count, expected.count)


def test_company_is_seen_behind_a_norm_that_works_image_by_image() -> None:
    """It makes the same of every plain colour."""
    norm, last = nn.InstanceNorm2d(1), nn.Linear(16, 3)

    def centred(x: Tensor) -> Tensor:
        h = norm(x)
        return last((h - h.mean(0)).flatten(1))

    with pytest.raises(InvalidInput, match="what else is in the batch"):
        covprop.certify(centred, X, sigma=0.25, n=100)


def test_the_size_of_the_batch_is_company_too() -> None:
    """Samples go in blocks of one size, and the last answer would be that of the block."""
    last = nn.Linear(16, 3)
    for logits in (lambda x: last(x.flatten(1) / len(x)), lambda x: last(x.flatten(1)) - len(x)):
        with pytest.raises(InvalidInput, match="or on how many images are"):
            covprop.certify(logits, X, sigma=0.25, n=100)
    half = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    found = covprop.certify(half.bfloat16(), X, sigma=0.25, n=100)
    assert found.n.tolist() == [100, 100]


def test_a_norm_over_several_processes_without_statistics_is_named_too() -> None:
    norm = nn.SyncBatchNorm(1, track_running_stats=False)
    model = nn.Sequential(norm, nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(InvalidInput, match="batch norm 0 keeps no statistics"):
        covprop.certify(model, X, sigma=0.25, n=100)


def test_what_is_random_or_nan_does_not_depend_on_its_company() -> None:
    """A coin for each sample is a classifier like any other; so is one without an answer."""
    generator = torch.Generator().manual_seed(0)

    def coin(x: Tensor) -> Tensor:
        return torch.randint(2, (len(x), 3), generator=generator).float()

    for _ in range(20):  # two throws of a coin are often the same
        assert covprop.certify(coin, X, sigma=0.25, n=300).n.tolist() == [300, 300]
    nan = covprop.certify(lambda x: torch.full((len(x), 3), torch.nan), X, sigma=0.25, n=300)
    assert nan.nan.tolist() == [300, 300]


def test_answers_that_share_their_memory_are_told_apart() -> None:
    """As a recorded network's do, which writes each of them over the last."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    place = torch.empty(10_000, 3)

    def recorded(x: Tensor) -> Tensor:
        return place[: len(x)].copy_(model(x))

    with pytest.raises(InvalidInput, match="what else is in the batch"):
        covprop.certify(recorded, X, sigma=0.25, n=100)
    model.eval()
    expected = covprop.certify(model, X, sigma=0.25, n=100)
    assert torch.equal(covprop.certify(recorded, X, sigma=0.25, n=100).count, expected.count)


def test_a_function_that_writes_into_its_images_is_seen_through() -> None:
    """Each look begins with the same images, or what is deterministic would pass for random."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))

    def writing(x: Tensor) -> Tensor:
        x.square_().view(-1)  # not of images that lie channels last, of which it would get copies
        return model(x)

    with pytest.raises(InvalidInput, match="what else is in the batch"):
        covprop.certify(writing, torch.rand(2, 3, 4, 4), sigma=0.25, n=100)
    model.eval()
    found = covprop.certify(writing, torch.rand(2, 3, 4, 4), sigma=0.25, n=100)
    assert found.n.tolist() == [100, 100]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 1e3}, "whole numbers, not n0 = 100 and n = 1000.0"),
        ({"n0": 10.0}, "whole numbers"),
        ({"dtype": torch.float64}, "dtype is torch.float64"),
        ({"alpha": "0.001"}, "alpha is a probability between 0 and 1, not '0.001'"),
        ({"dtype": "bfloat16"}, "dtype is bfloat16; give torch.bfloat16"),
    ],
)
def test_slips_of_a_notebook_are_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        covprop.certify(network(), X, **{"sigma": 0.25, "n": 100, **options})
    with pytest.raises(InvalidInput, match="x is a ndarray; give a tensor"):
        covprop.certify(network(), X.numpy(), sigma=0.25, n=100)  # type: ignore[arg-type]


def test_sigma_is_a_number_of_any_kind() -> None:
    expected = covprop.certify(network(), X, sigma=0.25, n=200, alpha=0.01)
    for sigma in (torch.tensor(0.25), np.float32(0.25)):  # numpy warned of the former
        found = covprop.certify(network(), X, sigma=sigma, n=200, alpha=0.01)
        assert torch.equal(found.radius, expected.radius)
        assert torch.equal(found.count, expected.count)
