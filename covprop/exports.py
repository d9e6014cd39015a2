"""Weights for other tools, which `covprop.checkpoints` reads back as the same model."""

import copy
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covprop.checkpoints import SAID
from covprop.errors import CovpropError, InvalidInput, install
from covprop.files import write
from covprop.models import Normalize
from covprop.train.checkpoint import save_weights
from covprop.train.toml import dumps

FORMATS = {"safetensors": ".safetensors", "onnx": ".onnx", "cohen": ".pth.tar"}
"""Formats to export to, and how their files end."""


def ending(to: str) -> str:
    """How the files of a format end, or one sentence if there is no such format."""
    if to not in FORMATS:
        raise InvalidInput(f'There is no format "{to}"; choose one of {", ".join(FORMATS)}.')
    return FORMATS[to]


def check_name(path: Path, to: str) -> None:
    """Refuse a name by which readers, `read` among them, take the file for another format."""
    end = ending(to)  # refuses a format that there is not
    if {".safetensors": "safetensors", ".onnx": "onnx"}.get(path.suffix, "cohen") != to:
        raise InvalidInput(
            f"{path} is no name for a file of the format {to}; choose one that ends in {end}, or "
            "another format with --to."
        )


def export(
    model: nn.Module,
    path: Path,
    *,
    to: str,
    arch: str,
    image_shape: tuple[int, int, int],
    options: Mapping[str, Any] | None = None,
    added: tuple[Sequence[float], Sequence[float]] | None = None,
) -> None:
    """Write the base classifier for other tools: safetensors, onnx, or {arch, state_dict}.

    But for onnx, which holds the network itself, the file says `arch`, its `options` and the shape
    of its images.
    `added` are the data set's mean and std, where known: what readers of the last normalise by.
    """
    check_name(path, to)
    config = {"model": {"name": arch, **(options or {})}, "data": {"image_shape": image_shape}}
    said = {SAID: dumps(config)}
    if to == "safetensors":
        save_weights(path, model, said)
    elif to == "cohen":
        buffer = io.BytesIO()
        torch.save({"arch": arch, "state_dict": _cohen_state(model, added), **said}, buffer)
        write(path, buffer.getvalue())
    else:
        write(path, _onnx(model, image_shape))


def _cohen_state(
    model: nn.Module, added: tuple[Sequence[float], Sequence[float]] | None
) -> dict[str, Tensor]:
    """Keys `1.…`, without the normalising layer: the older tools keep its constants in code."""
    parts = list(model.children()) if isinstance(model, nn.Sequential) else []
    first = parts[0] if len(parts) == 2 else None
    same = isinstance(first, Normalize)
    if isinstance(first, Normalize) and added is not None:
        own = [*first.mean.flatten().tolist(), *first.std.flatten().tolist()]
        theirs = zip(own, [*added[0], *added[1]], strict=False)
        same = all(math.isclose(x, y, rel_tol=1e-4) for x, y in theirs)
    if not same:
        raise InvalidInput(
            "the older tools normalise every image with the data set's mean and std, which this "
            "model was not trained with; export it as safetensors or onnx."
        )
    return {f"1.{k}": v.detach().cpu() for k, v in parts[1].state_dict().items()}


def _onnx(model: nn.Module, image_shape: tuple[int, int, int]) -> bytes:
    """The base classifier, images [batch, c, h, w] in [0, 1] to logits, batch of any size."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise CovpropError(
            f"ONNX export needs two more packages; install them with {install('onnx')}."
        ) from None
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            copy.deepcopy(model).cpu().eval(),
            (torch.zeros(2, *image_shape),),
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: batch},),
        )
    assert program is not None
    return program.model_proto.SerializeToString()
