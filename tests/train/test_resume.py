"""Stopped, killed or out of disk: a run that goes on is the same run."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nets import own_net
from same_run import assert_same_run, rows, weights

from covprop import data
from covprop.errors import CovpropError
from covprop.train import Interrupted, Recipe, checkpoint, loop, train
from covprop.train.loop import Trainer

Make = Callable[..., Recipe]
Stopped = Callable[[Recipe, Path, int], None]


@pytest.fixture
def train_until(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    """`train_until(recipe, out, steps)`: Ctrl-C arrives during the given step of this process."""

    def run(recipe: Recipe, out: Path, steps: int) -> None:
        step, count = Trainer._train_step, [0]

        def counted(self: Trainer, batch: data.Batch) -> None:
            step(self, batch)
            count[0] += 1
            if count[0] == steps:
                os.kill(os.getpid(), signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_train_step", counted)
            with pytest.raises(Interrupted) as stopped:
                train(recipe, out)
        assert stopped.value.signum == signal.SIGINT

    return run


@pytest.mark.parametrize(
    "options",
    [
        {"method": "gaussian", "ema": 0.9, "optimizer": "sgd"},
        {"method": {"name": "radius", "estimator": "calibrated", "weight": 0.5}},
        {"method": "consistency", "weighting": {"name": "radius", "from_epoch": 0}},
        {"method": {"name": "smoothadv", "steps": 1}, "precision": "bf16", "channels_last": True},
        {"method": "gaussian", "optimizer": "muon", "nesterov": True, "decay_all": False},
    ],
    ids=["ema", "calibrated", "weighted", "bf16", "muon"],
)
def test_stopped_and_continued_is_the_same_run(
    tmp_path: Path, tiny: Make, train_until: Stopped, options: dict[str, Any]
) -> None:
    recipe = tiny(**options)
    train(recipe, tmp_path / "whole")
    for steps in (3, 4, 1):  # within an epoch, at its last step, right after it
        train_until(recipe, tmp_path / "parts", steps)
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_dropout_and_batch_norm_go_on_as_they_would_have(
    tmp_path: Path, tiny: Make, train_until: Stopped
) -> None:
    layers = "nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), "
    layers += "nn.Dropout(0.5), nn.Linear(16, num_classes)"
    recipe = tiny(model={"name": own_net(tmp_path, layers)})
    train(recipe, tmp_path / "whole")
    train_until(recipe, tmp_path / "parts", 3)
    torch.manual_seed(12345)  # another process would be in another random state
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_no_run_goes_on_with_other_code(tmp_path: Path, tiny: Make, train_until: Stopped) -> None:
    layers, out = "nn.Flatten(), nn.Linear(64, 10), nn.ReLU()", tmp_path / "run"
    recipe = tiny(model={"name": own_net(tmp_path, layers)})
    train_until(recipe, out, 3)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    own_net(tmp_path, layers.replace("ReLU", "Tanh"))
    with pytest.raises(CovpropError, match=rf"{tmp_path}/net\.py, the model's code, has changed"):
        train(recipe, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    train(recipe, out, restart=True)
    assert (tmp_path / "run.old-1" / "model.sha256").read_bytes() == before["model.sha256"]
    assert (out / "model.sha256").read_bytes() != before["model.sha256"]


def test_killed_at_random_moments_is_the_same_run(tmp_path: Path, tiny: Make) -> None:
    """SIGKILL, which no code can catch, while a checkpoint is written after every step."""
    import multiprocessing
    import random

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["covprop.train", "sklearn.datasets", "torch._dynamo"])
    recipe = tiny(
        {"name": "gaussian", "samples": 2},
        {"name": "radius", "from_epoch": 1},
        epochs=3,
        ema=0.9,
        checkpoint_minutes=0,
    )

    def start(out: str) -> Any:
        process = context.Process(target=train, args=(recipe, tmp_path / out))
        process.start()
        return process

    whole = start("whole")
    whole.join(60)
    assert whole.exitcode == 0
    chance, kills = random.Random(0), 0
    while kills < 5:
        before = _state(tmp_path / "parts")
        process = start("parts")
        # Wait for the first new checkpoint, so that every kill lands in the midst of training.
        while _state(tmp_path / "parts") == before and process.is_alive():
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.join(60)
        if process.exitcode == 0:
            break
        kills += 1
    last = start("parts")
    last.join(60)
    assert last.exitcode == 0
    assert kills >= 2
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def _state(out: Path) -> tuple[int, int]:
    try:
        found = (out / "state.pt").stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_mtime_ns, found.st_ino


def test_rows_after_the_checkpoint_are_dropped(
    tmp_path: Path, tiny: Make, train_until: Stopped
) -> None:
    """A row can be on the disk when its checkpoint is not: it will be written again."""
    train(tiny(), tmp_path / "whole")
    train_until(tiny(), tmp_path / "run", 9)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "loss": 0}\n{"epoch": 3, "lo')
    train(tiny(), tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_short_epochs_share_a_checkpoint(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at the end; a crash before it repeats the epochs since the last, with the same end."""
    saved: list[tuple[int, int]] = []
    save = checkpoint.save_state

    def spy(path: Path, state: dict[str, Any]) -> None:
        saved.append((state["epoch"], state["step"]))
        save(path, state)

    monkeypatch.setattr(checkpoint, "save_state", spy)
    train(tiny(epochs=3), tmp_path / "whole")
    assert saved == [(3, 0)]
    step = Trainer._train_step

    def crash(self: Trainer, batch: data.Batch) -> None:
        # As if ten seconds were over in the first epoch, and in no later one.
        monkeypatch.setattr(loop, "EPOCH_SECONDS", 0.0 if self.epoch == 0 else 10.0)
        if (self.epoch, self.step) == (2, 3):
            raise KeyError
        step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_step", crash)
        with pytest.raises(KeyError):
            train(tiny(epochs=3), tmp_path / "run")
    assert saved[1:] == [(1, 0)]
    assert len(rows(tmp_path / "run")) == 2
    train(tiny(epochs=3), tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    saved.clear()
    train(tiny(epochs=1, checkpoint_minutes=0), tmp_path / "each")
    assert saved == [(0, step) for step in range(1, 7)] + [(1, 0)]  # the last step's is the epoch's


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """`takes(name, seconds)`: a method of the trainer takes so long, by the trainer's clock."""
    now = [0.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def set_length(name: str, seconds: float) -> None:
        work = getattr(Trainer, name)

        def timed(self: Trainer, *given: Any) -> Any:
            now[0] += seconds
            return work(self, *given)

        monkeypatch.setattr(Trainer, name, timed)

    return set_length


@pytest.mark.parametrize("parts", [(), (3, 4, 1)], ids=["whole", "in parts"])
def test_seconds_are_those_of_training(
    tmp_path: Path, tiny: Make, train_until: Stopped, takes: Any, parts: tuple[int, ...]
) -> None:
    """Not those of measuring and writing."""
    for name, seconds in (("_train_step", 0.5), ("_finish_epoch", 1000.0), ("_save", 1000.0)):
        takes(name, seconds)
    for steps in parts:
        train_until(tiny(), tmp_path, steps)
    train(tiny(), tmp_path)
    found = [json.loads(row) for row in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["seconds"] for row in found] == [3.5, 7.0]
    assert [row["images_per_second"] for row in found] == [400.0, 400.0]


def test_checkpoints_are_minutes_apart(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch, takes: Any
) -> None:
    saved: list[tuple[int, int]] = []
    takes("_train_step", 20.0)
    monkeypatch.setattr(
        checkpoint, "save_state", lambda path, state: saved.append((state["epoch"], state["step"]))
    )
    train(tiny(checkpoint_minutes=1), tmp_path)
    assert saved == [(0, 3), (0, 6), (1, 0), (1, 3), (1, 6), (2, 0)]


def test_a_stopped_run_has_a_model(tmp_path: Path, tiny: Make, train_until: Stopped) -> None:
    train_until(tiny(), tmp_path, 10)
    state = checkpoint.load_state(tmp_path / "state.pt")
    assert all(torch.equal(v, state["model"][k]) for k, v in weights(tmp_path).items())


def test_images_are_drawn_the_same_when_stopped_and_continued(
    tmp_path: Path, sampled: Recipe, train_until: Stopped
) -> None:
    train(sampled, tmp_path / "whole")
    for steps in (9, 5, 1, 3):  # within an epoch, at its last step, right after it, within again
        train_until(sampled, tmp_path / "parts", steps)
    train(sampled, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_full_disk_in_the_midst_of_a_run(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny(), tmp_path / "whole")
    replace, count = os.replace, [0]

    def full(source: Path, target: Path) -> None:
        if Path(target).name == "state.pt":
            count[0] += 1
            if count[0] == 4:
                raise OSError(28, os.strerror(28))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    recipe = tiny(checkpoint_minutes=0)
    with pytest.raises(CovpropError, match=r"No space left on device.* free some space"):
        train(recipe, tmp_path / "run")
    assert checkpoint.load_state(tmp_path / "run" / "state.pt")["step"] == 3
    train(recipe, tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_weights_that_were_cut_come_back_from_the_state(tmp_path: Path, tiny: Make) -> None:
    train(tiny(), tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(CovpropError, match="let the same `covprop train` command write it"):
        weights(tmp_path)
    train(tiny(), tmp_path)
    assert path.read_bytes() == whole
