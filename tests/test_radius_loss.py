"""`RadiusLoss` of `covprop/radius.py`, and the two hinges it is made of."""

import math

import pytest
import torch
import torch.nn.functional as F
from oracles import random_covariance
from scipy import stats

from covprop import REFERENCE, Gaussian, InvalidInput, RadiusLoss, estimated_radius
from covprop.radius import soft_hinge


def test_zero_variance_has_no_nan_gradient() -> None:
    mean = torch.tensor([[1.0, 0.0], [0.0, 0.0]], requires_grad=True)
    cov = torch.zeros(2, 2, requires_grad=True)
    loss = RadiusLoss(sigma=0.5, weight=1.0, offset=1.0)(Gaussian(mean, cov), torch.tensor([0, 0]))
    loss.backward()
    assert mean.grad is not None
    assert cov.grad is not None
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(cov.grad).all()


@pytest.mark.parametrize("variance", [1e-20, 1e-24, 1e-30, 1e-37, 1e-39, 1e-44])
def test_gradients_of_hardly_any_noise_are_finite(variance: float) -> None:
    """Those of float64 where float32 has numbers for them, 0 through Σ where it has not."""
    gradients = []
    for dtype in (torch.float64, torch.float32):
        mean = torch.tensor([[3.0, 0.0]], dtype=dtype, requires_grad=True)
        cov = (variance * torch.eye(2, dtype=torch.float64)).to(dtype).requires_grad_()
        out, labels = Gaussian(mean, cov), torch.tensor([0])
        total = RadiusLoss(0.25, offset=0.5)(out, labels)  # of a hinge that is 0
        total = total + RadiusLoss(1e-5, offset=1e30)(out, labels) + estimated_radius(out, 0.25)[0]
        gradients.append(torch.autograd.grad(total, [mean, cov]))
    (_, cov64), (mean32, cov32) = gradients
    assert mean32.isfinite().all()
    if variance == 1e-20:
        torch.testing.assert_close(cov32, cov64.float())
    else:
        assert not cov32.any()


def test_loss_by_hand() -> None:
    mean = torch.tensor([[2.0, 0.5, 0.0], [0.0, 1.0, 3.0]])
    out, y = Gaussian(mean, torch.eye(3)), torch.tensor([0, 1])  # right, wrong
    hinge = max(0.0, 1.0 - 0.5 * 1.5 / math.sqrt(2))
    expected = F.cross_entropy(mean, y) + 4.0 * hinge / 2
    loss = RadiusLoss(sigma=0.5, weight=4.0, offset=1.0)
    assert loss(out, y).item() == pytest.approx(expected.item())
    each = RadiusLoss(sigma=0.5, weight=4.0, offset=1.0, reduction="none")(out, y)
    assert each.mean().item() == pytest.approx(expected.item())
    none = RadiusLoss(sigma=0.5, weight=4.0, offset=0.0)(out, y)  # not the settings' offset
    assert none.item() == pytest.approx(F.cross_entropy(mean, y).item())


def test_half_precision_logits_are_judged_in_the_width_of_their_covariance() -> None:
    mean, y = torch.randn(4, 3).bfloat16(), torch.tensor([0, 1, 2, 0])
    loss = RadiusLoss(sigma=0.5, reduction="none")
    found = loss(Gaussian(mean, torch.eye(3)), y)
    torch.testing.assert_close(found, loss(Gaussian(mean.float(), torch.eye(3)), y))


def test_reference_loss_by_hand() -> None:
    mean = torch.tensor([[2.0, 1.9, 0.0]], dtype=torch.float64)
    cov = random_covariance(3)
    out, y = Gaussian(mean, cov), torch.tensor([0])
    v = float(cov[0, 0] + cov[1, 1] + 2 * abs(cov[0, 1]))
    first = max(0.0, 8.0 - 0.1 / math.sqrt(v))
    p = torch.softmax(16 * mean[0], 0).tolist()
    second = max(0.0, 8.0 - (stats.norm.ppf(p[0]) - stats.norm.ppf(p[1])))
    expected = F.cross_entropy(mean, y).item() + 0.5 * (first + second)
    loss = RadiusLoss(sigma=0.25, weight=0.5, settings=REFERENCE)(out, y)
    assert loss.item() == pytest.approx(expected, rel=1e-9)


def test_soft_hinge_ends_at_its_offset() -> None:
    gaps, offset = [0.0, 0.05, 0.2, 0.5], 2.0  # the last two are beyond it
    mean = torch.tensor([[gap, 0.0, -9.0] for gap in gaps], dtype=torch.float64)
    expected = [max(0.0, offset - 2 * stats.norm.ppf(1 / (1 + math.exp(-16 * g)))) for g in gaps]
    assert expected[0] == offset
    assert expected[2:] == [0.0, 0.0]
    assert soft_hinge(mean, offset).tolist() == pytest.approx(expected, abs=1e-9)


def test_soft_hinge_is_finite_for_certain_predictions() -> None:
    mean = torch.tensor([[100.0, 0.0, -100.0]], requires_grad=True)
    soft_hinge(mean, 8.0).sum().backward()
    assert mean.grad is not None
    assert torch.isfinite(mean.grad).all()


def test_bad_reduction() -> None:
    with pytest.raises(InvalidInput, match="reduction"):
        RadiusLoss(sigma=0.5, reduction="max")


@pytest.mark.parametrize("labels", [[[0], [1]], [0], [0, 3], [0.0, 1.0]])
def test_the_hinge_alone_looks_at_labels_too(labels: list) -> None:
    out = Gaussian(torch.randn(2, 3), torch.eye(3))
    with pytest.raises(InvalidInput, match=r"^label"):
        RadiusLoss(0.5).hinge(out, torch.tensor(labels))
    with pytest.raises(InvalidInput, match=r"^settings is 'PAPER': give covprop\.PAPER"):
        RadiusLoss(0.5, settings="PAPER")  # type: ignore[arg-type]


def test_a_loss_of_no_meaning_is_refused_and_any_whole_labels_do() -> None:
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="weight is"):
            RadiusLoss(sigma=0.25, weight=weight)
    with pytest.raises(InvalidInput, match="offset is nan"):
        RadiusLoss(sigma=0.25, offset=float("nan"))
    out = Gaussian(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.eye(2))
    expected = RadiusLoss(sigma=0.25)(out, torch.tensor([0, 1]))
    for kind in (torch.int32, torch.uint8, torch.int16):
        assert RadiusLoss(sigma=0.25)(out, torch.tensor([0, 1], dtype=kind)) == expected


def test_words_for_numbers_are_one_sentence() -> None:
    with pytest.raises(InvalidInput, match="weight is '4': give λ"):
        RadiusLoss(sigma=0.5, weight="4")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="offset is '1': give the radius"):
        RadiusLoss(sigma=0.5, offset="1")  # type: ignore[arg-type]
