"""A log is filled to its end: going on, kills, shares of processes, and no mixing."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from certifications import journal, table

from covprop.run import Run

Cli = Callable[..., tuple[int, str, str]]
QUICK = ("--n", 400, "--max", 8)
KILLS = int(os.environ.get("COVPROP_KILLS", "3"))
KILLED = """
import os, signal, sys, threading, time
from covprop.certify import stream
from covprop.cli import main

real, calls = stream.certified, 0

def certified(*args, **options):
    global calls
    calls += 1
    if calls == 2:  # one row is written: the kill falls among the work
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if calls == 8:  # leaves work to those that follow, however fast this machine is
        time.sleep(60)
    return real(*args, **options)

delay, sys.argv = float(sys.argv[1]), ["covprop", *sys.argv[2:]]
stream.certified = certified
main()
"""


def test_going_on_adds_only_what_is_missing(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    path = run_folder / "certify_sigma_0.25.tsv"
    assert cli("certify", run_folder, "--n", 400, "--max", 3)[0] == 0
    first = path.read_text().splitlines()
    assert cli("certify", run_folder, *QUICK)[0] == 0
    assert path.read_text().splitlines()[:4] == first  # times too: nothing was done again
    whole = tmp_path / "whole.tsv"
    assert cli("certify", run_folder, *QUICK, "--out", whole)[0] == 0
    assert table(path) == table(whole)
    assert journal(path) == journal(whole)
    assert len(journal(path)) == 8


def test_a_cut_tsv_is_completed(cli: Cli, run_folder: Path) -> None:
    path = run_folder / "certify_sigma_0.25.tsv"
    cli("certify", run_folder, *QUICK)
    whole = path.read_text()
    path.write_text(whole[:-9])
    assert cli("certify", run_folder, *QUICK)[0] == 0
    assert path.read_text() == whole


def test_shares_of_several_processes(
    cli: Cli, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tmp_path / "alone.tsv"
    words = ("certify", run_folder, *QUICK, "--sigma", 0.6, "--skip-wrong", "--out")
    cli(*words, alone)
    shared = tmp_path / "shared.tsv"
    monkeypatch.setenv("WORLD_SIZE", "3")
    outputs = []
    for rank in (2, 0, 1):
        monkeypatch.setenv("RANK", str(rank))
        code, out, _ = cli(*words, shared)
        assert code == 0
        outputs.append(out)
    assert outputs[:2] == ["", ""]
    assert "8 images" in outputs[2]
    assert table(alone) == table(shared)
    assert journal(alone) == journal(shared)
    sidecars = [path.with_suffix(".json").read_text() for path in (alone, shared)]
    assert sidecars[0] == sidecars[1]
    assert 0 < json.loads(sidecars[0])["not_bounded"] < 8


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_at_random_moments(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    """COVPROP_KILLS=20 kills more often than the tests usually do."""
    options = ["--n", "4000", "--max", str(8 * KILLS), "--device", "cpu"]
    whole, path = tmp_path / "whole.tsv", tmp_path / "killed.tsv"
    cli("certify", run_folder, *options, "--out", whole)
    command = ["certify", str(run_folder), *options, "--out", str(path)]
    rng = random.Random(0)
    for _ in range(KILLS):
        before = path.read_text().count("\n") if path.exists() else 1
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(rng.uniform(0, 0.1)), *command],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )
        assert killed.returncode == -signal.SIGKILL
        assert path.read_text().count("\n") > before
    assert cli("certify", run_folder, *options, "--out", path)[0] == 0
    assert table(path) == table(whole)
    assert journal(path) == journal(whole)


def test_ctrl_c_keeps_the_rows(cli: Cli, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from covprop.certify import stream

    real, calls = stream.certified, []

    def interrupted(*args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(stream, "certified", interrupted)
    code, _, err = cli("certify", run_folder, *QUICK)
    assert code == 130
    assert "stopped with 5 images left; the same command goes on" in err
    assert len(table(run_folder / "certify_sigma_0.25.tsv")) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n", 500], "n = 400, not 500"),
        (["--alpha", 0.01], "alpha = 0.001, not 0.01"),
        (["--seed", 1], "seed = 0, not 1"),
        (["--soft"], "mode = hard, not soft"),
        (["--bf16"], "precision = float32, not bfloat16"),
        (["--split", "train"], "split = test, not train"),
    ],
)
def test_a_log_is_not_mixed(
    cli: Cli, run_folder: Path, options: list[object], message: str
) -> None:
    path = run_folder / "certify_sigma_0.25.tsv"
    cli("certify", run_folder, "--n", 400, "--max", 2)
    before = path.read_bytes()
    code, _, err = cli("certify", run_folder, *("--n", 400, "--max", 4), *options)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize("verb", ["certify", "predict"])
@pytest.mark.parametrize("name", ["estimated.tsv", "net.estimated.tsv", "labels.tsv"])
def test_a_log_has_no_name_of_another_file(
    cli: Cli, run_folder: Path, verb: str, name: str
) -> None:
    """`covprop estimate` would have written over it, and a report read it as a log's estimates."""
    before = sorted(run_folder.iterdir())
    code, out, err = cli(verb, run_folder, "--n", 400, "--max", 2, "--out", run_folder / name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{name} is where " in err
    assert "certify_again.tsv" in err
    assert sorted(run_folder.iterdir()) == before


def test_retrained_weights_are_not_mixed(cli: Cli, run_folder: Path) -> None:
    cli("certify", run_folder, "--n", 400, "--max", 2)
    model = Run(run_folder).load_model()
    with torch.no_grad():
        model[1].linear2.bias += 1
    from covprop.train.checkpoint import save_weights

    save_weights(run_folder / "model.safetensors", model)
    code, _, err = cli("certify", run_folder, *QUICK)
    assert code == 2
    assert "weights = " in err


@pytest.mark.parametrize("verb", ["certify", "predict"])
def test_a_quick_look_is_set_aside(
    cli: Cli, run_folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    path = run_folder / f"{verb}_sigma_0.25.tsv"
    assert cli(verb, run_folder, "--n", 100, "--max", 3)[0] == 0
    quick = path.read_bytes()
    assert "--restart" in cli(verb, run_folder, *QUICK)[2]
    with monkeypatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        patch.setenv("RANK", "1")
        code, _, err = cli(verb, run_folder, *QUICK, "--restart")
    assert (code, "--restart is for one process" in err, path.read_bytes()) == (2, True, quick)
    code, out, err = cli(verb, run_folder, *QUICK, "--restart")
    assert code == 0, err
    old = path.with_name(f"{path.name}.old-1")
    assert out.startswith(f"The earlier log is kept as {old}.\n8 images")
    assert old.read_bytes() == quick
    assert len(table(path)) == 9
    if verb == "certify":
        code, out, err = cli("report", run_folder)
        assert (code, "old-1" in out + err) == (0, False)
        assert out.count("digits") == 1


def test_ctrl_c_after_a_restart_goes_on_without_it(
    cli: Cli, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from covprop.certify import stream

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "certified", interrupted)
    code, _, err = cli("certify", run_folder, *QUICK, "--restart")
    assert code == 130
    assert "8 images left; the same command without --restart goes on" in err
