"""Training methods by name: each turns clean images and labels into a loss for every image.

Example:
    >>> method = build("consistency", sigma=0.25, input_shape=(1, 8, 8), weight=10.0)
    >>> method.weight
    10.0
"""

from collections.abc import Callable
from typing import Any

from covprop.methods.base import Losses, Method, phase_of
from covprop.methods.consistency import Consistency
from covprop.methods.gaussian import Gaussian
from covprop.methods.macer import Macer
from covprop.methods.radius import Radius
from covprop.methods.smoothadv import SmoothAdv
from covprop.methods.weighting import RadiusWeights, WithRadius
from covprop.names import unknown
from covprop.options import call
from covprop.pixels import check_sigma
from covprop.propagate.inputs import check_shape

METHODS: dict[str, Callable[..., Method]] = {
    "gaussian": Gaussian,
    "macer": Macer,
    "smoothadv": SmoothAdv,
    "consistency": Consistency,
    "radius": Radius,
}
"""Name -> dataclass; its fields besides sigma and input_shape are the recipe's options."""

__all__ = [
    "METHODS",
    "Consistency",
    "Gaussian",
    "Losses",
    "Macer",
    "Method",
    "Radius",
    "RadiusWeights",
    "SmoothAdv",
    "WithRadius",
    "build",
    "phase_of",
]


def build(name: str, *, sigma: float, input_shape: tuple[int, int, int], **options: Any) -> Method:
    """The method called `name`.

    Args:
        sigma: standard deviation of the noise, on the [0, 1] pixel scale.
        input_shape: (channels, height, width) of an image.
        options: the method's own, such as `samples=2`.
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    facts = {"sigma": check_sigma(sigma), "input_shape": check_shape(input_shape)}
    return call("method", METHODS[name], facts, options)
