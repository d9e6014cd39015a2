"""Passes of one shape and the queue that fills them: the same answers as the plain way."""

import gc
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from covprop.certify import Certificate, certify, certify_each, predict, sample
from covprop.certify.affine import Affine
from covprop.certify.bounds import Looks, Question, looks
from covprop.certify.each import Certifying, Way, opened
from covprop.certify.engine import COMPILE_PAYS, Engine, Job
from covprop.certify.noise import ESTIMATE, SELECT
from covprop.certify.philox import normal
from covprop.certify.queue import Image, run
from covprop.certify.smooth import on_fast_path
from covprop.errors import InvalidInput
from covprop.noise import seed_of
from covprop.train import graph

SHAPE = (3, 4, 4)
SIGMA = 0.5


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def images(count: int) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(1))


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


def test_an_image_with_a_gradient_leaves_none_behind() -> None:
    engine = make(network().eval())
    engine.load(1, images(1)[0].requires_grad_(), 5)
    engine.submit([Job(1, 0, 8)])
    assert engine.collect()[0].sum() == 8
    assert not engine.x.requires_grad


def test_memory_is_given_back_at_once() -> None:
    """A graph's memory must not wait for the garbage collector, which cannot see it."""
    way = Way(SIGMA, None, 512, 0, "cpu", None, False, (0.0, 1.0), None)
    gc.collect()
    gc.disable()
    try:
        with opened(network(), images(1)[0], way, 0) as engine:
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


def test_weights_are_cast_as_autocast_casts_them() -> None:
    model, x = network().eval(), images(3)
    engine = make(model, dtype=torch.bfloat16)
    assert isinstance(engine.model, nn.Sequential)
    assert [p.dtype for p in engine.model[0].parameters()] == [torch.bfloat16] * 2
    assert engine.model[1].running_var.dtype == torch.float32
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model(x).float()
    with torch.no_grad():
        assert torch.equal(engine._network(x), expected)


def make(model: object, width: int = 3, slots: int = 6, **more: object) -> Engine:
    return Engine(
        model,  # type: ignore[arg-type]
        SHAPE,
        sigma=SIGMA,
        classes=3,
        block=8,
        width=width,
        slots=slots,
        device=torch.device("cpu"),
        **more,  # type: ignore[arg-type]
    )


def test_a_pass_counts_the_samples_it_was_told_to() -> None:
    model, x = network().eval(), images(2)
    engine = make(model)
    for slot, seed in ((1, 11), (4, 12)):
        engine.load(slot, x[slot // 4], seed)
    engine.submit([Job(4, 16, 8), Job(1, 8, 5)])
    counts, _ = engine.collect()
    element = torch.arange(48)
    for slot, seed, first, taken in ((1, 11, 8, 5), (4, 12, 16, 8)):
        sample = torch.arange(first, first + taken)[:, None]
        noise = normal(torch.tensor(seed), sample, element).view(-1, *SHAPE)
        with torch.no_grad():
            votes = model(x[slot // 4] + SIGMA * noise).argmax(1)
        assert counts[slot].tolist() == [*votes.bincount(minlength=3).tolist(), 0]
    assert counts.sum() == 13
    assert engine.fill == 13 / 24
    engine.load(4, None, 1)
    engine.submit([])
    assert engine.collect()[0].sum() == 5


@pytest.mark.parametrize(("waits", "warned"), [(False, False), (True, True)])
def test_a_pass_is_recorded_or_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, waits: bool, warned: bool
) -> None:
    """The way to a graph without a GPU: recording is a list."""
    calls: list[str] = []

    def note(name: str, result: object = None) -> Callable[..., object]:
        def called(work: Callable[[], object], *args: object, **more: object) -> object:
            calls.append(name)
            work()
            return result or work

        return called

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(graph, "aside", note("aside"))
    monkeypatch.setattr(graph, "waits", lambda work: work() is None or waits)
    monkeypatch.setattr(graph, "capture", note("capture"))
    engine = make(network().eval())
    engine.load(1, images(1)[0], 5)
    with pytest.warns(UserWarning, match="host waits") if warned else nullcontext():
        assert engine._capture() is not waits
    assert calls.count("aside") == graph.WARMUP + 1
    assert ("capture" in calls) is not waits
    assert torch.backends.cudnn.benchmark is False
    assert engine.counts.sum() == 0
    engine.submit([Job(1, 0, 8)])
    assert engine.collect()[0].sum() == 8


def test_compiling_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(network().eval())
    engine.device = torch.device("cuda")
    compiled: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda f, dynamic: compiled.append(f) or f)
    monkeypatch.setattr(engine, "_capture", lambda: True)
    monkeypatch.setattr(engine, "_seconds_a_pass", lambda: 1.0)
    passes = int(COMPILE_PAYS) * engine.width * engine.block
    engine.speed_up(passes - 24)
    engine.speed_up(2 * passes, compiling=False)
    assert not compiled
    engine.speed_up(2 * passes)
    engine.speed_up(0, compiling=True)
    assert len(compiled) == 2
    assert isinstance(engine.model, nn.Sequential)
    assert isinstance(engine.model[1], Affine)
    engine = make(model := network().eval())
    engine.device = torch.device("cuda")
    monkeypatch.setattr(engine, "_capture", lambda: False)
    engine.speed_up(0, compiling=True)
    assert engine.network == engine._network  # the compiler failed: plain passes
    assert engine.model is model


def test_replaying_is_for_long_work_on_a_gpu() -> None:
    x = torch.rand(1, 3, 32, 32)
    gpu = Way(SIGMA, None, None, 0, "cuda", None, False, (0.0, 1.0), None)
    model = network()
    assert not on_fast_path(model, x, gpu, None, 2112 * 99)
    assert on_fast_path(model, x, gpu, None, 2112 * 100)
    assert on_fast_path(model, x, replace(gpu, batch_size=256), None, 256 * 100)
    assert not on_fast_path(model, x, replace(gpu, device="cpu"), None, 10**9)
    assert not on_fast_path(model, x, gpu, False, 10**9)
    assert on_fast_path(model, x, gpu, True, 1)


class Coins:
    """An engine whose classifier is a coin for every image: class 0 with probability p[index]."""

    def __init__(self, p: np.ndarray, block: int = 64, width: int = 32) -> None:
        self.p, self.block, self.width, self.slots, self.soft = p, block, width, 3 * width, False
        self.rng = np.random.default_rng(0)
        self.counts = np.zeros((self.slots, 3), dtype=np.int64)
        self.index = np.zeros(self.slots, dtype=np.int64)
        self.passes = self.wanted = self.partial = 0
        self.kept: list[np.ndarray] = []

    def load(self, slot: int, x: Tensor | None, seed: int) -> None:
        if x is not None:
            self.index[slot] = int(x)
        self.counts[slot] = 0

    def submit(self, jobs: list[Job]) -> None:
        assert 0 < len(jobs) <= self.width
        for job in jobs:
            heads = self.rng.binomial(job.taken, self.p[self.index[job.slot]])
            assert self.counts[job.slot].sum() == job.first  # no sample twice, none left out
            self.counts[job.slot, :2] += heads, job.taken - heads
        self.passes += 1
        self.partial += len(jobs) < self.width
        self.wanted += sum(job.taken for job in jobs)
        self.kept.append(self.counts.copy())

    def collect(self) -> tuple[np.ndarray, None]:
        return self.kept.pop(0), None

    @property
    def fill(self) -> float:
        return self.wanted / (self.passes * self.width * self.block)


def usual_p(count: int, sigma: float) -> np.ndarray:
    """Like published certificates: 9 % abstain, 17 % at the ceiling, radii in between."""
    rng = np.random.default_rng(1)
    kind, radius = rng.random(count), rng.random(count) * 0.97
    radius = np.where(kind < 0.09, -0.3 * radius, np.where(kind < 0.26, 1.2, radius))
    return stats.norm.cdf(radius / sigma)


def simulate(p: np.ndarray, question: Question | None, sigma: float = 0.25) -> Coins:
    engine = Coins(p)
    plan = looks(100_000, 0.001, sequential=question is not None, step=64)
    procedure = Certifying(100, plan, sigma=sigma, question=question, soft=False)
    source = iter([(i, torch.tensor(i)) for i in range(len(p))])
    done: list[Image] = []
    for settled in run(engine, source, procedure, seed=0):  # type: ignore[arg-type]
        procedure.found(settled)
        done += settled
    assert sorted(image.index for image in done) == list(range(len(p)))
    assert all(image.tally.counts.sum() == image.target for image in done)  # type: ignore[union-attr]
    return engine


@pytest.mark.parametrize(
    ("question", "least"),
    [
        (None, 0.99),
        (Question(delta=0.05), 0.98),
        (Question(at_least=(0.5,)), 0.95),
        (Question(at_least=(0.25, 0.5, 0.75)), 0.98),
    ],
)
def test_passes_are_full(question: Question | None, least: float) -> None:
    engine = simulate(usual_p(60 if question is None else 500, 0.25), question)
    print(question, engine.fill, engine.passes, engine.partial)
    assert engine.fill > least


def test_an_answer_settles_as_soon_as_it_is_known() -> None:
    """With room for all, nothing waits for anything but its own samples."""
    plan = Looks((64, 128), (0.0005, 0.0005))
    procedure = Certifying(64, plan, sigma=1.0, question=Question(at_least=(0.1,)), soft=False)
    engine = Coins(np.array([1.0, 0.5]))
    order = [
        [image.index for image in settled]
        for settled in run(engine, iter([(0, torch.tensor(0)), (1, torch.tensor(1))]), procedure, 0)  # type: ignore[arg-type]
    ]
    assert order == [[0], [1]]


def test_streams_of_purposes_and_images_differ() -> None:
    keys = {seed_of(0, "certify", purpose, i) for purpose in (SELECT, ESTIMATE) for i in range(9)}
    assert len(keys) == 18


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
@pytest.mark.parametrize("channels_last", [False, True])
def test_handing_out_work_waits_for_nothing(channels_last: bool) -> None:
    engine = Engine(
        network().cuda().eval(), SHAPE, sigma=SIGMA, classes=3, block=256, width=4, slots=4,
        device=torch.device("cuda"), dtype=torch.bfloat16, channels_last=channels_last,
    )  # fmt: skip
    engine.speed_up(0, compiling=False)
    given = (images(1)[0], images(1)[0].cuda(), None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            for x in given:
                engine.load(2, x, 2**62 + 1)
                engine.submit([Job(2, 0, 256)])
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert engine.seeds[2] == 2**62 + 1
    assert [int(engine.collect()[0].sum()) for _ in range(3)] == [256] * 3
    engine.close()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_a_device_that_is_not_the_current_one() -> None:
    """As a process of a group has it: counts are read when its own GPU has written them."""
    given = {"sigma": SIGMA, "n": 20_000, "dtype": torch.bfloat16}
    first, second = (
        certify(network().to(f"cuda:{i}"), images(9), fast=True, **given) for i in range(2)
    )
    assert same(first, second)
