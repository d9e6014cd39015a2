"""Images from a queue over passes of one shape: the same answers as the plain way."""

import gc
import warnings
import weakref
from dataclasses import fields, replace

import pytest
import torch
from tiny import SIGMA, images, network
from torch import Tensor, nn

from covprop.certify import Certificate, certify, certify_each, predict, sample
from covprop.certify.engine import Job
from covprop.certify.fast import on_fast_path, opened
from covprop.certify.sample import Sampling
from covprop.errors import InvalidInput


@pytest.fixture
def one_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain way with the GPU's noise, on the CPU."""
    monkeypatch.setattr(sample, "PHILOX", ("cpu",))


def same(a: Certificate, b: Certificate) -> bool:
    return all(torch.equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))


@pytest.mark.usefixtures("one_noise")
@pytest.mark.parametrize(
    "options", [{}, {"soft": True}, {"delta": 0.1}, {"at_least": 0.3}, {"at_least": (0.2, 0.4)}]
)
@pytest.mark.parametrize("batch_size", [1100])
def test_the_queue_counts_what_the_plain_way_counts(options: dict, batch_size: int) -> None:
    model, x = network(), images(7)
    given = {"sigma": SIGMA, "n": 2000, "seed": 4, "index": [4, 9, 2, 0, 7, 30, 1], **options}
    plain = certify(model, x, fast=False, **given)
    fast = certify(model, x, fast=True, batch_size=batch_size, **given)
    assert len(set(plain.n.tolist())) > 1 or "delta" not in options
    assert torch.equal(plain.count, fast.count)
    assert torch.equal(plain.n, fast.n)
    assert torch.equal(plain.prediction, fast.prediction)
    torch.testing.assert_close(plain.radius, fast.radius, rtol=1e-9, atol=0)
    assert (plain.p_lower > 0).all()  # also where nothing is certified
    torch.testing.assert_close(plain.p_lower, fast.p_lower, rtol=1e-9, atol=0)


@pytest.mark.usefixtures("one_noise")
def test_predictions_too() -> None:
    model, x = network(), images(5)
    plain = predict(model, x, sigma=SIGMA, n=1000, fast=False)
    fast = predict(model, x, sigma=SIGMA, n=1000, fast=True, batch_size=512)
    assert all(torch.equal(getattr(plain, f.name), getattr(fast, f.name)) for f in fields(plain))


@pytest.mark.usefixtures("one_noise")
def test_images_of_one_channel_lie_in_memory_as_in_the_plain_way() -> None:
    """Both layouts at once, so that asking for one changes nothing, and layers choose the other."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    strides: set[tuple[int, ...]] = set()
    model[0].register_forward_pre_hook(lambda layer, args: strides.add(args[0].stride()))
    x = images(3)[:, :1]
    plain = certify(model, x, sigma=SIGMA, n=2000, fast=False)
    fast = certify(model, x, sigma=SIGMA, n=2000, fast=True, batch_size=1100)
    assert same(plain, fast)
    assert strides == {(16, 1, 4, 1)}


def test_memory_is_given_back_at_once() -> None:
    """A graph's memory must not wait for the garbage collector, which cannot see it."""
    how = Sampling(SIGMA, batch_size=512, device="cpu")
    gc.collect()
    gc.disable()
    try:
        with opened(network(), images(1)[0], how, 0) as engine:
            engine.load(1, images(1)[0], 5)
            engine.submit([Job(1, 0, 8)])  # and nobody asks what it counted
            left = weakref.ref(engine)
        del engine
        assert left() is None
    finally:
        gc.enable()


def test_images_are_checked_before_they_are_sampled() -> None:
    def bad(x: Tensor) -> list[tuple[int, Tensor]]:
        return [(0, images(1)[0]), (7, x)]

    with pytest.raises(InvalidInput, match="image 7 is"):
        list(certify_each(network(), bad(torch.rand(3, 5, 5)), 2, sigma=SIGMA, n=500, fast=True))
    with pytest.raises(InvalidInput, match="must lie in"):
        list(certify_each(network(), bad(images(1)[0] + 2), 2, sigma=SIGMA, n=500, fast=True))
    assert list(certify_each(network(), [], 0, sigma=SIGMA, n=500, fast=True)) == []


def test_one_image_nan_and_none() -> None:
    alone = certify(network(), images(1)[0], sigma=SIGMA, n=500, fast=True)
    assert alone.n.item() == 500

    def broken(x: Tensor) -> Tensor:
        return torch.full((len(x), 2), torch.nan)

    found = certify(broken, images(2), sigma=SIGMA, n=500, fast=True)
    assert found.nan.tolist() == [500, 500]
    assert found.prediction.tolist() == [-1, -1]
    assert certify(network(), images(0), sigma=SIGMA, n=500, fast=True).n.shape == (0,)


def test_the_model_is_left_as_it_was() -> None:
    model = network()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    certify(model, images(2), sigma=SIGMA, n=300, fast=True, dtype=torch.bfloat16)
    assert model.training
    for key, value in model.state_dict().items():
        assert value.dtype == before[key].dtype
        assert torch.equal(value, before[key])


def test_replaying_is_for_long_work_on_a_gpu() -> None:
    x = torch.rand(1, 3, 32, 32)
    gpu = Sampling(SIGMA, device=torch.device("cuda"))
    model = network()
    assert not on_fast_path(model, x, gpu, None, 2112 * 99)
    assert on_fast_path(model, x, gpu, None, 2112 * 100)
    assert on_fast_path(model, x, replace(gpu, batch_size=256), None, 256 * 100)
    assert not on_fast_path(model, x, replace(gpu, device="cpu"), None, 10**9)
    assert not on_fast_path(model, x, gpu, False, 10**9)
    assert on_fast_path(model, x, gpu, True, 1)
    half = network().bfloat16()
    assert on_fast_path(half, x, replace(gpu, dtype=torch.bfloat16), True, 1)
    assert not on_fast_path(half, x, gpu, True, 1)  # a pass is not recorded in another precision


@pytest.fixture
def trained_like() -> nn.Module:
    return network().cuda()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("options", [{}, {"delta": 0.1}, {"soft": True}])
def test_fast_equals_plain_up_to_rounding(
    trained_like: nn.Module, dtype: torch.dtype | None, compiled: bool, options: dict
) -> None:
    """The same noise, so counts differ by samples next to a boundary alone."""
    x = images(40)
    given = {"sigma": SIGMA, "n": 20_000, "dtype": dtype, "device": "cuda", **options}
    plain = certify(trained_like, x, fast=False, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's advice
        warnings.filterwarnings("error", message="sampling goes on without")
        fast = certify(trained_like, x, fast=True, compiled=compiled, batch_size=4096, **given)
    same_n = plain.n == fast.n
    assert same_n.double().mean() > 0.9
    # A thousandth for TF32, torch's default in convolutions; half a percent for bfloat16.
    limit = 20 if dtype is None else 100
    worst = (plain.count - fast.count)[same_n].abs().max().item()
    print(f"largest difference of counts in 20,000 samples: {worst}")
    assert worst <= limit


@pytest.mark.gpu
def test_a_model_that_reads_on_the_host_runs_without_a_graph(trained_like: nn.Module) -> None:
    def reading(x: Tensor) -> Tensor:
        logits = trained_like(x)
        return logits if float(logits[0, 0]) < 1e9 else -logits

    trained_like.eval()
    x = images(3).cuda()
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        found = certify(reading, x, sigma=SIGMA, n=3000, fast=True)
    again = certify(trained_like, x, sigma=SIGMA, n=3000, fast=True)
    assert (found.count - again.count).abs().max() <= 3


class Corner(nn.Module):
    """Four pixels: an average over all would leave nothing of the noise."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, :2, :2].flatten(1)


def cornered(channels: int) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(channels, 8, 5, stride=3)
    return nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(), Corner(), nn.Linear(32, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 224, 224)])
def test_other_shapes_on_a_gpu(shape: tuple[int, int, int]) -> None:
    """One channel, where memory layouts coincide, and large images in small blocks."""
    model, x = cornered(shape[0]).cuda(), torch.rand(5, *shape)
    given = {"sigma": SIGMA, "n": 3000, "dtype": torch.bfloat16}
    plain = certify(model, x, fast=False, **given)
    for compiled in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message="sampling goes on without")
            fast = certify(model, x, fast=True, compiled=compiled, **given)
        assert fast.n.tolist() == [3000] * 5
        assert (plain.count - fast.count).abs().max() <= 15  # half a percent, as above


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_a_device_that_is_not_the_current_one() -> None:
    """As a process of a group has it: counts are read when its own GPU has written them."""
    given = {"sigma": SIGMA, "n": 20_000, "dtype": torch.bfloat16}
    first, second = (
        certify(network().to(f"cuda:{i}"), images(9), fast=True, **given) for i in range(2)
    )
    assert same(first, second)
