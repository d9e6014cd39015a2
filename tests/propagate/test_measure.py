"""What is measured on noisy samples: r_max of every layer, and calibrated variances."""

import pytest
import torch
from nets import net
from oracles import monte_carlo_logits
from torch import Tensor, nn

from covprop import PAPER, InvalidInput, Propagator, UnsupportedModel


def test_estimated_r_max_is_measured_for_each_layer() -> None:
    class Smooth(nn.Module):
        """A box filter of width 3 correlates neighbours by 2/3; a 1×1 convolution by 0."""

        def __init__(self) -> None:
            super().__init__()
            self.box = nn.Conv2d(1, 1, 3, bias=False, padding=1, padding_mode="circular")
            nn.init.constant_(self.box.weight, 1.0)
            self.last = nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.box(x).flatten(1))

    class Pointwise(Smooth):
        def __init__(self) -> None:
            super().__init__()
            self.box = nn.Conv2d(1, 1, 1, bias=False)

    x = torch.rand(32, 1, 8, 8)
    settings = PAPER.but(r_max="estimated")
    prop = Propagator(Smooth(), 0.5, (1, 8, 8), settings)
    out = prop(x)
    assert prop.r_max is not None
    assert prop.r_max["box"] == pytest.approx(2 / 3, abs=0.05)
    twin = Propagator(prop.model, 0.5, (1, 8, 8), PAPER.but(r_max={"box": prop.r_max["box"]}))
    torch.testing.assert_close(out.cov, twin(x).cov)
    pointwise = Propagator(Pointwise(), 0.5, (1, 8, 8), settings)
    assert pointwise.measure_r_max(x)["box"] < 0.05
    with pytest.raises(InvalidInput, match="measure_r_max"):
        Propagator(Smooth(), 0.5, (1, 8, 8), settings).covariances()


def test_for_several_blocks_the_pixels_that_are_summed_are_measured() -> None:
    """A global pool has one output, whose neighbours are none; its inputs are all one pixel."""
    model = nn.Sequential(nn.Upsample(scale_factor=8), nn.AvgPool2d(8), nn.Flatten()).double()
    x = torch.rand(4, 2, 1, 1, dtype=torch.float64)
    settings = PAPER.but(r_max="estimated", multi_block=True)
    cov = Propagator(model, 0.5, (2, 1, 1), settings)(x).cov
    torch.testing.assert_close(cov, 0.25 * torch.eye(2, dtype=torch.float64))


def test_r_max_is_measured_of_the_layers_of_both_modes() -> None:
    class Model(nn.Module):
        """Neighbours are correlated after the box alone, which stands after a layer of one mode."""

        def __init__(self, also_in: bool) -> None:
            super().__init__()
            self.also_in = also_in
            self.point = nn.Conv2d(1, 1, 1)
            self.box = nn.Conv2d(1, 1, 3, bias=False, padding=1, padding_mode="circular")
            nn.init.constant_(self.box.weight, 1.0)
            self.last = nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Tensor:
            if self.training is self.also_in:
                x = self.point(x)
            return self.last(self.box(x).flatten(1))

    x = torch.rand(32, 1, 8, 8)
    for also_in in (True, False):
        for training in (True, False):
            model = Model(also_in).train(training)
            prop = Propagator(model, 0.5, (1, 8, 8), PAPER.but(r_max="estimated"))
            found = prop.measure_r_max(x)
            assert found["box"] == pytest.approx(2 / 3, abs=0.05)
            assert found["point"] < 0.05


def test_a_layer_used_twice_has_the_larger_r_max() -> None:
    class Twice(nn.Module):
        """The point-wise layer sees neighbours correlated by 2/3 first, and then by 0."""

        def __init__(self) -> None:
            super().__init__()
            self.box = nn.Conv2d(1, 1, 3, bias=False, padding=1, padding_mode="circular")
            nn.init.constant_(self.box.weight, 1.0)
            self.point = nn.Conv2d(1, 1, 1)
            self.last = nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((self.point(self.box(x)) + self.point(x)).flatten(1))

    prop = Propagator(Twice(), 0.5, (1, 8, 8), PAPER.but(r_max="estimated"))
    assert prop.measure_r_max(torch.rand(32, 1, 8, 8))["point"] == pytest.approx(2 / 3, abs=0.05)


def test_calibration_sets_variances_to_measured_ones() -> None:
    model, x = net()
    model.eval()
    prop = Propagator(model, 0.5, (2, 8, 8), calibrated=True)
    prop.calibrate(x, samples=200)
    covs = prop.covariances()
    for slot, cov in enumerate(covs[1:], start=1):
        if cov is not None:
            measured = getattr(prop, f"variance_{slot}")
            torch.testing.assert_close(torch.diagonal(cov), measured, rtol=1e-4, atol=1e-7)
    draws = torch.stack([monte_carlo_logits(model, image, 0.5, 4000) for image in x])
    torch.testing.assert_close(
        torch.diagonal(prop(x).cov).detach(), draws.var(1).mean(0), rtol=0.15, atol=0.0
    )


def test_two_samples_measure_the_same_variance_as_many() -> None:
    x = torch.rand(2000, 4, 1, 1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    prop = Propagator(model, 0.5, (4, 1, 1), calibrated=True)
    prop.calibrate(x, samples=2)
    exact = 0.25 * model[1].weight.square().sum(1)
    torch.testing.assert_close(torch.diagonal(prop(x).cov), exact, rtol=0.2, atol=0.0)


def test_calibration_refuses_other_layers_in_another_mode() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            return nn.functional.linear(2 * x if self.training else x, self.weight)

    Propagator(Model(), 0.5, (4, 1, 1))
    with pytest.raises(UnsupportedModel, match="in training and in evaluation"):
        Propagator(Model(), 0.5, (4, 1, 1), calibrated=True)


def test_dropout_as_a_function_is_off_while_noise_is_measured() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(nn.functional.dropout(x.flatten(1), 0.9, self.training))

    model, x = Dropping(), torch.rand(200, 4, 1, 1)
    prop = Propagator(model, 0.5, (4, 1, 1), calibrated=True)
    prop.calibrate(x, samples=50)
    exact = 0.25 * model.last.weight.square().sum(1)
    measured = getattr(prop, f"variance_{prop.plan.output}")
    torch.testing.assert_close(measured, exact, rtol=0.1, atol=0.0)


def test_calibration_averages_over_steps_and_keeps_modes() -> None:
    model, x = net()
    model.blocks[0].eval()
    prop = Propagator(model, 0.5, (2, 8, 8), calibrated=True)
    prop.calibrate(x)
    first = {name: value.clone() for name, value in prop.named_buffers() if "variance" in name}
    torch.manual_seed(7)
    prop.calibrate(x, momentum=0.75)
    averaged = dict(prop.named_buffers())
    torch.manual_seed(7)
    prop.calibrate(x, momentum=0.0)
    measured = dict(prop.named_buffers())
    for name, before in first.items():
        torch.testing.assert_close(averaged[name], 0.75 * before + 0.25 * measured[name])
    assert model.training
    assert not model.blocks[0].training
    with pytest.raises(InvalidInput, match="calibrated=True"):
        Propagator(model, 0.5, (2, 8, 8)).calibrate(x)


def test_what_cannot_be_measured_is_refused_and_leaves_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    x = torch.rand(2, 3, 4, 4)
    settings = PAPER.but(r_max="estimated")
    prop = Propagator(model, 0.25, (3, 4, 4), settings, calibrated=True)
    for use in (prop, prop.measure_r_max, prop.calibrate):
        with pytest.raises(InvalidInput, match="is empty: give a batch of at least one image"):
            use(x[:0])
    for use in (prop.measure_r_max, prop.calibrate):
        for number in (float("nan"), float("inf")):
            with pytest.raises(InvalidInput, match="measured after 0 is not finite: look for nan"):
                use(x + number)
    assert prop.r_max is None
    assert not prop.calibrations
    expected = prop(x)
    assert expected.cov.isfinite().all()
    nothing = prop(x[:0])  # once measured, as without measuring
    assert nothing.mean.shape == (0, 3)
    torch.testing.assert_close(nothing.cov, expected.cov)
    assert Propagator(model, 0.25, (3, 4, 4))(x[:0]).mean.shape == (0, 3)


@pytest.mark.parametrize("momentum", [2, 1, -1, float("nan"), "0.9"])
def test_a_momentum_that_is_none_is_refused(momentum: float) -> None:
    prop = Propagator(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), 0.5, (1, 2, 2), calibrated=True)
    with pytest.raises(InvalidInput, match=r"momentum is .*: give a number in \[0, 1\)"):
        prop.calibrate(torch.rand(2, 1, 2, 2), momentum=momentum)
    assert not prop.calibrations


@pytest.mark.parametrize("way", ["norm", "dropout"])
def test_measuring_is_done_in_evaluation(way: str) -> None:
    """A functional layer of the training plan kept training=True, and moved the statistics."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("var", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            if way == "dropout":
                return nn.functional.dropout(x, 0.5, self.training)
            return nn.functional.batch_norm(x, self.mean, self.var, training=self.training)

    torch.manual_seed(0)
    convs = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
    own = nn.Sequential(convs[0], Own(), convs[1], nn.Flatten(), nn.Linear(64, 3)).eval()
    like = nn.BatchNorm2d(4) if way == "norm" else nn.Dropout(0.5)
    same = nn.Sequential(convs[0], like, convs[1], nn.Flatten(), own[4]).eval()
    x = torch.rand(4, 3, 8, 8)
    found = []
    for model in (own, same):
        torch.manual_seed(1)
        found.append(Propagator(model, 0.25, (3, 8, 8)).measure_r_max(x))
    assert [*found[0].values()] == pytest.approx([*found[1].values()])
    assert not own[1].mean.any()
