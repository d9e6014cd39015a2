"""Whether a network's answer to an image depends on what else is in the batch, or how much.

None is then one of x + noise alone, and nothing can be certified or estimated.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from covprop.errors import InvalidInput

ROUNDING = 1e-3  # share of the largest logit by which two answers to one batch may differ
KERNELS = 0.1  # and to batches of two sizes: in half precision, each size's kernels round otherwise
ASKED_AGAIN = 8  # times that a network must say the same before it is taken for one without chance


def check_norms(model: nn.Module) -> None:
    """Refuse a network with a batch norm that has no statistics but the batch's."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and layer.running_var is None:
            raise InvalidInput(
                f"the batch norm {name} keeps no statistics, so an image's logits depend on what "
                "else is in the batch and nothing can be said of it; make it with "
                "track_running_stats=True"
            )


def beside(image: Tensor, brightness: float, rows: int = 2) -> Tensor:
    """A batch of an image and others, which fall from this brightness to 0.

    A plain colour would not do: a norm that works image by image makes black of every one.
    """
    ramp = torch.linspace(1, 0, image.numel(), device=image.device, dtype=image.dtype)
    others = brightness * ramp.view_as(image)
    return torch.cat([image[None], others.expand(rows - 1, *image.shape)])


def depends_on_company(
    logits_beside: Callable[[float, int], Tensor], rows: tuple[int, int] = (2, 3)
) -> bool:
    """By trial, since of a function a look at its layers says nothing.

    `logits_beside(brightness, rows)` are those of one image in a batch of so many, see `beside`.
    Two batches that differ in both tell most networks apart in two passes: only where the answers
    differ it is asked which of the two it was. What draws numbers of its own differs from call to
    call as well, and is a classifier too.
    """
    few, many = rows
    expected, moved = logits_beside(0.0, few), logits_beside(1.0, many)
    if not _differ(expected, moved):
        return False
    by_size_alone = not _differ(expected, logits_beside(1.0, few))
    if by_size_alone and not _differ(expected, moved, KERNELS):
        return False
    return not any(
        _differ(logits_beside(0.0, few), expected) or _differ(logits_beside(1.0, many), moved)
        for _ in range(ASKED_AGAIN)
    )


def check_company(logits_beside: Callable[[float, int], Tensor]) -> None:
    """Refuse a network, a function above all, that `depends_on_company`."""
    if depends_on_company(logits_beside):
        raise InvalidInput(
            "an image's logits depend on what else is in the batch, or on how many images are, so "
            "nothing can be said of it; if that is a batch norm, put the network in eval mode, or "
            "give the module itself instead of a function that calls it"
        )


def _differ(a: Tensor, b: Tensor, share: float = ROUNDING) -> bool:
    """By more than this share of the largest logit; NaN does not."""
    return bool((a - b).abs().max() > share * a.abs().max())
