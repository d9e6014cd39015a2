"""What a classifier must return."""

from collections.abc import Callable

import torch
from torch import Tensor

from covprop.errors import InvalidInput

Classifier = Callable[[Tensor], Tensor]
"""From images to logits [batch, classes]: a module, or any function."""

ROUNDING = 5e-3  # by which probabilities in bfloat16 may miss 1 in sum


def as_logits(returned: object, images: int, model: str = "The model") -> Tensor:
    """What a model returned for so many images, or one sentence if that is not their logits.

    Example:
        >>> as_logits((1, 2), images=5, model="Net")
        Traceback (most recent call last):
        ...
        covprop.errors.InvalidInput: Net must return one tensor of logits [batch, classes], but \
for a batch of 5 it returned a tuple; wrap it in a module that does.
    """
    if isinstance(returned, Tensor):
        if returned.ndim == 2 and len(returned) == images:
            return returned
        found = str(list(returned.shape))
    else:
        found = f"a {type(returned).__name__}"
    raise InvalidInput(
        f"{model} must return one tensor of logits [batch, classes], but for a batch of {images} "
        f"it returned {found}; wrap it in a module that does."
    )


def check_scale(logits: Tensor, model: str = "The model") -> None:
    """Refuse probabilities where differences of logits count: those end at 1, however sure it is.

    Example:
        >>> check_scale(torch.tensor([[3.0, -1.0]]))
        >>> check_scale(torch.tensor([[3.0, -1.0]]).softmax(1), "Net")
        Traceback (most recent call last):
        ...
        covprop.errors.InvalidInput: Net returns probabilities, from 0 to 1 and 1 in sum, where \
logits are needed; leave out the softmax at its end, or return the logarithm.
    """
    sums = logits.sum(1, dtype=torch.float64)
    inside = (logits >= 0) & (logits <= 1)
    if bool(inside.all() & ((sums - 1).abs() < ROUNDING).all()):
        raise InvalidInput(
            f"{model} returns probabilities, from 0 to 1 and 1 in sum, where logits are needed; "
            "leave out the softmax at its end, or return the logarithm."
        )
