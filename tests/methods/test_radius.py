import copy
import re
from statistics import NormalDist
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.methods import Losses, Radius, build
from covprop.propagate.propagator import Propagator
from covprop.propagate.settings import PAPER, REFERENCE
from covprop.train import load

SHAPE = (1, 6, 6)
Batch = tuple[Tensor, Tensor]


def _run(method: Radius, net: nn.Module, batch: Batch, epoch: int = 0, seed: int = 1) -> Losses:
    return method(net, *batch, epoch=epoch, generator=torch.Generator().manual_seed(seed))


def _noise(seed: int = 1) -> Tensor:
    return 0.25 * torch.randn(5, 1, *SHAPE, generator=torch.Generator().manual_seed(seed))[:, 0]


def _hinge(mean: Tensor, cov: Tensor, label: int, offset: float) -> float:
    """The paper's hinge of one image, with σ = 0.25."""
    order = sorted(range(len(mean)), key=lambda c: -mean[c].item())
    a, b = order[:2]
    if a != label:
        return 0.0
    deviation = (cov[a, a] + cov[b, b] - 2 * cov[a, b]).sqrt()
    return max(0.0, offset - 0.25 * ((mean[a] - mean[b]) / deviation).item())


def _labels_partly_right(net: nn.Module, batch: Batch) -> Batch:
    x = batch[0]
    logits = net(x)  # the class furthest behind is neither the top nor the runner-up
    return x, torch.where(torch.arange(5) < 3, logits.argmax(1), logits.argmin(1))


@pytest.mark.parametrize("mean", ["sample", "noisy", "clean"])
def test_shared_loss_by_hand(net: nn.Module, batch: Batch, mean: str) -> None:
    x, y = _labels_partly_right(net, batch)
    options = {"mean": mean, "weight": 3.0, "offset": 1.0, "r_max": 0.1}
    method = Radius(sigma=0.25, input_shape=SHAPE, estimator="shared", **options)
    losses = _run(method, net, (x, y))
    prop = Propagator(net, 0.25, SHAPE, PAPER.but(r_max=0.1))
    out = prop(x if mean == "clean" else x + _noise())
    logits = net(x + _noise()) if mean == "sample" else out.mean
    torch.testing.assert_close(losses.logits, logits.detach())
    for i in range(5):
        expected = F.cross_entropy(logits[i], y[i]).item()
        expected += 3.0 * _hinge(logits[i], out.cov, y[i].item(), 1.0)
        assert losses.per_sample[i].item() == pytest.approx(expected, rel=1e-4)
    assert losses.radius is not None
    assert ((losses.radius > 0) == (logits.argmax(1) == y)).all()


def test_reference_preset_by_hand(net: nn.Module, batch: Batch) -> None:
    """No σ in the hinge, a wider denominator, and the soft term; Σ without gradient."""
    x, y = _labels_partly_right(net, batch)
    options = {"estimator": "shared", "preset": "reference", "weight": 2.0}
    method = Radius(sigma=0.25, input_shape=SHAPE, **options)
    losses = _run(method, net, (x, y))
    out = Propagator(net, 0.25, SHAPE, REFERENCE)(x + _noise())
    assert not out.cov.requires_grad
    for i in range(5):
        expected = F.cross_entropy(out.mean[i], y[i]).item()
        a, b = out.mean[i].topk(2).indices.tolist()
        if a == y[i]:
            wide = out.cov[a, a] + out.cov[b, b] + 2 * out.cov[a, b].abs()
            gap = (out.mean[i, a] - out.mean[i, b]) / wide.sqrt()
            p = (16 * out.mean[i]).softmax(0).double()
            width = NormalDist().inv_cdf(p[a].item()) - NormalDist().inv_cdf(p[b].item())
            expected += 2.0 * (max(0.0, 8 - gap.item()) + max(0.0, 8 - width))
            assert losses.radius[i].item() == pytest.approx(0.25 * gap.item(), rel=1e-3)
        assert losses.per_sample[i].item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("mean", ["noisy", "clean"])
def test_linearized_loss_by_hand(net: nn.Module, batch: Batch, mean: str) -> None:
    net, x, y = net.double(), batch[0].double(), batch[1]
    x, y = _labels_partly_right(net, (x, y))
    method = Radius(
        sigma=0.25, input_shape=SHAPE, estimator="linearized", mean=mean, weight=3.0, offset=1.0
    )
    losses = _run(method, net, (x, y))
    generator = torch.Generator().manual_seed(1)
    noise = 0.25 * torch.randn(5, 1, *SHAPE, generator=generator, dtype=torch.float64)[:, 0]
    for i in range(5):
        point = x[i] + (noise[i] if mean == "noisy" else 0)
        logits = net(point[None])[0]
        a, b = logits.topk(2).indices.tolist()
        slope = torch.autograd.functional.jacobian(
            lambda p, a=a, b=b: net(p[None])[0, a] - net(p[None])[0, b], point
        )
        radius = ((logits[a] - logits[b]) / slope.norm()).item()
        expected = F.cross_entropy(logits, y[i]).item()
        if a == y[i]:
            expected += 3.0 * max(0.0, 1.0 - radius)
            assert losses.radius[i].item() == pytest.approx(radius, rel=1e-6)
        else:  # how far the label is behind, over the same deviation
            behind = ((logits[y[i]] - logits[a]) / slope.norm()).item()
            assert losses.radius[i].item() == pytest.approx(behind, rel=1e-6)
        assert losses.per_sample[i].item() == pytest.approx(expected, rel=1e-6)


def test_linearized_gradient_by_differences(net: nn.Module, batch: Batch) -> None:
    """The weight's gradient goes through ∇ₓ margin too."""
    net, x = net.double(), batch[0].double()
    y = net(x).argmax(1)
    method = Radius(sigma=0.25, input_shape=SHAPE, estimator="linearized", mean="clean", offset=9.0)
    _run(method, net, (x, y)).per_sample.sum().backward()
    weight, step = net[0].weight, 1e-6
    for place in [(0, 0, 0, 0), (2, 0, 1, 1), (3, 0, 2, 0)]:
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                weight[place] += sign * step
            values.append(_run(method, net, (x, y)).per_sample.sum().item())
            with torch.no_grad():
                weight[place] -= sign * step
        assert weight.grad is not None
        slope = (values[0] - values[1]) / (2 * step)
        assert weight.grad[place].item() == pytest.approx(slope, rel=1e-4, abs=1e-5)


def test_a_share_of_the_batch_carries_the_whole_hinge(net: nn.Module, batch: Batch) -> None:
    x, y = torch.cat([batch[0], batch[0]])[:8], torch.cat([batch[1], batch[1]])[:8]
    y = net(x).argmax(1)
    options = {"estimator": "linearized", "mean": "clean", "offset": 9.0}
    whole = _run(Radius(0.25, SHAPE, **options), net, (x, y))
    plain = _run(Radius(0.25, SHAPE, weight=0.0, **options), net, (x, y))
    hinge = (whole.per_sample - plain.per_sample)[:2]
    for share in (0.3, 0.25):  # two of eight images, both times
        part = _run(Radius(0.25, SHAPE, share=share, **options), net, (x, y))
        torch.testing.assert_close((part.per_sample - plain.per_sample)[:2], 4 * hinge)
    torch.testing.assert_close(part.per_sample[2:], plain.per_sample[2:])
    torch.testing.assert_close(part.logits, whole.logits)
    assert part.radius is not None
    assert whole.radius is not None
    torch.testing.assert_close(part.radius[:2], whole.radius[:2])
    assert part.radius[2:].isnan().all()
    ways = (_run(Radius(0.25, SHAPE, share=share), net, (x, y)) for share in (1.0, 0.25))
    torch.testing.assert_close(*(losses.logits for losses in ways))  # each image its own noise
    tiny = _run(Radius(0.25, SHAPE, share=0.01, **options), net, (x, y))
    assert tiny.radius is not None
    assert tiny.radius.isfinite().tolist() == [True] + 7 * [False]


@pytest.mark.parametrize("wrong", [{"estimator": "linearised"}, {"preset": "x"}, {"mean": "x"}])
def test_another_word_is_refused_however_it_is_made(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=f"method.{next(iter(wrong))} must be"):
        Radius(0.25, (1, 8, 8), **wrong)  # type: ignore[arg-type]


def test_share_is_for_linearized() -> None:
    with pytest.raises(InvalidInput, match=r"share must be above 0 and at most 1"):
        build("radius", sigma=0.25, input_shape=SHAPE, estimator="linearized", share=0.0)
    with pytest.raises(InvalidInput, match="share goes with"):
        Radius(0.25, SHAPE, estimator="shared", share=0.5)


@pytest.mark.parametrize("estimator", ["shared", "linearized"])
def test_weight_is_switched_on_at_its_epoch(net: nn.Module, batch: Batch, estimator: str) -> None:
    batch = _labels_partly_right(net, batch)
    method = Radius(sigma=0.25, input_shape=SHAPE, estimator=estimator, mean="noisy", from_epoch=3)
    before, after = _run(method, net, batch, epoch=2), _run(method, net, batch, epoch=3)
    plain = F.cross_entropy(before.logits, batch[1], reduction="none")
    torch.testing.assert_close(before.per_sample, plain)
    assert (before.radius is None) == (estimator == "linearized")  # whose gradient waits too
    right = before.logits.argmax(1) == batch[1]
    assert (after.per_sample[right] > before.per_sample[right]).all()
    torch.testing.assert_close(after.per_sample[~right], before.per_sample[~right])


def test_settings_come_from_the_preset_and_the_overrides() -> None:
    changes = {"r_max": 0.3, "soft_term": False, "offset": 2.0}
    method = Radius(0.25, SHAPE, estimator="shared", preset="reference", **changes)
    assert method.settings == REFERENCE.but(**changes)
    assert method.mean == "noisy"
    paper = Radius(0.25, SHAPE, estimator="shared")
    assert (paper.settings, paper.mean) == (PAPER, "clean")


def test_the_default_is_the_estimator_that_stays_true() -> None:
    method = Radius(0.25, SHAPE)
    assert (method.estimator, method.mean) == ("linearized", "sample")
    assert method.settings == PAPER.but(offset=1.0)
    assert Radius(0.25, SHAPE, offset=0.5).settings.offset == 0.5


@pytest.mark.parametrize("given", [{"preset": "paper"}, {"r_max": 0.1}, {"products": "float32"}])
def test_what_is_said_of_a_covariance_needs_one(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(InvalidInput, match=f"method.{name} is about a propagated Σ") as refused:
        Radius(0.25, SHAPE, **given)
    said = str(refused.value)
    assert 'goes with method.estimator = "shared"' in said
    (remedy,) = re.findall(r"such as (\S+)\.$", said)
    assert load(remedy).method["estimator"] == "linearized"


def test_propagator_is_built_once_a_model(net: nn.Module, batch: Batch) -> None:
    method = Radius(sigma=0.25, input_shape=SHAPE, estimator="shared")
    _run(method, net, batch)
    first = method.propagator(net)
    _run(method, net, batch)
    assert method.propagator(net) is first
    other = copy.deepcopy(net)
    assert method.propagator(other) is not first
    assert method.propagator(other).model is other


def test_functional_call_sees_the_weights_given(net: nn.Module, batch: Batch) -> None:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.method = Radius(sigma=0.25, input_shape=SHAPE, estimator="shared")

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return _run(self.method, self.net, (x, y)).per_sample

    step = Step()
    assert set(step.state_dict()) == {f"net.{key}" for key in net.state_dict()}
    doubled = {key: 2 * value for key, value in step.state_dict().items()}
    found = torch.func.functional_call(step, doubled, batch)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2)
    torch.testing.assert_close(found, step(*batch))


def test_measurements_go_through_a_checkpoint(net: nn.Module, batch: Batch) -> None:
    options = {"estimator": "calibrated", "r_max": "estimated", "mean": "noisy"}
    one = Radius(sigma=0.25, input_shape=SHAPE, **options)
    assert one.state_dict() == {}
    for seed in range(3):
        _run(one, net, batch, epoch=0, seed=seed)
    state = copy.deepcopy(one.state_dict())
    resumed = Radius(sigma=0.25, input_shape=SHAPE, **options)
    resumed.load_state_dict(state)
    assert resumed.state_dict().keys() == state.keys()
    found, expected = (_run(m, net, batch, epoch=0, seed=9) for m in (resumed, one))
    torch.testing.assert_close(found.per_sample, expected.per_sample, rtol=0, atol=0)
    fresh = Radius(sigma=0.25, input_shape=SHAPE, **options)
    assert not torch.equal(_run(fresh, net, batch, seed=9).per_sample, expected.per_sample)


def test_calibrated_variances_are_an_average_over_steps(net: nn.Module, batch: Batch) -> None:
    def variances(*seeds: int) -> dict[str, Tensor]:
        method = Radius(sigma=0.25, input_shape=SHAPE, estimator="calibrated")
        for seed in seeds:
            _run(method, net, batch, seed=seed)
        return {k: v.clone() for k, v in method.state_dict()["variances"].items() if "_" in k}

    first, second, both = variances(1), variances(2), variances(1, 2)
    assert first
    for name, value in both.items():
        torch.testing.assert_close(value, 0.9 * first[name] + 0.1 * second[name])


def test_r_max_is_measured_anew_each_epoch(net: nn.Module, batch: Batch) -> None:
    options = {"estimator": "shared", "r_max": "estimated", "mean": "sample"}
    method = Radius(sigma=0.25, input_shape=SHAPE, **options)
    _run(method, net, batch, epoch=0)
    first = method.propagator(net).r_max
    _run(method, net, batch, epoch=0, seed=2)
    assert method.propagator(net).r_max == first
    _run(method, net, batch, epoch=1, seed=2)
    assert method.propagator(net).r_max != first


@pytest.mark.parametrize("estimator", ["shared", "linearized"])
@pytest.mark.parametrize("mean", ["noisy", "clean"])
def test_a_step_down_the_hinge_raises_the_radius(
    net: nn.Module, batch: Batch, estimator: str, mean: str
) -> None:
    net, x = net.double(), batch[0].double()
    method = Radius(0.25, SHAPE, estimator, mean=mean, offset=9.0)
    plain = Radius(0.25, SHAPE, estimator, mean=mean, weight=0.0)
    y = _run(plain, net, (x, batch[1])).logits.argmax(1)  # all right, so all have a hinge
    before = _run(method, net, (x, y))
    hinge = before.per_sample - _run(plain, net, (x, y)).per_sample
    gradients = torch.autograd.grad(hinge.sum(), list(net.parameters()), allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            parameter -= 1e-5 * (0 if gradient is None else gradient)
    after = _run(method, net, (x, y))
    assert before.radius is not None
    assert after.radius is not None
    assert after.radius.sum() > before.radius.sum()
