"""`covprop predict` on a data set and on image files."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from covprop import data
from covprop.certify import predict
from covprop.cli.predict import _read_pictures
from covprop.cli.trained import open_trained
from covprop.data.decode import read_image
from covprop.errors import InvalidInput
from covprop.run import Run

Cli = Callable[..., tuple[int, str, str]]
IMAGE = torch.zeros(1, 1, 1)


def test_rows_are_the_python_calls(cli: Cli, run_folder: Path) -> None:
    code, out, err = cli("predict", run_folder, "--n", 200, "--max", 10)
    assert code == 0, err
    path = run_folder / "predict_sigma_0.25.tsv"
    digits = data.load("digits", "test")
    expected = predict(
        Run(run_folder).load_model(), digits.images[:10].float() / 255, sigma=0.25, n=200
    )
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    assert rows[0] == ["idx", "label", "predict", "correct", "time"]
    assert [int(row[2]) for row in rows[1:]] == expected.prediction.tolist()
    correct = (expected.prediction == digits.labels[:10]).double().mean()
    abstained = (expected.prediction == -1).double().mean()
    assert f"10 images, accuracy {correct:.3f}, abstained {abstained:.1%}" in out
    journal = [
        json.loads(line) for line in path.with_suffix(".rows.jsonl").read_text().splitlines()
    ]
    for name in ("count", "runner_up", "n", "nan"):
        assert [row[name] for row in journal] == getattr(expected, name).tolist(), name
    before = path.read_bytes()
    assert cli("predict", run_folder, "--n", 200, "--max", 10)[0] == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize(("alpha", "fewest"), [(0.001, 11), (0.5, 2)])
def test_samples_that_can_only_abstain_are_refused(
    cli: Cli, run_folder: Path, alpha: float, fewest: int
) -> None:
    words = ("predict", run_folder, "--max", 2, "--alpha", alpha, "--n")
    code, out, err = cli(*words, fewest - 1)
    assert (code, out) == (2, "")
    assert f"{fewest} is the smallest --n that can settle one" in " ".join(err.split())
    assert cli(*words, fewest)[0] == 0
    for n, found in ((fewest - 1, -1), (fewest, 0)):  # of a network that says 0 to all of them
        sure = predict(lambda x: torch.eye(2)[[0] * len(x)], IMAGE, sigma=1, n=n, alpha=alpha)
        assert int(sure.prediction) == found


def test_another_data_set_has_nothing_held_out(run_folder: Path) -> None:
    config = run_folder / "config.toml"
    config.write_text(config.read_text().replace("[data]", "[data]\nholdout = 100"))
    own = open_trained(run_folder, arch=None, dataset=None, normalize=None)
    assert (own.holdout, len(own.load_images("train", None))) == (100, 1337)
    other = open_trained(run_folder, arch=None, dataset="digits", normalize=None)
    assert (other.holdout, len(other.load_images("train", None))) == (None, 1437)


def test_image_files(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    digits = data.load("digits", "test")
    paths = []
    for i in range(2):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(digits.images[i, 0].numpy()).save(paths[-1])
    code, out, err = cli("predict", run_folder, *paths, "--n", 300)
    assert code == 0, err
    expected = predict(
        Run(run_folder).load_model(), digits.images[:2].float() / 255, sigma=0.25, n=300
    )
    lines = [line.split("\t") for line in out.splitlines()]
    assert [int(line[1]) for line in lines] == expected.prediction.tolist()
    assert [line[3] for line in lines] == [f"{c} of 300 samples" for c in expected.count.tolist()]
    assert not list(run_folder.glob("*.tsv"))


@pytest.mark.parametrize(
    ("size", "message"), [((9, 8), "is 8×9 pixels, but the model takes 8×8"), (None, "as an image")]
)
def test_pictures_that_do_not_fit(
    cli: Cli, run_folder: Path, tmp_path: Path, size: tuple[int, int] | None, message: str
) -> None:
    path = tmp_path / "x.png"
    if size:
        Image.new("L", size).save(path)
    else:
        path.write_text("no picture")
    code, _, err = cli("predict", run_folder, path, "--n", 100)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    "words",
    [
        ("--skip", 2),
        ("--max", 1),
        ("--data", "x"),
        ("--out", "x.tsv"),
        ("--split", "train"),
        ("--restart",),
    ],
)
def test_options_that_do_not_go_with_pictures(cli: Cli, run_folder: Path, words: tuple) -> None:
    code, _, err = cli("predict", run_folder, "a.png", *words)
    assert code == 2
    assert f"covprop: {words[0]} is for the images of a data set" in err


def test_pictures_are_cropped_for_models_of_class_folders_only(
    cli: Cli, run_folder: Path, tmp_path: Path
) -> None:
    """A model of an own .npz saw its 224-pixel images whole; one of a folder saw crops."""
    pixels = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
    path = tmp_path / "a.png"
    Image.fromarray(pixels).save(path)
    whole = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    assert torch.equal(_read_pictures([path], (3, 224, 224), cropped=False), whole)
    crop = read_image(path)[None] / 255
    assert torch.equal(_read_pictures([path], (3, 224, 224), cropped=True), crop)
    config = run_folder / "config.toml"
    config.write_text(config.read_text().replace('"digits"', '"/nowhere/photos"'))
    Image.new("L", (30, 20)).save(path)  # any size goes where a folder's images were scaled
    assert cli("predict", run_folder, path, "--n", 100)[0] == 0
    config.write_text(config.read_text().replace("photos", "photos.npz"))
    code, _, err = cli("predict", run_folder, path, "--n", 100)
    assert (code, "is 20×30 pixels, but the model takes 8×8" in err) == (2, True)


def test_an_own_set_names_its_classes(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    digits = data.load("digits", "test")
    names = [f"digit {k}" for k in range(10)]
    own = tmp_path / "own.npz"
    np.savez(own, images=digits.images.numpy(), labels=digits.labels.numpy(), classes=names)
    config = run_folder / "config.toml"
    config.write_text(config.read_text().replace('"digits"', f'"{own}"'))
    picture = tmp_path / "0.png"
    Image.fromarray(digits.images[0, 0].numpy()).save(picture)
    code, out, err = cli("predict", run_folder, picture, "--n", 300)
    assert code == 0, err
    _, number, name, _ = out.strip().split("\t")
    assert name == f"digit {number}"
    own.unlink()  # pictures need no data set: numbers then
    _, _, name, _ = cli("predict", run_folder, picture, "--n", 300)[1].strip().split("\t")
    assert name == number


@pytest.mark.parametrize("cropped", [False, True])
def test_a_picture_that_is_not_there(cli: Cli, run_folder: Path, cropped: bool) -> None:
    with pytest.raises(InvalidInput, match=r"There is no image none\.png"):
        _read_pictures([Path("none.png")], (3, 224, 224), cropped)
    code, _, err = cli("predict", run_folder, "none.png", "--n", 100)
    assert (code, err) == (2, "covprop: There is no image none.png.\n")
