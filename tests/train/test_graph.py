"""Recorded steps, with a recorder that replays on the CPU what a GPU would replay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from covprop import data, methods
from covprop.run import Run
from covprop.train import Interrupted, Recipe, graph, train
from covprop.train.loop import Trainer
from covprop.train.step import MethodStep, TrainStep
from covprop.train.stop import StopRequest
from covprop.train.update import Update

Make = Callable[..., Recipe]


class Paper:
    """Records by keeping the work, as a graph keeps it: with the inputs and the epoch it had."""

    def __init__(self, fails: bool = False, stalls: bool = False) -> None:
        self.fails, self.stalls = fails, stalls
        self.log: list[str] = []

    def run(self, work: graph.Work) -> None:
        self.log.append("warm")
        work()

    def waits(self, work: graph.Work) -> bool:
        self.log.append("warm")
        work()
        return self.stalls

    def record(self, work: graph.Work, update: Update) -> Callable[[], None]:
        self.log.append("record")
        if self.fails:
            try:
                raise RuntimeError("operation not permitted when stream is capturing\nmore")
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")

        def replay() -> None:
            self.log.append("replay")
            work()

        return replay

    def recover(self, update: Update) -> None:
        self.log.append("recover")


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Paper, list[str]]]:
    """`paper(...)` puts such a recorder into every trainer made from then on."""

    def use(**options: bool) -> tuple[Paper, list[str]]:
        recorder, said = Paper(**options), []
        make = Trainer.__init__

        def init(self: Trainer, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            self.run_step = graph.Fast(self.update, said.append, recorder)

        monkeypatch.setattr(Trainer, "__init__", init)
        return recorder, said

    return use


def same(one: Path, two: Path) -> bool:
    left, right = (Run(folder).load_model().state_dict() for folder in (one, two))
    times = {"seconds", "images_per_second"}
    rows = [
        [{k: v for k, v in row.items() if k not in times} for row in Run(folder).metrics()]
        for folder in (one, two)
    ]
    return rows[0] == rows[1] and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({"ema": 0.9, "optimizer": "sgd", "clip_norm": 0.5}, 1),
        ({"method": {"name": "macer", "samples": 2, "from_epoch": 1}}, 2),
        ({"method": {"name": "consistency", "from_epoch": 1}}, 2),
        (
            {
                "method": {"name": "radius", "estimator": "shared", "from_epoch": 2},
                "late_beta1": 0.1,
                "decay_from": 1,
            },
            3,
        ),
        ({"weighting": {"name": "radius", "from_epoch": 2}, "channels_last": True}, 2),
        ({"method": {"name": "smoothadv", "steps": 1, "warmup": 2}}, 2),
        ({"method": {"name": "radius", "estimator": "calibrated", "weight": 0.5}}, 0),
    ],
    ids=["ema", "macer", "consistency", "betas", "weighted", "smoothadv", "calibrated"],
)
def test_a_recorded_run_is_the_same_run(
    tmp_path: Path, tiny: Make, paper: Any, options: dict[str, Any], recorded: int
) -> None:
    """Batches, learning rates, seeds and shares reach the replayed work; phases end it."""
    if "late_beta1" in options:
        options["schedule"] = "linear"
    recipe = tiny(**{"epochs": 3} | options)
    train(recipe, tmp_path / "plain")
    recorder, said = paper()
    train(recipe, tmp_path / "fast")
    assert same(tmp_path / "plain", tmp_path / "fast")
    assert recorder.log.count("record") == recorded
    assert recorder.log.count("warm") == graph.WARMUP * recorded
    assert recorder.log.count("replay") == (21 - graph.WARMUP * recorded if recorded else 0)
    assert said == []


def test_a_recorded_run_draws_the_same_images(tmp_path: Path, sampled: Recipe, paper: Any) -> None:
    """The order is made outside the recorded work, from radii that are updated within it."""
    train(sampled, tmp_path / "plain")
    recorder, _ = paper()
    train(sampled, tmp_path / "fast")
    assert recorder.log.count("replay") == 21 - 2 * graph.WARMUP
    assert same(tmp_path / "plain", tmp_path / "fast")


@pytest.mark.parametrize("how", ["fails", "stalls"])
def test_what_cannot_be_recorded_goes_on_without(
    tmp_path: Path, tiny: Make, paper: Any, how: str
) -> None:
    train(tiny(), tmp_path / "plain")
    recorder, said = paper(**{how: True})
    train(tiny(), tmp_path / "run")
    assert same(tmp_path / "plain", tmp_path / "run")
    assert recorder.log == ["warm"] * graph.WARMUP + ["record", "recover"] * (how == "fails")
    assert len(said) == 1
    why = "not permitted when stream is capturing)" if how == "fails" else "the host waits"
    assert "cannot be recorded" in said[0]
    assert why in said[0]


def test_stopped_and_continued_in_the_midst_of_replays(
    tmp_path: Path, tiny: Make, paper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(ema=0.9, weighting={"name": "radius", "from_epoch": 0})
    train(recipe, tmp_path / "plain")
    recorder, _ = paper()
    report = Trainer._report

    def ask(self: Trainer, stop: StopRequest) -> None:
        stop.signum = 2 * (self.step == 6)
        report(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_report", ask)
        with pytest.raises(Interrupted):
            train(recipe, tmp_path / "parts")
    assert recorder.log[-1] == "replay"
    train(recipe, tmp_path / "parts")
    assert same(tmp_path / "plain", tmp_path / "parts")


def test_a_cpu_is_never_asked_to_record(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph.Fast, "__call__", lambda *_: pytest.fail("recorded on a CPU"))
    train(tiny(epochs=1, fast=True), tmp_path)


def test_phases() -> None:
    def phases(name: str, epochs: int = 4, **options: Any) -> list[Any]:
        method = methods.build(name, sigma=0.25, input_shape=(1, 8, 8), **options)
        step = MethodStep(torch.nn.Identity(), method)
        wrapped = methods.WithRadius(method, sigma=0.25, input_shape=(1, 8, 8))
        found = [step.phase(epoch) for epoch in range(epochs)]
        assert found == [wrapped.phase(epoch) for epoch in range(epochs)]
        return found

    assert len(set(phases("gaussian"))) == 1
    assert len(set(phases("consistency"))) == 1
    assert phases("consistency", from_epoch=2) == [False, False, True, True]
    assert phases("macer", from_epoch=1) == [False, True, True, True]
    assert phases("macer", weight=0.0) == [False] * 4
    assert phases("smoothadv", warmup=2) == [0.5, 1, 1, 1]
    assert phases("radius", from_epoch=2) == [False, False, True, True]
    assert phases("radius", estimator="shared", r_max="estimated") == [None] * 4
    assert phases("radius", estimator="calibrated") == [None] * 4


def test_what_says_nothing_has_a_phase_for_every_epoch() -> None:
    def method(*_: Any, **__: Any) -> methods.Losses:
        raise NotImplementedError

    assert [MethodStep(torch.nn.Identity(), method).phase(epoch) for epoch in (0, 3)] == [0, 3]
    assert [TrainStep().phase(epoch) for epoch in (0, 3)] == [0, 3]


def test_batches_are_copied_to_where_the_graph_reads(tmp_path: Path, tiny: Make) -> None:
    """The recorded work sees its own tensors; the given ones may be reused by anyone."""
    seen: list[data.Batch] = []

    class Spy:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])

        def phase(self, epoch: int) -> int:
            return 0

        def __call__(self, batch: data.Batch, epoch: int) -> None:
            seen.append(batch)

    fast = graph.Fast(Spy(), print, Paper())  # type: ignore[arg-type]
    for value in range(graph.WARMUP + 3):
        batch = data.Batch(*(torch.full((2,), float(value)) for _ in range(3)))
        fast(batch, epoch=0)
        assert all(torch.equal(a, b) for a, b in zip(seen[-1], batch, strict=True))
        for tensor in batch:
            tensor.zero_()
    assert seen[-1][0] is seen[-2][0]


def test_backward_starts_no_thread(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of its own would have work space of its own for matrix products on a GPU."""
    threads: set[bool] = set()
    backward = torch.Tensor.backward

    def noted(loss: torch.Tensor) -> None:
        threads.add(torch._C._is_multithreading_enabled())
        backward(loss)

    monkeypatch.setattr(torch.Tensor, "backward", noted)
    train(tiny(epochs=1), tmp_path / "run")
    assert threads == {False}
