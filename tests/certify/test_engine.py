"""A pass: it counts what it was told to, is recorded, compiled, and waits for nothing."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from tiny import SHAPE, SIGMA, images, network
from torch import nn

from covprop import cudagraph
from covprop.certify.affine import Affine
from covprop.certify.engine import COMPILE_PAYS, Engine, Job
from covprop.certify.philox import normal


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
    assert (engine.wanted, engine.passes, engine.width * engine.block) == (13, 1, 24)
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
    monkeypatch.setattr(cudagraph, "aside", note("aside"))
    monkeypatch.setattr(cudagraph, "waits", lambda work: work() is None or waits)
    monkeypatch.setattr(cudagraph, "capture", note("capture"))
    engine = make(network().eval())
    engine.load(1, images(1)[0], 5)
    with pytest.warns(UserWarning, match="host waits") if warned else nullcontext():
        assert engine._capture() is not waits
    assert calls.count("aside") == cudagraph.WARMUP + 1
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


def test_an_image_with_a_gradient_leaves_none_behind() -> None:
    engine = make(network().eval())
    engine.load(1, images(1)[0].requires_grad_(), 5)
    engine.submit([Job(1, 0, 8)])
    assert engine.collect()[0].sum() == 8
    assert not engine.x.requires_grad


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
