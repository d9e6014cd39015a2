"""The layer table against exact values of linear networks and against direct sampling."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from covprop import PAPER, InvalidInput, Propagator, models
from covprop.inspect import layers
from covprop.inspect.layers import choose_layers, find_layers, layer_table


def propagator(name: str) -> Propagator:
    model = models.build(name, num_classes=10, image_shape=(3, 32, 32), width=4).eval()
    return Propagator(model, 0.25, (3, 32, 32))


@pytest.mark.parametrize(
    ("name", "convolutions", "chosen"),
    [("preact_resnet18", 17, [1, 5, 9, 13, 17]), ("preact_resnet34", 33, [1, 9, 17, 25, 33])],
)
def test_the_papers_layers_are_the_main_chain(
    name: str, convolutions: int, chosen: list[int]
) -> None:
    found = find_layers(propagator(name).plan)
    assert [la.number for la in choose_layers(found, "paper")] == chosen
    assert [la.number for la in found if la.number] == list(range(1, convolutions + 2))
    assert found[-1].kind == "linear"
    assert {la.name for la in found if la.number is None} == {
        la.name for la in found if la.name.endswith("shortcut")
    }
    assert choose_layers(found, "paper")[-1].name == found[-2].name


def test_layers_are_chosen_by_number_and_name() -> None:
    found = find_layers(propagator("preact_resnet18").plan)
    picked = choose_layers(found, "2, blocks.2.shortcut")
    assert [la.name for la in picked] == ["blocks.0.conv1", "blocks.2.shortcut"]
    assert choose_layers(found, "all") == found
    with pytest.raises(InvalidInput, match="no layer '99': give numbers from 1 to 18"):
        choose_layers(found, "99")


def test_a_linear_network_is_measured_as_it_is() -> None:
    """Without overlap or padding the propagated variance is exact and every unit is Gaussian."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 6, 2, stride=2), nn.Flatten(), nn.Linear(96, 5)).eval()
    prop = Propagator(model, 0.3, (1, 8, 8), PAPER.but(r_max=0.0))
    rows = layer_table(prop, torch.rand(4, 1, 8, 8), samples=2000)
    for row in rows:
        assert row.ratio == pytest.approx(1.0, rel=0.03)
        assert row.p_rejected < 0.12
        assert row.skewness < 0.1
        assert abs(row.kurtosis) < 0.15
    assert rows[0].correlation == pytest.approx(0.0, abs=0.03)
    assert rows[1].correlation is None
    assert rows[1].r_max is None


def test_overlapping_windows_correlate_as_the_kernel_says() -> None:
    """A 1×2 kernel of ones: neighbours along the row share one of two pixels, correlation ½."""
    model = nn.Sequential(nn.Conv2d(1, 1, (1, 2), bias=False), nn.Flatten(), nn.Linear(56, 2))
    nn.init.ones_(model[0].weight)
    row = layer_table(Propagator(model.eval(), 0.5, (1, 8, 8)), torch.zeros(2, 1, 8, 8))[0]
    assert row.correlation == pytest.approx(0.5, abs=0.03)
    assert row.r_max == 0.2
    assert row.measured == pytest.approx(0.5, rel=0.03)  # 2 · 0.25
    assert row.ratio == pytest.approx(1.2, rel=0.03)


def test_it_agrees_with_sampling_by_hand_and_sees_what_is_not_gaussian() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    with torch.no_grad():
        model[0].bias.zero_()
        model[2].weight.abs_()
    x = torch.zeros(1, 6)
    rows = layer_table(Propagator(model, 1.0, (6,)), x, samples=4000)
    with torch.no_grad():
        draws = model(torch.randn(100_000, 6))
    assert rows[1].measured == pytest.approx(float(draws.var(0).mean()), rel=0.1)
    assert rows[0].p_rejected < 0.3
    assert rows[1].p_rejected == 1.0  # sums of rectified values are skewed
    assert rows[1].skewness > 0.3


def test_many_chunks_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    prop = propagator("preact_resnet18")
    x = torch.rand(1, 3, 32, 32)
    chosen = choose_layers(find_layers(prop.plan), "1,18")
    whole = layer_table(prop, x, chosen, samples=128)
    monkeypatch.setitem(layers.BUDGET, "cpu", 1)
    parts = layer_table(prop, x, chosen, samples=128)
    for a, b in zip(whole, parts, strict=True):
        assert a.measured == pytest.approx(b.measured, rel=0.05)


def test_skewness_to_either_side_does_not_cancel() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).eval()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.bias.zero_()
        model[0].weight.fill_(1.0)
        model[2].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    row = layer_table(Propagator(model, 0.5, (1,)), torch.zeros(1, 1), samples=2000)[1]
    half = np.random.default_rng(0).standard_normal(200_000).clip(0)
    assert row.skewness == pytest.approx(float(stats.skew(half)), rel=0.2)


def test_few_samples_do_not_make_the_measured_variance_smaller() -> None:
    """Each image's mean comes from its own samples, which costs one of twenty."""
    model = nn.Linear(64, 64).eval()
    nn.init.eye_(model.weight)
    row = layer_table(Propagator(model, 0.5, (64,)), torch.rand(40, 64), samples=20)[0]
    assert row.measured == pytest.approx(0.25, rel=0.03)


def test_the_mode_is_left_and_the_exhibit_holds_the_numbers() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2)
    )
    prop = Propagator(model, 0.2, (1, 8, 8))
    rows = layer_table(prop, torch.rand(2, 1, 8, 8), samples=50)
    assert model.training
    shown = layers.exhibit(rows, 2, 50)
    files = shown.files
    assert set(files) == {"layers.csv", "layers.png", "layers.svg"}
    lines = files["layers.csv"].decode().splitlines()
    assert lines[0].startswith("layer,name,Monte Carlo variance,propagated,ratio")
    assert float(lines[1].split(",")[2]) == pytest.approx(rows[0].measured, rel=1e-4)
    assert math.isfinite(rows[1].p_median)
    with pytest.raises(InvalidInput, match="at least 20"):
        layer_table(prop, torch.rand(1, 1, 8, 8), samples=5)


def test_dead_units_are_left_out_of_the_test() -> None:
    class Still(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    model = Still().eval()
    nn.init.zeros_(model.layer.weight)
    row = layer_table(Propagator(model, 0.2, (4,)), torch.rand(1, 4), samples=100)[0]
    assert row.measured == pytest.approx(0.0, abs=1e-9)
    assert np.isnan([row.p_median, row.p_rejected, row.skewness]).all()


def test_what_cannot_be_measured_is_one_sentence() -> None:
    model = nn.Sequential(nn.Conv2d(1, 6, 2, stride=2), nn.Flatten(), nn.Linear(96, 5)).eval()
    prop, x = Propagator(model, 0.3, (1, 8, 8)), torch.rand(4, 1, 8, 8)
    wrong = {
        "x is a ndarray; give a tensor": x.numpy(),
        "give a batch of images, as": x[0],
        r"built for \[batch, 1, 8, 8\]": torch.rand(4, 1, 9, 9),
        "the batch to measure layers on is empty": x[:0],
        r"the input is torch\.uint8": (255 * x).byte(),
        r"the input is torch\.float64 and the model": x.double(),
        "the images hold NaN": x * torch.nan,
        "the images are a sparse tensor": x.to_sparse(),
    }
    for message, images in wrong.items():
        with pytest.raises(InvalidInput, match=message):
            layer_table(prop, images, samples=20)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="samples is 'a': give a whole number"):
        layer_table(prop, x, samples="a")  # type: ignore[arg-type]
