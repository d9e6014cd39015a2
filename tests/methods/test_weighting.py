import math
from fractions import Fraction

import pytest
import torch

from covprop.errors import InvalidInput
from covprop.methods import Losses, RadiusWeights
from covprop.methods.weighting import resample
from covprop.train import load

ALL = torch.arange(6)


def _by_hand(radii: list[float], low: float, high: float, drop_below: float) -> list[float]:
    mean = sum(max(r, 0.0) for r in radii) / len(radii)
    weights = []
    for r in radii:
        share = r / mean
        weights.append(0.0 if share < drop_below else min(max(share, low), high))
    return weights


def test_weights_by_hand() -> None:
    weights = RadiusWeights(6, from_epoch=0)
    radii = [0.9, 0.5, 0.02, -0.05, -0.4, 0.3]
    weights.update(ALL, torch.tensor(radii, requires_grad=True))
    assert not weights.of(ALL, epoch=0).requires_grad  # no weight carries a gradient
    expected = torch.tensor(_by_hand(radii, 0.1, 2.0, -0.3))
    assert expected[[2, 3, 4]].tolist() == pytest.approx([0.1, 0.1, 0.0])  # clipped, kept, dropped
    torch.testing.assert_close(weights.of(ALL, epoch=0), expected)


@pytest.mark.parametrize("scale", [2.0**-9, 1.0, 2.0**9])
def test_a_weight_is_a_share_of_the_mean_of_all_images(scale: float) -> None:
    """Whatever else is in the batch, and however large radii are; the bound itself is kept."""
    weights = RadiusWeights(6, drop_below=-0.5, from_epoch=0)
    weights.update(ALL, scale * torch.tensor([2.0, 2.5, 1.5, 0.0, -0.5, -0.5625]))  # mean 1
    assert weights.of(ALL, epoch=0).tolist() == pytest.approx([2.0, 2.0, 1.5, 0.1, 0.1, 0.0])
    assert weights.of(torch.tensor([5, 2]), epoch=0).tolist() == pytest.approx([0.0, 1.5])


def test_radii_are_averaged_over_epochs() -> None:
    weights = RadiusWeights(3, momentum=0.6)
    for radius in (1.0, 2.0, 0.0):
        weights.update(torch.tensor([1]), torch.tensor([radius]))
    assert weights.radius[1].item() == pytest.approx(0.6 * (0.6 * 1.0 + 0.4 * 2.0) + 0.4 * 0.0)
    assert weights.radius[[0, 2]].isnan().all()


def test_a_network_that_is_mostly_wrong_where_weights_begin_is_told() -> None:
    weights = RadiusWeights(6, from_epoch=2)
    weights.update(ALL[:5], torch.tensor([0.5, 0.1, 0.0, -0.5, -0.1]))  # two of six are right
    assert [weights.early(epoch) for epoch in (0, 1, 3)] == [[], [], []]
    (line,) = weights.early(2)
    assert line.startswith("weights begin with epoch 3, while 67% of the images have no positive")
    assert "weighting.from_epoch" in line
    weights.update(ALL[5:], torch.tensor([0.2]))
    assert weights.early(2) == []
    assert "100%" in RadiusWeights(6, from_epoch=0).early(0)[0]


def test_ones_before_their_epoch_and_while_all_labels_lose() -> None:
    weights = RadiusWeights(3, from_epoch=2)
    index = torch.arange(3)
    weights.update(index, torch.tensor([1.0, 0.1, -0.5]))
    assert weights.of(index, epoch=1).tolist() == [1.0, 1.0, 1.0]
    assert weights.of(index, epoch=2).tolist() != [1.0, 1.0, 1.0]
    losing = RadiusWeights(3, from_epoch=0)
    losing.update(index, torch.tensor([-0.1, -0.1, -1.0]))
    assert losing.of(index, epoch=5).tolist() == [1.0, 1.0, 1.0]


def test_they_act_though_most_labels_lose() -> None:
    weights = RadiusWeights(4, from_epoch=0)
    index = torch.arange(4)
    weights.update(index, torch.tensor([0.4, 0.2, -0.02, -1.0]))
    assert weights.of(index, epoch=0).tolist() == pytest.approx([2.0, 0.2 / 0.15, 0.1, 0.0])


def test_unseen_images_and_infinite_radii_do_no_harm() -> None:
    weights = RadiusWeights(4, from_epoch=0)
    assert weights.of(torch.arange(4), epoch=0).tolist() == [1.0] * 4
    weights.update(torch.arange(3), torch.tensor([1.0, math.inf, math.nan]))
    assert weights.of(torch.arange(4), epoch=0).tolist() == [1.0] * 4
    weights.update(torch.arange(3), torch.tensor([1.0, 0.5, -math.inf]))
    assert weights.radius[:2].tolist() == [1.0, 0.5]


def test_state_goes_through_a_checkpoint() -> None:
    weights, other = RadiusWeights(6, from_epoch=0), RadiusWeights(6, from_epoch=0)
    weights.update(ALL, torch.rand(6))
    other.load_state_dict(weights.state_dict())
    torch.testing.assert_close(other.of(ALL, 0), weights.of(ALL, 0), rtol=0, atol=0)
    with pytest.raises(InvalidInput, match="radii of 6 training images, but the data has 5"):
        RadiusWeights(5).load_state_dict(weights.state_dict())


def test_images_are_drawn_in_proportion_to_their_weights() -> None:
    """Every image ⌊p⌋ or ⌈p⌉ times an epoch, and p times on average."""
    weights = torch.tensor([0.0, 0.1, 1.0, 2.0, 0.35, 0.35, 2.0, 1.3])
    share = [Fraction(w) * 8 / sum(map(Fraction, weights.tolist())) for w in weights.tolist()]
    total, epochs = [0] * 8, 4000
    for seed in range(epochs):
        order = resample(weights, torch.Generator().manual_seed(seed)).tolist()
        counts = [order.count(i) for i in range(8)]
        assert sum(counts) == 8
        assert all(math.floor(p) <= c <= math.ceil(p) for c, p in zip(counts, share, strict=True))
        total = [t + c for t, c in zip(total, counts, strict=True)]
    for drawn, p in zip(total, map(float, share), strict=True):
        deviation = math.sqrt(epochs * (p % 1) * (1 - p % 1))  # of the one copy that is by chance
        assert abs(drawn - epochs * p) <= 4.5 * deviation


def test_equal_weights_draw_every_image_once_in_any_order() -> None:
    first = []
    for seed in range(300):
        order = resample(torch.full((6,), 0.3), torch.Generator().manual_seed(seed)).tolist()
        assert sorted(order) == list(range(6))
        first.append(order[0])
    assert all(first.count(i) > 25 for i in range(6))  # 50 expected; 25 is 3.9 deviations away


def test_copies_lie_apart() -> None:
    weights = torch.tensor([4.0] * 10 + [0.0] * 30)
    order = resample(weights, torch.Generator().manual_seed(0)).view(4, 10)
    assert all(sorted(quarter) == list(range(10)) for quarter in order.tolist())
    assert (order == order[0]).all()  # evenly: every image a quarter of the epoch after its last


def sampling(radii: list[float], **options: float) -> RadiusWeights:
    weights = RadiusWeights(len(radii), by="sampling", from_epoch=1, **options)  # type: ignore[arg-type]
    weights.update(torch.arange(len(radii)), torch.tensor(radii))
    weights.start_epoch()
    return weights


def test_the_order_follows_from_seed_epoch_and_the_radii_at_the_start() -> None:
    radii = (torch.rand(50, generator=torch.Generator().manual_seed(0)) - 0.2).tolist()
    weights = sampling(radii)
    assert weights.order(epoch=0, seed=3) is None  # the usual shuffle, before `from_epoch`
    assert RadiusWeights(50, from_epoch=0).order(epoch=0, seed=3) is None  # by loss
    order = weights.order(epoch=1, seed=3)
    assert order is not None
    by_hand = torch.tensor(_by_hand(radii, 0.1, 2.0, -0.3)).clamp(min=0.1)
    share = by_hand * 50 / by_hand.sum()
    counts = order.bincount(minlength=50)
    assert ((counts >= share.floor()) & (counts <= share.ceil())).all()
    other = RadiusWeights(50, by="sampling", from_epoch=1)
    for epoch, seed in ((2, 3), (1, 4)):
        assert not torch.equal(order, weights.order(epoch, seed))  # type: ignore[arg-type]
    weights.update(order[:20], torch.rand(20))  # within the epoch nothing changes
    assert torch.equal(order, weights.order(epoch=1, seed=3))  # type: ignore[arg-type]
    other.load_state_dict(weights.state_dict())
    assert torch.equal(order, other.order(epoch=1, seed=3))  # type: ignore[arg-type]
    assert torch.equal(other.radius, weights.radius)
    other.start_epoch()
    assert not torch.equal(order, other.order(epoch=1, seed=3))  # type: ignore[arg-type]


def test_a_dropped_image_is_looked_at_and_can_come_back() -> None:
    weights = sampling([1.0] * 9 + [-2.0])
    orders = [weights.order(epoch, 0) for epoch in range(1, 101)]
    drawn = [epoch for epoch, order in enumerate(orders) if (order == 9).any()]  # type: ignore[union-attr]
    assert 3 <= len(drawn) <= 19  # a share of 10 · 0.1 / 14.4, as the others are clipped at 1.59
    everyone = torch.arange(10)
    assert weights.of(everyone, epoch=1).tolist() == [1.0] * 9 + [0.0]
    for _ in range(3):
        weights.update(torch.tensor([9]), torch.tensor([1.0]))
    assert weights.of(everyone, epoch=4).tolist() == [1.0] * 10
    gone = sampling([1.0] * 9 + [-2.0], low=0.0)
    assert not any((gone.order(epoch, 0) == 9).any() for epoch in range(1, 101))  # type: ignore[union-attr]


def test_an_image_twice_in_a_batch_does_not_depend_on_what_is_written_last() -> None:
    for radii in ([0.2, 0.7, 0.5], [0.7, 0.5, 0.2]):
        weights = RadiusWeights(2, from_epoch=0)
        weights.update(torch.tensor([1, 1, 1, 1]), torch.tensor([*radii, math.nan]))
        assert weights.radius[0].isnan()
        assert weights.radius[1].item() == pytest.approx(0.7)


@pytest.mark.parametrize(
    "option", ["momentum=1.0", "low=1.5", "high=0.5", "low=-1.0", "drop_below=0.1", "from_epoch=-1"]
)
def test_options_out_of_range_are_refused_in_a_recipe_and_in_python(option: str) -> None:
    name, value = option.split("=")
    with pytest.raises(InvalidInput, match=rf"weighting\.{name} must be at"):
        load("cifar10/minutes/weighted-0.25", [f"weighting.{option}"])
    with pytest.raises(InvalidInput, match=rf"weighting\.{name} must be at"):
        RadiusWeights(3, **{name: type(getattr(RadiusWeights, name))(float(value))})  # type: ignore[arg-type]


def test_weighted_loss_drops_mislabelled_images() -> None:
    """Weights make a batch's loss ignore an image whose label loses clearly."""
    losses = Losses(torch.tensor([1.0, 1.0]), torch.zeros(2, 4), torch.tensor([1.0, -0.8]))
    weights = RadiusWeights(2, from_epoch=0)
    index = torch.tensor([0, 1])
    assert losses.radius is not None
    weights.update(index, losses.radius)
    assert (losses.per_sample * weights.of(index, epoch=0)).tolist() == [2.0, 0.0]
