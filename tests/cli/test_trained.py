"""What all verbs on a trained model ask first: is the own model's code still that of training?"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from nets import own_net

Cli = Callable[..., tuple[int, str, str]]
RELU = "nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, num_classes)"
TANH = RELU.replace("ReLU", "Tanh")
QUICK = ("--n", 100, "--max", 4)


@pytest.fixture
def own_run(cli: Cli, tmp_path: Path) -> Path:
    """A run of an own model, RELU, in tmp_path/net.py."""
    words = ("--set", f"model={own_net(tmp_path, RELU)}", "--set", "train.device=cpu")
    code, _, err = cli(
        "train", "digits/gaussian-0.25", *words, "--epochs", 1, "--out", tmp_path / "run"
    )
    assert code == 0, err
    return tmp_path / "run"


@pytest.mark.parametrize("verb", ["certify", "estimate", "predict"])
def test_another_sigma_makes_no_estimate_valid(cli: Cli, run_folder: Path, verb: str) -> None:
    words = ("--max", 2, *(() if verb == "estimate" else ("--n", 100)))
    code, _, err = cli(verb, run_folder, "--sigma", 0.5, *words)
    assert code == 0, err
    assert "trained with 0.25; certificates are valid at any sigma" in " ".join(err.split())


def test_code_that_changed_since_training_is_told_and_makes_another_log(
    cli: Cli, own_run: Path, tmp_path: Path
) -> None:
    log, estimated = own_run / "certify_sigma_0.25.json", own_run / "estimated.json"
    few = ("--estimator", "linearized", "--max", 4)
    for words in (("certify", own_run, *QUICK), ("estimate", own_run, *few)):
        code, _, err = cli(*words)
        assert (code, "warning" in err) == (0, False), err
    before = json.loads(log.read_text())["model_code"]
    assert json.loads(estimated.read_text())["model_code"] == before
    assert (own_run / "model.sha256").read_text() == f"{before}  {tmp_path}/net.py\n"
    own_net(tmp_path, TANH)
    code, _, err = cli("certify", own_run, "--n", 100, "--max", 8)
    told, refused = err.splitlines()
    assert code == 2
    assert f"warning: {tmp_path}/net.py, the model's code, has changed since {own_run} was" in told
    assert f"was certified with model_code = {before:.12}…, not " in refused
    code, _, err = cli("certify", own_run, *QUICK, "--out", tmp_path / "new.tsv")
    assert (code, err.count("warning")) == (0, 1)
    code, _, err = cli("estimate", own_run, *few[:2], "--max", 2)
    assert (code, "the model's code, has changed" in err) == (0, True)
    assert json.loads(estimated.read_text())["model_code"] != before
    assert len((own_run / "estimated.tsv").read_text().splitlines()) == 3  # none of the old code
    own_net(tmp_path, RELU)
    code, _, err = cli("certify", own_run, "--n", 100, "--max", 8)
    assert (code, "warning" in err) == (0, False)


def test_code_that_was_moved_is_to_be_written_into_the_config(
    cli: Cli, own_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "net.py").rename(tmp_path / "moved.py")
    for verb in ("certify", "estimate", "predict", "export", "inspect"):
        code, _, err = cli(verb, own_run)
        assert (code, f"{tmp_path}/net.py, the model of {own_run}, is not there; put" in err) == (
            2,
            True,
        )
    config = own_run / "config.toml"
    config.write_text(config.read_text().replace("net.py", "moved.py"))
    code, _, err = cli("certify", own_run, *QUICK)
    assert (code, "warning" in err) == (0, False), err


def test_runs_and_logs_from_before_code_was_kept_go_on(
    cli: Cli, own_run: Path, tmp_path: Path
) -> None:
    assert cli("certify", own_run, *QUICK)[0] == 0
    (own_run / "model.sha256").unlink()
    log = own_run / "certify_sigma_0.25.json"
    settings = json.loads(log.read_text())
    del settings["model_code"]
    log.write_text(json.dumps(settings))
    own_net(tmp_path, TANH)
    code, _, err = cli("certify", own_run, "--n", 100, "--max", 8)
    assert (code, "warning" in err) == (0, False), err


def test_a_shipped_model_has_no_code_to_keep(cli: Cli, run_folder: Path) -> None:
    assert cli("certify", run_folder, *QUICK)[0] == 0
    assert "model_code" not in json.loads((run_folder / "certify_sigma_0.25.json").read_text())
