"""What is written for other tools comes back as the same model."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from foreign import DATA, FACTS, X, resnet20
from torch import nn

from covprop import checkpoints
from covprop.errors import CovpropError, InvalidInput
from covprop.exports import export
from covprop.models import Normalize, build
from covprop.train.checkpoint import save_weights


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return resnet20()


def test_stored_constants_win_over_the_data_sets(net: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = nn.Sequential(Normalize((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)), net)
    export(model, path, to="safetensors", arch="cifar_resnet20", image_shape=(3, 32, 32))
    loaded = checkpoints.load(checkpoints.read(path), arch="cifar_resnet20", **DATA)
    torch.testing.assert_close(loaded(X), model(X))
    assert checkpoints.weights_hash(loaded) == checkpoints.weights_hash(model)


def test_cohen_export_comes_back(net: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "sub" / "net.pth.tar"
    model = nn.Sequential(Normalize(FACTS.mean, FACTS.std), net)
    export(model, path, to="cohen", arch="cifar_resnet20", image_shape=(3, 32, 32))
    content = torch.load(path, weights_only=True)
    assert content["arch"] == "cifar_resnet20"
    assert set(content["state_dict"]) == {f"1.{k}" for k in net.state_dict()}
    torch.testing.assert_close(checkpoints.load(checkpoints.read(path), **DATA)(X), model.eval()(X))


def test_cohen_export_of_a_model_without_normalisation_is_refused(
    net: nn.Module, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="not trained with; export it as safetensors or onnx"):
        export(net, tmp_path / "x", to="cohen", arch="cifar_resnet20", image_shape=(3, 32, 32))


def test_onnx_without_its_packages_says_how_to_get_them(
    net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(CovpropError, match=r"pip install '\.\[onnx\]'"):
        export(net, tmp_path / "x.onnx", to="onnx", arch="cifar_resnet20", image_shape=(3, 32, 32))
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript")),
    reason="the optional extra onnx is not installed",
)
def test_onnx_computes_the_same_logits(tmp_path: Path) -> None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    net = build("lenet", num_classes=4, image_shape=(1, 8, 8), mean=(0.3,), std=(0.2,), width=2)
    path = tmp_path / "x.onnx"
    export(net.eval(), path, to="onnx", arch="lenet", image_shape=(1, 8, 8))
    x = torch.rand(5, 1, 8, 8)
    (logits,) = ReferenceEvaluator(onnx.load(path)).run(None, {"images": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), net(x), atol=1e-5, rtol=1e-4)


def test_an_unknown_format_is_named(net: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match='no format "h5"; choose one of safetensors'):
        export(net, tmp_path / "x", to="h5", arch="a", image_shape=(3, 32, 32))


@pytest.mark.parametrize(("to", "name"), [("safetensors", "x.safetensors"), ("cohen", "x.pth")])
def test_a_file_says_its_architecture_options_and_image_shape(
    tmp_path: Path, to: str, name: str
) -> None:
    """Where the pool takes its maxima is in no weight: read with the defaults it were another."""
    options = {"pool": "max", "dropout": 0.25}
    model = build("cnn9", **DATA, **options).eval()
    export(
        model, tmp_path / name, to=to, arch="cnn9", options=options, image_shape=FACTS.image_shape
    )
    read = checkpoints.read(tmp_path / name)
    assert (read.options, read.image_shape) == (options, FACTS.image_shape)
    torch.testing.assert_close(
        checkpoints.load(checkpoints.read(tmp_path / name), **DATA)(X), model(X)
    )
    with pytest.raises(InvalidInput, match="does not fit the architecture lenet"):
        checkpoints.load(
            checkpoints.read(tmp_path / name), arch="lenet", **DATA
        )  # which has no such options


def test_options_of_ones_own_code_go_with_it_into_another_folder(tmp_path: Path) -> None:
    """The file chooses no code to run, but says with which options the code that is named is."""
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "def build(num_classes, slope):\n"
        "    layers = nn.Flatten(), nn.LeakyReLU(slope), nn.Linear(3072, num_classes)\n"
        "    return nn.Sequential(*layers)\n"
    )
    arch, path = f"{tmp_path / 'own.py'}:build", tmp_path / "x.safetensors"
    model = build(arch, **DATA, slope=0.5).eval()
    there = "/elsewhere/own.py:build"
    export(
        model, path, to="safetensors", arch=there, options={"slope": 0.5}, image_shape=(3, 32, 32)
    )
    with pytest.raises(InvalidInput, match=r"if it is yours, add --arch /elsewhere/own\.py:build"):
        checkpoints.load(checkpoints.read(path), **DATA)
    torch.testing.assert_close(
        checkpoints.load(checkpoints.read(path), arch=arch, **DATA)(X), model(X)
    )


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("num_classes = 3\nmean = [0.5]\nstd = [0.5]", ""),  # the data set's count
        ("[data]\nimage_shape = [3, 0, 32]", "does not name its architecture"),
        ("[data]\nsize = 3", "does not name its architecture"),
        ('pool = "no"', r"^\S+/x\.safetensors: model\.pool must be"),
        ("nope = 1", r"^\S+/x\.safetensors: there is no option model\.nope"),
        ("pool = [", "does not name its architecture"),
    ],
)
def test_whatever_a_file_says_of_its_model_is_no_traceback(
    tmp_path: Path, said: str, message: str
) -> None:
    path, model = tmp_path / "x.safetensors", build("cnn9", **DATA)
    save_weights(path, model, {checkpoints.SAID: f'[model]\nname = "cnn9"\n{said}\n'})
    if not message:
        torch.testing.assert_close(
            checkpoints.load(checkpoints.read(path), **DATA)(X), model.eval()(X)
        )
        return
    with pytest.raises(InvalidInput, match=message):
        checkpoints.load(checkpoints.read(path), **DATA)
