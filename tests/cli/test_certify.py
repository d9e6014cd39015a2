"""`covprop certify` end to end: rows, questions, warnings, and every user's mistake."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from certifications import journal, table
from PIL import Image

from covprop import data
from covprop.certify import certify
from covprop.report.tsv import read_tsv
from covprop.run import Run

Cli = Callable[..., tuple[int, str, str]]
QUICK = ("--n", 400, "--max", 8)


def test_rows_are_the_python_calls(cli: Cli, run_folder: Path) -> None:
    code, out, err = cli("certify", run_folder, "--n", 1000, "--skip", 7, "--max", 9)
    assert code == 0, err
    path = run_folder / "certify_sigma_0.25.tsv"
    rows = read_tsv(path)
    assert rows.idx.tolist() == list(range(0, 63, 7))
    digits = data.load("digits", "test")
    x = digits.images[rows.idx].float() / 255
    expected = certify(
        Run(run_folder).load_model(), x, sigma=0.25, n=1000, num_classes=10, index=rows.idx.tolist()
    )
    assert rows.predict.tolist() == expected.prediction.tolist()
    assert rows.label.tolist() == digits.labels[rows.idx].tolist()
    assert (rows.correct == (rows.predict == rows.label)).all()
    assert [row["radius"] for row in journal(path)] == expected.radius.tolist()
    np.testing.assert_allclose(rows.radius, expected.radius, rtol=0.005)
    acr = float((expected.radius * torch.from_numpy(rows.correct)).mean())
    assert f"9 images, ACR {acr:.3f}" in out
    assert "mean samples 1000" in out
    assert str(path) in out
    assert "9 of 9 images" in err


def test_an_own_set_that_changed_is_another(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    """Its numbers mean other images now: rows of both in one log would be no one's table."""
    digits = data.load("digits", "test")
    images, labels = digits.images.numpy(), digits.labels.numpy()
    own = tmp_path / "own.npz"
    np.savez(own, images=images, labels=labels)
    assert cli("certify", run_folder, *QUICK, "--dataset", own)[0] == 0
    before = (run_folder / "certify_sigma_0.25.tsv").read_bytes()
    np.savez(own, images=images[5:], labels=labels[5:])
    code, _, err = cli("certify", run_folder, *QUICK, "--max", 10, "--dataset", own)
    assert code == 2
    assert "was certified with images = " in err
    assert (run_folder / "certify_sigma_0.25.tsv").read_bytes() == before
    assert cli("estimate", run_folder, "--max", 8, "--dataset", own)[0] == 0
    _, _, err = cli("report", run_folder)
    assert "estimated.tsv is for other images and was not compared" in err


def test_an_own_set_that_was_moved_is_the_same(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    digits = data.load("digits", "test")
    own, config = tmp_path / "own.npz", run_folder / "config.toml"
    np.savez(own, images=digits.images.numpy(), labels=digits.labels.numpy())
    config.write_text(config.read_text().replace('"digits"', f'"{own}"'))
    few = ("estimate", run_folder, "--estimator", "linearized", "--max", 4)
    assert cli("certify", run_folder, *QUICK)[0] == cli(*few)[0] == 0
    before = (run_folder / "certify_sigma_0.25.tsv").read_text()
    own.rename(tmp_path / "moved.npz")
    for verb in ("certify", "predict", "estimate", "inspect", "explore"):
        code, _, err = cli(verb, run_folder)
        said = f"{own}, the data of {run_folder}, is not there; put it back, or write where it is "
        assert (code, f"{said}now as data.name into {config}." in err) == (2, True), err
    assert cli("export", run_folder)[0] == 0
    config.write_text(config.read_text().replace("own.npz", "moved.npz"))
    code, _, err = cli("certify", run_folder, *QUICK, "--max", 10)
    assert code == 0, err
    assert (run_folder / "certify_sigma_0.25.tsv").read_text().startswith(before)
    assert cli(*few[:2], "--estimator", "sampled", "--max", 4)[0] == 0
    assert len((run_folder / "estimated.tsv").read_text().splitlines()) == 9  # the earlier too
    assert "warning" not in cli("report", run_folder)[2]


def test_an_own_set_is_known_by_its_full_path(
    cli: Cli, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = data.load("digits", "test")
    own = tmp_path / "own.npz"
    np.savez(own, images=digits.images.numpy(), labels=digits.labels.numpy())
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("certify", run_folder, *QUICK, "--dataset", "own.npz")
    assert code == 0, err
    settings = run_folder / "certify_sigma_0.25.json"
    assert json.loads(settings.read_text())["data"] == str(own)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir("below")
    code, _, err = cli("certify", run_folder, *QUICK, "--dataset", "../own.npz")
    assert code == 0, err
    Path("digits").mkdir()  # no own set: a registered name is that set wherever one is
    log = tmp_path / "digits.tsv"
    code, _, err = cli("certify", run_folder, *QUICK, "--dataset", "digits", "--out", log)
    assert code == 0, err
    assert json.loads(log.with_suffix(".json").read_text())["data"] == "digits"


def test_the_images_that_a_run_held_out(cli: Cli, run_folder: Path) -> None:
    code, _, err = cli("certify", run_folder, *QUICK, "--split", "holdout")
    assert (code, "no images of digits are held out" in err) == (2, True)
    config = run_folder / "config.toml"
    config.write_text(config.read_text().replace("[data]", "[data]\nholdout = 100"))
    code, _, err = cli("certify", run_folder, *QUICK, "--split", "holdout")
    assert code == 0, err
    path = run_folder / "certify_sigma_0.25.tsv"
    labels = data.load("digits", "train").labels
    assert read_tsv(path).label.tolist() == [int(labels[i * 1437 // 100]) for i in range(8)]
    assert json.loads(path.with_suffix(".json").read_text())["split"] == "holdout"
    assert "digits (holdout)" in cli("report", run_folder)[1]
    code, _, err = cli("certify", run_folder, *QUICK)
    assert (code, "certified with split = holdout, not test" in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        (["--sequential"], "hard, sequential to within 0.05"),
        (["--delta", 0.1], "hard, sequential to within 0.1"),
        (["--at-least", 0.2], "hard, sequential, at least 0.2"),
        (["--soft"], "soft"),
    ],
)
def test_other_questions(cli: Cli, run_folder: Path, options: list[object], mode: str) -> None:
    code, out, err = cli("certify", run_folder, "--n", 5000, "--max", 6, *options)
    assert code == 0, err
    path = run_folder / "certify_sigma_0.25.tsv"
    assert json.loads(path.with_suffix(".json").read_text())["mode"] == mode
    used = [row["n"] for row in journal(path)]
    assert f"mean samples {np.mean(used):.0f}" in out
    assert (np.mean(used) < 5000) == (mode != "soft")
    assert ("ACR" in out) == ("at least" not in mode)


def test_another_sigma_is_a_warning(cli: Cli, run_folder: Path) -> None:
    code, _, err = cli("certify", run_folder, *QUICK, "--sigma", 0.5)
    assert code == 0
    assert "warning: sigma = 0.5, but the model was trained with 0.25" in err
    assert (run_folder / "certify_sigma_0.5.tsv").exists()


def test_a_run_that_is_not_trained_to_its_end(cli: Cli, run_folder: Path) -> None:
    config, metrics = run_folder / "config.toml", run_folder / "metrics.jsonl"
    config.write_text(f"{config.read_text()}\n[train]\nepochs = 3\n")
    metrics.write_text('{"epoch": 1}\n{"epoch": 2}\n')
    code, _, err = cli("certify", run_folder, *QUICK)
    assert (code, err.count("warning: no more than 2 of 3 epochs are trained; ")) == (0, 1)
    meta = json.loads((run_folder / "certify_sigma_0.25.json").read_text())
    assert (meta["epochs"], meta["epochs_planned"]) == (2, 3)
    with metrics.open("a") as file:
        file.write('{"epoch": 3}\n')
    code, _, err = cli("certify", run_folder, *QUICK, "--sigma", 0.2)
    assert (code, "epochs are trained" in err) == (0, False)
    assert "epochs" not in json.loads((run_folder / "certify_sigma_0.2.json").read_text())


@pytest.mark.parametrize(("mode", "fewest"), [((), 10), (("--soft",), 37)])
def test_samples_that_can_only_abstain_are_refused(
    cli: Cli, run_folder: Path, mode: tuple[str, ...], fewest: int
) -> None:
    words = ("certify", run_folder, "--max", 2, *mode, "--n")
    before = sorted(run_folder.iterdir())
    code, out, err = cli(*words, fewest - 1)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{fewest} is the smallest --n that can certify" in err
    assert sorted(run_folder.iterdir()) == before
    code, _, err = cli(*words, fewest)
    assert code == 0
    assert err.count("warning: n = 10 samples barely reach alpha = 0.001") == (not mode)


def test_a_model_of_nan_is_counted_and_said(cli: Cli, run_folder: Path) -> None:
    from covprop.train.checkpoint import save_weights

    model = Run(run_folder).load_model()
    with torch.no_grad():
        model[1].linear2.bias[4] = torch.nan
    save_weights(run_folder / "model.safetensors", model)
    code, out, _ = cli("certify", run_folder, *QUICK)
    assert code == 0
    assert "returned NaN on 8 images" in out
    path = run_folder / "certify_sigma_0.25.tsv"
    assert all(row["nan"] == 400 and row["predict"] == -1 for row in journal(path))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no run folder or checkpoint nowhere"),
        (["{run}", "--arch", "lenet"], "--arch is for checkpoint files"),
        (["{run}", "--sigma", "-1"], "sigma is -1.0: give a positive"),
        (["{run}", "--alpha", "2"], "alpha is a probability"),
        (["{run}", "--skip", "0"], "--skip and --max are at least 1"),
        (["{run}", "--out", "log"], "a file ending in .tsv"),
        (["{run}", "--device", "tpu"], 'no device "tpu"'),
        (["{run}", "--split", "validation"], 'choose "train", "test" or "holdout"'),
        (["{run}", "--at-least", "5"], "out of reach"),
        (["{run}", "--delta", "0.1", "--at-least", "0.1"], "one of delta and at_least"),
        (["{weights}"], "is part of a run; give its folder"),
        (["{weights}", "--dataset", "digit"], 'did you mean "digits"'),
        (["{weights}", "--dataset", "digits"], "add --arch"),
        (["{weights}", "--dataset", "digits", "--arch", "cnn9"], "at least 28×28"),
    ],
)
def test_mistakes_are_one_sentence(
    cli: Cli, run_folder: Path, words: list[str], message: str
) -> None:
    places = {"run": run_folder, "weights": run_folder / "model.safetensors"}
    code, out, err = cli("certify", *(word.format(**places) for word in words))
    assert code == 2
    assert message in err
    assert err.startswith("covprop: ")
    assert err.count("\n") == 1
    assert out == ""
    assert not list(run_folder.glob("*.tsv"))


def test_a_checkpoint_file(cli: Cli, tmp_path: Path) -> None:
    from covprop.models import build

    torch.manual_seed(0)
    net = build("lenet", num_classes=10, image_shape=(1, 8, 8))
    path = tmp_path / "net.pth"
    torch.save({"net": net.state_dict(), "epoch": 3}, path)
    code, _, err = cli("certify", path, "--arch", "lenet")
    assert (code, "add --dataset with one of digits" in err) == (2, True)
    words = ("certify", path, "--arch", "lenet", "--dataset", "digits", *QUICK)
    code, _, err = cli(*words)
    assert code == 2
    assert "add --sigma" in err
    assert cli(*words, "--sigma", 0.12)[0] == 0
    assert len(table(tmp_path / "net.certify_sigma_0.12.tsv")) == 9


def test_a_checkpoint_file_on_an_own_set(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    """The rows of the run itself: what is exported can be read back."""
    digits = data.load("digits", "test")
    images, labels = digits.images.numpy(), digits.labels.numpy()
    named = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez(tmp_path / "own.npz", **named)
    (tmp_path / "net.py").write_text(
        "from covprop.models import build as make\n"
        "def build(num_classes, image_shape):\n"
        "    return make('lenet', num_classes=num_classes, image_shape=image_shape, width=4)\n"
    )
    words = ["--arch", tmp_path / "net.py:build", "--dataset", tmp_path / "own.npz"]
    weights = run_folder / "model.safetensors"
    code, _, err = cli("certify", weights, *words, "--sigma", 0.25, *QUICK)
    assert code == 0, err
    assert cli("certify", run_folder, *QUICK)[0] == 0
    rows = [table(run_folder / f"{stem}certify_sigma_0.25.tsv") for stem in ("model.", "")]
    assert [row[:5] for row in rows[0]] == [row[:5] for row in rows[1]]


def test_images_in_class_folders(cli: Cli, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        folder = tmp_path / "photos" / "val" / name
        folder.mkdir(parents=True)
        (tmp_path / "photos" / "train" / name).mkdir(parents=True)
        for place in (folder, tmp_path / "photos" / "train" / name):
            for i in range(2):
                pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.png")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(
        f'[data]\nname = "{tmp_path / "photos"}"\nnum_classes = 2\nimage_shape = [3, 224, 224]\n'
        '[model]\nname = "lenet"\nwidth = 1\n[noise]\nsigma = 0.5\n'
    )
    from covprop.models import build
    from covprop.train.checkpoint import save_weights

    net = build("lenet", num_classes=2, image_shape=(3, 224, 224), width=1)
    save_weights(run / "model.safetensors", net)
    code, _, err = cli("certify", run, "--n", 50, "--n0", 16)
    assert code == 0, err
    assert [row[:2] for row in table(run / "certify_sigma_0.5.tsv")[1:]] == [
        ["0", "0"],
        ["1", "0"],
        ["2", "1"],
        ["3", "1"],
    ]
    # Its size is in no checkpoint file: the model of another one is told how to go on.
    small = tmp_path / "small.safetensors"
    save_weights(small, build("lenet", num_classes=2, image_shape=(3, 32, 32)))
    code, _, err = cli("certify", small, "--arch", "lenet", "--dataset", tmp_path / "photos")
    warning, error = err.splitlines()
    assert code == 2
    assert "photos is read at 3×224×224" in warning
    assert warning.endswith("store the images at its size in an .npz file.")
    assert "small.safetensors" in error
