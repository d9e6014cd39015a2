"""Noisy runs in the trainer: the same labels for all, exact to resume, and what is counted."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from covprop import data
from covprop.data.label_noise import read_table
from covprop.errors import InvalidInput
from covprop.noisy import METHODS, Memory, NoisyLosses
from covprop.run import Run
from covprop.train import Interrupted, Recipe, checkpoint, resolve, train
from covprop.train.distributed import World
from covprop.train.loop import Trainer
from covprop.train.options import NoiseOptions
from covprop.train.setup import build_model, build_step, with_facts, with_labels

TIMES = ("seconds", "images_per_second")


def tiny(method: Any = "plain", labels: Any = None, **options: Any) -> Recipe:
    return resolve(
        {
            "data": {"name": "digits"},
            "labels": labels or {"name": "pair", "rate": 0.45},
            "model": {"name": "lenet", "width": 2},
            "noise": {"sigma": 0.25},
            "method": {"name": method} if isinstance(method, str) else method,
            "train": {"epochs": 3, "batch_size": 200, "optimizer": "adamw", "lr": 0.01}
            | {"schedule": "linear", "decay_from": 1, "late_beta1": 0.1, "device": "cpu"}
            | options,
        }
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own parts
@pytest.mark.parametrize(
    "method",
    [
        {"name": "smodel", "pretrain": 1},  # two phases: the step as a whole
        {"name": "radius", "weight": 0.0, "of": "label", "end": "smallest"}
        | {"layer": 1, "from_epoch": 2, "drop": 0.3, "per_class": True},
        {"name": "coteaching", "ramp": 2},  # three: its networks
    ],
    ids=["whole", "radius", "networks"],
)
def test_compiled_is_the_same_up_to_rounding(tmp_path: Path, method: dict[str, Any]) -> None:
    for compiled in (False, True):
        train(tiny(method, compile=compiled), tmp_path / str(compiled))
    plain, other = (checkpoint.load_state(tmp_path / str(c) / "state.pt") for c in (False, True))
    for part in ("model", "method", "memory"):
        assert plain[part].keys() == other[part].keys()
        for name, value in plain[part].items():
            torch.testing.assert_close(
                other[part][name], value, rtol=1e-3, atol=1e-4, equal_nan=True
            )


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one.nan_to_num(-7.0), two.nan_to_num(-7.0))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[k], two[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


def assert_same_run(one: Path, two: Path) -> None:
    """Weights of all networks, optimizer, tables and memory, bit by bit; and the rows."""
    left, right = (checkpoint.load_state(folder / "state.pt") for folder in (one, two))
    for part in ("model", "optimizer", "method", "memory"):
        assert same(left[part], right[part]), part
    assert rows(one) == rows(two)


EARLY: dict[str, dict[str, Any]] = {
    "truncated": {"from_epoch": 1, "refresh": 1},
    "radius": {"from_epoch": 1, "weight": 0.5, "drop": 0.3},
    "smodel": {"pretrain": 1},
    "mentornet": {"ramp": 2},
    "coteaching": {"ramp": 2},
}
MORE: dict[str, dict[str, Any]] = {
    "without hinge": {"weight": 0},
    "with layer": {"weight": 0, "layer": 1, "from_epoch": 2, "of": "label", "per_class": True},
}


@pytest.mark.parametrize("name", [*METHODS, "radius without hinge", "radius with layer"])
def test_stopped_and_continued_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    name, _, more = name.partition(" ")
    options = EARLY.get(name, {}) | MORE.get(more, {})
    recipe = tiny({"name": name, **options})
    train(recipe, tmp_path / "whole")
    step = Trainer._train_step
    for steps in (3, 4, 9):  # within an epoch, at its last step, in the third epoch
        count = [0]

        def counted(self: Trainer, batch: data.Batch, at: int = steps) -> None:
            step(self, batch)
            count[0] += 1  # noqa: B023
            if count[0] == at:  # noqa: B023
                os.kill(os.getpid(), signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_train_step", counted)
            with pytest.raises(Interrupted):
                train(recipe, tmp_path / "parts")
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_killed_is_the_same_run(tmp_path: Path) -> None:
    """SIGKILL in the midst of co-teaching, with a checkpoint after every step."""
    import multiprocessing

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["covprop.train", "covprop.noisy", "sklearn.datasets"])
    recipe = tiny({"name": "coteaching", "ramp": 1}, checkpoint_minutes=0)
    train(recipe, tmp_path / "whole")
    state = tmp_path / "parts" / "state.pt"
    kills = 0
    for _ in range(2):
        before = state.stat().st_ino if state.exists() else None
        process = context.Process(target=train, args=(recipe, tmp_path / "parts"))
        process.start()
        while process.is_alive() and (not state.exists() or state.stat().st_ino == before):
            time.sleep(0.001)
        process.kill()
        process.join(60)
        kills += process.exitcode != 0
    assert kills
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_every_method_and_seed_sees_the_same_labels(tmp_path: Path) -> None:
    train(tiny("plain", epochs=2), tmp_path / "a")
    train(tiny("decoupling", seed=5, epochs=2), tmp_path / "b")
    assert (tmp_path / "a" / "labels.tsv").read_bytes() == (
        tmp_path / "b" / "labels.tsv"
    ).read_bytes()
    labels = read_table(tmp_path / "a" / "labels.tsv")
    digits = data.load("digits", "train")
    assert labels.clean is not None
    assert torch.equal(labels.clean, digits.labels)
    wrong = labels.noisy != labels.clean
    assert torch.equal(labels.noisy[wrong], (labels.clean[wrong] + 1) % 10)
    assert labels.rate == pytest.approx(0.45, abs=0.05)
    train(tiny("plain", {"name": "pair", "rate": 0.45, "seed": 1}, epochs=2), tmp_path / "c")
    assert not torch.equal(read_table(tmp_path / "c" / "labels.tsv").noisy, labels.noisy)


def test_training_sees_the_noisy_labels_and_the_test_the_clean_ones(tmp_path: Path) -> None:
    """With every label flipped the network learns the next class, and the test says so."""
    recipe = tiny("plain", {"name": "pair", "rate": 1.0}, epochs=12, lr=0.02)
    train(recipe, tmp_path)
    last = rows(tmp_path)[-1]
    assert last["train_accuracy"] > 0.6
    assert last["test_accuracy_clean"] < 0.1
    assert (last["kept"], last["label_precision"]) == (1.0, 0.0)


def test_other_labels_are_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "given.txt").write_text("\n".join(["3"] * 1437))
    recipe = tiny("plain", {"name": "file", "file": str(tmp_path / "given.txt")}, epochs=2)
    train(recipe, tmp_path / "run")
    (tmp_path / "given.txt").write_text("\n".join(["4"] * 1437))
    with pytest.raises(InvalidInput, match=r"labels\.tsv holds other labels"):
        train(recipe, tmp_path / "run")


def test_a_model_alone_is_what_is_saved(tmp_path: Path) -> None:
    recipe = tiny("coteaching", epochs=2)
    train(recipe, tmp_path)
    state = checkpoint.load_state(tmp_path / "state.pt")
    saved = Run(tmp_path).load_model().state_dict()
    assert all(torch.equal(saved[k], v) for k, v in state["model"].items())
    peer = {k.removeprefix("peer."): v for k, v in state["method"].items()}
    assert peer.keys() == saved.keys()
    trained = [k for k in saved if saved[k].is_floating_point() and "0." not in k[:2]]
    assert all(not torch.equal(saved[k], peer[k]) for k in trained)
    facts = with_facts(recipe, data.load("digits", "train"))
    first = build_model(facts, "second network").state_dict()
    assert all(not torch.equal(first[k], peer[k]) for k in trained)  # the peer has learned too


def test_methods_are_told_of_the_noise_that_training_draws() -> None:
    images = data.load("digits", "train")
    recipe = replace(tiny("radius"), noise=NoiseOptions(sigma=0.4, share=0.75))
    recipe = with_facts(recipe, images)
    here = World(0, 1, torch.device("cpu"))
    _, labels = with_labels(recipe, images, here)
    step, _ = build_step(recipe, build_model(recipe), len(images), here, labels)
    assert step.method.task.sigma == pytest.approx(0.3)  # type: ignore[union-attr]


def test_several_processes_are_refused() -> None:
    images = data.load("digits", "train")
    with pytest.raises(InvalidInput, match="without torchrun"):
        with_labels(tiny(), images, World(0, 2, torch.device("cpu")))


def test_memory_is_a_sum_over_the_epochs() -> None:
    memory = Memory(3, 2)
    logits = torch.tensor([[0.0, 0.0], [2.0, -1.0]])
    for _ in range(2):
        memory.update(torch.tensor([2, 0]), NoisyLosses(logits[:, 0], logits, logits[:, 0] > 0))
    assert memory.seen.tolist() == [2, 0, 2]
    torch.testing.assert_close(memory.probability[2], torch.tensor([1.0, 1.0]))
    torch.testing.assert_close(memory.probability[0], 2 * logits[1].softmax(0))
    assert memory.radius.isnan().all()


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        ({"name": "pair"}, r'"pair" needs labels\.rate'),
        ({"name": "pair", "rate": 1.5}, r"labels\.rate must be at least 0 and at most 1"),
        ({"name": "none", "rate": 0.2}, r'"none" does not take labels\.rate'),
        ({"name": "matrix"}, r'"matrix" needs labels\.file'),
        ({"name": "file", "file": "absent.csv"}, r"no file absent\.csv"),
        ({"name": "pairs", "rate": 0.1}, r'did you mean "pair"'),
    ],
)
def test_slips_in_labels(labels: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        tiny("plain", labels)


def test_methods_belong_to_recipes_with_or_without_labels() -> None:
    with pytest.raises(InvalidInput, match=r"gaussian is for recipes without \[labels\]"):
        tiny("gaussian")
    raw = tiny("coteaching").as_dict()
    del raw["labels"]
    with pytest.raises(InvalidInput, match=r"coteaching is for recipes with \[labels\]"):
        resolve(raw)
    with pytest.raises(InvalidInput, match=r"\[weighting\] does not go with \[labels\]"):
        resolve(tiny().as_dict() | {"weighting": {"name": "radius"}})
