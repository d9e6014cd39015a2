"""`covprop export`: files that other tools read, and that come back as the same model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from covprop import checkpoints
from covprop.run import Run

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("to", ["safetensors", "cohen"])
def test_the_export_is_the_model(cli: Cli, run_folder: Path, tmp_path: Path, to: str) -> None:
    path = tmp_path / ("net.safetensors" if to == "safetensors" else "net.pth.tar")
    code, out, err = cli("export", run_folder, path, "--to", to)
    assert code == 0, err
    assert out.strip() == str(path)
    model = Run(run_folder).load_model()
    if to == "safetensors":
        assert list(safetensors.torch.load_file(path)) == sorted(model.state_dict())
    else:
        content = torch.load(path, weights_only=True)
        assert content["arch"] == "lenet"
        inner = {f"1.{k}": v for k, v in model[1].state_dict().items()}
        assert content["state_dict"].keys() == inner.keys()
        assert all(torch.equal(v, inner[k]) for k, v in content["state_dict"].items())


def test_a_file_is_not_overwritten_unasked(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    path.write_text("mine")
    code, _, err = cli("export", run_folder, path)
    assert code == 2
    assert "already there" in err
    assert path.read_text() == "mine"
    assert cli("export", run_folder, path, "--force")[0] == 0
    assert checkpoints.read(path).tensors


def test_an_unknown_format_is_named(cli: Cli, run_folder: Path) -> None:
    code, _, err = cli("export", run_folder, "--to", "h5")
    assert code == 2
    assert 'no format "h5"; choose one of safetensors, onnx, cohen' in err
