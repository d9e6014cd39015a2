"""`covprop estimate`: what its file is for, and what `covprop report` makes of it."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from covprop import data

Cli = Callable[..., tuple[int, str, str]]
FEW = ("--estimator", "linearized", "--max", 8)


@pytest.mark.parametrize(
    ("other", "what"),
    [(("--sigma", 0.5), "sigma = 0.5"), (("--split", "train"), "split = train")],
)
def test_estimates_for_something_else_are_not_compared(
    cli: Cli, run_folder: Path, other: tuple[str, object], what: str
) -> None:
    assert cli("certify", run_folder, "--n", 100, "--max", 8)[0] == 0
    assert cli("estimate", run_folder, *FEW, *other)[0] == 0
    code, out, err = cli("report", run_folder)
    assert code == 0
    assert "linearized" not in out
    assert f"estimated.tsv is for {what} and was not compared" in err
    assert cli("estimate", run_folder, *FEW)[0] == 0
    code, out, err = cli("report", run_folder)
    assert code == 0
    assert "linearized" in out
    assert "not compared" not in err


def test_estimates_are_compared_at_another_sigma_than_that_of_training(
    cli: Cli, run_folder: Path
) -> None:
    assert cli("certify", run_folder, "--n", 100, "--max", 8, "--sigma", 0.5)[0] == 0
    assert cli("estimate", run_folder, *FEW, "--sigma", 0.5)[0] == 0
    assert "linearized" in cli("report", run_folder)[1]


def test_a_checkpoint_files_log_has_its_own_estimates(cli: Cli, run_folder: Path) -> None:
    assert cli("estimate", run_folder, *FEW)[0] == 0
    other = run_folder / "other.pth"
    state = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).state_dict()
    torch.save({"net": state, "epoch": 1}, other)
    net = run_folder / "net.py"
    net.write_text(
        "from torch import nn\ndef build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    words = ("--arch", f"{net}:build", "--dataset", "digits", "--sigma", 0.25)
    assert cli("certify", other, *words, "--n", 100, "--max", 8)[0] == 0
    log = run_folder / "other.certify_sigma_0.25.tsv"
    assert "linearized" not in cli("report", log)[1]
    assert cli("estimate", other, *words, *FEW)[0] == 0
    assert "linearized" in cli("report", log)[1]


def test_nothing_to_write_replaces_nothing(cli: Cli, run_folder: Path) -> None:
    assert cli("estimate", run_folder, *FEW)[0] == 0
    before = {path.name: path.read_bytes() for path in run_folder.iterdir()}
    net = run_folder / "net.py"
    net.write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 10))\n"
    )
    config = run_folder / "config.toml"
    config.write_text(
        config.read_text().replace('"lenet"', f'"{net}:build"').replace("width = 4\n", "")
    )
    model = torch.nn.Sequential(torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(16, 10))
    from covprop.models import Normalize
    from covprop.train.checkpoint import save_weights

    save_weights(
        run_folder / "model.safetensors",
        torch.nn.Sequential(Normalize((0.3053,), (0.3762,)), model),
    )
    code, _, err = cli("estimate", run_folder, "--estimator", "shared", "--max", 8)
    assert code == 2
    assert "No estimator that was asked for goes with this model" in err
    for name in ("estimated.tsv", "estimated.json"):
        assert (run_folder / name).read_bytes() == before[name]


def test_class_folders_with_the_same_names_are_two_sets(
    cli: Cli, run_folder: Path, tmp_path: Path
) -> None:
    """As corrupted copies of a set are. What was moved is known by its names, and goes on."""
    digits = data.load("digits", "test")
    for i, label in enumerate(digits.labels.tolist()):
        for name in ("clean", "inverted"):
            place = tmp_path / name / f"{label}" / f"{i:03}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            pixels = digits.images[i, 0].numpy()
            Image.fromarray(255 - pixels if name == "inverted" else pixels).save(place)
    few = (run_folder, "--max", 8, "--dataset")
    assert cli("certify", *few, tmp_path / "clean", "--n", 100)[0] == 0
    log = run_folder / "certify_sigma_0.25.tsv"
    before = log.read_bytes()
    code, _, err = cli("certify", *few, tmp_path / "inverted", "--n", 100)
    assert (code, f"with data = {tmp_path}/clean, not {tmp_path}/inverted" in err) == (2, True), err
    for name in ("clean", "inverted"):
        for estimator in ("linearized", "sampled"):
            code, _, err = cli("estimate", *few, tmp_path / name, "--estimator", estimator)
            assert code == 0, err
        assert len((run_folder / "estimated.tsv").read_text().splitlines()) == 17
    assert "was not compared" in cli("report", run_folder)[2]
    (tmp_path / "inverted").rename(tmp_path / "moved")
    code, _, err = cli("certify", *few, tmp_path / "moved", "--n", 100)
    assert (code, log.read_bytes()) == (2, before)
    (tmp_path / "clean").rename(tmp_path / "elsewhere")
    code, _, err = cli("certify", *few, tmp_path / "elsewhere", "--n", 100)
    assert (code, log.read_bytes()) == (0, before), err
    code, _, err = cli("certify", *few, tmp_path / "moved", "--n", 100)
    assert (code, f"with data = {tmp_path}/elsewhere, not {tmp_path}/moved" in err) == (2, True)


def test_a_log_by_the_name_of_the_estimates_is_not_lost(cli: Cli, run_folder: Path) -> None:
    path = run_folder / "estimated.tsv"
    path.write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1\t1\t0.5\t1\t0:00:01\n")
    (run_folder / "estimated.json").write_text('{"sigma": 0.25}')
    before = {path: path.read_bytes() for path in run_folder.iterdir()}
    code, out, err = cli("estimate", run_folder, *FEW)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{path} holds no estimated radii" in err
    assert {path: path.read_bytes() for path in run_folder.iterdir()} == before


def test_estimates_join_those_of_the_same_settings(cli: Cli, run_folder: Path) -> None:
    def rows() -> dict[tuple[str, str], str]:
        lines = (run_folder / "estimated.tsv").read_text().splitlines()
        assert lines[0] == "idx\testimator\tradius"
        return {(row[0], row[1]): row[2] for row in (line.split("\t") for line in lines[1:])}

    words = ("--skip", 1, "--estimator")
    assert cli("estimate", run_folder, *words, "sampled:20", "--max", 4)[0] == 0
    first = rows()
    assert list(first) == [(str(i), "sampled:20") for i in range(4)]
    assert cli("estimate", run_folder, *words, "linearized", "--max", 1)[0] == 0
    assert rows() == first | {("0", "linearized"): rows()["0", "linearized"]}
    assert cli("estimate", run_folder, *words, "linearized", "--max", 1, "--sigma", 0.5)[0] == 0
    assert list(rows()) == [("0", "linearized")]


def test_estimates_of_two_seeds_do_not_mix(cli: Cli, run_folder: Path) -> None:
    """They did, and nothing told which was of which."""
    path, words = run_folder / "estimated.tsv", ("--skip", 1, "--estimator", "sampled:20")
    facts = path.with_suffix(".json")
    assert cli("estimate", run_folder, *words, "--max", 4)[0] == 0
    first = path.read_text().splitlines()
    assert json.loads(facts.read_text())["seed"] == 0
    assert cli("estimate", run_folder, *words, "--max", 2, "--seed", 1)[0] == 0
    again = path.read_text().splitlines()
    assert len(again) == 3
    assert not {*first[1:]} & {*again[1:]}
    assert json.loads(facts.read_text())["seed"] == 1
    assert cli("certify", run_folder, "--n", 100, "--max", 2, "--skip", 1)[0] == 0
    assert "sampled:20" in cli("report", run_folder)[1]  # whatever the seed of the certificates

    of_before = {key: v for key, v in json.loads(facts.read_text()).items() if key != "seed"}
    facts.write_text(json.dumps(of_before))
    assert "sampled:20" in cli("report", run_folder)[1]
    assert cli("estimate", run_folder, *words, "--max", 1)[0] == 0  # none knows its seed
    assert len(path.read_text().splitlines()) == 2


def test_a_run_that_cannot_be_written_is_told_before_the_work(
    cli: Cli, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:  # a mode of its own would not stop root
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    before = sorted(run_folder.iterdir())
    assert cli("estimate", run_folder, *FEW)[0] == 0
    assert len(list(run_folder.iterdir())) == len(before) + 2  # the trial is gone
    monkeypatch.setattr(Path, "touch", refuse)
    code, out, err = cli("estimate", run_folder, *FEW)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "estimated.tsv (Permission denied)" in err
    assert "--out" not in err


@pytest.mark.parametrize("batch", [0, -3])
def test_a_pass_holds_an_image_at_least(cli: Cli, run_folder: Path, batch: int) -> None:
    code, out, err = cli("estimate", run_folder, *FEW, "--batch", batch)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"covprop: --batch is the number of images in one pass, at least 1, not {batch}." in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seed", 10**20), "--seed must have 64 bits at most"),
        (("--estimator", f"linearized:{10**20}"), "asks for too many samples"),
    ],
)
def test_numbers_beyond_all_bounds_are_one_sentence(
    cli: Cli, run_folder: Path, words: tuple[object, ...], said: str
) -> None:
    code, _, err = cli("estimate", run_folder, "--max", 2, *words)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
