"""Foreign layouts in, the same function out; nothing in a file is executed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from foreign import DATA, FACTS, X, resnet20
from torch import Tensor, nn

from covprop import checkpoints
from covprop.errors import InvalidInput


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return resnet20()


def by_hand(net: nn.Module) -> Tensor:
    """The network behind the data set's normalisation, written out."""
    mean = torch.tensor(FACTS.mean).view(3, 1, 1)
    std = torch.tensor(FACTS.std).view(3, 1, 1)
    return net((X - mean) / std)


def prefixed(net: nn.Module, prefix: str) -> dict[str, Tensor]:
    return {prefix + k: v for k, v in net.state_dict().items()}


@pytest.mark.parametrize("prefix", ["1.", "1.module."])
def test_cohens_layout(net: nn.Module, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth.tar"
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    torch.save(
        {
            "epoch": 90,
            "arch": "cifar_resnet20",
            "state_dict": prefixed(net, prefix),
            "optimizer": optimizer.state_dict(),
        },
        path,
    )
    model = checkpoints.load(checkpoints.read(path), **DATA)
    assert not model.training
    torch.testing.assert_close(model(X), by_hand(net))


@pytest.mark.parametrize("prefix", ["", "module."])
def test_macers_layout_has_no_normalisation(net: nn.Module, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "440.pth"
    torch.save({"net": prefixed(net, prefix), "epoch": 440}, path)
    with pytest.raises(InvalidInput, match="does not name its architecture; add --arch"):
        checkpoints.load(checkpoints.read(path), **DATA)
    model = checkpoints.load(checkpoints.read(path), arch="cifar_resnet20", **DATA)
    torch.testing.assert_close(model(X), net(X))


@pytest.mark.parametrize("prefix", ["model.", "net."])
def test_lightnings_layout(net: nn.Module, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": prefixed(net, prefix), "epoch": 3, "global_step": 9}, path)
    model = checkpoints.load(checkpoints.read(path), arch="cifar_resnet20", normalize=False, **DATA)
    torch.testing.assert_close(model(X), net(X))


def test_old_files_without_batch_counters(net: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    state = {k: v for k, v in prefixed(net, "1.").items() if "num_batches" not in k}
    torch.save(
        {"arch": "cifar_resnet20", "state_dict": state}, path, _use_new_zipfile_serialization=False
    )
    torch.testing.assert_close(checkpoints.load(checkpoints.read(path), **DATA)(X), by_hand(net))


def under(key: str) -> Callable[[dict[str, Tensor], Path], None]:
    return lambda state, path: torch.save({key: state, "epoch": 3, "optimizer": {}}, path)


@pytest.mark.parametrize(
    "save",
    [torch.save, safetensors.torch.save_file, under("model"), under("model_state_dict")],
)
def test_a_bare_state_dict_must_say_whether_pixels_are_normalised(
    net: nn.Module, save: Callable[[dict[str, Tensor], Path], None], tmp_path: Path
) -> None:
    path = tmp_path / ("net.safetensors" if save is safetensors.torch.save_file else "net.pth")
    save(net.state_dict(), path)
    with pytest.raises(InvalidInput, match=r"--normalize.*or --no-normalize"):
        checkpoints.load(checkpoints.read(path), arch="cifar_resnet20", **DATA)
    plain = checkpoints.load(checkpoints.read(path), arch="cifar_resnet20", normalize=False, **DATA)
    torch.testing.assert_close(plain(X), net(X))
    first = checkpoints.load(checkpoints.read(path), arch="cifar_resnet20", normalize=True, **DATA)
    torch.testing.assert_close(first(X), by_hand(net))


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_weights_of_a_compiled_network(net: nn.Module, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "compiled.pth"
    torch.save(prefixed(net, prefix), path)
    model = checkpoints.load(checkpoints.read(path), arch="cifar_resnet20", normalize=False, **DATA)
    torch.testing.assert_close(model(X), net(X))


def test_weights_for_an_architecture_that_compiles_itself(net: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "arch.py").write_text(
        "import torch\n"
        "from covprop.models import build\n"
        "def compiled(num_classes, image_shape):\n"
        "    shape = {'num_classes': num_classes, 'image_shape': image_shape}\n"
        "    return torch.compile(build('cifar_resnet20', **shape), backend='eager')\n"
    )
    path = tmp_path / "plain.pth"
    torch.save(net.state_dict(), path)
    arch = f"{tmp_path / 'arch.py'}:compiled"
    model = checkpoints.load(checkpoints.read(path), arch=arch, normalize=False, **DATA)
    torch.testing.assert_close(model(X), net(X))


class Trap:
    """Unpickling this would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("old", [False, True])
def test_a_checkpoint_that_carries_code_is_refused(old: bool, tmp_path: Path) -> None:
    path, sprung = tmp_path / "trap.pth", tmp_path / "sprung"
    torch.save(
        {"state_dict": {}, "extra": Trap(sprung)}, path, _use_new_zipfile_serialization=not old
    )
    with pytest.raises(InvalidInput, match=r"trap.pth carries code \(posix.system\).*not opened"):
        checkpoints.load(checkpoints.read(path), arch="lenet", **DATA)
    assert not sprung.exists()


def test_a_checkpoint_does_not_choose_code_to_run(tmp_path: Path) -> None:
    own, path = tmp_path / "own.py", tmp_path / "net.pth.tar"
    own.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    torch.save({"arch": f"{own}:build", "state_dict": {"w": torch.zeros(1)}}, path)
    with pytest.raises(InvalidInput, match=r"if it is yours, add --arch .*own\.py:build"):
        checkpoints.load(checkpoints.read(path), **DATA)
    assert not (tmp_path / "ran").exists()


def test_a_whole_pickled_model_is_refused(net: nn.Module, tmp_path: Path) -> None:
    torch.save(net, tmp_path / "whole.pth")
    with pytest.raises(InvalidInput, match="carries code"):
        checkpoints.read(tmp_path / "whole.pth")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged or of another kind"),
        (b"no checkpoint at all", "damaged or of another kind"),
        (b"PK\x03\x04 torn archive", "damaged or of another kind"),
    ],
)
def test_damaged_files_are_one_sentence(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        checkpoints.read(tmp_path / "x.pth")
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(InvalidInput, match="cannot be read as safetensors"):
        checkpoints.read(tmp_path / "x.safetensors")


@pytest.mark.parametrize("content", [{"weights": 3}, {}, [1, 2], torch.ones(2)])
def test_unknown_layouts_are_named(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(InvalidInput, match="but a checkpoint is"):
        checkpoints.read(tmp_path / "x.pth")


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="There is no checkpoint"):
        checkpoints.read(tmp_path / "x.pth")


def test_another_architecture_is_named(net: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save({"arch": "cifar_resnet20", "state_dict": prefixed(net, "1.")}, path)
    with pytest.raises(InvalidInput, match=r"does not fit the architecture lenet: it lacks \S+"):
        checkpoints.load(checkpoints.read(path), arch="lenet", **DATA)
    with pytest.raises(InvalidInput, match=r"fc.weight is \[10, 64\], not \[100, 64\]"):
        checkpoints.load(checkpoints.read(path), **{**DATA, "num_classes": 100})
    torch.save({"arch": "resnet50", "state_dict": prefixed(net, "1.")}, path)
    with pytest.raises(InvalidInput, match=r'^\S+/x\.pth: .*no model "resnet50"'):
        checkpoints.load(checkpoints.read(path), **DATA)


def test_weights_hash_sees_every_bit(net: nn.Module) -> None:
    before = checkpoints.weights_hash(net)
    with torch.no_grad():
        old = net.fc.bias[3].clone()
        net.fc.bias[3] = torch.nextafter(old, torch.tensor(9.0))
        assert checkpoints.weights_hash(net) != before
        net.fc.bias[3] = old
    assert checkpoints.weights_hash(net) == before
