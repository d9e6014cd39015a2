"""Images of a data set one at a time, and as pictures for the page."""

from __future__ import annotations

import base64
import io

import torch
from torch import Tensor

from covprop.data import AnyImages, batches
from covprop.data.holdout import take

THUMBNAIL = 64  # pixels, at most, along the longer side


def image(images: AnyImages, index: int, device: torch.device) -> Tensor:
    """Image `index` as [1, c, h, w] in [0, 1], exactly as `covprop certify` sees it."""
    part = take(images, torch.tensor([index]))
    return next(batches(part, 1, epoch=0, seed=0, device=device, shuffle=False)).x


def png(x: Tensor, most: int | None = None) -> str:
    """An image [c, h, w] as a data address; values beyond [0, 1] are cut off to be shown."""
    from PIL import Image

    if x.shape[0] not in (1, 3):
        x = x.mean(0, keepdim=True)
    levels = x.clamp(0, 1).mul(255).round().byte().cpu()
    array = levels[0].numpy() if len(levels) == 1 else levels.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array)
    if most is not None:
        picture.thumbnail((most, most))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
