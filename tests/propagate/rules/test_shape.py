"""Shape operations as models, against the dense Jacobian."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from oracles import dense_covariance, largest_block, random_covariance, relative
from torch import Tensor, nn

from covprop import PAPER, Propagator, UnsupportedModel, check
from covprop.propagate.rules.shape import dropped


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mix = nn.Conv2d(3, 4, 1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.mix(x)).flatten(1)


def second_half(x: Tensor) -> Tensor:
    _, second = x.chunk(2, dim=1)
    return second


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(x.size(0), -1),
    "view by shape": lambda x: x.view(x.shape[0], -1),
    "reshape": lambda x: torch.reshape(x, (x.size(0), 4, 4)),
    "flatten pixels": lambda x: x.flatten(2),
    "unflatten": lambda x: x.flatten(1).unflatten(1, (4, 2, 2)),
    "permute pixels": lambda x: x.permute(0, 1, 3, 2),
    "transpose pixels": lambda x: x.transpose(2, 3),
    "transpose pixels by name": lambda x: torch.transpose(input=x, dim0=2, dim1=3),
    "transpose pixels partly by name": lambda x: x.transpose(2, dim1=-1),
    "permute pixels by name": lambda x: torch.permute(input=x, dims=(0, 1, 3, 2)),
    "permute with negative numbers": lambda x: x.permute(0, -3, -1, -2),
    "swapaxes": lambda x: x.swapaxes(-1, 2),
    "swapaxes by name": lambda x: torch.swapaxes(input=x, axis0=2, axis1=3),
    "swapdims": lambda x: torch.swapdims(x, 2, 3),
    "movedim": lambda x: x.movedim(2, -1),
    "movedim by name": lambda x: torch.movedim(x, source=(2, 3), destination=(3, 2)),
    "moveaxis": lambda x: torch.moveaxis(x, -1, 2),
    "mT": lambda x: x.mT,
    "adjoint": lambda x: x.adjoint(),
    "select pixels": lambda x: x.select(2, 1),
    "select pixels by name": lambda x: torch.select(input=x, dim=-1, index=0),
    "unbind pixels": lambda x: x.unbind(3)[1],
    "unbind pixels by name": lambda x: torch.unbind(input=x, dim=-2)[0],
    "index_select": lambda x: x.index_select(1, torch.tensor([2, 0, 2])),
    "index_select by name": lambda x: torch.index_select(input=x, dim=-3, index=torch.tensor([3])),
    "index_select pixels": lambda x: x.index_select(-1, torch.tensor([1])),
    "channel slice": lambda x: x[:, 1:3],
    "unpacked": second_half,
    "chunk": lambda x: x.chunk(2, 1)[-1],
    "chunk by name": lambda x: torch.chunk(input=x, chunks=3, dim=-3)[0],
    "chunk by name in another order": lambda x: x.chunk(dim=1, chunks=2)[1],
    "split": lambda x: torch.split(x, [1, 3], dim=1)[1],
    "split method": lambda x: x.split(3, 1)[1],
    "split by name": lambda x: torch.split(tensor=x, split_size_or_sections=3, dim=1)[0],
    "split pixels": lambda x: x.chunk(2, 3)[1],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "flip pixels": lambda x: x.flip(2, -1),
    "flip channels": lambda x: torch.flip(x, (1, 3)),
    "flip by name": lambda x: torch.flip(input=x, dims=[1]),
    "roll pixels": lambda x: x.roll(1, 3),
    "roll channels": lambda x: torch.roll(x, shifts=(1, 1), dims=(-3, 2)),
    "roll channels back": lambda x: x.roll(-1, dims=1),
    "narrow pixels": lambda x: torch.narrow(x, dim=-1, start=0, length=1),
    "repeat channels": lambda x: x.repeat(1, 2, 1, 1),
    "repeat each channel": lambda x: x.repeat_interleave(2, 1),
    "repeat each channel by name": lambda x: torch.repeat_interleave(x, repeats=3, dim=-3),
    "repeat each pixel": lambda x: x.repeat_interleave(2, dim=-1),
    "expand a channel": lambda x: x[:, 1:2].expand(x.shape[0], 5, -1, -1),
    "expand pixels": lambda x: x.mean((2, 3), keepdim=True).expand(-1, -1, 2, 1),
    "new pixels": lambda x: x.mean((2, 3))[..., None, None],
    "pixel slice": lambda x: x[..., :1],
    "one pixel": lambda x: x[:, :, 0, 0],
    "squeeze": lambda x: x.mean((2, 3), keepdim=True).squeeze(-1).squeeze(-1),
    "unsqueeze": lambda x: x.mean((2, 3)).unsqueeze(-1),
    "pad": lambda x: F.pad(x, (1, 0, 0, 1)),
    "pad channels": lambda x: F.pad(x, (0, 0, 0, 0, 1, 2)),
    "pad channels by a layer": nn.ConstantPad3d((0, 0, 0, 0, 1, 2), 3.0),
    "upsample": lambda x: F.interpolate(x, scale_factor=2),
    "contiguous": lambda x: x.contiguous().clone(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_covariance_before_a_linear_layer_equals_dense(name: str) -> None:
    """The flattened result has one covariance over channels and independent pixels."""
    model = Apply(FUNCTIONS[name]).double()
    prop = Propagator(model, 0.5, (3, 2, 2), PAPER.but(r_max=0.0))
    x = torch.zeros(1, 3, 2, 2, dtype=torch.float64)
    (*_, ours) = prop.covariances()
    assert ours is not None
    unflattened = Unflatten(model, len(ours)).double()
    blocks = dense_covariance(unflattened, 0.25 * torch.eye(3, dtype=torch.float64), (3, 2, 2))
    assert relative(ours, largest_block(blocks)) < 1e-12
    assert prop(x).cov.shape == (model(x).shape[1],) * 2


class Unflatten(nn.Module):
    """The model's output with its channels and pixels apart again."""

    def __init__(self, model: nn.Module, channels: int) -> None:
        super().__init__()
        self.model, self.channels = model, channels

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).view(1, self.channels, -1)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.permute(0, 2, 3, 1), "moves the channels"),
        (lambda x: x.reshape(x.size(0), 2, -1), "splits or mixes the channels"),
        (lambda x: x[:, 0], "picks single channels"),
        (lambda x: x[:1], "picks images of the batch"),
        (lambda x: x[:, None], "adds a dimension before the channels"),
        (lambda x: x[None], "adds a dimension before the channels"),
        (lambda x: x.chunk(2)[0], "splits the batch"),
        (lambda x: x.flatten(1).split(4, 1)[0], "splits a flattened image"),
        (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), "not read one by one"),
        (lambda x: x.flip(0), "flips the batch"),
        (lambda x: x.flatten(1).flip(1), "flips a flattened image"),
        (lambda x: x.roll(1), "from image to image"),
        (lambda x: x.roll((1, 1), (0, 2)), "shifts the batch"),
        (lambda x: x.repeat(2, 1, 1, 1), "keep the batch"),
        (lambda x: x.flatten(1).repeat(1, 2), "copies a flattened image"),
        (lambda x: x.repeat_interleave(2, 0), "repeats the batch"),
        (lambda x: x.flatten(1).repeat_interleave(2).view(-1, 32), "lines up the images"),
        (lambda x: x.flatten(1).repeat_interleave(2, 1), "repeats a flattened image"),
        (lambda x: x.expand(1, -1, -1, -1, -1), "adds a dimension"),
        (lambda x: torch.stack([x, x], 1), r"adds a dimension; use torch\.cat"),
        (lambda x: x.swapaxes(1, 2), "moves the channels"),
        (lambda x: torch.movedim(x, 1, -1), "moves the channels"),
        (lambda x: x.flatten(1).T.mT, "moves the channels"),
        (lambda x: x.flatten(1).t().t(), "moves the channels"),
        (lambda x: x.data, r"reads \.data of a noisy value"),
        (lambda x: x.select(1, 0), r"picks single channels; slice them instead, as in x\[:, 0:1\]"),
        (lambda x: x.unbind(1)[0], "picks single channels"),
        (lambda x: x.unbind()[0], "cuts the batch"),
        (
            lambda x: torch.cat(x.unbind(2), 1),
            r"not read one by one; name them, as in a, b = x\.unbind",
        ),
        (lambda x: x.index_select(0, torch.tensor([0])), "cuts the batch"),
        (lambda x: x.flatten(1).index_select(1, torch.tensor([0])), "cuts a flattened image"),
        (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), "mode 'bilinear'"),
        (lambda x: x.reshape(-1, 4), "keep the batch"),
        (lambda x: F.pad(x.flatten(1), (0, 4)), "pads a flattened image"),
        (lambda x: F.pad(x.flatten(2), (0, 0, 1, 1), mode="reflect"), "repeats channels"),
        (nn.Sequential(nn.Flatten(), nn.ZeroPad1d((3, 1))), "pads a flattened image"),
        (nn.Sequential(nn.Flatten(), nn.CircularPad1d((2, 2))), "pads a flattened image"),
        (nn.Sequential(nn.Flatten(2), nn.ReplicationPad2d((0, 0, 1, 1))), "repeats channels"),
        (nn.Sequential(nn.Flatten(2), nn.ZeroPad2d((0, 0, 1, -1))), "cuts channels"),
    ],
)
def test_refusals(function: Callable, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        check(Apply(function), (3, 2, 2))


def test_modules() -> None:
    model = nn.Sequential(
        nn.Identity(), nn.ZeroPad2d(1), nn.ReflectionPad2d(1), nn.Upsample(scale_factor=2),
        nn.Dropout2d(0.5), nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Unflatten(1, (4, 12, 12)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ).eval().double()  # fmt: skip
    x = torch.zeros(1, 3, 2, 2, dtype=torch.float64)
    ours = Propagator(model, 1.0, (3, 2, 2), PAPER.but(r_max=0.0))(x).cov
    weight = model[5].weight.flatten(1)
    assert relative(ours, weight @ weight.T / 144) < 1e-12  # pixels are taken as independent


def test_dropout_covariance_is_the_average_over_masks() -> None:
    cov, p = random_covariance(4), 0.3
    masks = torch.bernoulli(torch.full((200_000, 4), 1 - p, dtype=torch.float64)) / (1 - p)
    average = (masks[:, :, None] * masks[:, None, :]).mean(0) * cov
    assert relative(dropped(cov, p), average) < 0.01
    assert dropped(cov, 0.0) is cov
    assert not dropped(cov, 1.0).any()


def test_dropout_acts_in_training_only() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 2))
    prop = Propagator(model, 1.0, (4, 1, 1))
    x = torch.zeros(1, 4, 1, 1)
    weight = model[2].weight
    torch.testing.assert_close(prop.train()(x).cov, 2 * weight @ weight.T)
    torch.testing.assert_close(prop.eval()(x).cov, weight @ weight.T)
