"""`covprop export`: files that other tools read, and that come back as the same model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from PIL import Image

from covprop import checkpoints, exports, models
from covprop.data.folders import IMAGENET_MEAN, IMAGENET_STD
from covprop.run import Run
from covprop.train.checkpoint import save_weights

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


@pytest.mark.parametrize(
    ("name", "to"), [("model.safetensors", "safetensors"), ("state.pt", "cohen")]
)
def test_what_is_exported_is_never_overwritten(
    cli: Cli, run_folder: Path, name: str, to: str
) -> None:
    (run_folder / "state.pt").write_bytes(b"what the run goes on from")
    before = (run_folder / name).read_bytes()
    code, _, err = cli("export", run_folder, run_folder / name, "--to", to, "--force")
    assert code == 2
    assert f"{name} is what is exported; choose another name." in err
    assert (run_folder / name).read_bytes() == before


def test_an_unknown_format_is_named(cli: Cli, run_folder: Path) -> None:
    code, _, err = cli("export", run_folder, "--to", "h5")
    assert code == 2
    assert 'no format "h5"; choose one of safetensors, onnx, cohen' in err


@pytest.mark.parametrize(
    ("name", "to"),
    [
        *[("net.onnx", "safetensors"), ("net.pth", "safetensors"), ("config.toml", "safetensors")],
        *[("net.safetensors", "cohen"), ("net.onnx", "cohen"), ("net.pth.tar", "onnx")],
    ],
)
def test_a_name_of_another_format_is_refused(
    cli: Cli, run_folder: Path, tmp_path: Path, name: str, to: str
) -> None:
    code, _, err = cli("export", run_folder, tmp_path / name, "--to", to, "--force")
    assert code == 2
    assert f"{name} is no name for a file of the format {to}" in err
    assert not (tmp_path / name).exists()


def test_a_run_comes_back_with_its_models_options(
    cli: Cli, run_folder: Path, tmp_path: Path
) -> None:
    """The run's network is narrower than the default; neither --arch nor that has to be said."""
    path = tmp_path / "net.safetensors"
    assert cli("export", run_folder, path)[0] == 0
    assert checkpoints.read(path).options["width"] == 4
    again = tmp_path / "net.pth"
    code, _, err = cli("export", path, again, "--to", "cohen", "--dataset", "digits")
    assert code == 0, err
    assert checkpoints.read(again).options["width"] == 4


@pytest.mark.parametrize("to", ["safetensors", "cohen"])
def test_class_folders_are_read_at_the_size_that_the_file_says(
    cli: Cli, tmp_path: Path, to: str
) -> None:
    """They were read at 224 × 224, whatever the network took."""
    for name in ("cat", "dog"):
        for split in ("train", "val"):
            place = tmp_path / "photos" / split / name / "0.png"
            place.parent.mkdir(parents=True)
            Image.new("RGB", (40, 50), "white" if name == "cat" else "black").save(place)
    net = models.build(
        "lenet", num_classes=2, image_shape=(3, 32, 32), mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    path = tmp_path / f"net{exports.FORMATS[to]}"
    exports.export(net, path, to=to, arch="lenet", image_shape=(3, 32, 32))
    words = ("--dataset", tmp_path / "photos", "--sigma", 0.25, "--n", 20, "--n0", 8)
    code, _, err = cli("certify", path, *words)
    assert (code, "224" in err) == (0, False), err
    if to == "safetensors":
        again = tmp_path / "again.safetensors"
        assert cli("export", path, again, "--dataset", tmp_path / "photos")[0] == 0
        assert checkpoints.read(again).image_shape == (3, 32, 32)


def test_a_data_set_of_another_size_than_the_file_says_is_refused(
    cli: Cli, run_folder: Path, tmp_path: Path
) -> None:
    """The networks that take any size would have been certified at it."""
    path = tmp_path / "net.safetensors"
    assert cli("export", run_folder, path)[0] == 0
    code, _, err = cli("certify", path, "--dataset", "mnist", "--sigma", 0.25)
    assert (code, err.count("\n")) == (2, 1)
    assert "mnist has 10 classes and images of 1×28×28, but the model takes 10 and 1×8×8" in err


def test_a_file_is_read_once(
    cli: Cli, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.safetensors"
    assert cli("export", run_folder, path)[0] == 0
    files: list[Path] = []
    read = checkpoints.read
    monkeypatch.setattr(checkpoints, "read", lambda file: files.append(file) or read(file))
    words = ("--to", "cohen", "--dataset", "digits")
    assert cli("export", path, tmp_path / "again.pth", *words)[0] == 0
    assert files == [path]


def test_constants_that_older_tools_would_not_add_are_refused(
    cli: Cli, run_folder: Path, tmp_path: Path
) -> None:
    """They normalise by the data set's own, so that the weights would get other images."""
    config = run_folder / "config.toml"
    config.write_text(config.read_text().replace("0.3053", "0.5"))
    (run_folder / "model.safetensors").unlink()
    model = models.build(
        "lenet", num_classes=10, image_shape=(1, 8, 8), mean=(0.5,), std=(0.3762,), width=4
    )
    save_weights(run_folder / "model.safetensors", model)
    code, _, err = cli("export", run_folder, "--to", "cohen")
    assert code == 2
    assert "mean and std, which this model was not trained with" in err
    assert cli("export", run_folder)[0] == 0
