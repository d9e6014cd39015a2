"""Batch norms replaced by a factor and a shift: the same numbers, the user's model untouched."""

import pytest
import torch
from torch import Tensor, nn

from covprop.certify.affine import Affine, affine
from covprop.models import build


def trained_like(model: nn.Module) -> nn.Module:
    """Statistics and weights of batch norms that are not those of a new layer."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(1e-3, 3)
            if layer.affine:
                nn.init.normal_(layer.weight)
                nn.init.normal_(layer.bias)
    return model.eval()


def test_a_network_computes_the_same() -> None:
    model = build("preact_resnet18", num_classes=4, image_shape=(3, 16, 16), width=4)
    model = trained_like(model.double())
    x = torch.rand(5, 3, 16, 16, dtype=torch.float64)
    names = list(model.state_dict())
    with torch.no_grad():
        expected = model(x)
        found = affine(model)(x)
        error = ((found - expected).norm() / expected.norm()).item()
        assert 0 < error < 1e-12  # other roundings: the layers were replaced
        assert torch.equal(model(x), expected)
    kinds = [type(layer) for layer in affine(model).modules()]
    assert kinds.count(Affine) == 17
    assert nn.BatchNorm2d not in kinds
    assert nn.BatchNorm2d in [type(layer) for layer in model.modules()]
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scaled", [True, False])
def test_under_autocast_the_type_stays(scaled: bool, dtype: torch.dtype) -> None:
    norm = trained_like(nn.BatchNorm2d(3, affine=scaled))
    x = torch.randn(4, 3, 5, 5, dtype=dtype).contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected, found = norm(x), affine(norm)(x)
    assert found.dtype == expected.dtype == dtype
    assert found.stride() == expected.stride()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=2 * eps, atol=8 * eps)


def test_vectors_hooks_and_names() -> None:
    """A layer that is hooked, or read by the model, is still there."""

    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x) + self.norm.running_mean

    model, seen = trained_like(Reading()), []
    model.norm.register_forward_hook(lambda layer, args, out: seen.append(out.shape))
    x = torch.randn(7, 6)
    with torch.no_grad():
        torch.testing.assert_close(affine(model)(x), model(x))
    assert seen == [(7, 6), (7, 6)]


def test_what_is_left_alone() -> None:
    class Own(nn.BatchNorm2d):
        pass

    model = nn.Sequential(Own(2).eval(), nn.BatchNorm2d(2, track_running_stats=False).eval())
    training = nn.BatchNorm2d(2)
    assert [type(layer) for layer in affine(model)] == [Own, nn.BatchNorm2d]
    assert type(affine(training)) is nn.BatchNorm2d
    assert affine(torch.sin) is torch.sin
