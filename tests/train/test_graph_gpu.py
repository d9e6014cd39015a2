"""Recorded training on a GPU against the same training step by step."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import own_net
from rich.console import Console

from covprop import cudagraph, methods
from covprop.run import Run
from covprop.train import Interrupted, Recipe, graph, train
from covprop.train.loop import Trainer
from covprop.train.stop import StopRequest

pytestmark = pytest.mark.gpu

Make = Callable[..., Recipe]

TOLERANCE = 1e-3
"""‖a − b‖/‖b‖ of all weights after the run, in float32: sums may be taken in another order."""


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """No TF32, so that a choice of algorithm is a matter of rounding only."""
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every replay."""
    seen: list[int] = []
    call = cudagraph.Captured.__call__

    def counted(self: cudagraph.Captured) -> None:
        seen.append(1)
        call(self)

    monkeypatch.setattr(cudagraph.Captured, "__call__", counted)
    return seen


def weights(folder: Path) -> torch.Tensor:
    state = Run(folder).load_model().state_dict()
    return torch.cat([v.double().flatten() for v in state.values()])


def error(one: Path, two: Path) -> float:
    a, b = weights(one), weights(two)
    return ((a - b).norm() / b.norm()).item()


def agree(one: Path, two: Path) -> None:
    assert error(one, two) < TOLERANCE
    for a, b in zip(Run(one).metrics(), Run(two).metrics(), strict=True):
        assert a.keys() == b.keys()
        assert a["loss"] == pytest.approx(b["loss"], rel=TOLERANCE)
        assert a["train_accuracy"] == pytest.approx(b["train_accuracy"], abs=0.003)
        assert a["lr"] == b["lr"]
        if b["estimated_radius"] is not None:
            assert a["estimated_radius"] == pytest.approx(b["estimated_radius"], rel=1e-2, abs=1e-4)


SGD = {"optimizer": "sgd", "lr": 0.05}
MUON = {"optimizer": "muon", "lr": 0.01, "nesterov": True, "weight_decay": 0.05}


@pytest.mark.parametrize(
    ("options", "phases"),
    [
        ({"method": "gaussian"}, 1),
        ({"method": "gaussian", **SGD, "nesterov": True, "decay_all": False}, 1),
        ({"method": "consistency", **SGD, "clip_norm": 0.5}, 1),
        ({"method": {"name": "consistency", "from_epoch": 1}, **SGD}, 2),
        ({"method": {"name": "consistency", "from_epoch": 1, "reach": 0.5}, **SGD}, 2),
        ({"method": {"name": "macer", "samples": 4, "from_epoch": 1}, **SGD}, 2),
        ({"method": {"name": "smoothadv", "steps": 2, "warmup": 2}, **SGD}, 2),
        ({"method": {"name": "radius", "estimator": "shared", "weight": 0.5}, **SGD}, 1),
        (
            {
                "method": {"name": "radius", "estimator": "shared", "weight": 0.5, "from_epoch": 1},
                **SGD,
            },
            2,
        ),
        (
            {
                "method": {
                    "name": "radius",
                    "estimator": "shared",
                    "mean": "sample",
                    "weight": 0.1,
                },
                **SGD,
            },
            1,
        ),
        ({"weighting": {"name": "radius", "from_epoch": 1}, **SGD}, 2),
        ({"weighting": {"name": "radius", "from_epoch": 1, "by": "sampling"}, **SGD}, 2),
        ({"ema": 0.9, **SGD}, 1),
        ({**MUON, "decay_all": False}, 1),
        ({"method": {"name": "consistency", "from_epoch": 1}, **MUON}, 2),
        ({"schedule": "linear", "decay_from": 1, "late_beta1": 0.1}, 2),
    ],
    ids=[
        "adamw",
        "sgd",
        "consistency",
        "consistency-late",
        "reach",
        "macer",
        "smoothadv",
        "radius",
        "from_epoch",
        "sample",
        "weighting",
        "sampling",
        "ema",
        "muon",
        "muon-late",
        "betas",
    ],
)
def test_recorded_training_is_the_same_training(
    tmp_path: Path, tiny: Make, replays: list[int], options: dict[str, Any], phases: int
) -> None:
    """44 steps; the control is another seed, which must end elsewhere."""
    options = {"batch_size": 64, "device": "cuda", "lr": 0.002} | options
    train(tiny(**options, fast=False), tmp_path / "plain")
    assert not replays
    train(tiny(**options), tmp_path / "fast")
    assert len(replays) == 44 - phases * cudagraph.WARMUP
    agree(tmp_path / "fast", tmp_path / "plain")
    if phases == 1:
        train(tiny(**options, seed=1), tmp_path / "other")
        assert error(tmp_path / "other", tmp_path / "plain") > 30 * TOLERANCE


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
@pytest.mark.parametrize("devices", [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")])
def test_stopped_and_continued(
    tmp_path: Path,
    tiny: Make,
    monkeypatch: pytest.MonkeyPatch,
    devices: tuple[str, str],
    optimizer: str,
) -> None:
    """In the midst of an epoch; also on another device, where the noise is another."""
    options = {"optimizer": optimizer, "batch_size": 64, "lr": 0.002, "ema": 0.9}
    report = Trainer._report

    def ask(self: Trainer, stop: StopRequest) -> None:
        stop.signum = 2 * (self.epoch == 0 and self.step == 20)
        report(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_report", ask)
        with pytest.raises(Interrupted):
            train(tiny(**options, device=devices[0]), tmp_path / "parts")
    train(tiny(**options, device=devices[1]), tmp_path / "parts")
    if devices[0] == devices[1]:
        train(tiny(**options, device=devices[1]), tmp_path / "whole")
        agree(tmp_path / "parts", tmp_path / "whole")
    last = Run(tmp_path / "parts").metrics()[-1]
    assert last["epoch"] == 2
    assert last["loss"] < Run(tmp_path / "parts").metrics()[0]["loss"]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "failed"])
def test_a_step_that_reads_back_goes_on_without(
    tmp_path: Path,
    tiny: Make,
    monkeypatch: pytest.MonkeyPatch,
    replays: list[int],
    noticed: bool,
) -> None:
    """Noticed before it is recorded; and a real capture that fails leaves everything usable."""
    layers = "nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), "
    layers += "nn.Dropout(0.5), nn.Linear(32, num_classes)"
    options = {"model": {"name": own_net(tmp_path, layers)}, "device": "cuda"} | SGD
    train(tiny(**options, batch_size=64, fast=False), tmp_path / "plain")
    call = methods.Gaussian.__call__

    def reads(self: methods.Gaussian, *args: Any, **kwargs: Any) -> methods.Losses:
        losses = call(self, *args, **kwargs)
        assert losses.per_sample.sum().item() > 0
        return losses

    monkeypatch.setattr(methods.Gaussian, "__call__", reads)
    if not noticed:
        monkeypatch.setattr(graph.Gpu, "waits", lambda self, work: self.run(work) or False)
    console = Console(record=True, force_terminal=False)
    train(tiny(**options, batch_size=64), tmp_path / "run", console=console)
    assert not replays
    assert console.export_text().count("cannot be recorded as a CUDA graph") == 1
    agree(tmp_path / "run", tmp_path / "plain")
    monkeypatch.undo()
    torch.cuda.empty_cache()
    train(tiny(**options, batch_size=64), tmp_path / "next")  # and other runs can record
    agree(tmp_path / "next", tmp_path / "plain")
