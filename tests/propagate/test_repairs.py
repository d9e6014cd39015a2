"""What stands in the place of a layer computes over the same channels, or the layer stays."""

import pytest
import torch
from torch import Tensor, nn

from covprop import ActNorm, UnsupportedModel, check, fix
from covprop.propagate.repairs import called, repair, why_not


class Tokens(nn.Module):
    """As many tokens as channels, which lie behind them: ActNorm would take tokens for channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 1), nn.LayerNorm(4), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.conv(x).flatten(2).transpose(1, 2)).flatten(1))


def test_a_layer_norm_over_features_of_an_unknown_dimension_stays() -> None:
    model, x = Tokens(), torch.rand(2, 3, 2, 2)
    lines: list[str] = []
    mended = fix(model, log=lines.append)
    torch.testing.assert_close(mended(x), model(x))
    (line,) = lines
    assert line.startswith("norm: LayerNorm stays: ")
    assert "covprop.ActNorm" in line
    with pytest.raises(UnsupportedModel) as caught:
        check(mended, (3, 2, 2))
    assert "covprop.fix" not in str(caught.value)


def test_a_layer_norm_over_whole_images_becomes_act_norm_over_channels() -> None:
    new = repair(nn.LayerNorm((4, 2, 3)))
    assert isinstance(new, ActNorm)
    out = new(torch.randn(500, 4, 2, 3) * 7 + 3)  # in training: sets itself from its first batch
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(4), atol=1e-3, rtol=0)
    torch.testing.assert_close(out.var((0, 2, 3)), torch.ones(4), atol=0.01, rtol=0)


def test_a_dilated_max_pool_stays_and_fix_is_not_promised_for_it() -> None:
    lines: list[str] = []
    model = nn.Sequential(nn.MaxPool2d(2, dilation=2), nn.Flatten(), nn.Linear(3, 3))
    assert type(fix(model, log=lines.append).get_submodule("0")) is nn.MaxPool2d
    assert [line.partition(": no")[0] for line in lines] == ["0: MaxPool2d stays"]
    with pytest.raises(UnsupportedModel, match="write average pooling there"):
        check(model, (3, 4, 4))


def test_layers_without_fault_have_no_line() -> None:
    for layer in (nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.Upsample(scale_factor=2), nn.ReLU()):
        assert repair(layer) is None
        assert why_not(layer) is None
    assert called(nn.Upsample(scale_factor=2, mode="bilinear")) == "Upsample(mode='bilinear')"
