import pytest
import torch
from torch import nn

from covprop.mode import switched


class Merging(nn.Module):
    """As low-rank adapters do: one matrix where nothing is trained, two where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)
        self.low = nn.Parameter(torch.ones(2, 2))
        self.merged = False

    def train(self, mode: bool = True) -> "Merging":
        super().train(mode)
        if self.merged == mode:
            self.layer.weight.data.add_(self.low.data, alpha=-1.0 if mode else 1.0)
            self.merged = not mode
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out if self.merged else out + x @ self.low.T


def test_every_module_gets_its_own_mode_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    model.train()
    model[1].eval()
    with switched(model, training=False):
        assert not any(module.training for module in model.modules())
    assert model.training
    assert model[2][0].training
    assert not model[1].training


def test_a_network_whose_train_does_more_is_left_as_it_was() -> None:
    model = Merging()
    model.train()
    before = model.layer.weight.detach().clone()
    x = torch.rand(3, 2)
    y = model(x)
    with switched(model, training=False):
        assert model.merged
        assert torch.allclose(model(x), y)
    assert not model.merged
    assert torch.allclose(model.layer.weight, before)
    assert torch.allclose(model(x), y)


def test_the_mode_comes_back_after_an_error() -> None:
    model = nn.Sequential(nn.Dropout())
    with pytest.raises(ValueError, match="inside"), switched(model, training=False):
        raise ValueError("inside")
    assert model.training
    assert model[0].training
