"""What a caller gives: images, their names and a network, looked at before any sample is drawn."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from covprop.errors import InvalidInput
from covprop.logits import Classifier
from covprop.pixels import check_range

ASKED_AGAIN = 8  # times that a network must say the same before it is taken for one without chance


def check_images(x: Tensor, value_range: tuple[float, float] | None) -> None:
    """Refuse what is no image, and images on another scale than σ."""
    if not isinstance(x, Tensor):
        raise InvalidInput(f"x is a {type(x).__name__}; give a tensor, as by torch.as_tensor(x)")
    if x.ndim not in (3, 4) or not x.dtype.is_floating_point:
        rows = "; rows of n numbers go in as [b, n, 1, 1], into a model that begins with nn.Flatten"
        raise InvalidInput(
            f"x must be float images [c, h, w] or [b, c, h, w], "
            f"not {str(x.dtype).removeprefix('torch.')} {list(x.shape)}{rows * (x.ndim < 3)}"
        )
    check_range(x, value_range)


def check_norms(model: nn.Module) -> None:
    """Refuse a network whose samples depend on each other: none is then one of x + noise alone."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and layer.running_var is None:
            raise InvalidInput(
                f"the batch norm {name} keeps no statistics, so an image's logits depend on what "
                "else is in the batch and nothing can be said of it; make it with "
                "track_running_stats=True"
            )


def check_company(logits_beside: Callable[[float], Tensor]) -> None:
    """Refuse a network, a function above all, that a look at its layers says nothing of.

    `logits_beside(pixel)` are those of one image next to another that is all of this value. What
    draws numbers of its own differs from call to call as well, and is a classifier too.
    """
    expected, moved = logits_beside(0.0), logits_beside(1.0)
    if not _differ(expected, moved):
        return
    for _ in range(ASKED_AGAIN):
        if _differ(logits_beside(0.0), expected) or _differ(logits_beside(1.0), moved):
            return
    raise InvalidInput(
        "an image's logits depend on what else is in the batch, so nothing can be said of it; if "
        "that is a batch norm, put the network in eval mode, or give the module itself instead of "
        "a function that calls it"
    )


def _differ(a: Tensor, b: Tensor) -> bool:
    """By more than rounding; NaN does not."""
    return bool((a - b).abs().max() > 1e-3 * a.abs().max())


def device_of(model: Classifier, x: Tensor, device: torch.device | str | None) -> torch.device:
    """The one given, else where the model's tensors are, else where the images are."""
    if device is None and isinstance(model, nn.Module):
        tensors = (t for group in (model.parameters(), model.buffers()) for t in group)
        device = next((t.device for t in tensors), x.device)
    return torch.device(x.device if device is None else device)


def dtype_of(model: Classifier) -> torch.dtype:
    """What a module's weights are all in; float32 where they differ or there are none."""
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    found = {p.dtype for p in weights if p.is_floating_point()}
    return found.pop() if len(found) == 1 else torch.float32


def as_index(index: int | Sequence[int] | Tensor | None, images: int) -> list[int]:
    """The images' names: 0, 1, … unless given."""
    if index is None:
        return list(range(images))
    given = [index] if isinstance(index, int) else [int(i) for i in index]
    if len(given) != images:
        raise InvalidInput(f"{images} images need {images} indices, not {len(given)}")
    if any(i < 0 for i in given):
        raise InvalidInput("an image's index cannot be negative")
    return given
