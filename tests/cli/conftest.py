"""A small trained run, and the command line as a function."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from covprop import data, models
from covprop.cli import main
from covprop.train.checkpoint import save_weights

CONFIG = """
[data]
name = "digits"
num_classes = 10
image_shape = [1, 8, 8]
mean = [0.3053]
std = [0.3762]

[model]
name = "lenet"
width = 4

[noise]
sigma = 0.25
"""

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def trained_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LeNet on the digits, trained for a second: good enough to certify something."""
    torch.manual_seed(0)
    digits = data.load("digits", "train")
    model = models.build(
        "lenet", num_classes=10, image_shape=(1, 8, 8), mean=(0.3053,), std=(0.3762,), width=4
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(8):
        for batch in data.batches(digits, 128, epoch=epoch, seed=0, device="cpu"):
            noisy = batch.x + 0.25 * torch.randn(batch.x.shape)
            loss = F.cross_entropy(model(noisy), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_weights(path, model)
    return path


@pytest.fixture
def run_folder(trained_weights: Path, tmp_path: Path) -> Path:
    """A run folder of that model."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(CONFIG)
    (folder / "model.safetensors").write_bytes(trained_weights.read_bytes())
    return folder


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli("certify", folder, "--n", 100)` -> exit code, stdout, stderr."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["covprop", *map(str, words)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return call
