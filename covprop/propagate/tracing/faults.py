"""The faults of a model in words: each with its place, reason and remedy."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx, nn

from covprop.errors import UnsupportedModel
from covprop.propagate.repairs import repair


class Fault(NamedTuple):
    """One operation that cannot be propagated."""

    name: str
    operation: str
    where: str
    why: str
    remedy: str

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.name}: {self.operation}{place}: {self.why}; {self.remedy}."


MAX_POOL = (
    "the maximum of Gaussians is not Gaussian",
    "use average pooling (covprop.fix does it for you)",
)
MAX_POOL_CALL = (MAX_POOL[0], "write average pooling there")
MAX_CALL = (
    MAX_POOL[0],
    "write average pooling there, or, for the larger of it and a constant, torch.maximum",
)
PER_IMAGE_NORM = (
    "it divides by a statistic of each image, so the covariance would differ by image",
    "use nn.BatchNorm or covprop.ActNorm (covprop.fix puts in ActNorm)",
)
PER_IMAGE_NORM_CALL = (PER_IMAGE_NORM[0], "write nn.BatchNorm or covprop.ActNorm there")
SOFTMAX = ("it is not element-wise", "let the model return logits")
ATTENTION = ("it multiplies random values with each other", "use convolutional blocks")
STACK = ("it adds a dimension", "use torch.cat, along dimension 1")
UNBIND = ("its parts are not read one by one", "name them, as in a, b = x.unbind(2)")
SPLIT = ("its parts are not read one by one", "name them, as in a, b = x.chunk(2, 1)")

REASONS: dict[Any, tuple[str, str]] = {
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), MAX_POOL),
    **dict.fromkeys((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), MAX_POOL),
    **dict.fromkeys((F.max_pool1d, F.max_pool2d, F.max_pool3d), MAX_POOL_CALL),
    **dict.fromkeys((torch.max_pool1d, torch.max_pool2d, torch.max_pool3d), MAX_POOL_CALL),
    **dict.fromkeys((F.adaptive_max_pool1d, F.adaptive_max_pool2d), MAX_POOL_CALL),
    **dict.fromkeys((torch.max, torch.Tensor.max), MAX_CALL),
    **dict.fromkeys((torch.amax, torch.Tensor.amax, nn.FractionalMaxPool2d), MAX_POOL_CALL),
    **dict.fromkeys((nn.LayerNorm, nn.GroupNorm), PER_IMAGE_NORM),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), PER_IMAGE_NORM),
    **dict.fromkeys((nn.LocalResponseNorm, nn.RMSNorm), PER_IMAGE_NORM_CALL),
    **dict.fromkeys((F.layer_norm, F.group_norm, F.instance_norm), PER_IMAGE_NORM_CALL),
    **dict.fromkeys((F.rms_norm, F.normalize), PER_IMAGE_NORM_CALL),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax, F.softmax, F.log_softmax), SOFTMAX),
    **dict.fromkeys((torch.softmax, torch.Tensor.softmax, torch.log_softmax), SOFTMAX),
    **dict.fromkeys((nn.MultiheadAttention, F.scaled_dot_product_attention), ATTENTION),
    **dict.fromkeys((nn.TransformerEncoderLayer, nn.TransformerDecoderLayer), ATTENTION),
    **dict.fromkeys((torch.chunk, torch.Tensor.chunk, torch.split, torch.Tensor.split), SPLIT),
    **{torch.stack: STACK, torch.unbind: UNBIND, torch.Tensor.unbind: UNBIND},
}


BY_HAND = {MAX_POOL: MAX_POOL_CALL, PER_IMAGE_NORM: PER_IMAGE_NORM_CALL}
"""The words for a layer that `covprop.fix` leaves although it replaces others of its type."""


def explain(operation: Any, target: Any = None) -> tuple[str, str]:
    """Why an operation without a rule cannot be propagated, and what to do about it.

    `target` is the module itself, if it is one: `covprop.fix` does not mend all of a type.
    """
    known = REASONS.get(operation)
    if known and isinstance(target, nn.Module) and repair(target) is None:
        known = BY_HAND.get(known, known)
    return known or (
        "it has no rule",
        "register one with covprop.rule, or covprop.elementwise if it is an activation",
    )


def unsupported(model: str, faults: Sequence[Fault]) -> UnsupportedModel:
    """The error that lists every fault of a model."""
    count = "one operation" if len(faults) == 1 else f"{len(faults)} operations"
    lines = "\n".join(f"  {fault}" for fault in faults)
    return UnsupportedModel(f"{model} has {count} that covprop cannot propagate:\n{lines}", faults)


_COVPROP = Path(__file__).parents[1]
# A model's source line is in the user's files or in covprop/models, in no other part of covprop.
_NOT_USERS = tuple(
    f"{folder}{os.sep}"
    for folder in (
        Path(torch.__file__).parent,
        *(path for path in _COVPROP.iterdir() if path.is_dir() and path.name != "models"),
    )
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def source_line(node: fx.Node) -> str:
    """The innermost line of the user's own code that made a node, as file:line."""
    found = ""
    for match in _FRAME.finditer(node.stack_trace or ""):
        if not match["file"].startswith(_NOT_USERS):
            found = f"{match['file']}:{match['line']}"
    return found


def failed_line(error: BaseException) -> str:
    """The innermost line of the user's own code that an error came through, as file:line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_USERS)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
