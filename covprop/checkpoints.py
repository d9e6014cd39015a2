"""Weights from other tools: read without running their code, matched key by key.

| layout | content | normalisation |
|---|---|---|
| safetensors | tensors | as its keys say (`0.mean`, `0.std`), else to be told |
| Cohen et al. | `{arch, state_dict, …}`, keys `1.…`, `1.module.…` | the data set's constants |
| MACER | `{net, epoch}` | none |
| PyTorch's tutorials, torchvision | `{model_state_dict, …}`, `{model, …}` | as the next |
| PyTorch Lightning | `{state_dict, …}`, keys `model.…` or `net.…` | as the next |
| bare state_dict | tensors | as its keys say, else to be told |
"""

import hashlib
import json
import pickle
import re
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.models import Normalize, build
from covprop.options import Range, check_value
from covprop.train.checkpoint import differences

# What wraps the network in a checkpoint's keys, and whether that means a normalising layer before.
WRAPPINGS = {
    **{"": None, "module.": None, "1.": True, "1.module.": True, "module.1.": True},
    **{"model.": None, "net.": None},  # as most call it in a LightningModule
}
STATES = ("state_dict", "net", "model", "model_state_dict")
NORMALIZED = {"net": False}
"""Layouts that say by their name whether pixels are normalised."""
SAID = "covprop"
"""Where `export` says the architecture, its options and the shape of its images, as a run's
config.toml has them."""
SHAPE = tuple[Annotated[int, Range(1)], Annotated[int, Range(1)], Annotated[int, Range(1)]]


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a file under their own keys, less what torch.compile adds to these, and what
    else the layout says."""

    path: Path
    tensors: Mapping[str, Tensor]
    arch: str | None = None
    normalized: bool | None = None  # None: the layout does not say
    options: Mapping[str, Any] = field(default_factory=dict)  # the architecture's, where it says
    image_shape: tuple[int, int, int] | None = None  # None: it does not say

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", {_bare(k): v for k, v in self.tensors.items()})

    def options_of(self, arch: str) -> dict[str, Any]:
        """What it says of this architecture; one's own code may lie in another folder now."""
        same = Path(arch).name == Path(self.arch or "").name
        return dict(self.options) if same else {}


def read(path: Path) -> Checkpoint:
    """Read a checkpoint of any of the layouts; nothing in the file is executed."""
    if path.suffix == ".safetensors":
        try:
            data = path.read_bytes()
            tensors = safetensors.torch.load(data)
        except (OSError, SafetensorError) as error:
            raise InvalidInput(f"{path} cannot be read as safetensors ({error}).") from error
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return Checkpoint(path, tensors, **_said(header.get("__metadata__", {}).get(SAID)))
    content = _unpickle(path)
    if isinstance(content, dict):
        named = {"arch": content["arch"]} if isinstance(content.get("arch"), str) else {}
        said = {**named, **_said(content.get(SAID))}
        for key in STATES:
            if _is_state(content.get(key)):
                return Checkpoint(path, content[key], normalized=NORMALIZED.get(key), **said)
    if _is_state(content):
        return Checkpoint(path, content)
    found = f"a {type(content).__name__}"
    if isinstance(content, dict) and content:
        found = f"the keys {', '.join(map(str, list(content)[:4]))}"
    raise InvalidInput(
        f"{path} holds {found}, but a checkpoint is a bare state_dict or has one under "
        f"{', '.join(STATES)}; save the model's state_dict() instead."
    )


def load(
    checkpoint: Checkpoint,
    *,
    arch: str | None = None,
    num_classes: int,
    image_shape: tuple[int, int, int],
    mean: Sequence[float],
    std: Sequence[float],
    normalize: bool | None = None,
) -> nn.Module:
    """The model of a checkpoint, in eval mode on the CPU.

    `arch` is a model's name (`cifar_resnet110`, `my_net.py:build`), needed unless the file says.
    `mean` and `std` are the data set's: they become the first layer where the layout means one, or
    where `normalize` says so.
    """
    path, name = checkpoint.path, arch or checkpoint.arch
    if name is None:
        raise InvalidInput(f"{path} does not name its architecture; add --arch, such as lenet.")
    if arch is None and ".py:" in name:
        raise InvalidInput(
            f"{path} names {name} as its architecture, and no checkpoint may choose code to run; "
            f"if it is yours, add --arch {name}."
        )
    facts = {"num_classes": num_classes, "image_shape": image_shape, "mean": None, "std": None}
    said = checkpoint.options_of(name)
    try:
        net = build(name, **{**said, **facts})  # whatever the file says of these
    except InvalidInput as error:
        if arch is None or said:  # the file says what is wrong, not the caller
            raise InvalidInput(f"{path}: {error}") from error
        raise
    tensors, wrapped = _unwrap(checkpoint, net, name)
    stored = [checkpoint.tensors.get(key) for key in ("0.mean", "0.std")]
    if normalize is None:
        normalize = wrapped if checkpoint.normalized is None else checkpoint.normalized
    if normalize is None:
        raise InvalidInput(
            f"{path} does not say whether pixels are normalised before they enter the network; "
            "add --normalize (with the data set's mean and std) or --no-normalize."
        )
    net.load_state_dict(tensors)
    if not normalize:
        return net.eval()
    if isinstance(stored[0], Tensor) and isinstance(stored[1], Tensor):
        mean, std = stored[0].flatten().tolist(), stored[1].flatten().tolist()
    return nn.Sequential(Normalize(mean, std), net).eval()


def weights_hash(model: nn.Module) -> str:
    """SHA-256 of every tensor of the state_dict with its name, type and shape."""
    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().cpu().contiguous()
        digest.update(f"{key}\n{flat.dtype}\n{list(flat.shape)}\n".encode())
        digest.update(flat.flatten().view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()


def _said(text: object) -> dict[str, Any]:
    """What `export` wrote of a model, as fields of `Checkpoint`; nothing of other tools' files."""
    try:
        config = tomllib.loads(str(text))
        options = dict(config["model"])
        found = {"arch": str(options.pop("name")), "options": options}
        if "data" in config:  # files of before do not say it
            shape = check_value("image_shape", config["data"]["image_shape"], SHAPE)
            found["image_shape"] = shape
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError):
        return {}
    return found


def _unpickle(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old files name storage classes of old releases
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InvalidInput(f"There is no checkpoint {path}.") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        if code:
            raise InvalidInput(
                f"{path} carries code ({code[1]}) besides its tensors and is not opened; ask for, "
                "or save, only the model's state_dict()."
            ) from error
        raise InvalidInput(
            f"{path} cannot be read as a checkpoint; the file is damaged or of another kind."
        ) from error


def _is_state(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())
    )


def _bare(key: str) -> str:
    """A key without what torch.compile adds where a module is compiled."""
    return key.replace("_orig_mod.", "")


def _unwrap(
    checkpoint: Checkpoint, net: nn.Module, name: str
) -> tuple[dict[str, Tensor], bool | None]:
    """The network's own tensors, and whether the keys show a normalising layer before it."""
    keys = {_bare(key): key for key in net.state_dict()}
    own = {_bare(key): value for key, value in net.state_dict().items()}
    faults = []
    for prefix, normalized in WRAPPINGS.items():
        # A normalising layer's constants may be stored (`0.mean`) or not; they are no weights.
        theirs = {k: v for k, v in checkpoint.tensors.items() if k not in ("0.mean", "0.std")}
        tensors = {k.removeprefix(prefix): v for k, v in theirs.items() if k.startswith(prefix)}
        # Files from before torch 0.4.1 lack the batch counters, which no prediction uses.
        for key in own:
            if key.endswith("num_batches_tracked"):
                tensors.setdefault(key, own[key])
        wrong = differences(tensors, own)
        if not wrong and all(k.startswith(prefix) for k in theirs):
            return {keys[k]: v for k, v in tensors.items()}, normalized
        faults.append(wrong)
    best = min((f for f in faults if f), key=len, default=["its keys are of another model"])
    count = f" ({len(best)} such differences)" if len(best) > 1 else ""
    raise InvalidInput(
        f"{checkpoint.path} does not fit the architecture {name}: {best[0]}{count}; choose the "
        "right one with --arch."
    )
