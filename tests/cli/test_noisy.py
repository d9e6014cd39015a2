"""`covprop noisy`, as a user calls it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from covprop.run import Run

Cli = Callable[..., tuple[int, str, str]]
QUICK = ["--set", "train.epochs=2", "--set", "train.decay_from=1", "--set", "model.width=4"]
NAME = "noisy/digits/coteaching-pair-0.45"


def test_a_shipped_recipe(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("noisy", NAME, *QUICK, "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    assert "Test accuracy" in out
    assert "(truly 44%)" in out
    files = {"labels.tsv", "suspects.csv", "suspects.png", "summary.json", "predictions.npz"}
    assert files <= {file.name for file in (tmp_path / "run").iterdir()}
    again, out, _ = cli("noisy", NAME, *QUICK, "--out", tmp_path / "run")
    assert again == 0
    assert "already trained" in out


def test_a_run_of_another_length(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("noisy", NAME, *QUICK[4:], "--epochs", 3, "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    assert "epoch 3:" in out
    config = Run(tmp_path / "run").config
    assert (config["train"]["epochs"], config["method"]["ramp"]) == (3, 1)


def test_own_data_and_own_labels(cli: Cli, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    images = rng.integers(0, 100, (200, 8, 8)) + 150 * labels[:, None, None]
    np.savez(tmp_path / "own.npz", images=images.astype(np.uint8), labels=labels)
    own = ["--set", f"data={tmp_path / 'own.npz'}", "--set", "train.batch_size=32"]
    plain = ["--set", "method=plain", *QUICK, *own]
    code, out, err = cli("noisy", NAME, *plain, "--set", "labels=none", "--out", tmp_path / "a")
    assert (code, err) == (0, "")
    assert "truly" not in out
    given = np.delete(labels, np.arange(0, 200, 5))
    given[:16] = 1 - given[:16]
    np.save(tmp_path / "given.npy", given)
    words = ["--set", "labels=file", "--set", f"labels.file={tmp_path / 'given.npy'}"]
    code, _, err = cli("noisy", NAME, *plain, *words, "--out", tmp_path / "b")
    assert (code, err) == (0, "")
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    assert summary["noise_rate"]["true"] == 0.1


def test_slips_are_one_sentence(cli: Cli, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "run"]
    code, _, err = cli("noisy", "digits/gaussian-0.25", *out)
    assert code == 2
    assert "has no [labels]; add --set labels=none" in err
    code, _, err = cli("noisy", NAME, "--set", "labels=none", *out)
    assert code == 2
    assert 'train "plain" first, which estimates it' in err
    assert list((tmp_path / "run").glob("*.t*")) == []  # the mended recipe may have the folder
    code, _, err = cli("noisy", NAME, "--set", "labels.rate=2", *out)
    assert code == 2
    assert err.count("\n") == 1
    assert not (tmp_path / "run" / "state.pt").exists()


def test_an_absent_cleanlab_is_missed_before_training(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cleanlab.filter", None)
    code, _, err = cli("noisy", NAME, "--cleanlab", "--out", tmp_path / "run")
    assert code == 2
    assert "pip install '.[cleanlab]' in the folder of covprop's sources" in err
    assert not (tmp_path / "run").exists()
