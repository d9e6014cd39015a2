import pytest
import torch

from covprop.bench.subject import Subject, subject
from covprop.errors import InvalidInput

CPU = torch.device("cpu")


def test_usual_data_of_a_model() -> None:
    assert subject("lenet", CPU).image_shape == (1, 28, 28)
    assert subject("preact_resnet18", CPU).image_shape == (3, 32, 32)
    large = subject("preact_resnet18", CPU, image=224)
    assert large.classes == 1000
    assert large.name == "preact_resnet18_224px"
    assert subject("preact_resnet18", CPU, width=16, norm="none").name == (
        "preact_resnet18_w16_norm-none_32px"
    )


def test_models_and_batches_repeat() -> None:
    one = Subject("lenet", width=2, image=8, channels=1)
    first, second = one.build(), one.build()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    x, y = one.batch(5)
    assert torch.equal(x, one.batch(5)[0])
    assert 0 <= x.min() <= x.max() <= 1
    assert y.max() < one.classes
    assert first.training


def test_mistakes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one image"):
        Subject("lenet").batch(0)
    with pytest.raises(InvalidInput, match="norm"):
        subject("lenet", CPU, norm="batch").build()
