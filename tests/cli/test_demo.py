"""`covprop demo` and `covprop estimate`, end to end on digits."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from nets import own_net

from covprop import margin
from covprop.run import Run


def covprop(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "covprop", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo, cut short: one epoch, a few images, few samples."""
    out = tmp_path_factory.mktemp("demo")
    done = covprop("demo", "--out", out, "--n", 200, "--max", 6, "--epochs", 1)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_demo_trains_certifies_and_names_the_report(demo: tuple[Path, str]) -> None:
    out, text = demo
    for name in ("gaussian-0.25", "macer-0.25", "radius-linearized-0.25"):
        assert (out / name / "model.safetensors").is_file()
        assert len((out / name / "certify_sigma_0.25.tsv").read_text().splitlines()) == 7
        assert name in text
    page = out / "report" / "report.html"
    assert page.is_file()
    assert f"Open {page}" in text


def test_demo_shows_the_commands_it_runs(demo: tuple[Path, str]) -> None:
    out, text = demo
    run = out / "macer-0.25"
    for command in (
        f"train digits/macer-0.25 --epochs 1 --out {run}",
        f"certify {run} --n 200 --max 6",
        f"estimate {run} --max 6",
        f"report {out} --out {out / 'report'}",
    ):
        assert f"covprop {command}" in text.splitlines()


def test_demo_goes_on_where_it_was(demo: tuple[Path, str]) -> None:
    out, _ = demo
    weights = (out / "gaussian-0.25" / "model.safetensors").read_bytes()
    again = covprop("demo", "--out", out, "--n", 200, "--max", 6, "--epochs", 1)
    assert again.returncode == 0, again.stderr
    assert "already trained" in again.stdout + again.stderr
    assert (out / "gaussian-0.25" / "certify_sigma_0.25.tsv").read_text().count("\n") == 7
    assert (out / "gaussian-0.25" / "model.safetensors").read_bytes() == weights


def test_estimates_are_those_of_margin(demo: tuple[Path, str]) -> None:
    out, _ = demo
    run = Run(out / "gaussian-0.25")
    lines = (run.folder / "estimated.tsv").read_text().splitlines()
    assert lines[0] == "idx\testimator\tradius"
    rows = [line.split("\t") for line in lines[1:]]
    ours = [float(radius) for _, estimator, radius in rows if estimator == "linearized:4"]
    images = run.load_data("test").images[:6].float() / 255
    model = run.load_model()
    torch.manual_seed(0)  # after building the model, which draws weights
    expected = margin(model, images, run.sigma, "linearized", samples=4).radius
    assert torch.tensor(ours) == pytest.approx(expected, rel=1e-4)
    assert {estimator for _, estimator, _ in rows} == {"shared", "calibrated", "linearized:4"}


def test_estimate_leaves_out_what_cannot_be_propagated(
    demo: tuple[Path, str], tmp_path: Path
) -> None:
    layers = "nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, num_classes)"
    run = tmp_path / "run"
    setting = f"model={own_net(tmp_path, layers)}"
    trained = covprop(
        "train", "digits/gaussian-0.25", "--set", setting, "--set", "train.epochs=1", "--out", run
    )
    assert trained.returncode == 0, trained.stderr
    done = covprop("estimate", run, "--max", 4)
    assert done.returncode == 0, done.stderr
    assert "left out shared and calibrated: " in done.stderr
    assert done.stderr.count("the maximum of Gaussians is not Gaussian") == 1
    assert "linearized:4\t" in (run / "estimated.tsv").read_text()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("guess", "choose one of shared"),
        ("shared:4", "a number of samples follows calibrated, linearized, sampled"),
        ("linearized:few", "as in linearized:4"),
    ],
)
def test_unknown_estimator_is_one_sentence(
    demo: tuple[Path, str], name: str, sentence: str
) -> None:
    out, _ = demo
    done = covprop("estimate", out / "gaussian-0.25", "--estimator", name)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
