"""Figures: the same bytes twice, readable on a dark page, ellipses where they belong."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

from covprop.inspect import figures
from covprop.inspect.figures import DARK, Exhibit, adapt, ellipse_points, encode


def small_figure() -> Figure:
    with figures.look():
        figure = figures.new_figure(2, 2)
        axes = figure.subplots()
        figures.density(axes, np.random.default_rng(0).normal(size=(500, 2)))
        figures.ellipses(axes, np.zeros(2), np.eye(2), figures.TRACKED, "tracked")
        axes.set(title="title", xlabel="x")
        axes.grid(True)
    return figure


def test_the_same_figure_gives_the_same_bytes() -> None:
    assert encode(small_figure(), "svg") == encode(small_figure(), "svg")
    assert encode(small_figure(), "png")[:8] == b"\x89PNG\r\n\x1a\n"


def test_every_colour_of_a_figure_has_its_dark_counterpart() -> None:
    svg = encode(small_figure(), "svg").decode()
    ET.fromstring(svg)
    style = re.search(r"<style>@media \(prefers-color-scheme:dark\)\{(.*?)\}</style>", svg)
    assert style is not None
    drawn = set(re.findall(r'style="[^"]*?(#[0-9a-f]{6})', svg.replace(style[0], "")))
    assert drawn <= set(DARK)
    for colour in drawn:
        assert colour in style[1]
    assert "fill: #ffffff" in svg  # the background goes dark with the ink


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", [c for c in DARK if c not in (figures.PAPER, figures.GRID)])
def test_ink_and_lines_stand_out_on_white_and_on_dark(colour: str) -> None:
    needed = 4.5 if colour in (figures.INK, figures.DIM) else 3.0
    assert contrast(colour, "#ffffff") >= needed
    assert contrast(DARK[colour], DARK[figures.PAPER]) >= needed


def test_an_ellipse_is_a_level_of_its_gaussian() -> None:
    cov = np.array([[2.0, 0.7], [0.7, 0.5]])
    mean = np.array([1.0, -2.0])
    at = ellipse_points(mean, cov, 2.0) - mean
    np.testing.assert_allclose(np.einsum("ni,ij,nj->n", at, np.linalg.inv(cov), at), 4.0)


def test_samples_are_dark_where_they_lie() -> None:
    axes = figures.new_figure(2, 2).subplots()
    figures.density(axes, np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 1.0]]))
    (image,) = axes.images
    dark = np.argwhere(np.asarray(image.get_array())[..., 3] > 0)  # row from below, column
    bottom, top, left, right = dark[:, 0].min(), dark[:, 0].max(), *sorted({*dark[:, 1]})
    assert {tuple(place) for place in dark} == {(bottom, left), (bottom, right), (top, right)}
    assert image.origin == "lower"


def test_files_of_an_exhibit() -> None:
    shown = Exhibit(
        "a", "A", "c", ("x", "y"), [(1, 0.12345678), ("b,c", None)],
        raw={"draws": (("u",), [(0.123456,)])},
    )  # fmt: skip
    assert shown.files == {
        "a.csv": b'x,y\n1,0.123457\n"b,c",\n',
        "a_draws.csv": b"u\n0.1235\n",
    }
    assert adapt("<svg a='b'></svg>").startswith("<svg a='b'><style>")


def test_a_name_that_the_font_lacks_is_drawn_without_a_warning() -> None:
    figure = small_figure()
    figure.axes[0].set_title("漢字")
    assert encode(figure, "png").startswith(b"\x89PNG")
