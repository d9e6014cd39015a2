"""Whether a network answers each image by itself, whatever else is in the batch.

A network that does not has no answer to x + noise alone, so nothing can be certified or estimated.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from covprop.errors import InvalidInput

ROUNDING = 1e-3  # differences up to this share of the largest logit are rounding
SIZE_ROUNDING = 0.1  # the same between batches of two sizes, whose half-precision kernels differ
REPEATS = 8  # calls that must agree before a network is taken to draw no random numbers


def check_norms(model: nn.Module) -> None:
    """Refuse a network with a batch norm that has no statistics but the batch's."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and layer.running_var is None:
            raise InvalidInput(
                f"the batch norm {name} keeps no statistics, so an image's logits depend on what "
                "else is in the batch and nothing can be said of it; make it with "
                "track_running_stats=True"
            )


def batch_with(image: Tensor, brightness: float, rows: int = 2) -> Tensor:
    """A batch that begins with an image; the others are a ramp from `brightness` down to 0.

    A constant image would not do: a per-image norm turns every one of them into zeros.
    """
    ramp = torch.linspace(1, 0, image.numel(), device=image.device, dtype=image.dtype)
    others = brightness * ramp.view_as(image)
    return torch.cat([image[None], others.expand(rows - 1, *image.shape)])


def depends_on_batch(
    logits_with: Callable[[float, int], Tensor], rows: tuple[int, int] = (2, 3)
) -> bool:
    """Whether an image's logits change with the rest of its batch, found by trial.

    `logits_with(brightness, rows)` are the logits of one image in that batch, see `batch_with`.
    Two batches that differ in content and in size clear most networks in two passes. Only if the
    logits differ, further passes find out whether size, rounding or chance is the reason: a network
    that draws random numbers differs from call to call too, and is allowed.
    """
    few, many = rows
    expected, moved = logits_with(0.0, few), logits_with(1.0, many)
    if not _differ(expected, moved):
        return False
    by_size_alone = not _differ(expected, logits_with(1.0, few))
    if by_size_alone and not _differ(expected, moved, SIZE_ROUNDING):
        return False
    return not any(
        _differ(logits_with(0.0, few), expected) or _differ(logits_with(1.0, many), moved)
        for _ in range(REPEATS)
    )


def check_independence(logits_with: Callable[[float, int], Tensor]) -> None:
    """Refuse a network that `depends_on_batch`."""
    if depends_on_batch(logits_with):
        raise InvalidInput(
            "an image's logits depend on what else is in the batch, or on how many images are, so "
            "nothing can be said of it; if that is a batch norm, put the network in eval mode, or "
            "give the module itself instead of a function that calls it"
        )


def _differ(a: Tensor, b: Tensor, share: float = ROUNDING) -> bool:
    """By more than this share of the largest logit; NaN does not."""
    return bool((a - b).abs().max() > share * a.abs().max())
