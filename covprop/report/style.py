"""How a run looks in every figure: colours that colour-blind readers tell apart, and dashes.

The colours are those of Okabe and Ito without their yellow, which vanishes on white paper. Seven
colours and four dash patterns meet again only after 28 runs, and the dashes alone carry a figure
printed in grey.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Line(NamedTuple):
    """Colour on white, colour on a dark page, and dash lengths in points (empty: solid)."""

    light: str
    dark: str
    dash: tuple[float, ...]


_COLOURS = (
    ("#0072B2", "#4FB0F0"),
    ("#D55E00", "#FF8A47"),
    ("#009E73", "#2CC99A"),
    ("#B5579B", "#E79FCB"),
    ("#B37700", "#F0B53A"),
    ("#3A9BD9", "#A3DBFF"),
    ("#333333", "#D5DAE1"),
)
_DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2.5), (2, 2), (8, 2.5, 2, 2.5))

# Outcomes of an image: wrong, abstained, then correct ones by growing p_A (one hue, darkening).
OUTCOMES = ("#D55E00", "#C9CDD3", "#D3E6F5", "#9CC8E8", "#5AA3D3", "#1F78B4", "#08457E")


def line(index: int) -> Line:
    """The look of run number `index`."""
    light, dark = _COLOURS[index % len(_COLOURS)]
    return Line(light, dark, _DASHES[index % len(_DASHES)])


def shorten(name: str, length: int = 44) -> str:
    """A long name with its middle left out.

    >>> shorten("cifar10_resnet110_noise_0.25", 15)
    'cifar10…se_0.25'
    """
    if len(name) <= length:
        return name
    half = (length - 1) // 2
    return f"{name[: length - 1 - half]}…{name[-half:]}"


@contextmanager
def any_letters() -> Iterator[None]:
    """Runs and classes may be called anything: what matplotlib's font lacks is drawn as a box,
    without a word on the terminal."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
