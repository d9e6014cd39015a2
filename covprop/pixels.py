"""The scale of the pixels: σ and every radius are measured on it."""

from __future__ import annotations

import math
from numbers import Real
from typing import Annotated

import torch
from torch import Tensor

from covprop.errors import InvalidInput
from covprop.options import Range

SIGMAS = Range(1e-6, 1e6)
"""Where float32 holds both image and noise, for pixels in [0, 1]. At the lower end a sum of the two
rounds the noise by 1 % of its deviation, ten times lower by 13 %; at the upper end the image by 9 %
of its own, ten times higher by 86 %. Far outside, σ² is 0 or infinite."""
Sigma = Annotated[float, SIGMAS]
ANOTHER_SCALE = ", or pass value_range=None if sigma is meant on the scale they have."


def check_sigma(sigma: float) -> float:
    """σ as a float, or one sentence about what is wrong with it."""
    try:
        value = math.nan if isinstance(sigma, str) else float(sigma)
    except (TypeError, ValueError):
        value = math.nan
    if not SIGMAS.admits(value):
        plain = isinstance(sigma, int | float | str | None)
        found = sigma if plain else f"a {type(sigma).__name__}"
        raise InvalidInput(
            f"sigma is {found}: give a positive standard deviation (pixel scale), {SIGMAS}."
        )
    return value


def check_dense(x: Tensor) -> None:
    """Refuse sparse images, which few layers take."""
    if x.layout is not torch.strided:
        raise InvalidInput("the images are a sparse tensor; give x.to_dense().")


def check_range(x: Tensor, value_range: tuple[float, float] | None, *, fixed: bool = False) -> None:
    """Refuse images on another scale than σ; None lets everything pass.

    `fixed` is for callers that know no other range, and so leave out the remedy of giving one.
    On the command line images are 8-bit pixels over 255: only a caller in Python meets the error.
    """
    if x.is_meta:
        raise InvalidInput("the images are on the meta device, where there are no numbers.")
    check_dense(x)
    if value_range is None or x.numel() == 0:
        return
    pair = isinstance(value_range, tuple | list) and len(value_range) == 2
    if not (pair and all(isinstance(v, Real) for v in value_range)):
        raise InvalidInput(f"value_range is {value_range!r}: give two numbers, as in (0, 1).")
    low, high = (float(v) for v in x.detach().aminmax())
    if math.isnan(low):
        raise InvalidInput("the images hold NaN, which no classifier can be asked about.")
    if not (value_range[0] <= low and high <= value_range[1]):
        raise InvalidInput(
            f"images must lie in [{value_range[0]:g}, {value_range[1]:g}], the scale sigma is "
            f"measured on, but these span [{low:g}, {high:g}]; scale them there and make "
            f"normalisation the first layer of the model{'.' if fixed else ANOTHER_SCALE}"
        )
