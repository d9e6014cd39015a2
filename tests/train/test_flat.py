"""A recorded step against the same step in eager code."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import relative
from safetensors.torch import load_file
from torch import Tensor, nn

from covprop import methods, models
from covprop.errors import CovpropError
from covprop.run import Run
from covprop.train import Recipe, train, update
from covprop.train.flat import FlatStep

SHAPE = (3, 8, 8)
Work = Callable[..., tuple[Tensor, ...]]
Make = Callable[..., Recipe]


def images(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, *SHAPE, generator=generator), torch.arange(count) % 4


def resnet(norm: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    net = models.build("preact_resnet18", num_classes=4, image_shape=SHAPE, width=2, norm=norm)
    for parameter in net.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return net


def work_of(net: nn.Module, name: str, half: bool = False, **options: object) -> Work:
    method = methods.build(name, sigma=0.25, input_shape=SHAPE, **options)

    def work(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            losses = method(net, x, y, epoch=0, generator=generator)
        return losses.per_sample.mean(), losses.logits

    return work


def eager(net: nn.Module, work: Work, seed: int = 3) -> tuple[Tensor, ...]:
    net.zero_grad()
    loss, *others = work(*images(), torch.Generator().manual_seed(seed))
    loss.backward()
    return loss.detach(), *others


def gradient(net: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


LINEARIZED = {"estimator": "linearized", "mean": "sample", "offset": 5.0}


@pytest.mark.parametrize(
    ("name", "options", "half", "norm"),
    [
        ("gaussian", {}, False, "batch"),
        ("radius", LINEARIZED, False, "batch"),
        ("radius", LINEARIZED, False, "none"),
        ("radius", LINEARIZED, True, "batch"),
        ("radius", {"mean": "noisy"}, False, "none"),
        ("consistency", {}, True, "none"),
    ],
    ids=["plain", "linearized", "no norm", "bfloat16", "shared", "consistency"],
)
def test_the_recorded_graph_does_the_same(
    name: str, options: dict[str, object], half: bool, norm: str
) -> None:
    net = resnet(norm)
    work = work_of(net, name, half, **options)
    twin = copy.deepcopy(net)
    results = eager(twin, work_of(twin, name, half, **options))
    before = copy.deepcopy(net.state_dict())
    step = FlatStep(net, work, images(), backend=None)
    for key, value in net.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0, msg=key)
    found = step(*images(), generator=torch.Generator().manual_seed(3))
    for ours, theirs in zip(found, results, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert relative(gradient(net), gradient(twin)) < (1e-2 if half else 1e-5)
    for (key, ours), theirs in zip(net.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=key)


def test_weights_noise_and_images_are_read_anew() -> None:
    net = resnet()
    work = work_of(net, "radius", **LINEARIZED)
    step = FlatStep(net, work, images(), backend="aot_eager")
    step(*images(), generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.1)
    twin = copy.deepcopy(net)
    (loss, _) = eager(twin, work_of(twin, "radius", **LINEARIZED), seed=9)
    assert step(*images(), generator=torch.Generator().manual_seed(9))[0].item() == pytest.approx(
        loss.item(), rel=1e-5
    )
    assert relative(gradient(net), gradient(twin)) < 1e-5
    for (key, ours), theirs in zip(net.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=key)
    assert step(*images(), generator=torch.Generator().manual_seed(10))[0].item() != loss.item()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own parts
def test_the_compiler_takes_the_gradient_of_a_gradient() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    work = work_of(net, "radius", **LINEARIZED)
    step = FlatStep(net, work, images())
    step(*images(), generator=torch.Generator().manual_seed(3))
    ours = gradient(net)
    eager(net, work)
    assert relative(ours, gradient(net)) < 1e-5


def test_nothing_is_computed_for_what_does_not_train() -> None:
    """The loss's gradient in the image is not asked for; the margin's is."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    net[3].bias.requires_grad_(False)
    step = FlatStep(net, work_of(net, "radius", **LINEARIZED), images(), backend=None)
    backward = torch.ops.aten.convolution_backward.default
    masks = [node.args[-1] for node in step.graph.graph.nodes if node.target is backward]
    assert sum(mask[0] for mask in masks) == 1
    assert sum(mask[1] for mask in masks) == 2
    step(*images(), generator=torch.Generator())
    assert net[3].bias.grad is None
    assert net[3].weight.grad is not None
    assert net[0].weight.grad.stride() == net[0].weight.stride()


def test_the_trainer_compiles_a_loss_with_a_gradient_in_it(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both phases, before and after the radius counts, and with the same noise."""
    made: list[FlatStep] = []

    def recorded(*given: Any) -> FlatStep:
        made.append(FlatStep(*given, backend=None))
        return made[-1]

    monkeypatch.setattr(update, "FlatStep", recorded)
    method = {"name": "radius", **LINEARIZED, "from_epoch": 1}
    train(tiny(method), tmp_path / "plain")
    train(tiny(method, compile=True), tmp_path / "compiled")
    assert len(made) == 2
    one, two = (load_file(tmp_path / run / "model.safetensors") for run in ("plain", "compiled"))
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], rtol=1e-4, atol=1e-5)
    ours, theirs = (Run(tmp_path / run).metrics()[-1] for run in ("plain", "compiled"))
    for key in ("loss", "train_accuracy", "estimated_radius"):
        assert ours[key] == pytest.approx(theirs[key], rel=1e-3)


def test_random_numbers_it_cannot_repeat_are_refused() -> None:
    net = nn.Linear(2, 2)

    def work(x: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        return (net(x + torch.randint(5, x.shape, generator=generator)).mean(),)

    with pytest.raises(CovpropError, match="draws randint from its generator"):
        FlatStep(net, work, [torch.rand(3, 2)])


class Aliased(nn.Module):
    """A layer that is known by two names, and used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix = nn.Conv2d(4, 4, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), self.mix, nn.ReLU(), self.mix)
        self.last = nn.Linear(4 * 64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x).flatten(1))


def test_a_layer_of_two_names_stays_the_networks_own() -> None:
    net = Aliased()
    held, before = net.mix.weight, net.mix.weight.detach().clone()
    work = work_of(net, "gaussian")
    eager(net, work)
    expected = gradient(net)
    step = FlatStep(net, work, list(images()), backend=None)
    step(*images(), generator=torch.Generator().manual_seed(3))
    assert net.mix.weight is held
    assert torch.equal(held, before)
    assert relative(gradient(net), expected) < 1e-5
