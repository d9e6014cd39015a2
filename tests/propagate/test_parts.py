"""Passes cut into compiled parts give what the whole passes give."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from covprop import Propagator, models
from covprop.propagate.parts import Parts, cut, live_after


class Functional(nn.Module):
    """Weights of its own, used far from where they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.kernel = nn.Parameter(torch.randn(4, 4, 3, 3) / 6)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        kernel = 2.0 * self.kernel
        x = torch.relu(self.first(x))
        for _ in range(3):
            x = x + torch.relu(nn.functional.conv2d(torch.relu(x), kernel, padding=1))
        return self.last(x.mean((2, 3)))


def networks() -> list[tuple[nn.Module, tuple[int, int, int]]]:
    resnet = models.build(
        "preact_resnet18", num_classes=10, image_shape=(3, 16, 16), width=4, norm="none"
    )
    for parameter in resnet.parameters():  # zeros would make the gradients below them zero
        if not parameter.any():
            nn.init.normal_(parameter, std=0.5 / parameter[0].numel() ** 0.5)
    lenet = models.build("lenet", num_classes=10, image_shape=(1, 28, 28))
    return [(resnet, (3, 16, 16)), (lenet, (1, 28, 28)), (Functional(), (1, 8, 8))]


def results(model: nn.Module, mean: Tensor, cov: Tensor) -> list[Tensor]:
    """Mean, covariance and all gradients of something that depends on both."""
    loss = mean.square().sum() + (cov * cov).sum()
    return [mean.detach(), cov.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_parts_cover_all_steps_and_hand_on_what_is_read(number: int) -> None:
    model, shape = networks()[number]
    plan = Propagator(model, 0.25, shape).plan
    parts = cut(plan)
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert (parts[0].start, parts[-1].stop) == (0, len(plan.steps))
    assert len(parts) > 1
    assert parts[-1].leaves == (plan.output,) == live_after(plan, len(plan.steps))
    for one, following in itertools.pairwise(parts):
        assert one.leaves == following.reads


@pytest.mark.parametrize("number", [0, 1, 2])
def test_parts_equal_the_whole(number: int) -> None:
    model, shape = networks()[number]
    model.double()
    prop = Propagator(model, 0.25, shape)
    x = torch.rand(2, *shape, dtype=torch.float64)
    out = prop(x)
    expected = results(model, out.mean, out.cov)
    torch.compiler.reset()
    parts = Parts(prop.plan, torch.device("cpu"), backend="aot_eager")
    out = parts(x, prop._input_cov(x), prop.settings)
    for ours, truth in zip(results(model, out.mean, out.cov), expected, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-12)


def test_parts_too_give_a_covariance_over_classes() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 1), nn.Flatten())
    prop = Propagator(model, 0.25, (1, 4, 4))
    x = torch.rand(2, 1, 4, 4)
    torch.compiler.reset()
    parts = Parts(prop.plan, torch.device("cpu"), backend="aot_eager")
    out = parts(x, prop._input_cov(x), prop.settings)
    torch.testing.assert_close(out.cov, prop(x).cov)
    assert out.cov.shape == (8, 8)


def test_compile_on_the_cpu_is_torchs_own() -> None:
    model, shape = networks()[2]
    prop = Propagator(model, 0.25, shape)
    assert not prop.overlaps()
    expected = prop(torch.zeros(2, *shape)).mean
    torch.compiler.reset()
    prop.compile(backend="aot_eager")
    torch.testing.assert_close(prop(torch.zeros(2, *shape)).mean, expected)


def errors(ours: list[Tensor], truths: list[Tensor]) -> list[float]:
    """‖ours − truth‖/‖truth‖ of each; a truth of 0 would say nothing."""
    pairs = [(a.double().cpu(), b.double().cpu()) for a, b in zip(ours, truths, strict=True)]
    assert all(truth.norm() > 0 for _, truth in pairs)
    return [float((mine - truth).norm() / truth.norm()) for mine, truth in pairs]


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
def test_parts_on_a_gpu_equal_float64(half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors: below 1e-4 in float32; below 2 % in bfloat16, 5 % for single layers' gradients."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    model, shape = networks()[0]
    x = torch.rand(16, *shape)
    exact = Propagator(model.double(), 0.25, shape)(x.double())
    expected = results(model, exact.mean, exact.cov)
    model = model.float().to("cuda", memory_format=torch.channels_last)
    prop = Propagator(model, 0.25, shape)
    assert prop.overlaps()
    torch.compiler.reset()
    prop.compile()
    images = x.cuda().contiguous(memory_format=torch.channels_last)
    for _ in range(3):  # the first calls compile, the last must not race with them
        with torch.autocast("cuda", torch.bfloat16, half):
            out = prop(images)
        ours = results(model, out.mean.float(), out.cov)
    mean, cov, *gradients = errors(ours, expected)
    assert mean < (2e-2 if half else 1e-4)
    assert cov < (2e-2 if half else 1e-4)
    for (name, _), found in zip(model.named_parameters(), gradients, strict=True):
        assert found < (5e-2 if half else 1e-4), name
