"""What all methods have in common, and the registry."""

import copy

import pytest
import torch
from torch import Tensor, nn

from covprop import methods, noise
from covprop.errors import InvalidInput
from covprop.methods import METHODS, Radius, build
from covprop.methods.base import draw, log_mean_softmax, logits_of

SHAPE = (1, 6, 6)
Batch = tuple[Tensor, Tensor]

VARIANTS = [
    ("gaussian", {}),
    ("gaussian", {"samples": 3}),
    ("macer", {"samples": 4}),
    ("smoothadv", {"steps": 2}),
    ("consistency", {}),
    ("radius", {}),
    ("radius", {"estimator": "shared"}),
    ("radius", {"estimator": "shared", "preset": "reference"}),
    ("radius", {"estimator": "shared", "mean": "sample"}),
    ("radius", {"estimator": "calibrated", "mean": "noisy"}),
    ("radius", {"estimator": "linearized", "mean": "noisy"}),
]


def _run(name: str, options: dict, net: nn.Module, batch: Batch, seed: int = 3, epoch: int = 1):
    method = build(name, sigma=0.25, input_shape=SHAPE, **options)
    generator = torch.Generator().manual_seed(seed)
    return method(net, *batch, epoch=epoch, generator=generator)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_shapes_gradients_and_seeds(name: str, options: dict, net: nn.Module, batch: Batch) -> None:
    losses = _run(name, options, net, batch)
    assert losses.per_sample.shape == (5,)
    assert losses.logits.shape == (5, 4)
    assert not losses.logits.requires_grad
    if losses.radius is not None:
        assert losses.radius.shape == (5,)
        assert not losses.radius.requires_grad
    losses.per_sample.mean().backward()
    for parameter in net.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0

    again = _run(name, options, net, batch)
    torch.testing.assert_close(again.per_sample, losses.per_sample, rtol=0, atol=0)
    if (name, options) != ("radius", {"estimator": "shared"}):  # whose mean is the clean image's
        other = _run(name, options, net, batch, seed=4)
        assert not torch.equal(other.per_sample, losses.per_sample)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gaussian", {"samples": 3}),
        ("macer", {"samples": 4}),
        ("consistency", {}),
        ("radius", {"offset": 9.0}),
        ("radius", {"offset": 9.0, "soft_term": True, "share": 0.4}),
        ("radius", {"estimator": "shared"}),
        ("radius", {"estimator": "shared", "mean": "sample", "soft_term": True}),
    ],
)
def test_nothing_on_the_way_to_the_weights_is_a_constant(
    name: str, options: dict, net: nn.Module, batch: Batch
) -> None:
    """The gradient along a random direction, against central differences of the loss."""
    net, x = net.double(), batch[0].double()
    pair = x, net(x).argmax(1)  # right, so that radii count
    _run(name, options, net, pair).per_sample.sum().backward()
    slope, values, step = 0.0, [], 1e-6
    direction = [torch.randn_like(p) for p in net.parameters()]
    for parameter, along in zip(net.parameters(), direction, strict=True):
        assert parameter.grad is not None
        slope += (parameter.grad * along).sum().item()
    with torch.no_grad():
        for shift in (step, -2 * step):
            for parameter, along in zip(net.parameters(), direction, strict=True):
                parameter += shift * along
            values.append(_run(name, options, net, pair).per_sample.sum().item())
    assert slope == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_one_image_and_all_wrong(name: str, options: dict, net: nn.Module, batch: Batch) -> None:
    x, _ = batch
    with torch.no_grad():
        net[-1].weight.mul_(0.01)
        net[-1].bias.copy_(torch.tensor([50.0, 0.0, 0.0, 0.0]))
    losses = _run(name, options, net, (x[:1], torch.tensor([2])))
    assert losses.per_sample.shape == (1,)
    assert 40 < losses.per_sample.item() < 60 or name == "macer"  # only the cross-entropy is left
    losses.per_sample.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    if losses.radius is not None:
        assert losses.radius.item() < 0


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_model_keeps_weights_modes_and_random_state(
    name: str, options: dict, net: nn.Module, batch: Batch
) -> None:
    net[1].eval()
    before, modes = copy.deepcopy(net.state_dict()), [m.training for m in net.modules()]
    state = torch.get_rng_state()
    _run(name, options, net, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in net.modules()] == modes
    for key, value in net.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_loss_stays_wide_under_autocast(
    name: str, options: dict, net: nn.Module, batch: Batch
) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        losses = _run(name, options, net, batch)
    assert losses.per_sample.dtype == torch.float32
    wide = _run(name, options, net, batch)
    torch.testing.assert_close(losses.per_sample, wide.per_sample, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gaussian", {}),
        ("macer", {"from_epoch": 2}),
        ("macer", {"weight": 0.0}),
        ("consistency", {"from_epoch": 2}),
        ("smoothadv", {"steps": 1, "warmup": 3}),
        ("radius", {"from_epoch": 2}),
        ("radius", {"estimator": "shared", "from_epoch": 2}),
        ("radius", {"weight": 0.0}),
    ],
)
def test_the_phase_changes_when_the_loss_does(
    name: str, options: dict, net: nn.Module, batch: Batch
) -> None:
    """Or a recorded step would go on past its epoch, or be recorded anew for nothing."""
    x, method = batch[0], build(name, sigma=0.25, input_shape=SHAPE, **options)
    pair = x, net(x).argmax(1)
    phases = [methods.phase_of(method, epoch) for epoch in range(5)]
    losses = [_run(name, options, net, pair, epoch=epoch).per_sample for epoch in range(5)]
    for epoch in range(4):
        same = torch.equal(losses[epoch], losses[epoch + 1])
        assert (phases[epoch] == phases[epoch + 1]) == same


@pytest.mark.parametrize(
    "options", [{"estimator": "calibrated"}, {"estimator": "shared", "r_max": "estimated"}]
)
def test_steps_that_measure_have_no_phase(options: dict) -> None:
    assert methods.phase_of(Radius(0.25, SHAPE, **options), 3) is None


def test_two_processes_draw_what_one_would(net: nn.Module, batch: Batch) -> None:
    x, y = batch[0][:4], batch[1][:4]
    method = build("consistency", sigma=0.25, input_shape=SHAPE)
    whole = method(net, x, y, epoch=0, generator=noise.stream(7)).per_sample
    halves = [
        method(net, x[2 * r :][:2], y[2 * r :][:2], epoch=0, generator=stream).per_sample
        for r, stream in enumerate(noise.stream(7, rank=r, world=2) for r in (0, 1))
    ]
    torch.testing.assert_close(torch.cat(halves), whole)


def test_noise_has_the_deviation_asked_for() -> None:
    drawn = draw(torch.zeros(50, 1, 20, 20), 5, 0.3, torch.Generator().manual_seed(0))
    assert drawn.shape == (50, 5, 1, 20, 20)
    assert drawn.std().item() == pytest.approx(0.3, rel=0.01)
    assert (drawn[:, 0] - drawn[:, 1]).std().item() == pytest.approx(0.3 * 2**0.5, rel=0.02)


@pytest.mark.gpu
def test_a_cpu_generator_seeds_noise_on_the_gpu() -> None:
    x = torch.zeros(3, 1, 4, 4, device="cuda")
    first, again = (draw(x, 2, 1.0, torch.Generator().manual_seed(5)) for _ in range(2))
    assert first.device.type == "cuda"
    assert torch.equal(first, again)


class TwoOutputs(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


def test_logits_are_grouped_by_image_and_checked(net: nn.Module, batch: Batch) -> None:
    x, _ = batch
    added = torch.randn(5, 3, *SHAPE)
    logits = logits_of(net, x, added)
    torch.testing.assert_close(logits[4, 1], net((x[4] + added[4, 1])[None])[0])
    last = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(logits_of(net, last, added), logits)
    with pytest.raises(
        InvalidInput, match=r"one tensor of logits .* a batch of 15 it returned \[15, "
    ):
        logits_of(net[:3], x, added)
    with pytest.raises(InvalidInput, match="it returned a tuple"):
        logits_of(TwoOutputs(), x, added)


@pytest.mark.parametrize("name", ["gaussian", "macer", "consistency", "smoothadv"])
def test_logits_are_the_mean_over_the_copies(name: str, net: nn.Module, batch: Batch) -> None:
    made: list[Tensor] = []
    net.register_forward_hook(lambda *given: made.append(given[-1].detach()))
    found = _run(name, {"samples": 3}, net, batch).logits
    for i in range(5):  # of the last pass, which is the one that is learned from
        torch.testing.assert_close(found[i], sum(made[-1][3 * i : 3 * i + 3]) / 3)


def test_log_mean_softmax_survives_large_logits() -> None:
    logits = torch.randn(3, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(log_mean_softmax(logits), logits.softmax(-1).mean(1).log())
    assert log_mean_softmax(1e4 * logits.float()).isfinite().all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mazer", {}, 'no method "mazer" .did you mean "macer"'),
        ("macer", {"sample": 3}, 'no option method.sample .did you mean "samples"'),
        ("macer", {"samples": 0}, "samples must be at least 1"),
        ("macer", {"beta": 0.0}, "beta must be above 0"),
        ("gaussian", {"samples": 0}, "samples must be at least 1"),
        ("consistency", {"samples": 1}, "at least 2"),
        ("consistency", {"weight": -1.0}, "weight must be at least 0"),
        ("smoothadv", {"steps": 0}, "steps must be at least 1"),
        ("smoothadv", {"epsilon": 0.0}, "epsilon must be above 0"),
        ("radius", {"estimator": "dense"}, "estimator must be one of"),
        ("radius", {"preset": "book"}, "preset must be one of"),
        ("radius", {"mean": "dirty"}, "mean must be one of"),
        ("radius", {"weight": -1.0}, "weight must be at least 0"),
        ("radius", {"estimator": "shared", "r_max": 2.0}, "r_max is 2.0"),
        ("radius", {"_prop": None}, "no option method._prop"),
        ("gaussian", {"sigma": 0.0}, "sigma is 0.0"),
        ("radius", {"input_shape": 8}, "input_shape is 8: give the shape of one image"),
        ("gaussian", {"input_shape": None}, "input_shape is None: give the shape of one image"),
    ],
)
def test_mistakes_are_one_sentence(name: str, options: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build(name, **{"sigma": 0.25, "input_shape": SHAPE, **options})


def test_registry_covers_the_variants_tested() -> None:
    assert {name for name, _ in VARIANTS} == set(METHODS)


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        (methods.Gaussian, {"sigma": 0.0}, "method.sigma must be at least 1e-06"),
        (methods.Macer, {"sigma": 0.25, "samples": 0}, "method.samples must be at least 1"),
        (methods.SmoothAdv, {"sigma": 0.25, "epsilon": "1"}, "method.epsilon must be a number"),
        (methods.Consistency, {"sigma": 0.25, "weight": -1}, "method.weight must be at least 0"),
    ],
)
def test_a_method_made_by_hand_is_checked_as_well(
    method: type, options: dict, sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        method(**options)
    assert type(methods.Consistency(sigma=1, weight=3).weight) is float
