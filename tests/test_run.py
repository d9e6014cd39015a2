"""A run folder as later stages read it."""

from pathlib import Path

import pytest
import torch

from covprop import models
from covprop.errors import InvalidInput
from covprop.run import Run
from covprop.train import checkpoint
from covprop.train.toml import dumps

CONFIG = {
    "data": {"name": "digits", "num_classes": 10, "image_shape": [1, 8, 8]}
    | {"mean": [0.3], "std": [0.4]},
    "model": {"name": "lenet", "width": 2},
    "noise": {"sigma": 0.25},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(dumps(CONFIG))
    return tmp_path


def _net(width: int = 2) -> torch.nn.Module:
    return models.build(
        "lenet", num_classes=10, image_shape=(1, 8, 8), mean=[0.3], std=[0.4], width=width
    )


def test_the_model_comes_back(folder: Path) -> None:
    net = _net().eval()
    checkpoint.save_weights(folder / "model.safetensors", net)
    run = Run(folder)
    model = run.load_model()
    x = torch.rand(3, 1, 8, 8)
    assert not model.training
    assert torch.equal(model(x), net(x))
    assert (run.sigma, run.num_classes, run.image_shape) == (0.25, 10, (1, 8, 8))
    assert len(run.load_data("test")) == 360
    assert run.config == CONFIG


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda")])
def test_a_device_that_is_not_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, device: torch.device | str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    checkpoint.save_weights(folder / "model.safetensors", _net())
    with pytest.raises(InvalidInput, match='"cuda" needs CUDA, which is not available; use cpu'):
        Run(folder).load_model(device)
    with pytest.raises(InvalidInput, match='no device "gpu"; choose'):
        Run(folder).load_model("gpu")


def test_weights_of_another_model_are_one_sentence(folder: Path) -> None:
    checkpoint.save_weights(folder / "model.safetensors", _net(width=3))
    with pytest.raises(InvalidInput, match=r"model\.safetensors belongs to another model"):
        Run(folder).load_model()


def test_no_run_here(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no config\.toml"):
        Run(tmp_path)
    with pytest.raises(InvalidInput, match="There is no run folder"):
        Run(tmp_path / "none")


def test_a_folder_of_runs_names_some(tmp_path: Path) -> None:
    (tmp_path / "digits" / "b").mkdir(parents=True)
    (tmp_path / "digits" / "b" / "config.toml").touch()
    with pytest.raises(InvalidInput, match=rf"give the run in it, {tmp_path}/digits/b\.$"):
        Run(tmp_path / "digits")
    for name in ("a", "d", "c"):
        (tmp_path / "digits" / name).mkdir()
        (tmp_path / "digits" / name / "config.toml").touch()
    a, b, c = (f"{tmp_path}/digits/{name}" for name in "abc")
    for path in (tmp_path / "digits", tmp_path):
        with pytest.raises(InvalidInput, match=rf"no config.toml; .*: {a}, {b}, {c} and 1 more\.$"):
            Run(path)


def test_no_weights_yet(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="no weights"):
        Run(folder).load_model()


def test_a_recipe_is_not_yet_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(dumps({"data": {"name": "digits"}}))
    with pytest.raises(InvalidInput, match=r"lacks data\.num_classes"):
        Run(tmp_path).load_model()


def test_metrics_without_a_torn_line(folder: Path) -> None:
    assert Run(folder).metrics() == []
    (folder / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n{"epo')
    assert Run(folder).metrics() == [{"epoch": 1}, {"epoch": 2}]
    (folder / "metrics.jsonl").write_bytes(b'{"epoch": 1}\n\xaa\xff\n')
    assert Run(folder).metrics() == [{"epoch": 1}]


def test_epochs_trained_and_planned(folder: Path) -> None:
    config = CONFIG | {"train": {"epochs": 3}}
    assert Run(folder).epochs is None
    (folder / "config.toml").write_text(dumps(config))
    assert Run(folder).epochs is None  # of a run that was copied without its metrics nobody knows
    (folder / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n{"epo')
    assert Run(folder).epochs == (2, 3)


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("data", "image_shape", [1, 8], r"data\.image_shape must be a list of 3 values"),
        ("data", "num_classes", "ten", r"data\.num_classes must be a whole number"),
        ("data", "mean", "x", r"data\.mean must be a list"),
        ("data", "mean", [float("nan")], r"data\.mean must be a number, not nan"),
        ("data", "std", [0.0], r"data\.std must be above 0"),
        ("data", "holdout", "some", r"data\.holdout must be a whole number"),
        ("noise", "sigma", "a", r"noise\.sigma must be a number"),
        ("noise", "sigma", -1.0, r"noise\.sigma must be at least 1e-06"),
    ],
)
def test_a_config_changed_by_hand_is_one_sentence(
    folder: Path, section: str, key: str, value: object, message: str
) -> None:
    checkpoint.save_weights(folder / "model.safetensors", _net())
    (folder / "config.toml").write_text(dumps({**CONFIG, section: CONFIG[section] | {key: value}}))
    run = Run(folder)
    with pytest.raises(InvalidInput, match=rf"config\.toml: {message}"):
        _ = (run.sigma, run.holdout, run.load_model())
