"""Refuse a network whose logits of an image depend on the rest of the batch.

Its margin is then not a function of x alone. Nor is the margin of probabilities one that a radius
can be read from: it ends at 1, where its slope vanishes. The estimators that trace a network find
out for themselves; those that only run it need this check.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.estimate.result import checked_logits
from covprop.independence import batch_with, check_norms, depends_on_batch
from covprop.logits import check_scale
from covprop.noise import seeded

RUN_ONLY = ("linearized", "sampled")
"""Estimators that run a network without tracing it."""

_CHECKED: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Networks that passed, with their state then: for one image the check costs as much as the
estimate, so it is not repeated."""


def check_independence(model: nn.Module, x: Tensor) -> None:
    """InvalidInput if the logits of x[0] change with the other images or their number.

    Tried once for each network: a pass of two images and one of three, in eval mode. That they are
    logits is seen there as well.
    """
    check_norms(model)
    state = _state(model, x)
    if _CHECKED.get(model) == state:
        return
    answers: list[Tensor] = []
    if _mixes(model, x, answers):
        raise InvalidInput(
            f"{type(model).__name__} answers an image by what else is in the batch, or by how "
            "many images are, so that no radius of it can be estimated; compute means and the like "
            "within an image, or use nn.BatchNorm2d."
        )
    if answers:  # none of a network that takes one image at a time
        check_scale(torch.cat(answers), type(model).__name__)
    _CHECKED[model] = state


def _state(model: nn.Module, x: Tensor) -> int:
    """A hash of the layers, their plain options and the shape of an image."""
    plain = (bool, int, float, str, type(None))
    parts = [
        (id(module), id(vars(module).get("forward")), name, value)
        for module in model.modules()
        for name, value in [("", None), *vars(module).items()]
        if isinstance(value, plain)
    ]
    return hash((tuple(parts), x.shape[1:]))


@torch.no_grad()
def _mixes(model: nn.Module, x: Tensor, answers: list[Tensor]) -> bool:
    """Whether it does; what it returned in the trial is left in `answers`."""
    image = x[0].detach()
    scale = 1.0 + float(image.abs().max())  # pixels need not lie in [0, 1]

    def logits(brightness: float, rows: int) -> Tensor:
        found = checked_logits(model, batch_with(image, brightness * scale, rows))
        answers.append(
            found.clone()
        )  # a replayed CUDA graph writes every answer to the same memory
        return answers[-1][0]

    with _uncompiled(), seeded(0, x.device):  # random layers must not move the caller's generator
        try:
            return depends_on_batch(logits)
        except InvalidInput:  # an exported network may take batches of one size only
            return len(x) > 1 and depends_on_batch(logits, rows=(len(x), len(x)))


def _uncompiled() -> AbstractContextManager[object]:
    """Run compiled networks uncompiled: for other batch sizes torch.compile would compile anew."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and the import takes a second
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
