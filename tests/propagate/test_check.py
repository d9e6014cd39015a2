"""check names every fault with place, reason and remedy; fix mends a copy and says so."""

import operator
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import covprop
from covprop import UnsupportedModel, check, fix, methods
from covprop.propagate.registry import describe
from covprop.propagate.tracing.faults import Fault


def source(fault: Fault) -> str:
    """The line that a fault names."""
    file, line = fault.where.rsplit(":", 1)
    return Path(file).read_text().splitlines()[int(line) - 1]


class Faulty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.MaxPool2d(2), nn.InstanceNorm2d(8)
        )
        self.norm = nn.LayerNorm([8, 3, 3])
        self.last = nn.Linear(8, 4)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.features(x))
        x = F.max_pool2d(x, 3)
        x = torch.erfinv(torch.tanh(x))
        return self.softmax(self.last(x.flatten(1)))


def test_a_line_of_covprop_is_not_where_the_model_is_written() -> None:
    """A model without code of its own, asked for by a training method."""
    net = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 2))
    method = methods.build("radius", sigma=0.5, input_shape=(1, 8, 8), estimator="shared")
    with pytest.raises(UnsupportedModel) as caught:
        method(
            net,
            torch.rand(2, 1, 8, 8),
            torch.tensor([0, 1]),
            epoch=9,
            generator=torch.Generator(),
        )
    (fault,) = caught.value.faults
    assert f"covprop{os.sep}methods" not in fault.where


def test_every_fault_at_once_with_line_and_remedy() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        check(Faulty(), (3, 8, 8))
    faults = {fault.name: fault for fault in caught.value.faults}
    assert list(faults) == [
        "features.1", "features.2", "features.3", "norm", "max_pool2d", "erfinv", "softmax",
    ]  # fmt: skip
    message = str(caught.value)
    assert "7 operations" in message
    for fault in faults.values():
        assert str(fault) in message
        assert "test_check.py:" in fault.where
    assert faults["features.2"].operation == "nn.MaxPool2d"
    assert "average pooling" in faults["features.2"].remedy
    assert "ActNorm" in faults["norm"].remedy
    assert "logits" in faults["softmax"].remedy
    assert "covprop.rule" in faults["erfinv"].remedy


def test_a_sound_model_passes_and_is_untouched() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    before = model[1].running_mean.clone()
    check(model, (3, 4, 4))
    assert torch.equal(model[1].running_mean, before)
    assert model.training


def test_untraceable_model_is_one_sentence() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedModel, match=r"torch\.fx cannot trace Branch .*control flow"):
        check(Branch(), (1, 2, 2))


def test_the_length_of_a_batch_has_a_remedy() -> None:
    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(len(x), -1)

    with pytest.raises(
        UnsupportedModel, match=r"cannot trace Flat at .*test_check\.py.*: write x\.shape\[0\]"
    ):
        check(Flat(), (1, 2, 2))


class Sized(nn.Module):
    """Uses the batch size in `way`; the last layer comes after it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.last = way, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(x.shape[0], -1) + x.shape[0]  # neither changes Σ
        if self.way == "divided":
            flat = flat / (2 * x.shape[0])
        if self.way == "scaled":
            flat = flat * x.size(0) ** -0.5
        if self.way == "summed":
            flat = torch.add(flat, flat.relu(), alpha=x.shape[0])
        if self.way == "channels":
            flat = flat / x.shape[2]
        return self.last(flat)


@pytest.mark.parametrize(("way", "name"), [("divided", "/"), ("scaled", "*"), ("summed", "add(")])
def test_what_depends_on_the_size_of_the_batch_is_named(way: str, name: str) -> None:
    """Σ is made without a batch, and an image's logits should not depend on its neighbours."""
    for call in (check, lambda model, shape: covprop.Propagator(model, 0.5, shape)):
        with pytest.raises(UnsupportedModel, match="computes with the size of the batch") as caught:
            call(Sized(way), (1, 2, 4))
        (fault,) = caught.value.faults
        assert name in source(fault)


class Centred(nn.Module):
    """Takes from each image a statistic of the batch in `way`."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.last = way, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if self.way == "map":
            flat = (x - x.mean(0)).flatten(1)
        if self.way == "features":
            flat = flat - flat.mean(0)
        if self.way == "kept":
            flat = flat - torch.sum(flat, 0, keepdim=True) / 2
        if self.way == "all":
            flat = flat - flat.mean()
        if self.way == "largest":
            flat = flat - flat.max(0)[0]
        return self.last(flat)


@pytest.mark.parametrize(
    ("way", "name"),
    [("map", ".mean(0)"), ("features", ".mean(0)"), ("kept", "torch.sum("), ("all", ".mean()")],
)
def test_a_reduction_over_the_batch_is_named(way: str, name: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"reduces over the batch.*nn\.BatchNorm") as caught:
        check(Centred(way), (1, 2, 4))
    (fault,) = caught.value.faults
    assert name in source(fault)


def test_what_only_follows_from_a_fault_is_not_named() -> None:
    """A part of what it returned, and what is computed from a value without a batch."""
    with pytest.raises(UnsupportedModel, match="maximum of Gaussians") as caught:
        check(Centred("largest"), (1, 2, 4))
    assert [fault.operation for fault in caught.value.faults] == ["Tensor.max"]

    class Points(nn.Module):  # the mean of two points of two coordinates looks like a batch of two
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    with pytest.raises(UnsupportedModel, match="reduces over the batch") as caught:
        check(Points(), (2,))
    assert len(caught.value.faults) == 1


def test_a_dimension_chosen_by_the_batch_size_is_named() -> None:
    class Reduced(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(x.shape[0]).flatten(1)

    with pytest.raises(UnsupportedModel, match="computes with the size of the batch"):
        check(Reduced(), (3, 4, 4))


@pytest.mark.parametrize("way", ["not", "channels"])
def test_sizes_that_do_not_change_the_noise_pass(way: str) -> None:
    model = Sized(way)
    out = covprop.Propagator(model, 0.5, (1, 2, 4))(torch.rand(5, 1, 2, 4))
    weight = model.last.weight.detach() / (2 if way == "channels" else 1)
    torch.testing.assert_close(out.cov.detach(), 0.25 * weight @ weight.T)


def test_tensor_made_in_forward_does_not_stay_on_the_model() -> None:
    class Made(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * torch.full((1, 1, 1), 2.0)).flatten(1)

    model = Made()
    prop = covprop.Propagator(model, 0.5, (2, 1, 1))
    torch.testing.assert_close(prop(torch.zeros(1, 2, 1, 1)).cov, torch.eye(2))
    assert "_tensor_constant0" not in vars(model)


def test_fix_mends_a_copy_and_says_what_it_changed() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(),
                nn.MaxPool2d(3, stride=2, padding=1, dilation=(1, 1)), nn.InstanceNorm2d(8),
                nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveMaxPool2d(1),
            )  # fmt: skip
            self.last = nn.Linear(8, 4)
            self.softmax = nn.LogSoftmax(dim=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.softmax(self.last(self.body(x).flatten(1)))

    model = Pooled()
    lines: list[str] = []
    mended = fix(model, log=lines.append)
    check(mended, (3, 8, 8))
    assert isinstance(model.body[3], nn.MaxPool2d)  # the original stays
    assert lines == [
        "body.1: GroupNorm became ActNorm",
        "body.3: MaxPool2d became AvgPool2d",
        "body.4: InstanceNorm2d became ActNorm",
        "body.5: Upsample(mode='bilinear') became Upsample(mode='nearest')",
        "body.6: AdaptiveMaxPool2d became AdaptiveAvgPool2d",
        "softmax: LogSoftmax became Identity",
    ]
    assert mended.body[3].kernel_size == 3
    assert not mended.body[3].count_include_pad
    assert mended.body[1].shift.shape == (8,)


def test_fix_of_a_single_layer() -> None:
    assert isinstance(fix(nn.MaxPool2d(2), log=lambda line: None), nn.AvgPool2d)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fix_of_what_has_no_layers_to_exchange_is_one_sentence() -> None:
    with pytest.raises(UnsupportedModel, match=r"a function is no nn\.Module; wrap it in one"):
        fix(lambda x: x)  # type: ignore[arg-type]
    script = torch.jit.trace(nn.MaxPool2d(2), torch.rand(1, 1, 4, 4))
    for model in (script, nn.Sequential(script)):
        with pytest.raises(UnsupportedModel, match=r"TorchScript.* give the module that it was"):
            fix(model)


def test_fix_puts_norms_where_the_model_is() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4))
    mended = fix(model.double().to("meta"), log=lambda line: None)
    for norm in mended[1:]:
        assert (norm.shift.device.type, norm.shift.dtype) == ("meta", torch.float64)


def test_own_rule_in_three_lines() -> None:
    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x if x.sum() > -1e9 else x  # fx could not trace into this

    model = nn.Sequential(Double(), nn.Flatten())
    with pytest.raises(UnsupportedModel):
        check(model, (2, 1, 1))

    @covprop.rule(Double)
    def double(layer: Double, cov: Tensor, settings: covprop.Settings) -> Tensor:
        return 4 * cov

    out = covprop.Propagator(model, 0.5, (2, 1, 1))(torch.ones(1, 2, 1, 1))
    torch.testing.assert_close(out.cov, torch.eye(2))
    torch.testing.assert_close(out.mean, torch.full((1, 2), 2.0))


def test_operations_read_as_they_are_written() -> None:
    written = {
        nn.Conv2d: "nn.Conv2d",
        F.relu: "F.relu",
        operator.add: "add",
        Tensor.view: "Tensor.view",
    }
    assert {operation: describe(operation) for operation in written} == written


def test_lazy_layers_want_a_first_batch() -> None:
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    with pytest.raises(UnsupportedModel, match="lazy layers whose sizes are not known yet: run it"):
        check(net, (1, 2, 2))
    net(torch.zeros(1, 1, 2, 2))
    check(net, (1, 2, 2))
