"""`WithRadius` of `covprop/methods/weighting.py`: a radius for a method that has none."""

import copy
from statistics import NormalDist

import pytest
import torch
from torch import Tensor, nn

from covprop.errors import UnsupportedModel
from covprop.methods import Consistency, Gaussian, Radius, WithRadius
from covprop.propagate.propagator import Propagator
from covprop.propagate.settings import PAPER

SHAPE = (1, 6, 6)


def test_any_method_gets_a_radius_from_its_noisy_logits(
    net: nn.Module, batch: tuple[Tensor, Tensor]
) -> None:
    x, y = batch
    plain = Consistency(sigma=0.25)
    method = WithRadius(plain, 0.25, SHAPE)
    losses = method(net, x, y, epoch=0, generator=torch.Generator().manual_seed(0))
    alone = plain(net, x, y, epoch=0, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(losses.per_sample, alone.per_sample, rtol=0, atol=0)
    assert losses.radius is not None
    assert not losses.radius.requires_grad
    cov = Propagator(net, 0.25, SHAPE)(x).cov.detach()
    for i, label in enumerate(y.tolist()):
        rest = [c for c in range(4) if c != label]
        other = max(rest, key=lambda c: losses.logits[i, c].item())
        variance = cov[label, label] + cov[other, other] - 2 * cov[label, other]
        gap = losses.logits[i, label] - losses.logits[i, other]
        torch.testing.assert_close(losses.radius[i], 0.25 * gap / variance.sqrt())
    wrong = losses.logits.argmax(1) != y
    assert (losses.radius[wrong] < 0).all()
    assert (losses.radius[~wrong] > 0).all()


def test_the_radius_is_of_the_model_and_the_settings_given(
    net: nn.Module, batch: tuple[Tensor, Tensor]
) -> None:
    x, y = batch
    other = copy.deepcopy(net)
    other[0].weight.data.mul_(2)
    method = WithRadius(Gaussian(sigma=0.25), 0.25, SHAPE, PAPER.but(margin_covariance="sum"))
    for model in (net, other):
        losses = method(model, x, y, epoch=0, generator=torch.Generator().manual_seed(0))
        assert losses.radius is not None
        cov = Propagator(model, 0.25, SHAPE)(x).cov.detach()
        for logits, label, radius in zip(losses.logits, y.tolist(), losses.radius, strict=True):
            rest = max({0, 1, 2, 3} - {label}, key=lambda c, row=logits: row[c].item())
            wide = cov[label, label] + cov[rest, rest] + 2 * cov[label, rest].abs()
            expected = 0.25 * (logits[label] - logits[rest]) / wide.sqrt()
            torch.testing.assert_close(radius, expected)


def test_a_radius_of_the_label_s_probability(net: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    """Whatever the method, and for a model that has no rules too."""
    x, y = batch
    pooled = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9, 4))
    own = Radius(sigma=0.25, input_shape=SHAPE)
    for method, model in ((own, net), (Gaussian(sigma=0.25), pooled)):
        wrapped = WithRadius(method, 0.25, SHAPE, of="probability")
        losses = wrapped(model, x, y, epoch=0, generator=torch.Generator().manual_seed(0))
        assert losses.radius is not None
        assert not losses.radius.requires_grad
        for logits, label, radius in zip(losses.logits, y, losses.radius, strict=True):
            p = (logits[label] - logits.logsumexp(0)).exp().item()
            assert radius.item() == pytest.approx(0.25 * NormalDist().inv_cdf(p), abs=1e-5)
    sure = torch.tensor([[100.0, 0.0], [100.0, 0.0]])
    both = WithRadius(Gaussian(sigma=2.0), 2.0, SHAPE, of="probability")
    found = both._by_probability(sure, torch.tensor([0, 1]))
    expected = 2 * NormalDist().inv_cdf(1 - 1e-4)
    torch.testing.assert_close(found, torch.tensor([expected, -expected]), rtol=1e-3, atol=0)


def test_a_radius_of_the_method_itself_is_kept(
    net: nn.Module, batch: tuple[Tensor, Tensor]
) -> None:
    own = Radius(sigma=0.25, input_shape=SHAPE, estimator="linearized", mean="noisy")
    both = WithRadius(own, 0.25, SHAPE)
    expected = own(net, *batch, epoch=0, generator=torch.Generator().manual_seed(0)).radius
    found = both(net, *batch, epoch=0, generator=torch.Generator().manual_seed(0)).radius
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_state_of_the_wrapped_method_passes_through() -> None:
    inner = Radius(sigma=0.25, input_shape=SHAPE)
    outer = WithRadius(inner, 0.25, SHAPE)
    state = {"variances": {}, "calibrations": 3, "r_max": None, "measured": 2}
    outer.load_state_dict(state)
    assert outer.state_dict() == state
    plain = WithRadius(Gaussian(sigma=0.25), 0.25, SHAPE)
    assert plain.state_dict() == {}
    plain.load_state_dict({})


def test_a_model_without_rules_is_named(batch: tuple[Tensor, Tensor]) -> None:
    net = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9, 4))
    method = WithRadius(Gaussian(sigma=0.25), 0.25, SHAPE)
    sentence = (
        r"^weighting.* fails at 0 .nn.MaxPool2d.; set weighting.name = .probability., [^\n]*$"
    )
    with pytest.raises(UnsupportedModel, match=sentence) as caught:
        method(net, *batch, epoch=0, generator=torch.Generator())
    assert caught.value.faults[0].name == "0"
    assert "covprop.fix" not in str(caught.value)  # the remedy where the method itself propagates
    WithRadius(Gaussian(sigma=0.25), 0.25, SHAPE, of="probability")(
        net, *batch, epoch=0, generator=torch.Generator()
    )


class Branching(nn.Module):
    """Nothing that torch.fx can follow."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :4] if x.sum() > 0 else x.flatten(1)[:, 4:8]


def test_a_model_that_cannot_be_traced_is_told_the_same(batch: tuple[Tensor, Tensor]) -> None:
    method = WithRadius(Gaussian(sigma=0.25), 0.25, SHAPE)
    with pytest.raises(UnsupportedModel, match=r"cannot trace Branching .*set weighting.name ="):
        method(Branching(), *batch, epoch=0, generator=torch.Generator())


def test_where_the_method_itself_propagates_its_own_remedy_stays(
    batch: tuple[Tensor, Tensor],
) -> None:
    net = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9, 4))
    method = WithRadius(Radius(0.25, SHAPE, estimator="shared"), 0.25, SHAPE)
    with pytest.raises(UnsupportedModel, match=r"covprop\.fix"):
        method(net, *batch, epoch=0, generator=torch.Generator())
