"""`covprop train` as a user meets it: exit codes, one sentence, Ctrl-C, torchrun."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from nets import own_net
from typer.testing import CliRunner

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


def test_the_next_command_runs_as_it_is_printed(tmp_path: Path) -> None:
    """With the folder of the data where one was given, and names that have spaces."""
    words = ["--out", str(tmp_path / "a run"), "--data", str(tmp_path)]
    output = CliRunner().invoke(app, ["train", *QUICK, *words]).output
    following = shlex.split(output.split("certify it with: ")[1])
    assert following == ["covprop", "certify", words[1], "--data", str(tmp_path)]
    result = CliRunner().invoke(app, [*following[1:], "--n", "100", "--max", "2"])
    assert result.exit_code == 0, result.output


def test_the_config_of_a_run_is_a_recipe(tmp_path: Path) -> None:
    runner = CliRunner()
    runner.invoke(app, ["train", *QUICK, "--out", str(tmp_path / "one")])
    again = ["train", str(tmp_path / "one" / "config.toml"), "--out", str(tmp_path / "two")]
    assert runner.invoke(app, again).exit_code == 0
    same_weights(tmp_path / "one", tmp_path / "two")


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
    quick = [*QUICK, "--set", "train.epochs=120", "--set", "train.eval_every=0"]
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
    for part in (
        "covprop train digits/radius-linearized-0.25",
        "my_net.py:build",
        "torchrun",
        "--restart",
    ):
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
