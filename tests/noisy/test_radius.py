"""The paper's method: what the loss is, and whose cross-entropy is left out."""

import math

import pytest
import torch
from torch import nn

from covprop import methods, noise
from covprop.data import Batch
from covprop.errors import InvalidInput
from covprop.noisy import Task, build
from covprop.noisy.radius import Radius, extreme

SIGMA = 0.25


def task(images: int = 8) -> Task:
    return Task(images, 3, 0.45, SIGMA, (1, 2, 2), nn.Identity)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


def batch(images: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(images, 1, 2, 2, generator=generator)
    return Batch(torch.arange(images), x, torch.arange(images) % 3)


def radii_by_hand(model: nn.Module, x: torch.Tensor) -> list[float]:
    """σ · gap / √(σ²‖w_a − w_b‖²) of the top two classes: exact for a linear network."""
    found = []
    for z in model(x).detach():
        a, b = z.topk(2).indices.tolist()
        slope = model[1].weight[a] - model[1].weight[b]  # type: ignore[index,union-attr]
        found.append(float((z[a] - z[b]) / slope.detach().norm()))
    return found


def test_the_radius_of_a_linear_network_by_hand() -> None:
    model, data = network(), batch()
    method = build("radius", task=task(), weight=0)
    method.start_epoch(model, 0)
    learned = method(model, data, 0, noise.stream(7))
    noisy = data.x + SIGMA * torch.randn(data.x.shape, generator=noise.stream(7))
    assert learned.radius is not None
    assert learned.radius.tolist() == pytest.approx(radii_by_hand(model, noisy), rel=1e-4)
    assert learned.kept.all()
    expected = nn.functional.cross_entropy(model(noisy), data.y, reduction="none")
    torch.testing.assert_close(learned.per_sample, expected)


def test_the_loss_is_the_training_method_s() -> None:
    """With the hinge, and nobody left out, it is `methods.Radius` on the network's own logits."""
    model, data = network(), batch()
    mine = build("radius", task=task(), weight=2.0, of="label")(model, data, 0, noise.stream(7))
    shared = {"estimator": "shared", "mean": "sample", "weight": 2.0}
    other = methods.Radius(SIGMA, (1, 2, 2), **shared)(
        model, data.x, data.y, epoch=0, generator=noise.stream(7)
    )
    torch.testing.assert_close(mine.per_sample, other.per_sample)
    torch.testing.assert_close(mine.radius, other.radius)
    assert other.radius is not None
    assert (other.radius < 0).any()


@pytest.mark.parametrize("end", ["largest", "smallest"])
def test_only_the_cross_entropy_of_one_end_is_left_out(end: str) -> None:
    model, data = network(), batch()
    method = build("radius", task=task(), end=end, drop=0.25, from_epoch=1, weight=2.0)
    method.start_epoch(model, 0)
    whole = method(model, data, 0, noise.stream(7))
    assert whole.radius is not None
    method.start_epoch(model, 1)
    fewer = method(model, data, 1, noise.stream(7))
    ranked = whole.radius.argsort(descending=end == "largest").tolist()
    assert fewer.kept.tolist() == [i not in ranked[:2] for i in range(8)]
    noisy = data.x + SIGMA * torch.randn(data.x.shape, generator=noise.stream(7))
    entropy = nn.functional.cross_entropy(model(noisy), data.y, reduction="none")
    torch.testing.assert_close(
        fewer.per_sample, torch.where(fewer.kept, whole.per_sample, whole.per_sample - entropy)
    )


def test_every_label_loses_the_same_share() -> None:
    """Six images of each of three labels; a third of each goes, by the radius of the label."""
    model, data = network(), batch(18)
    options = {"end": "smallest", "of": "label", "drop": 1 / 3, "from_epoch": 1, "weight": 0.0}
    chosen = []
    for per_class in (True, False):
        method = build("radius", task=task(18), per_class=per_class, **options)
        method.start_epoch(model, 0)
        radius = method(model, data, 0, noise.stream(7)).radius
        assert radius is not None
        method.start_epoch(model, 1)
        chosen.append(~method(model, data, 1, noise.stream(7)).kept)
    expected = torch.zeros(18, dtype=torch.bool)
    for label in range(3):
        places = [i for i in range(18) if data.y[i] == label]
        expected[sorted(places, key=radius.tolist().__getitem__)[:2]] = True
    assert torch.equal(chosen[0], expected)
    assert chosen[1].nonzero().flatten().tolist() == sorted(radius.argsort()[:6].tolist())
    assert not torch.equal(*chosen)


def test_with_a_layer_the_others_are_learned_through_it() -> None:
    """Plain, then all through the layer, then the chosen by their label; each by hand."""
    model, data = network(), batch(18)
    options = {"end": "smallest", "of": "label", "drop": 1 / 3, "per_class": True, "weight": 0.0}
    method = build("radius", task=task(18), layer=1, from_epoch=2, **options)
    found = []
    for epoch in range(3):
        method.start_epoch(model, epoch)
        found.append(method(model, data, epoch, noise.stream(7)))
    noisy = data.x + SIGMA * torch.randn(data.x.shape, generator=noise.stream(7))
    p = model(noisy).softmax(1).tolist()
    given, guessed = data.y.tolist(), [max(range(3), key=row.__getitem__) for row in p]
    met = [[1.0] * 3 for _ in range(3)]
    for i, j in zip(guessed, given, strict=True):
        met[i][j] += 1
    mixed = [
        sum(row[i] * met[i][y] / sum(met[i]) for i in range(3))
        for row, y in zip(p, given, strict=True)
    ]
    plain = [-math.log(row[y]) for row, y in zip(p, given, strict=True)]
    layered = [-math.log(value) for value in mixed]
    assert [int(learned.kept.sum()) for learned in found] == [18, 18, 12]
    kept = found[2].kept.tolist()
    last = [plain[i] if kept[i] else layered[i] for i in range(18)]
    for learned, expected in zip(found, (plain, layered, last), strict=True):
        assert learned.per_sample.tolist() == pytest.approx(expected, rel=1e-4)
    found[2].per_sample.sum().backward()  # type: ignore[no-untyped-call]
    assert method.get_parameter("layer.transition").grad is not None


def test_a_choice_before_the_layer_is_a_mistake() -> None:
    with pytest.raises(InvalidInput, match="from_epoch = 1 comes before"):
        build("radius", task=task(), layer=2, from_epoch=1)


def test_when_images_are_chosen() -> None:
    for refresh, changes in ((0, {2}), (1, {2, 3, 4, 5, 6}), (3, {2, 5})):
        method = build("radius", task=task(4), from_epoch=2, refresh=refresh, drop=0.25)
        assert isinstance(method, Radius)
        seen = set()
        for epoch in range(7):
            method.radius.copy_(torch.arange(4.0).roll(epoch))
            before = method.keep.clone()
            method.start_epoch(network(), epoch)
            if not torch.equal(before, method.keep):
                seen.add(epoch)
        assert seen == changes


def test_extreme() -> None:
    values = torch.tensor([0.5, math.nan, -2.0, math.inf, 1.0])
    assert extreme(values, 0.5, "largest").tolist() == [False, False, False, True, True]
    assert extreme(values, 0.25, "smallest").tolist() == [False, False, True, False, False]
    assert not extreme(torch.full((3,), math.nan), 0.9, "largest").any()
    assert int(extreme(torch.arange(10.0), 0.1, "largest").sum()) == 1


def test_the_model_is_not_a_part_of_the_method() -> None:
    model, method = network(), build("radius", task=task())
    method(model, batch(), 0, noise.stream(7))
    assert list(method.parameters()) == []
    assert set(method.state_dict()) == {"radius", "keep", "group", "cov"}


def test_without_a_hinge_the_covariance_is_that_of_the_epoch_s_beginning() -> None:
    model, method = network(), build("radius", task=task(), weight=0)
    method.start_epoch(model, 0)
    first = method(model, batch(), 0, noise.stream(7)).radius
    with torch.no_grad():
        model[1].weight.mul_(2)  # type: ignore[index,union-attr]
        model[1].bias.mul_(2)  # type: ignore[index,union-attr]
    assert first is not None
    torch.testing.assert_close(method(model, batch(), 0, noise.stream(7)).radius, 2 * first)
    method.start_epoch(model, 1)
    torch.testing.assert_close(method(model, batch(), 1, noise.stream(7)).radius, first)


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_detach_covariance_goes_before_the_preset(preset: str) -> None:
    """Through Σ, the hinge of one image has another gradient than without."""
    gradients = []
    for detach in (True, False, None):
        model = network()
        method = build("radius", task=task(), preset=preset, detach_covariance=detach, offset=9.0)
        learned = method(model, batch(), 0, noise.stream(7))
        learned.per_sample.mean().backward()
        gradients.append(model[1].weight.grad)  # type: ignore[index,union-attr]
    assert not torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[2], gradients[0 if preset == "reference" else 1])
