"""The registry: names, options, own files, and what a mistake says."""

import pickle
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import covprop.models as models
from covprop.errors import InvalidInput
from covprop.models import MODELS, build
from covprop.propagate.propagator import Propagator

CIFAR = {"num_classes": 10, "image_shape": (3, 32, 32)}

OWN = """
from neighbour import HIDDEN
from torch import nn

def build(num_classes, image_shape, hidden=HIDDEN):
    pixels = image_shape[0] * image_shape[1] * image_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.Linear(hidden, num_classes))

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 10))

def needs(num_classes, depth):
    return nn.Identity()

def everything(**facts):
    net = nn.Identity()
    net.facts = facts
    return net

def wrong(num_classes):
    return num_classes

value = 3
ready = nn.Linear(2, 2)
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "neighbour.py").write_text("HIDDEN = 7\n")
    (tmp_path / "my_net.py").write_text(OWN)
    return str(tmp_path / "my_net.py")


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_colour_and_grey_and_traces(name: str) -> None:
    options = {"width": 4} if name != "cnn9" else {}
    for shape in [(3, 32, 32), (1, 28, 28)]:
        net = build(name, num_classes=7, image_shape=shape, **options).eval()
        x = torch.rand(2, *shape)
        assert net(x).shape == (2, 7)
        torch.testing.assert_close(torch.fx.symbolic_trace(net)(x), net(x))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_propagates_in_training_and_evaluation(name: str) -> None:
    options = {"width": 4} if name != "cnn9" else {}
    net = build(name, num_classes=7, image_shape=(3, 32, 32), mean=(0.5,) * 3, std=(0.2,) * 3,
                **options)  # fmt: skip
    prop = Propagator(net, sigma=0.25, input_shape=(3, 32, 32))
    x = torch.rand(2, 3, 32, 32)
    for mode in (True, False):
        out = prop.train(mode)(x)
        assert out.mean.shape == (2, 7)
        assert out.mean.isfinite().all()
        assert torch.linalg.eigvalsh(out.cov.double()).min() > -1e-5 * out.cov.abs().max()
        assert torch.diagonal(out.cov).min() > 0


@pytest.mark.parametrize(
    ("norm", "size"), [("none", 32), ("act", 32), ("none", 128), ("batch", 128)]
)
def test_every_norm_and_stem_propagates(norm: str, size: int) -> None:
    shape = (3, size, size)
    net = build("preact_resnet18", num_classes=7, image_shape=shape, width=4, norm=norm)
    x = torch.rand(2, *shape)
    net(x)  # act norm sets itself from its first batch
    out = Propagator(net, sigma=0.25, input_shape=shape)(x)
    assert out.mean.isfinite().all()
    assert torch.diagonal(out.cov).min() > 0


@pytest.mark.parametrize("name", MODELS)
def test_no_model_has_a_max_pool_by_default(name: str) -> None:
    options = {"width": 4} if name != "cnn9" else {}
    net = build(name, num_classes=7, image_shape=(3, 224, 224), **options)
    assert not any(isinstance(layer, nn.MaxPool2d) for layer in net.modules())


def test_normalisation_comes_first_and_travels_with_the_weights() -> None:
    net = build("lenet", **CIFAR, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.5), width=2)
    assert [type(layer) for layer in net.children()] == [models.Normalize, models.LeNet]
    assert list(net.state_dict())[:3] == ["0.mean", "0.std", "1.conv1.weight"]
    x = torch.rand(2, 3, 32, 32)
    by_hand = torch.stack(
        [(x[:, c] - (0.4, 0.5, 0.6)[c]) / (0.2, 0.25, 0.5)[c] for c in range(3)], dim=1
    )
    torch.testing.assert_close(net(x), net[1](by_hand))


def test_own_file_gets_facts_options_and_its_neighbours(own: str) -> None:
    net = build(f"{own}:build", num_classes=4, image_shape=(1, 8, 8))
    assert net(torch.rand(2, 1, 8, 8)).shape == (2, 4)
    assert net[1].out_features == 7
    net = build(f"{own}:build", num_classes=4, image_shape=(1, 8, 8), hidden=5, mean=[0], std=[1])
    assert net[1][1].out_features == 5
    assert build(f"{own}:fixed", num_classes=10, image_shape=(3, 8, 8))[1].in_features == 192
    net = build(f"{own}:everything", **CIFAR, depth=2)
    assert net.facts == {**CIFAR, "depth": 2}


def test_lazy_layers_find_their_sizes(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\ndef build(num_classes):\n"
        "    head = nn.Sequential(nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(num_classes))\n"
        "    return nn.Sequential(nn.LazyConv2d(2, 3), head)\n"
    )
    torch.manual_seed(0)
    net = build(f"{tmp_path / 'net.py'}:build", **CIFAR, mean=[0] * 3, std=[1] * 3)
    assert net.training
    assert net[1][1][2].in_features == 2 * 30 * 30
    assert net[1][1][0].num_batches_tracked == 0
    torch.manual_seed(0)
    again = build(f"{tmp_path / 'net.py'}:build", **CIFAR)
    torch.testing.assert_close(again.state_dict(), net[1].state_dict())


def test_files_of_one_name_do_not_shadow_each_other(tmp_path: Path) -> None:
    nets = []
    for folder, width in (("one", 2), ("two", 3)):
        file = tmp_path / folder / "net.py"
        file.parent.mkdir()
        file.write_text(
            f"from torch import nn\nclass Net(nn.Linear):\n    def __init__(self):\n"
            f"        super().__init__({width}, 2)\n"
        )
        nets.append(build(f"{file}:Net", num_classes=2, image_shape=(1, 8, 8)))
    for net, width in zip(nets, (2, 3), strict=True):
        kind = type(net)
        assert sys.modules[kind.__module__].Net is kind
        assert pickle.loads(pickle.dumps(net)).in_features == width


def test_own_file_mistakes_are_one_sentence(own: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import torch\n\nx = unknown_name\n")
    (tmp_path / "syntax.py").write_text("x = 1\nx = = 2\n")
    (tmp_path / "late.py").write_text("def build():\n    return unknown_name\n")
    (tmp_path / "quits.py").write_text("import sys\n\nsys.exit()\n")
    (tmp_path / "quits_late.py").write_text("import sys\n\ndef build():\n    sys.exit('no')\n")
    cases = {
        str(tmp_path / "none.py:build"): "there is no file",
        f"{own}:nothing": 'defines no function "nothing"',
        f"{own}:value": "is of type int; name a function or class there that makes the network",
        f"{own}:ready": "is of type Linear; name a function or class",
        f"{own}:wrong": "returned an object of type int, but must return an nn.Module",
        f"{own}:needs": "model.depth has no value",
        str(tmp_path / "broken.py:build"): "failed at line 3 with NameError",
        str(tmp_path / "syntax.py:build"): "failed at line 2 with SyntaxError",
        str(tmp_path / "late.py:build"): "failed at line 2 with NameError",
        str(tmp_path / "quits.py:build"): r"failed at line 3 with SystemExit\.$",
        str(tmp_path / "quits_late.py:build"): r"failed at line 4 with SystemExit: no\.$",
    }
    for name, message in cases.items():
        with pytest.raises(InvalidInput, match=message):
            build(name, **CIFAR)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lenett", {}, 'no model "lenett" .did you mean "lenet"'),
        ("lenet", {"widht": 3}, 'no option model.widht .did you mean "width"'),
        ("lenet", {"width": "3"}, "model.width must be a whole number, not '3'"),
        ("lenet", {"width": 0}, "model.width must be at least 1"),
        ("lenet", {"image_shape": (3, 7, 32)}, "at least 8×8 pixels, not 7×32"),
        ("lenet", {"image_shape": (3, 32)}, "image_shape must be"),
        ("lenet", {"image_shape": 8}, r"image_shape must be \(channels, height, width\), not 8"),
        ("lenet", {"num_classes": 1}, "at least two classes"),
        ("lenet", {"num_classes": 3.5}, "a whole number of at least two classes, not 3.5"),
        ("lenet", {"num_classes": "3"}, "a whole number of at least two classes, not '3'"),
        ("lenet", {"mean": (0.1,), "std": (0.1,)}, "1 channel means for images of 3"),
        ("lenet", {"mean": (0.1,) * 3}, "only one of mean and std"),
        ("lenet", {"mean": (0.1,) * 3, "std": (1.0, 0.0, 1.0)}, "standard deviations above 0"),
        ("preact_resnet18", {"norm": "layer"}, "model.norm must be one of 'batch', 'none', 'act'"),
        ("preact_resnet18", {"stem": "big"}, "model.stem must be one of 'auto'"),
        ("preact_resnet18", {"width": -1}, "width must be at least 1"),
        ("preact_resnet18", {"depth": 34}, "no option model.depth"),
        ("cnn9", {"pool": "median"}, "model.pool must be one of 'average', 'max'"),
        ("cnn9", {"dropout": 1.0}, "dropout in .0, 1"),
        ("cnn9", {"image_shape": (3, 27, 32)}, "at least 28×28"),
    ],
)
def test_mistakes_name_the_thing_and_the_remedy(name: str, options: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build(name, **{**CIFAR, **options})


def test_a_model_without_numbers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n"
        "def build(num_classes):\n"
        "    return torch.nn.Linear(3, num_classes, device='meta')\n"
    )
    with pytest.raises(InvalidInput, match="on the meta device"):
        build(f"{file}:build", **CIFAR)
