"""Refuse a network that answers an image by what else is in the batch, or by how much.

Its margin at x + noise is then none of x alone. Nor is the margin of probabilities one that a
radius can be read from: it ends at 1, where its slope vanishes. The estimators that trace a network
see that for themselves; those that only run it are told here.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from covprop.company import beside, check_norms, depends_on_company
from covprop.errors import InvalidInput
from covprop.estimate.result import checked_logits
from covprop.logits import check_scale
from covprop.noise import seeded

RUN_ONLY = ("linearized", "sampled")
"""Estimators that never look at a network's steps."""

_SEEN: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Networks that were tried, as they then were: one image at a time, a trial would cost as much as
the estimate."""


def check_alone(model: nn.Module, x: Tensor) -> None:
    """One sentence where the logits of x[0] change with the images beside it, or their number.

    Found by trial, once for a network: a pass of two images and one of three, in eval mode. That
    they are logits is seen there as well.
    """
    check_norms(model)
    now = _likeness(model, x)
    if _SEEN.get(model) == now:
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
    _SEEN[model] = now


def _likeness(model: nn.Module, x: Tensor) -> int:
    """A number that changes with the layers, their plain options and the shape of an image."""
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
    scale = 1.0 + float(image.abs().max())  # on another scale than [0, 1] 1 may be next to nothing

    def logits(brightness: float, rows: int) -> Tensor:
        found = checked_logits(model, beside(image, brightness * scale, rows))
        answers.append(found.clone())  # a recorded network writes every answer to the same place
        return answers[-1][0]

    with _uncompiled(), seeded(0, x.device):  # a network that draws leaves the caller's numbers
        try:
            return depends_on_company(logits)
        except InvalidInput:  # perhaps it takes batches of one size alone, as an exported one does
            return len(x) > 1 and depends_on_company(logits, rows=(len(x), len(x)))


def _uncompiled() -> AbstractContextManager[object]:
    """Batches of another size would have torch.compile at work again, and for longer than this."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and to import it takes a second
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
