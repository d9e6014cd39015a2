"""Shuffles of channels and pixels, against the dense Jacobian."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from oracles import dense_covariance, is_psd, monte_carlo_logits, random_covariance, relative
from torch import Tensor, nn

from covprop import PAPER, Propagator, UnsupportedModel, check, ibp, margin
from covprop.propagate.registry import Call, find

SHAPE = (12, 4, 6)
PLAIN = PAPER.but(r_max=0.0)


def after(operation: Callable[[Tensor], Tensor], cov: Tensor, settings=PLAIN) -> Tensor:
    """What the rule of a module, or of a function of one option, makes of Σ."""
    shape = tuple(operation(torch.zeros(1, *SHAPE)).shape[1:])
    extras = {"shape": SHAPE, "out_shape": shape}
    found = find(type(operation))
    assert found is not None
    return found.cov(operation, cov, settings, **{name: extras[name] for name in found.extras})


@pytest.mark.parametrize(
    "layer", [nn.ChannelShuffle(3), nn.ChannelShuffle(4), nn.PixelUnshuffle(2)], ids=str
)
def test_every_pixel_has_the_covariance_of_the_rule(layer: nn.Module) -> None:
    cov = random_covariance(12)
    ours = after(layer, cov)
    for block in dense_covariance(layer, cov, SHAPE):
        assert relative(ours, block) < 1e-12


def test_the_sum_over_places_bounds_every_pixel() -> None:
    """In the matrix order, and it is no more than what the places have together."""
    cov = random_covariance(12)
    blocks = dense_covariance(nn.PixelShuffle(2), cov, SHAPE)
    ours = after(nn.PixelShuffle(2), cov)
    assert all(is_psd(ours - block) for block in blocks)
    assert relative(ours, blocks.view(4, 2, 6, 2, 3, 3)[0, :, 0].sum((0, 1))) < 1e-12


def test_a_pixel_shuffle_is_a_transposed_convolution() -> None:
    """Both compute the same, so both have the same Σ."""
    conv = nn.Conv2d(5, 3 * 4, 1).double()
    shuffled = nn.Sequential(conv, nn.PixelShuffle(2), nn.Flatten())
    transposed = nn.Sequential(nn.ConvTranspose2d(5, 3, 2, stride=2).double(), nn.Flatten())
    with torch.no_grad():
        transposed[0].weight.copy_(conv.weight.view(3, 2, 2, 5).permute(3, 0, 1, 2))
        transposed[0].bias.zero_()
        conv.bias.zero_()
    x = torch.rand(2, 5, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(shuffled(x), transposed(x))
    one, other = (
        Propagator(net, 0.5, (5, 4, 4)).covariances()[-1] for net in (shuffled, transposed)
    )
    torch.testing.assert_close(one, other)


def test_unshuffled_pixels_are_those_of_a_convolution() -> None:
    """A convolution of r × r and stride r is a 1 × 1 convolution of the unshuffled image."""
    conv = nn.Conv2d(3, 4, 2, stride=2, bias=False).double()
    point = nn.Conv2d(12, 4, 1, bias=False).double()
    with torch.no_grad():
        point.weight.copy_(conv.weight.view(4, 12, 1, 1))
    direct = nn.Sequential(conv, nn.Flatten())
    unshuffled = nn.Sequential(nn.PixelUnshuffle(2), point, nn.Flatten())
    x = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(direct(x), unshuffled(x))
    for settings in (PAPER, PAPER.but(multi_block=True)):
        one, other = (Propagator(net, 0.5, (3, 4, 4), settings) for net in (direct, unshuffled))
        torch.testing.assert_close(one(x).cov, other(x).cov)


class Functions(nn.Module):
    def __init__(self, by_name: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(1, 8, 1), nn.Linear(32, 3)
        self.by_name = by_name

    def forward(self, x: Tensor) -> Tensor:
        if self.by_name:
            x = F.pixel_unshuffle(input=x, downscale_factor=2)
            x = self.first(F.pixel_shuffle(x, upscale_factor=2))
            return self.last(F.pixel_shuffle(torch.channel_shuffle(x, groups=2), 2).flatten(1))
        x = self.first(torch.pixel_shuffle(torch.pixel_unshuffle(x, 2), 2))
        return self.last(F.pixel_shuffle(F.channel_shuffle(x, 2), 2).flatten(1))


class Modules(Functions):
    def __init__(self) -> None:
        super().__init__(False)
        self.down, self.up, self.mix = (
            nn.PixelUnshuffle(2),
            nn.PixelShuffle(2),
            nn.ChannelShuffle(2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.up(self.mix(self.first(self.up(self.down(x))))).flatten(1))


def test_functions_are_their_modules() -> None:
    x = torch.rand(2, 1, 2, 2)
    expected = Propagator(Modules(), 0.5, (1, 2, 2))(x)
    for model in (Functions(False), Functions(True)):
        found = Propagator(model, 0.5, (1, 2, 2))(x)
        torch.testing.assert_close(found.mean, expected.mean)
        torch.testing.assert_close(found.cov, expected.cov)


def test_the_other_ways_to_a_margin_know_shuffles() -> None:
    model, x = Modules().eval(), torch.rand(1, 1, 2, 2)
    dense, linear = (margin(model, x, 0.5, name) for name in ("dense", "linearized"))
    torch.testing.assert_close(dense.var, linear.var)
    draws = monte_carlo_logits(model, x[0], 0.5, 20_000)
    gap = draws[:, dense.top[0]] - draws[:, dense.runner_up[0]]
    assert dense.var.item() == pytest.approx(gap.var().item(), rel=0.05)
    assert margin(model, x, 0.5, "shared").var > 0.9 * gap.var()
    box = ibp(model, x, 0.1)
    inside = model(x + 0.2 * torch.rand(100, 1, 2, 2) - 0.1)
    assert ((box.lower <= inside) & (inside <= box.upper)).all()


@pytest.mark.parametrize("layer", [nn.PixelShuffle(2), nn.PixelUnshuffle(2)], ids=str)
def test_what_takes_another_dimension_for_the_channels_is_refused(layer: nn.Module) -> None:
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 2))
    with pytest.raises(UnsupportedModel, match=r"another one for the channels; give it images"):
        check(model, (1, 4, 4, 4))


def test_a_flattened_image_has_a_channel_for_every_pixel() -> None:
    """Σ is then over the channels that it had, and grows when those are exchanged."""

    class Back(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.channel_shuffle(x.flatten(1)[:, :, None, None], 2).flatten(1)

    found = Propagator(Back(), 0.5, (3, 2, 2))(torch.rand(1, 3, 2, 2))
    torch.testing.assert_close(found.cov, 0.25 * torch.eye(12))
    call = Call(torch.channel_shuffle, (None, 2), {}, 0)
    rule = find(torch.channel_shuffle)
    assert rule is not None
    cov = random_covariance(3)
    full = torch.kron(cov, torch.eye(4, dtype=torch.float64))
    order = [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]
    assert torch.equal(rule.cov(call, cov, PLAIN, shape=(12, 1, 1)), full[order][:, order])
