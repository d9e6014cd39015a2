"""`covprop train` on own pictures, own arrays and an own model."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from nets import own_net
from PIL import Image
from same_run import assert_same_run
from typer.testing import CliRunner

from covprop import data
from covprop.cli import app
from covprop.run import Run

Cli = Callable[..., tuple[int, str, str]]
SMALL = [
    "digits/gaussian-0.25",
    *("--set", "train.epochs=2", "--set", "model.width=2", "--set", "train.batch_size=20"),
    *("--set", "train.device=cpu", "--set", "data.normalize=false"),
]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Digits as a folder of grey PNGs, and beside it the same images as folder.npz."""
    arrays = {}
    for split, name, number in (("train", "train", 80), ("test", "val", 20)):
        digits = data.load("digits", split)
        order = digits.labels[:number].argsort(stable=True)
        images, labels = digits.images[order], digits.labels[order]
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = tmp_path / "folder" / name / str(int(label)) / f"{i:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(path)
        arrays |= {f"x_{split}": images.numpy(), f"y_{split}": labels.numpy()}
    np.savez(tmp_path / "folder.npz", **arrays)
    return tmp_path / "folder"


def test_a_folder_of_small_pictures_trains_as_the_same_npz(tmp_path: Path, pictures: Path) -> None:
    runner = CliRunner()
    one = ["train", *SMALL, "--set", f"data={pictures}", "--set", "data.image_shape=[1,8,8]"]
    two = ["train", *SMALL, "--set", f"data={pictures}.npz"]
    for words, out in ((one, "one"), (two, "two")):
        result = runner.invoke(app, [*words, "--out", str(tmp_path / out)])
        assert result.exit_code == 0, result.output
        words = ["certify", str(tmp_path / out), "--n", "100", "--max", "5"]
        assert runner.invoke(app, words).exit_code == 0
    assert_same_run(tmp_path / "one", tmp_path / "two")
    assert Run(tmp_path / "one").load_data("test").image_shape == (1, 8, 8)
    logs = [(tmp_path / out / "certify_sigma_0.25.tsv").read_text() for out in ("one", "two")]
    rows = [[line.split("\t")[:4] for line in log.splitlines()] for log in logs]  # not the times
    assert rows[0] == rows[1]
    assert len(rows[0]) == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_a_picture_that_is_cut_off_is_named(
    tmp_path: Path, pictures: Path, workers: int, cli: Cli
) -> None:
    path = next((pictures / "train" / "3").iterdir())
    path.write_bytes(path.read_bytes()[:70])
    words = [*SMALL, "--set", f"data={pictures}", "--set", "data.image_shape=[1,8,8]"]
    words += ["--set", f"data.workers={workers}", "--out", str(tmp_path / "run")]
    code, _, err = cli("train", *words)
    assert code == 2
    (line,) = (line for line in err.splitlines() if line)
    assert line.startswith(f"covprop: {path}: cannot be decoded as an image")


def test_a_run_goes_on_without_a_picture_and_says_so(tmp_path: Path, pictures: Path) -> None:
    train = data.load(str(pictures), "train", image_shape=(1, 8, 8))
    *_, last = data.batches(train, 20, epoch=0, seed=0, device="cpu")
    broken = train.path(int(last.index[0]))
    whole = broken.read_bytes()
    broken.write_bytes(whole[:70])
    words = [*SMALL, "--set", f"data={pictures}", "--set", "data.image_shape=[1,8,8]"]
    words += ["--set", "train.checkpoint_minutes=0", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, ["train", *words]).exit_code != 0
    broken.unlink()
    result = CliRunner().invoke(app, ["train", *words])
    assert result.exit_code == 0, result.output
    assert "at epoch 1, step 3" in result.output
    assert "trained on 80 images so far, now there are 79" in result.output
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_run_goes_on_with_other_labels_and_says_so(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (100, 8, 8), dtype=np.uint8)
    own = tmp_path / "own.npz"
    words = ["train", *SMALL, "--set", f"data={own}", "--out", str(tmp_path / "run")]
    words += ["--set", "train.checkpoint_minutes=0", "--set", "train.batch_size=20"]
    for labels, said in ((np.arange(100) % 3, False), (np.arange(100) // 2 % 3, True)):
        np.savez(own, images=images, labels=labels)
        with patch("covprop.train.loop.Trainer._finish_epoch", side_effect=KeyboardInterrupt):
            result = CliRunner().invoke(app, words)
        assert ("images or their labels are others than so far" in result.output) == said


def test_what_a_model_is_given_can_be_anything_that_toml_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables, dates and odd keys were written into a config.toml that could not be read again."""
    monkeypatch.chdir(tmp_path)
    own_net(tmp_path, "nn.Flatten(), nn.Linear(64, num_classes)", "num_classes, image_shape, **own")
    given = (
        '"a.b" = 3\n"" = 1\n"two words" = [{x = 1.5}, {}]\nday = 2020-01-01\nhour = 10:00:00\n'
        'odd = "\\u007f\\"\\\\"\nnothing = nan\n[model.inner]\ndeep = {er = [true]}\n'
    )
    Path("own.toml").write_text(
        '[data]\nname = "digits"\n[noise]\nsigma = 0.25\n[method]\nname = "gaussian"\n'
        f'[train]\nepochs = 1\ndevice = "cpu"\n[model]\nname = "net.py:build"\n{given}'
    )
    for said in ("epoch 1:", "already trained"):
        result = CliRunner().invoke(app, ["train", "own.toml", "--out", "run"])
        assert result.exit_code == 0, result.output
        assert said in result.output
    own = tomllib.loads(Path("run/config.toml").read_text())["model"]
    expected = tomllib.loads(given.replace("[model.inner]", "[inner]"))
    assert repr({key: own[key] for key in expected}) == repr(expected)


def test_own_data_and_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    arrays = {
        f"{split}_{what}": value
        for split, n in (("train", 64), ("test", 16))
        for what, value in (
            ("images", random.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)),
            ("labels", np.arange(n) % 3),
        )
    }
    np.savez(tmp_path / "mine.npz", **arrays)
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\n"
        "def build(num_classes, image_shape, hidden: int = 4):\n"
        "    inputs = image_shape[0] * image_shape[1] * image_shape[2]\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(),\n"
        "                         nn.Linear(hidden, num_classes))\n"
    )
    arguments = ["digits/radius-0.25", "--out", "run", "--set", "data=mine.npz"]
    arguments += ["--set", "model=my_net.py:build", "--set", "model.hidden=5"]
    arguments += ["--set", "train.epochs=1", "--set", "train.batch_size=16"]
    result = CliRunner().invoke(app, ["train", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    monkeypatch.chdir("/")  # the run must not depend on the folder it was started in
    model = Run(tmp_path / "run").load_model()
    assert model(torch.zeros(2, 3, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize("verb", ["train", "noisy"])
def test_a_model_that_cannot_be_propagated_and_how_to_mend_it(
    tmp_path: Path, cli: Cli, verb: str
) -> None:
    layers = "nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, num_classes)"
    words = ["--set", f"model={own_net(tmp_path, layers)}", "--set", "method=radius"]
    words += ["--set", "method.estimator=shared"] if verb == "train" else []
    name = {"train": "digits/radius-0.25", "noisy": "noisy/digits/radius-largest-pair-0.45"}[verb]
    words += ["--epochs", "1", "--out", str(tmp_path / "run")]
    code, _, err = cli(verb, name, *words)
    assert code == 2
    assert "the maximum of Gaussians is not Gaussian" in err
    assert err.splitlines()[-1].startswith("Return covprop.fix(net) from the function that model=")
    assert ("linearized" in err) == (verb == "train")
    file = tmp_path / "net.py"
    mended = file.read_text().replace("return nn.", "return covprop.fix(nn.").rstrip() + ")"
    file.write_text(f"import covprop\n{mended}\n")
    assert cli(verb, name, *words)[0] == 0
