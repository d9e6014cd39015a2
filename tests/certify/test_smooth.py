"""Certificates of classifiers whose smoothed version is known exactly."""

import math
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
import torch
from nets import HalfSpace
from scipy import stats
from torch import Tensor, nn

import covprop
from covprop.certify import Certificate, SampleWarning, certify, predict
from covprop.certify.noise import ESTIMATE, PREDICT, SELECT, Streams, block_size
from covprop.certify.smooth import _certificate, _prediction
from covprop.errors import InvalidInput

SHAPE = (1, 4, 4)
SIGMA = 0.5


def images(count: int) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def true_p(model: HalfSpace, x: Tensor) -> np.ndarray:
    return stats.norm.cdf((x.flatten(1) @ model.w - 0.2).numpy() / SIGMA)


def same(a: Certificate, b: Certificate) -> bool:
    return all(torch.equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))


def test_against_a_plain_loop_and_the_exact_radius() -> None:
    model, x = HalfSpace(), images(6)
    found = certify(model, x, sigma=SIGMA, n=3000, alpha=0.01, num_classes=3)
    p = true_p(model, x)
    best = np.maximum(p, 1 - p)
    truth = SIGMA * stats.norm.ppf(best)
    certain = found.prediction.numpy() >= 0
    assert certain.sum() == 5  # one image lies almost on the boundary
    assert (found.prediction.numpy() == (p > 0.5))[certain].all()
    assert (found.radius.numpy() <= truth).all()  # holds for each with probability 0.99
    assert (found.radius.numpy() > truth - 0.12).all()
    for i in np.flatnonzero(certain).tolist():
        streams = Streams([i], seed=0, purpose=ESTIMATE, sigma=SIGMA, device=torch.device("cpu"))
        size, votes = block_size(SHAPE), []
        for _ in range(math.ceil(3000 / size)):
            noise = torch.empty(size, *SHAPE)
            streams.fill(noise, 0)
            votes += model(x[i] + noise).argmax(1).tolist()
        count = votes[:3000].count(int(found.prediction[i]))
        assert count == found.count[i]
        lower = stats.beta.ppf(0.01, count, 3000 - count + 1)
        assert found.p_lower[i].item() == pytest.approx(lower, rel=1e-9)
        assert found.radius[i].item() == pytest.approx(SIGMA * stats.norm.ppf(lower), rel=1e-9)


@pytest.mark.parametrize(
    "options", [{}, {"soft": True}, {"delta": 0.1}, {"at_least": 0.3}, {"soft": True, "delta": 0.2}]
)
def test_rows_do_not_depend_on_company_order_or_batch_size(options: dict[str, float]) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    x = images(5)
    common = {"sigma": SIGMA, "n": 700, "seed": 4, **options}
    whole = certify(net, x, **common)
    order = [3, 1, 4, 0, 2]
    moved = certify(net, x[order], index=order, batch_size=7, **common)
    for field in fields(whole):
        assert torch.equal(getattr(whole, field.name)[order], getattr(moved, field.name))
    for i in range(5):
        alone = certify(net, x[i], index=i, **common)
        assert alone.radius.ndim == 0
        assert all(getattr(alone, f.name) == getattr(whole, f.name)[i] for f in fields(whole))
    assert not same(whole, certify(net, x, **{**common, "seed": 5}))


def test_abstains_where_no_class_has_half() -> None:
    x = torch.full(SHAPE, 0.5)

    def coin(batch: Tensor) -> Tensor:
        return torch.stack([batch[:, 0, 0, 0] - 0.5, 0.5 - batch[:, 0, 0, 0]], 1)

    found = certify(coin, x, sigma=SIGMA, n=1000)
    assert found.prediction == -1
    assert found.radius == 0
    assert found.p_lower < 0.5
    assert predict(coin, x, sigma=SIGMA, n=1000).prediction == -1


def test_sequential_uses_a_prefix_of_the_same_draws() -> None:
    model, x = HalfSpace(), images(6)
    fixed = certify(model, x, sigma=SIGMA, n=20_000)
    early = certify(model, x, sigma=SIGMA, n=20_000, delta=0.1)
    assert (early.n < 20_000).all()
    assert (early.radius > fixed.radius - 0.1).all()
    p = true_p(model, x)
    assert (early.radius.numpy() <= SIGMA * stats.norm.ppf(np.maximum(p, 1 - p))).all()
    for i in range(6):
        again = certify(model, x[i], index=i, sigma=SIGMA, n=int(early.n[i]))
        assert again.count == early.count[i]
    asked = certify(model, x, sigma=SIGMA, n=20_000, at_least=0.4)
    assert ((asked.radius >= 0.4) == (fixed.radius >= 0.4)).all()
    assert asked.n.double().mean() < 4000


def test_soft_certificate_of_a_known_mean() -> None:
    def certain(batch: Tensor) -> Tensor:
        return torch.tensor([[0.0, math.log(4.0)]]).expand(len(batch), 2)

    found = certify(certain, torch.zeros(SHAPE), sigma=SIGMA, n=1000, alpha=0.001, soft=True)
    lower = 0.8 - 7 * math.log(2 / 0.001) / (3 * 999)
    assert found.prediction == 1
    assert found.p_lower.item() == pytest.approx(lower, rel=1e-6)
    assert found.radius.item() == pytest.approx(SIGMA * stats.norm.ppf(lower), rel=1e-6)


@pytest.mark.parametrize("fast", [False, True])
def test_a_soft_guess_is_the_class_of_the_largest_mean(fast: bool) -> None:
    """Class 0 wins three votes of five by a hair, class 1 the others by far: 0.69 on average."""
    limit = 0.5 + SIGMA * stats.norm.ppf(0.6)
    near, far = (torch.tensor(p).log() for p in ([0.51, 0.49], [0.01, 0.99]))

    def model(batch: Tensor) -> Tensor:
        return torch.where((batch[:, :1, 0, 0] < limit), near, far)

    x = torch.full(SHAPE, 0.5)
    given = {"sigma": SIGMA, "n": 3000, "fast": fast}
    assert certify(model, x, **given).prediction == 0
    soft = certify(model, x, soft=True, **given)
    assert soft.prediction == 1
    assert 0.6 < soft.p_lower < 0.69


def broken(share: float) -> Callable[[Tensor], Tensor]:
    """A classifier sure of class 1 that returns NaN on a share of the noisy images."""
    limit = 0.5 + SIGMA * stats.norm.ppf(share)

    def model(batch: Tensor) -> Tensor:
        logits = torch.tensor([0.0, 5.0]).repeat(len(batch), 1)
        logits[batch[:, 0, 0, 0] < limit, 1] = torch.nan
        return logits

    return model


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_nan_is_an_outcome_and_no_class(soft: bool, fast: bool) -> None:
    x = torch.full(SHAPE, 0.5)
    found = certify(broken(0.2), x, sigma=SIGMA, n=2000, soft=soft, fast=fast)
    assert found.prediction == 1
    assert found.nan.item() == pytest.approx(400, abs=80)
    assert found.p_lower < 0.8
    assert found.p_lower > 0.7
    assert found.count + found.nan == 2000
    assert certify(broken(0.7), x, sigma=SIGMA, n=2000, soft=soft, fast=fast).prediction == -1
    assert predict(broken(0.2), x, sigma=SIGMA, n=2000, fast=fast).prediction == 1
    assert predict(broken(0.7), x, sigma=SIGMA, n=2000, fast=fast).prediction == -1


def test_all_nan_abstains() -> None:
    found = certify(lambda b: torch.full((len(b), 3), torch.nan), images(2), sigma=SIGMA, n=500)
    assert found.prediction.tolist() == [-1, -1]
    assert found.nan.tolist() == [500, 500]
    assert found.count.tolist() == [0, 0]


@pytest.mark.parametrize("n", [20, 150])
def test_predict_is_the_two_sided_binomial_test(n: int) -> None:
    model, x = HalfSpace(), images(12)
    found = predict(model, x, sigma=SIGMA, n=n, alpha=0.05)
    for i in range(12):
        a, b = int(found.count[i]), int(found.runner_up[i])
        assert a + b == n
        sure = stats.binomtest(a, a + b, 0.5).pvalue <= 0.05
        assert (found.prediction[i] >= 0) == sure
    assert 0 < (found.prediction == -1).sum() < 12
    assert predict(model, x[0], sigma=SIGMA, n=n).prediction.ndim == 0


@pytest.mark.parametrize("alpha", [0.5, 0.05, 0.001])
@pytest.mark.parametrize("n", [1, 2, 10, 39, 40, 41])
def test_predict_decides_every_pair_of_counts_as_the_two_sided_test_does(
    n: int, alpha: float
) -> None:
    counts = np.array([[k, n - k, 0] for k in range(n + 1)])
    found = _prediction(counts, n, alpha).prediction.tolist()
    sure = [stats.binomtest(k, n, 0.5).pvalue <= alpha for k in range(n + 1)]
    top = counts.argmax(1).tolist()
    assert found == [a if is_sure else -1 for a, is_sure in zip(top, sure, strict=True)]


def test_predict_draws_noise_of_its_own_by_the_index() -> None:
    """Votes that certified an image may not predict it again; nor does a row know its company."""
    model, x = HalfSpace(), images(3)
    found = predict(model, x, sigma=SIGMA, n=300, index=[7, 2, 5])
    for i, name in enumerate([7, 2, 5]):
        streams = Streams([name], seed=0, purpose=PREDICT, sigma=SIGMA, device=torch.device("cpu"))
        noise = torch.empty(block_size(SHAPE), *SHAPE)
        votes = []
        while len(votes) < 300:
            streams.fill(noise, 0)
            votes += model(x[i] + noise).argmax(1).tolist()
        assert found.count[i] == max(votes[:300].count(c) for c in (0, 1))
    assert len({SELECT, ESTIMATE, PREDICT}) == 3


def test_a_prediction_shows_its_counts() -> None:
    found = _prediction(np.array([[3, 30, 10, 7], [1, 0, 9, 40]]), 50, 0.05)  # the last are NaN
    assert found.prediction.tolist() == [1, -1]
    assert found.count.tolist() == [30, 40]
    assert found.runner_up.tolist() == [10, 9]
    assert found.nan.tolist() == [7, 40]
    assert found.n.tolist() == [50, 50]


def test_a_bound_that_is_no_number_abstains() -> None:
    guess, count = np.array([1, 1, 1, 1]), np.array([9, 9, 9, 0])
    lower, used = np.array([math.nan, 0.5, 0.499, 0.0]), np.array([9, 9, 9, 0])
    found = _certificate(guess, lower, count, used, 0 * count, SIGMA)
    assert found.prediction.tolist() == [-1, 1, -1, 1]  # the last was not bounded
    assert found.radius.tolist() == [0, 0, 0, 0]


def test_abstains_exactly_below_one_half() -> None:
    """Images of which the class has 45 to 60 %: the bounds lie on both sides, close to ½."""
    model, base = HalfSpace(), torch.full(SHAPE, 0.5)
    at = float(base.flatten() @ model.w)
    shift = [0.2 - at + SIGMA * stats.norm.ppf(p) for p in np.linspace(0.45, 0.6, 40)]
    along = model.w.view(SHAPE) / model.w.square().sum()
    x = torch.stack([base + s * along for s in shift])
    found = certify(model, x, sigma=SIGMA, n=2000, alpha=0.01, num_classes=3, value_range=None)
    certain = found.prediction >= 0
    assert torch.equal(certain, found.p_lower >= 0.5)
    assert torch.equal(found.radius > 0, certain)
    assert 0.49 < found.p_lower[~certain].max() < 0.5 < found.p_lower[certain].min() < 0.51


def test_few_samples_are_a_warning() -> None:
    with pytest.warns(SampleWarning, match="every image abstains"):
        found = certify(HalfSpace(), images(1), sigma=SIGMA, n=9)
    assert found.prediction.tolist() == [-1]
    with pytest.warns(SampleWarning, match="every image abstains"):  # enough for votes
        certify(HalfSpace(), images(1), sigma=SIGMA, n=20, soft=True)


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (torch.full(SHAPE, 1.5), {}, r"must lie in \[0, 1\].*span \[1.5, 1.5\]"),
        (torch.full(SHAPE, -0.1), {}, "must lie in"),
        (torch.full(SHAPE, torch.nan), {}, "hold NaN"),
        (torch.zeros(4, 4), {}, r"not float32 \[4, 4\]"),
        (torch.zeros(SHAPE, dtype=torch.uint8), {}, "not uint8"),
        (torch.zeros(SHAPE), {"sigma": 0.0}, "give a positive standard deviation"),
        (torch.zeros(SHAPE), {"sigma": math.nan}, "give a positive standard deviation"),
        (torch.zeros(SHAPE), {"alpha": 0.0}, "alpha is a probability"),
        (torch.zeros(SHAPE), {"alpha": 1.0}, "alpha is a probability"),
        (torch.zeros(SHAPE), {"n": 0}, "at least one sample"),
        (torch.zeros(SHAPE), {"n0": 0}, "at least one sample"),
        (torch.zeros(SHAPE), {"batch_size": 0}, "batch size is 0"),
        (torch.zeros(SHAPE), {"num_classes": 10}, "returns 3 logits but num_classes is 10"),
        (torch.zeros(2, *SHAPE), {"index": [1]}, "2 images need 2 indices, not 1"),
        (torch.zeros(SHAPE), {"index": -1}, "cannot be negative"),
        (torch.zeros(SHAPE), {"delta": 0.1, "at_least": 0.1}, "one of delta and at_least, not"),
        (torch.zeros(SHAPE), {"at_least": 9.0}, "out of reach"),
    ],
)
def test_mistakes_are_one_sentence(x: Tensor, options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        certify(HalfSpace(), x, **{"sigma": SIGMA, "n": 500, **options})


def test_another_scale_on_purpose() -> None:
    found = certify(HalfSpace(), torch.full(SHAPE, 2.0), sigma=SIGMA, n=500, value_range=None)
    assert found.n == 500


def test_nothing_in_nothing_out() -> None:
    assert certify(HalfSpace(), images(0), sigma=SIGMA, n=500).prediction.shape == (0,)


def test_public_names() -> None:
    assert covprop.certify is certify
    assert covprop.predict is predict


@pytest.mark.gpu
def test_on_a_gpu_rows_do_not_depend_on_company() -> None:
    model, x = HalfSpace().cuda(), images(7)
    whole = certify(model, x, sigma=SIGMA, n=5000, batch_size=1024)
    alone = [certify(model, x[i], index=i, sigma=SIGMA, n=5000, batch_size=300) for i in range(7)]
    # Equal draws: what differs is rounding at the decision boundary.
    assert max(abs(int(a.count - c)) for a, c in zip(alone, whole.count, strict=True)) <= 2
    cpu = certify(model.cpu(), x, sigma=SIGMA, n=5000)
    torch.testing.assert_close(whole.radius, cpu.radius, atol=0.15, rtol=0)
