"""State and weights come back as they were, and wrong files are one sentence."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from covprop.errors import InvalidInput
from covprop.train import checkpoint


def _net(width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width))


def test_state_comes_back_as_it_was(tmp_path: Path) -> None:
    net = _net()
    state = {"model": net.state_dict(), "step": 3, "sums": [0.1, 2.0]}
    checkpoint.save_state(tmp_path / "state.pt", state)
    back = checkpoint.load_state(tmp_path / "state.pt")
    assert back["step"] == 3
    assert back["sums"] == [0.1, 2.0]
    assert all(torch.equal(back["model"][k], v) for k, v in net.state_dict().items())
    assert os.listdir(tmp_path) == ["state.pt"]


def test_a_damaged_state_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    checkpoint.save_state(path, {"model": {"a": torch.zeros(3000)}})
    whole = path.read_bytes()
    for size in (0, 10, 1000, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:size])
        with pytest.raises(InvalidInput, match=r"state\.pt cannot be read \(it is damaged or no"):
            checkpoint.load_state(path)
    torch.save([1], path)
    with pytest.raises(InvalidInput, match="not one of this program"):
        checkpoint.load_state(path)


def test_a_state_never_runs_code(tmp_path: Path) -> None:
    torch.save({"model": Path}, tmp_path / "state.pt")
    with pytest.raises(InvalidInput, match="cannot be read") as caught:
        checkpoint.load_state(tmp_path / "state.pt")
    assert "weights_only" not in str(caught.value)  # nobody is told to run it after all


def test_weights_of_tied_parameters(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    checkpoint.save_weights(tmp_path / "w.safetensors", net)
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    checkpoint.load_weights(tmp_path / "w.safetensors", other)
    assert torch.equal(other[1].weight, net[0].weight)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), "it lacks 2.weight"),
        (nn.Sequential(nn.Linear(4, 3)), r"it also holds 1\."),
        (_net(5), r"0.weight is \[3, 4\], not \[5, 4\]"),
    ],
)
def test_weights_of_another_model(tmp_path: Path, other: nn.Module, message: str) -> None:
    checkpoint.save_weights(tmp_path / "model.safetensors", _net())
    with pytest.raises(InvalidInput, match=message):
        checkpoint.load_weights(tmp_path / "model.safetensors", other)


def test_weights_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"no weights at .*; the same `covprop train` command goes on"
    ):
        checkpoint.load_weights(tmp_path / "model.safetensors", _net())
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(
        InvalidInput, match=r"cannot be read .*; copy the file anew, .*--restart\.$"
    ):
        checkpoint.load_weights(tmp_path / "model.safetensors", _net())


def test_weights_in_a_folder_whose_name_is_no_utf8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")) / "model.safetensors"
    one, other = nn.Linear(2, 3), nn.Linear(2, 3)
    checkpoint.save_weights(path, one)
    checkpoint.load_weights(path, other)
    assert torch.equal(one.weight, other.weight)
