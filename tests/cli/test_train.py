"""`covprop train` as a user meets it: exit codes, one sentence, Ctrl-C, own files, torchrun."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from nets import own_net
from PIL import Image
from typer.testing import CliRunner

from covprop import data
from covprop.cli import app
from covprop.run import Run

QUICK = [
    "digits/gaussian-0.25",
    *("--set", "train.epochs=2", "--set", "model.width=2", "--set", "train.batch_size=200"),
    *("--set", "train.device=cpu"),
]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def run(
    *arguments: str, program: tuple[str, ...] = ("-m", "covprop")
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, "train", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )


def same_weights(one: Path, two: Path, tolerance: float = 0.0) -> None:
    left, right = Run(one).load_model().state_dict(), Run(two).load_model().state_dict()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=tolerance, atol=tolerance)


def test_trains_and_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", *QUICK, "--out", str(tmp_path / "run")])
    assert result.exit_code == 0
    assert re.search(r"epoch 2: loss \d\.\d+, train accuracy", result.output)
    assert f"covprop certify {tmp_path / 'run'}" in result.output
    names = {"config.toml", "metrics.jsonl", "model.safetensors", "state.pt", ".lock"}
    assert {file.name for file in (tmp_path / "run").iterdir()} == names


def test_the_config_of_a_run_is_a_recipe(tmp_path: Path) -> None:
    runner = CliRunner()
    runner.invoke(app, ["train", *QUICK, "--out", str(tmp_path / "one")])
    again = ["train", str(tmp_path / "one" / "config.toml"), "--out", str(tmp_path / "two")]
    assert runner.invoke(app, again).exit_code == 0
    same_weights(tmp_path / "one", tmp_path / "two")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Digits as a folder of grey PNGs, and beside it the same images as folder.npz."""
    arrays = {}
    for split, name, number in (("train", "train", 80), ("test", "val", 20)):
        digits = data.load("digits", split)
        order = digits.labels[:number].argsort(stable=True)
        images, labels = digits.images[order], digits.labels[order]
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = tmp_path / "folder" / name / str(int(label)) / f"{i:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(path)
        arrays |= {f"x_{split}": images.numpy(), f"y_{split}": labels.numpy()}
    np.savez(tmp_path / "folder.npz", **arrays)
    return tmp_path / "folder"


SMALL = (*QUICK, "--set", "data.normalize=false", "--set", "train.batch_size=20")


def test_a_folder_of_small_pictures_trains_as_the_same_npz(tmp_path: Path, pictures: Path) -> None:
    runner = CliRunner()
    one = ["train", *SMALL, "--set", f"data={pictures}", "--set", "data.image_shape=[1,8,8]"]
    two = ["train", *SMALL, "--set", f"data={pictures}.npz"]
    for words, out in ((one, "one"), (two, "two")):
        result = runner.invoke(app, [*words, "--out", str(tmp_path / out)])
        assert result.exit_code == 0, result.output
        words = ["certify", str(tmp_path / out), "--n", "100", "--max", "5"]
        assert runner.invoke(app, words).exit_code == 0
    same_weights(tmp_path / "one", tmp_path / "two")
    assert Run(tmp_path / "one").load_data("test").image_shape == (1, 8, 8)
    logs = [(tmp_path / out / "certify_sigma_0.25.tsv").read_text() for out in ("one", "two")]
    rows = [[line.split("\t")[:4] for line in log.splitlines()] for log in logs]  # not the times
    assert rows[0] == rows[1]
    assert len(rows[0]) == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_a_picture_that_is_cut_off_is_named(tmp_path: Path, pictures: Path, workers: int) -> None:
    path = next((pictures / "train" / "3").iterdir())
    path.write_bytes(path.read_bytes()[:70])
    words = [*SMALL, "--set", f"data={pictures}", "--set", "data.image_shape=[1,8,8]"]
    result = run(*words, "--set", f"data.workers={workers}", "--out", str(tmp_path / "run"))
    assert result.returncode == 2
    (line,) = (line for line in result.stderr.splitlines() if line)
    assert line.startswith(f"covprop: {path}: cannot be decoded as an image")


def test_a_run_goes_on_without_a_picture_and_says_so(tmp_path: Path, pictures: Path) -> None:
    train = data.load(str(pictures), "train", image_shape=(1, 8, 8))
    *_, last = data.batches(train, 20, epoch=0, seed=0, device="cpu")
    broken = train.path(int(last.index[0]))
    whole = broken.read_bytes()
    broken.write_bytes(whole[:70])
    words = [*SMALL, "--set", f"data={pictures}", "--set", "data.image_shape=[1,8,8]"]
    words += ["--set", "train.checkpoint_minutes=0", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, ["train", *words]).exit_code != 0
    broken.unlink()
    result = CliRunner().invoke(app, ["train", *words])
    assert result.exit_code == 0, result.output
    assert "at epoch 1, step 3" in result.output
    assert "trained on 80 images so far, now there are 79" in result.output
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_run_of_another_length(tmp_path: Path) -> None:
    """The length goes through to the folder; a part that never begins is said."""
    words = ["train", "cifar10/gaussian-0.25", *QUICK[3:], "--set", "data=digits"]
    words += ["--set", "data.augment=none", "--set", "model=lenet", "--set", "model.width=2"]
    result = CliRunner().invoke(app, [*words, "--epochs", "2", "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    train = Run(tmp_path / "run").config["train"]
    assert (train["epochs"], train["milestones"]) == (2, [1])
    late = ["train", *QUICK, "--set", "method=consistency", "--set", "method.from_epoch=2"]
    result = CliRunner().invoke(app, [*late, "--out", str(tmp_path / "late")])
    assert "method.from_epoch = 2 is not within the 2 epochs" in result.output


def test_runs_are_put_under_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["train", *QUICK]).exit_code == 0
    assert (tmp_path / "runs" / "digits" / "gaussian-0.25" / "model.safetensors").exists()


def test_own_data_and_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    arrays = {
        f"{split}_{what}": value
        for split, n in (("train", 64), ("test", 16))
        for what, value in (
            ("images", random.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)),
            ("labels", np.arange(n) % 3),
        )
    }
    np.savez(tmp_path / "mine.npz", **arrays)
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\n"
        "def build(num_classes, image_shape, hidden: int = 4):\n"
        "    inputs = image_shape[0] * image_shape[1] * image_shape[2]\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(),\n"
        "                         nn.Linear(hidden, num_classes))\n"
    )
    arguments = ["digits/radius-0.25", "--out", "run", "--set", "data=mine.npz"]
    arguments += ["--set", "model=my_net.py:build", "--set", "model.hidden=5"]
    arguments += ["--set", "train.epochs=1", "--set", "train.batch_size=16"]
    result = CliRunner().invoke(app, ["train", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    monkeypatch.chdir("/")  # the run must not depend on the folder it was started in
    model = Run(tmp_path / "run").load_model()
    assert model(torch.zeros(2, 3, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits/gausian-0.25"], 'did you mean "digits/gaussian-0.25"'),
        (["digits/gaussian-0.25", "--set", "train.epoch=1"], 'did you mean "epochs"'),
        (["mnist/gaussian-0.25", "--data", "nowhere"], "mnist"),
        (["digits/gaussian-0.25", "--set", "train.device=cuda:77"], "cuda:77"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from covprop.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["covprop", "train", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("covprop: ")
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_ctrl_c_leaves_a_resumable_run_and_says_how(tmp_path: Path) -> None:
    quick = [*QUICK, "--set", "train.epochs=40", "--set", "train.eval_every=0"]
    out = tmp_path / "a run"
    command = [sys.executable, "-m", "covprop", "train", *quick, "--out", str(out)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    rows = out / "metrics.jsonl"
    while not (rows.exists() and rows.stat().st_size) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.match(r"covprop: stopped in epoch \d+ after step \d; to continue: ", error)
    assert error.count("\n") == 1
    again = shlex.split(error.split("to continue: ")[1])
    assert again == ["covprop", "train", *quick, "--out", str(out)]
    runner = CliRunner()
    result = runner.invoke(app, again[1:])
    assert result.exit_code == 0
    assert "continuing" in result.output
    runner.invoke(app, ["train", *quick, "--out", str(tmp_path / "whole")])
    same_weights(out, tmp_path / "whole")


def test_a_full_disk_is_one_sentence_and_the_checkpoint_survives(tmp_path: Path) -> None:
    """A limit on file sizes that the second, larger checkpoint meets in the midst of writing."""
    limited = (
        "import resource, sys; from covprop.cli import main; from covprop.train import checkpoint\n"
        "save, count = checkpoint.save_state, [0]\n"
        "def limit(path, state):\n"
        "    count[0] += 1\n"
        "    if count[0] == 3: resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n"
        "    save(path, state)\n"
        "checkpoint.save_state = limit\n"
        "main()\n"
    )
    quick = [*QUICK, "--set", "train.checkpoint_minutes=0", "--out", str(tmp_path / "run")]
    failed = run(*quick, program=("-c", limited))
    assert failed.returncode == 2
    assert failed.stderr.startswith(f"covprop: Cannot write {tmp_path / 'run' / 'state.pt'}")
    assert "free some space" in failed.stderr
    assert failed.stderr.count("\n") == 1
    runner = CliRunner()
    result = runner.invoke(app, ["train", *quick])
    assert "continuing" in result.output
    assert "epoch 1, step 2" in result.output
    runner.invoke(app, ["train", *QUICK, "--out", str(tmp_path / "whole")])
    same_weights(tmp_path / "run", tmp_path / "whole")


def one_and_two_processes(folder: Path, *changes: str) -> None:
    """The same run alone and under torchrun: order, noise and weights, one log, one sentence."""
    layers = "nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, num_classes)"
    net = own_net(folder, layers, "num_classes, image_shape, width")
    quick = [*QUICK, "--set", f"model={net}", "--set", "model.width=32"]
    for change in (*changes, "train.batch_size=50", "train.lr=0.03"):
        quick += ["--set", change]
    CliRunner().invoke(app, ["train", *quick, "--out", str(folder / "one")])
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    two = run(*quick, "--out", str(folder / "two"), program=(*torchrun, "-m", "covprop"))
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("epoch 2:") == 1
    assert two.stdout.count("The model is in") == 1
    rows = [Run(folder / name).metrics() for name in ("one", "two")]
    for one_row, two_row in zip(*rows, strict=True):
        for key in set(one_row) - {"seconds", "images_per_second"}:
            assert two_row[key] == pytest.approx(one_row[key], rel=1e-4), key
    same_weights(folder / "one", folder / "two", tolerance=1e-4)


@pytest.mark.parametrize("by", ["loss", "sampling"])
def test_two_processes_are_one_run(tmp_path: Path, by: str) -> None:
    weighting = ("weighting=radius", "weighting.from_epoch=1", f"weighting.by={by}")
    one_and_two_processes(tmp_path, "method=consistency", *weighting)
    state = torch.load(tmp_path / "two" / "state.pt", weights_only=True)
    lone = torch.load(tmp_path / "one" / "state.pt", weights_only=True)
    assert lone["weights"]["start" if by == "sampling" else "radius"].nanmean() > 0  # they act
    torch.testing.assert_close(
        state["weights"]["radius"], lone["weights"]["radius"], rtol=1e-3, atol=1e-4, equal_nan=True
    )


def test_two_processes_measure_on_the_images_of_one(tmp_path: Path) -> None:
    one_and_two_processes(tmp_path, "method=radius", "method.estimator=calibrated")


def test_the_help_teaches_by_example() -> None:
    text = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "120"}).output
    for part in ("covprop train digits/radius-0.25", "my_net.py:build", "torchrun", "--restart"):
        assert part in text


def test_names_complete_in_the_shell() -> None:
    from covprop.cli.train import _shipped

    assert _shipped("digits/rad") == [
        "digits/radius-0.25",
        "digits/radius-linearized-0.25",
        "digits/radius-reference-0.25",
    ]


def test_metrics_are_json_lines(tmp_path: Path) -> None:
    CliRunner().invoke(app, ["train", *QUICK, "--out", str(tmp_path)])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    expected = {"epoch", "loss", "train_accuracy", "estimated_radius", "lr", "seconds"}
    expected |= {"images_per_second", "test_accuracy_noisy", "test_accuracy_clean"}
    assert set(json.loads(lines[-1])) == expected
