"""The closed-form radius: formula, edge cases, refusals."""

import copy
import math

import pytest
import torch
from oracles import normal_cdf, random_covariance
from torch import Tensor, nn

import covprop
from covprop import REFERENCE, Gaussian, InvalidInput, RadiusLoss, Settings, estimated_radius
from covprop.radius import margin_variance


def by_hand(mean: Tensor, cov: Tensor, sigma: float) -> list[float]:
    radii = []
    for row in mean.tolist():
        order = sorted(range(len(row)), key=lambda k: -row[k])
        a, b = order[0], order[1]
        v = float(cov[a, a] + cov[b, b] - 2 * cov[a, b])
        radii.append(sigma * (row[a] - row[b]) / math.sqrt(v))
    return radii


def test_radius_equals_the_formula_and_the_probability() -> None:
    mean, cov = torch.randn(20, 6, dtype=torch.float64), random_covariance(6)
    out = Gaussian(mean, cov)
    expected = by_hand(mean, cov, 0.25)
    assert estimated_radius(out, sigma=0.25).tolist() == pytest.approx(expected, rel=1e-10)
    probabilities = covprop.top_two_probability(out).tolist()
    assert probabilities == pytest.approx([normal_cdf(r / 0.25) for r in expected], rel=1e-9)
    found = covprop.top_two_probability(out, REFERENCE).tolist()  # by a wider denominator
    for row, value in zip(mean, found, strict=True):
        a, b = row.topk(2).indices.tolist()
        wide = float(cov[a, a] + cov[b, b] + 2 * abs(cov[a, b]))
        assert value == pytest.approx(normal_cdf(float(row[a] - row[b]) / math.sqrt(wide)))


def test_probability_is_that_of_one_class_beating_the_other() -> None:
    out = Gaussian(torch.tensor([[1.0, 0.4, 0.1]]), random_covariance(3, 5).float())
    draws = torch.distributions.MultivariateNormal(out.mean[0], out.cov).sample((200_000,))
    wins = (draws[:, 0] > draws[:, 1]).double().mean()
    assert covprop.top_two_probability(out).item() == pytest.approx(float(wins), abs=0.005)


def test_signed_radius_for_labels() -> None:
    out = Gaussian(torch.tensor([[3.0, 1.0, 0.0]] * 3), torch.eye(3))
    radius = estimated_radius(out, 1.0, labels=torch.tensor([0, 1, 2]))
    expected = [2 / math.sqrt(2), -2 / math.sqrt(2), -3 / math.sqrt(2)]
    assert radius.tolist() == pytest.approx(expected)
    below = Gaussian(out.mean - 9, out.cov)  # the best other class need not be above 0
    assert estimated_radius(below, 1.0, torch.tensor([0, 1, 2])).tolist() == pytest.approx(expected)


def test_edge_cases_are_defined() -> None:
    zero = torch.zeros(2, 2)
    certain = estimated_radius(Gaussian(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), zero), 0.5)
    assert certain.tolist() == [math.inf, 0.0]
    wrong = estimated_radius(Gaussian(torch.tensor([[1.0, 0.0]]), zero), 0.5, torch.tensor([1]))
    assert wrong.tolist() == [-math.inf]
    tie = estimated_radius(Gaussian(torch.tensor([[2.0, 2.0, 1.0]]), torch.eye(3)), 0.5)
    assert tie.tolist() == [0.0]
    values = torch.tensor([[math.nan, 1.0, 0.0], [2.0, 1.0, math.nan], [2.0, 1.0, 0.0]])
    nan = estimated_radius(Gaussian(values, torch.eye(3)), 0.5)
    assert nan.isnan().tolist() == [True, True, False]
    unknown = torch.tensor([[math.nan, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    two = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    found = estimated_radius(Gaussian(two, unknown), 0.5)
    assert found.isnan().tolist() == [True, False]  # not the infinite one of no variance
    with pytest.raises(InvalidInput, match="at least two classes"):
        estimated_radius(Gaussian(torch.zeros(3, 1), torch.eye(1)), 0.5)
    with pytest.raises(InvalidInput, match="sigma is"):
        estimated_radius(Gaussian(torch.zeros(3, 2), torch.eye(2)), math.nan)


def moved_alike(common: float) -> tuple[Gaussian, Gaussian]:
    """Logits whose noise is mostly shared, in float64 and as float32 has them."""
    generator = torch.Generator().manual_seed(0)
    own, shared = (torch.randn(n, 32, generator=generator, dtype=torch.float64) for n in (10, 1))
    rows = own + common * shared
    mean = torch.randn(50, 10, generator=generator, dtype=torch.float64)
    return Gaussian(mean, rows @ rows.T), Gaussian(mean.float(), (rows @ rows.T).float())


@pytest.mark.parametrize("common", [1.0, 1e2, 3e3, 1e4, 1e6])
def test_a_variance_that_cancels_is_right_up_to_the_rounding_of_its_covariance(
    common: float,
) -> None:
    exact, rounded = moved_alike(common)
    pairs = torch.triu_indices(10, 10, 1)
    truth, found = margin_variance(exact.cov, *pairs), margin_variance(rounded.cov, *pairs)
    size = torch.diagonal(exact.cov)[pairs].sum(0)
    assert found.dtype == torch.float32
    assert ((found - truth).abs() <= 1.001 * torch.finfo(torch.float32).eps * size).all()
    assert (found > 0).all()
    assert estimated_radius(rounded, 0.5).isfinite().all()
    if common <= 100:  # with figures to spare
        expected = estimated_radius(exact, 0.5).float()
        torch.testing.assert_close(estimated_radius(rounded, 0.5), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("common", "hidden"), [(30.0, False), (1e6, True)])
def test_the_gradient_of_a_variance_that_cancels(common: float, hidden: bool) -> None:
    """That of float64 where there is a variance to be seen, none through Σ where there is not."""
    gradients = []
    for out in moved_alike(common):
        leaves = [value.clone().requires_grad_() for value in out]
        radius = torch.compile(estimated_radius, backend="aot_eager", fullgraph=True)
        radius(Gaussian(*leaves), 0.5).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    (mean, cov), (mean32, cov32) = gradients
    assert mean32.isfinite().all()
    assert mean32.any()
    if hidden:
        assert not cov32.any()
    else:
        torch.testing.assert_close(mean32, mean.float(), rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(cov32, cov.float(), rtol=1e-2, atol=1e-2)


def test_a_variance_that_rounding_made_negative_is_as_much_as_rounding_may_hide() -> None:
    """Two classes that noise moves alike: 1 + 1 − 2·1, give or take the last digit."""
    above = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)).item()
    out = Gaussian(torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, above], [above, 1.0]]))
    largest = 0.5 / math.sqrt(2 * torch.finfo(torch.float32).eps)
    assert estimated_radius(out, 0.5).tolist() == pytest.approx([largest])
    assert estimated_radius(out, 0.5, torch.tensor([1])).tolist() == pytest.approx([-largest])


def test_margin_variance_never_builds_a_matrix_for_each_sample() -> None:
    cov = random_covariance(5)
    a, b = torch.tensor([0, 3, 4]), torch.tensor([1, 2, 0])
    for k in range(3):
        direction = torch.zeros(5, dtype=torch.float64)
        direction[a[k]], direction[b[k]] = 1.0, -1.0
        expected = direction @ cov @ direction
        assert margin_variance(cov, a, b)[k].item() == pytest.approx(expected.item())
    absolute = margin_variance(cov, a, b, Settings(margin_covariance="sum"))
    expected = cov[0, 0] + cov[1, 1] + 2 * cov[0, 1].abs()
    assert absolute[0].item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    "labels", [torch.tensor([0]), torch.zeros(3), torch.zeros(3, 1, dtype=torch.int64)]
)
def test_labels_that_are_not_one_class_number_an_image_are_refused(labels: Tensor) -> None:
    out = Gaussian(torch.randn(3, 4), torch.eye(4))
    with pytest.raises(InvalidInput, match=r"for 3 images: give \[3\] class numbers"):
        estimated_radius(out, 0.25, labels)
    with pytest.raises(InvalidInput, match="class numbers"):
        RadiusLoss(0.25)(out, labels)


def test_labels_as_they_come() -> None:
    out, y = Gaussian(torch.randn(3, 4), torch.eye(4)), torch.tensor([3, 1, 0])
    for dtype in (torch.uint8, torch.int32):
        assert torch.equal(estimated_radius(out, 0.25, y.to(dtype)), estimated_radius(out, 0.25, y))
    for found in (RadiusLoss(0.25), lambda out, y: estimated_radius(out, 0.25, y)):
        with pytest.raises(InvalidInput, match="the labels are a list; give a tensor"):
            found(out, y.tolist())


@pytest.mark.parametrize("wrong", [-100, -1, 4])
def test_labels_that_are_no_class_are_refused(wrong: int) -> None:
    out, y = Gaussian(torch.randn(3, 4), torch.eye(4)), torch.tensor([3, wrong, 0])
    for found in (RadiusLoss(0.25), lambda out, y: estimated_radius(out, 0.25, y)):
        with pytest.raises(InvalidInput, match=rf"label {wrong} of image 1 is outside 0\.\.3, the"):
            found(out, y)


def test_per_image_losses_by_vmap_and_by_a_compiler() -> None:
    mean, y = torch.randn(3, 4), torch.tensor([3, 1, 0])
    criterion = RadiusLoss(0.25, reduction="none")

    def loss(mean: Tensor, y: Tensor) -> Tensor:
        out = Gaussian(mean, torch.eye(4))
        return criterion(out, y) + estimated_radius(out, 0.25, y)

    mapped = torch.vmap(loss)(mean[:, None], y[:, None])
    assert torch.allclose(mapped[:, 0], loss(mean, y))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(mean, y), loss(mean, y))


def test_moments_know_their_sigma_and_refuse_another() -> None:
    prop = covprop.Propagator(nn.Linear(4, 3), 0.25, (4,))
    x, y = torch.randn(5, 4), torch.zeros(5, dtype=torch.int64)
    ways = [prop(x), copy.copy(prop(x)), torch.compile(prop, backend="eager")(x)]
    with prop.frozen():
        ways.append(prop(x))
        stack = torch.vmap(prop)(torch.randn(2, 5, 4))
    for out in ways:
        assert estimated_radius(out, torch.tensor(0.25)).shape == (5,)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"sigma=0\.25 and .* sigma=0\.5: give"):
            estimated_radius(out, 0.5)
        for other in (0.5, 0.2501):
            with pytest.raises(InvalidInput, match=r"with sigma=0\.25 "):
                RadiusLoss(other)(out, y)
    assert len(prop(x)) == 2  # tensors only: what takes results apart wants no others
    assert stack.mean.shape == (2, 5, 3)
    assert stack.sigma is None


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ((torch.zeros(2, 3), torch.eye(3)), "^the moments are a tuple: give the Gaussian that"),
        (Gaussian(torch.zeros(1, 3), torch.eye(4)), r"of \[4, 4\]: give one .* \[3, 3\]"),
        (Gaussian(torch.zeros(2, 3), torch.zeros(2, 3, 3)), r"of \[2, 3, 3\]: give one"),
    ],
)
def test_what_has_no_moments_is_refused(out: Gaussian, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        estimated_radius(out, 0.5)


def test_a_compiled_radius_checks_sigma_without_a_break() -> None:
    prop = covprop.Propagator(nn.Linear(4, 3), 0.25, (4,))
    other = covprop.Propagator(nn.Linear(4, 3), 0.3, (4,))
    for sigma, one in ((0.25, prop), (0.3, other)):  # the second time sigma may be a symbol

        def radius(x: Tensor, one: covprop.Propagator = one, sigma: float = sigma) -> Tensor:
            return estimated_radius(one(x), sigma)

        x = torch.randn(5, 4)
        compiled = torch.compile(radius, backend="aot_eager", fullgraph=True)
        assert torch.allclose(compiled(x), radius(x))


def test_moments_that_are_none_are_one_sentence() -> None:
    with pytest.raises(InvalidInput, match="the moments are a Tensor"):
        covprop.top_two_probability(torch.rand(2, 3))  # type: ignore[arg-type]
    out = Gaussian(torch.rand(2, 3), torch.eye(3))
    for settings in (None, "paper"):
        with pytest.raises(InvalidInput, match=r"settings is .*: give covprop\.PAPER"):
            estimated_radius(out, 0.25, settings=settings)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"settings is .*: give covprop\.PAPER"):
            covprop.top_two_probability(out, settings=settings)  # type: ignore[arg-type]
