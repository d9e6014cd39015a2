"""What a classifier must return."""

from collections.abc import Callable

from torch import Tensor

from covprop.errors import InvalidInput

Classifier = Callable[[Tensor], Tensor]
"""From images to logits [batch, classes]: a module, or any function."""


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
