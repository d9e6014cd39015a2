"""A network that looks at the rest of the batch has no margin of an image alone."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop import CovpropError, InvalidInput, margin
from covprop.estimate import ESTIMATORS

X = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))


class Own(nn.Module):
    """What `mix` makes of features, then a linear layer; counts its passes."""

    def __init__(self, mix: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last, self.mix, self.passes = nn.Conv2d(1, 4, 3), nn.Linear(16, 3), mix, []
        self.centred = False

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append(len(x))
        h = self.conv(x)
        h = h - h.mean(0) if self.centred else h
        return self.last((self.mix(h) if self.mix else h).flatten(1))


def attend(h: Tensor) -> Tensor:
    return F.softmax(h @ h.T, 1) @ h


MIXES = {
    "mean of the batch": lambda h: h - h.mean(0),
    "mean of all": lambda h: h - h.mean(),
    "batch norm": lambda h: F.batch_norm(h, None, None, training=True),
    "behind a norm": lambda h: F.instance_norm(h) - F.instance_norm(h).mean(0),
    "attention between images": lambda h: attend(F.normalize(h.flatten(1))),
    "order": lambda h: h.sort(0).values,
    "size of the batch": lambda h: h / len(h),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("estimator", ["linearized", "sampled"])
@pytest.mark.parametrize("count", [1, 3])
def test_what_mixes_images_is_refused(mix: str, estimator: str, count: int) -> None:
    """Also if there is a single image in the batch: its noisy copies are beside each other."""
    for scale in (1.0, 1e4):
        with pytest.raises(InvalidInput, match=r"^Own answers an image by what else is in .*2d\.$"):
            margin(Own(MIXES[mix]), X[:count] * scale, 0.25, estimator, value_range=None)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_refuses_a_norm_without_statistics(estimator: str) -> None:
    norm = nn.BatchNorm2d(1, track_running_stats=False)
    with pytest.raises(CovpropError, match="depend"):
        margin(nn.Sequential(norm, nn.Flatten(), nn.Linear(16, 3)), X, 0.25, estimator)


class Normed(nn.Module):
    """A batch norm as a call, whose statistics are kept but not used in evaluation either."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.norm, self.last, self.always = nn.BatchNorm2d(1), nn.Linear(16, 3), always

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.norm.running_mean, self.norm.running_var
        return self.last(
            F.batch_norm(x, mean, var, None, None, self.always or self.training, 0.1).flatten(1)
        )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_refuses_a_call_that_always_norms_by_the_batch(estimator: str) -> None:
    assert margin(Normed(always=False), X, 0.25, estimator).radius.shape == (3,)
    with pytest.raises(CovpropError, match=r"on the others\b|what else is in the batch"):
        margin(Normed(always=True), X, 0.25, estimator)


@pytest.mark.parametrize("estimator", ["linearized", "sampled"])
def test_a_batch_norm_is_evaluated_and_trained_as_ever(estimator: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    before = copy.deepcopy(model.state_dict())
    assert margin(model, X, 0.25, estimator).radius.shape == (3,)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    margin(model, X, 0.25, create_graph=True).radius.sum().backward()  # by the batch, on purpose
    assert not torch.equal(model[1].running_mean, before["1.running_mean"])


def test_a_network_is_tried_once_while_it_stays_the_same() -> None:
    model = Own()
    for _ in range(3):
        margin(model, X, 0.25)
    assert model.passes == [2, 3, 3, 3, 3]
    margin(model, X[:, :, :, :], 0.25, "sampled", samples=4)
    assert model.passes[5:] == [4, 4, 4]
    model.centred = True  # the next call sees that
    with pytest.raises(InvalidInput, match="what else is in the batch"):
        margin(model, X, 0.25)
    model.centred = False
    model.mix = nn.Identity()
    margin(model, X, 0.25)
    model.mix.forward = lambda h: h - h.mean(0)
    with pytest.raises(InvalidInput, match="what else is in the batch"):
        margin(model, X, 0.25)


def test_a_network_that_draws_is_a_network_and_leaves_the_callers_numbers() -> None:
    model = Own(lambda h: F.dropout(h, 0.5, training=True))
    found = []
    for _ in range(2):  # the second time it is not tried
        torch.manual_seed(3)
        found.append(margin(model, X, 0.25, samples=2).radius)
    assert torch.equal(*found)


def test_a_program_for_one_batch_size_is_tried_at_that() -> None:
    def exported(model: nn.Module) -> nn.Module:
        return torch.export.export(model.eval(), (X,), strict=False).module()

    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    ours = margin(exported(plain), X, 0.25).radius
    torch.testing.assert_close(ours, margin(plain, X, 0.25).radius)
    with pytest.raises(InvalidInput, match="what else is in the batch"):
        margin(exported(Own(MIXES["mean of the batch"])), X, 0.25)
    with pytest.raises(InvalidInput, match=r"does not accept .* shape \[2, 1, 4, 4\]"):
        margin(exported(plain), X[:2], 0.25)


def test_the_batch_that_a_network_refuses_is_the_callers() -> None:
    for count in (1, 3):
        with pytest.raises(InvalidInput, match=rf"shape \[{count}, 1, 9, 9\]"):
            margin(Own(), torch.rand(count, 1, 9, 9), 0.25)


@pytest.mark.parametrize("estimator", ["linearized", "sampled"])
@pytest.mark.parametrize("count", [1, 3])
def test_probabilities_have_no_radius(estimator: str, count: int) -> None:
    """Their margin ends at 1, where its slope vanishes: a radius of 600 for one of 0.6."""
    model = nn.Sequential(Own(), nn.Softmax(1))
    with pytest.raises(InvalidInput, match=r"^Sequential returns probabilities"):
        margin(model, X[:count], 0.25, estimator)
    model[1] = nn.LogSoftmax(1)
    torch.testing.assert_close(margin(model, X, 0.25).radius, margin(model[0], X, 0.25).radius)
