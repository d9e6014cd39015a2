"""`covprop inspect`."""

from collections.abc import Callable
from pathlib import Path

from nets import own_net

Cli = Callable[..., tuple[int, str, str]]


def test_inspect_writes_the_page_and_prints_the_table(run_folder: Path, cli: Cli) -> None:
    words = ("--n", 50, "--max", 3, "--certify-n", 1000, "--device", "cpu")
    code, out, err = cli("inspect", run_folder, *words, "--show", "layers,distribution,last-layer")
    assert (code, err) == (0, "")
    folder = run_folder / "inspect"
    assert out.splitlines()[-1] == str(folder / "inspect.html")
    assert "conv3" in out
    assert "Inside lenet on digits, σ = 0.25" in (folder / "inspect.html").read_text("utf-8")
    assert len((folder / "layers.csv").read_text("utf-8").splitlines()) == 6


def test_chosen_layers_images_and_channels(run_folder: Path, cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli(
        "inspect", run_folder, "--n", 40, "--max", 2, "--certify-n", 1000, "--layers", "1,3",
        "--images", "7,100", "--channels", "1,3", "--r-max", "estimated", "--out", tmp_path / "o",
        "--show", "layers,distribution,last-layer", "--device", "cpu",
    )  # fmt: skip
    assert (code, err) == (0, "")
    layers = (tmp_path / "o" / "layers.csv").read_text("utf-8").splitlines()[1:]
    assert [line.split(",")[0] for line in layers] == ["1", "3"]
    assert all(line.split(",")[-1] != "0.2" for line in layers)
    images = (tmp_path / "o" / "last_layer.csv").read_text("utf-8").splitlines()[1:]
    assert [line.split(",")[0] for line in images] == ["7", "100"]
    units = (tmp_path / "o" / "distribution.csv").read_text("utf-8").splitlines()[1:]
    assert {line.split(",")[2] for line in units} == {"1 3"}


def test_a_slip_is_one_sentence(run_folder: Path, cli: Cli) -> None:
    for words, sentence in (
        (("--layers", "99"), "there is no layer '99'"),
        (("--images", "x"), '--images is "x"'),
        (("--images", "5000"), "--images names 5000, but there are 360 images"),
        (("--channels", "1"), '--channels is "1": give two numbers'),
        (("--show", "all"), "there is no part 'all'"),
        (("--r-max", "much"), "r_max is 'much'"),
        (("--n", "2"), "samples is 2"),
    ):
        code, _, err = cli("inspect", run_folder, "--max", 2, "--device", "cpu", *words)
        assert code == 2
        assert sentence in err
        assert err.count("\n") == 1


def test_a_network_without_rules_is_sent_elsewhere(tmp_path: Path, cli: Cli) -> None:
    layers = "nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, num_classes)"
    setting = f"model={own_net(tmp_path, layers)}"
    run = tmp_path / "run"
    words = ("--set", setting, "--set", "train.device=cpu", "--epochs", 1, "--out", run)
    assert cli("train", "digits/gaussian-0.25", *words)[0] == 0
    code, _, err = cli("inspect", run, "--max", 2, "--device", "cpu")
    assert code == 2
    assert "the maximum of Gaussians is not Gaussian; use average pooling" in err
    assert err.endswith("`covprop explore` and `covprop estimate` take this network.\n")
    assert not (run / "inspect").exists()
