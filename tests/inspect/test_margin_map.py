"""The margin map: the radius term keeps the boundary away from single wrong labels."""

import numpy as np
import pytest
import torch
from scipy.special import ndtri

from covprop.inspect import margin_map


def test_the_radius_term_widens_the_margin_and_ignores_wrong_labels() -> None:
    made = margin_map.measure()
    alone, radius, noise = made.maps
    assert alone.fitted > 0.3 > 0.05 > radius.fitted
    assert radius.accuracy > alone.accuracy + 0.05
    assert radius.certified > 1.5 * alone.certified
    assert noise.accuracy > alone.accuracy
    assert 0.1 < made.wrong.mean() < 0.3
    shown = margin_map.exhibit(made)
    assert len(shown.raw["grid"][1]) == margin_map.SIDE**2
    assert len(shown.raw["points"][1]) == len(made.points)


def test_it_is_seeded_and_leaves_the_generator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = margin_map.moons(40, 3)
    np.testing.assert_array_equal(points, margin_map.moons(40, 3)[0])
    state = torch.get_rng_state()
    monkeypatch.setattr(margin_map, "STEPS", 3)
    one, two = (margin_map.train(points, labels, "noise", 1) for _ in range(2))
    assert torch.equal(one[0].weight, two[0].weight)
    assert torch.equal(torch.get_rng_state(), state)


def test_flipped_labels_are_about_the_share() -> None:
    labels = np.zeros(5000, dtype=np.int64)
    assert abs(margin_map.flip(labels, 0.2, 0).mean() - 0.2) < 0.02


def test_a_wrong_answer_counts_as_no_certified_radius() -> None:
    model = torch.nn.Linear(2, 2).eval()
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([1.0, 0.0]))  # always the first class
    points, labels = margin_map.moons(100, 0)
    nothing = np.zeros(100, dtype=bool)
    nothing[:4] = True
    made = margin_map._map("same", model, points, labels, nothing, points, labels)
    everywhere = margin_map.SIGMA * float(ndtri(0.001 ** (1 / 2000)))
    assert made.accuracy == made.fitted == 0.5
    assert made.certified == pytest.approx(everywhere / 2, rel=1e-4)
