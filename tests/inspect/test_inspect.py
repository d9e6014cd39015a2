"""All parts together: files, page, mistakes."""

import base64
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from browser import Browser
from torch import nn

from covprop import PAPER, CovpropError, InvalidInput, UnsupportedModel
from covprop.inspect import PARTS, exhibits, margin_map, write
from covprop.inspect.figures import Exhibit
from covprop.inspect.page import render, text


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(margin_map, "STEPS", 5)
        shown = exhibits(
            network(), torch.rand(5, 1, 8, 8), [0, 1, 2, 0, 1], 0.2, samples=60, n=1000,
            classes=("<b>", "$x_", "c"),
        )  # fmt: skip
    folder = tmp_path_factory.mktemp("inspect") / "new" / "folder"
    write(shown, folder, "Inside <it>")
    return folder


NAMES = [
    *("layers", "distribution", "last_layer", "memory", "memory_paper", "terms", "toy"),
    *("settling", "margin_map"),
]


def test_every_figure_comes_as_png_and_svg_with_its_data(folder: Path) -> None:
    for name in NAMES:
        assert (folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        ET.fromstring((folder / f"{name}.svg").read_text(encoding="utf-8"))
        lines = (folder / f"{name}.csv").read_text(encoding="utf-8").splitlines()
        assert len(lines) > 1
    assert len((folder / "distribution_draws.csv").read_text().splitlines()) == 4001


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.images = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.images += tag == "img"
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_holds_everything_and_loads_nothing(folder: Path) -> None:
    page = (folder / "inspect.html").read_text(encoding="utf-8")
    addresses = _Addresses()
    addresses.feed(page)
    assert addresses.images == len(NAMES)
    assert all(a.startswith(("data:", "#")) for a in addresses.found)
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "<b>" not in page.replace("&lt;b&gt;", "")
    assert "Inside &lt;it&gt;" in page
    held = re.search(r'download="layers.csv" href="data:text/csv;base64,([^"]+)"', page)
    assert held is not None
    assert base64.b64decode(held[1]) == (folder / "layers.csv").read_bytes()


def test_the_model_is_left_as_it_was() -> None:
    model = network()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    parts = ("layers", "distribution", "last-layer")
    settings = PAPER.but(r_max="estimated")
    shown = exhibits(
        model, torch.rand(3, 1, 8, 8), [0, 1, 2], 0.2, settings=settings, samples=40, n=1000,
        images=[2], parts=parts, chosen="1",
    )  # fmt: skip
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [e.name for e in shown] == ["layers", "distribution", "last_layer"]
    assert shown[2].rows[0][0] == 2
    assert "as chosen" in shown[2].caption  # not in the order of their radii
    assert 0 <= float(str(shown[0].rows[0][-1])) <= 1  # measured r_max of the convolution


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    x, y = torch.rand(2, 1, 8, 8), [0, 1]
    with pytest.raises(InvalidInput, match=f"no part 'guess': choose among {', '.join(PARTS)}"):
        exhibits(network(), x, y, 0.2, parts=("guess",))
    with pytest.raises(InvalidInput, match="no image 7: 2 are at hand"):
        exhibits(network(), x, y, 0.2, images=[7])
    with pytest.raises(UnsupportedModel, match="MaxPool2d"):
        exhibits(nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 2)), x, y, 0.2)
    thin = nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    with pytest.raises(InvalidInput, match="a layer of two channels or more"):
        exhibits(thin, x, y, 0.2, parts=("distribution",), chosen="1")
    (tmp_path / "file").write_text("")
    with pytest.raises(CovpropError, match="file"):
        write([Exhibit("a", "A", "", ("x",), [(1,)])], tmp_path / "file")


def test_cells_read_well() -> None:
    assert text(float("nan")) == text(None) == "–"
    assert text(0.0) == "0"
    assert text(0.00012) == "1.2e-04"
    shown = [Exhibit("a", "A", "why", ("n",), [(1234,)], tabulated=True)]
    assert "1,234" in render(shown, "T", "L")


@pytest.mark.gpu
def test_it_runs_on_a_gpu() -> None:
    model = network().cuda()
    parts = ("layers", "distribution", "last-layer")
    shown = exhibits(
        model, torch.rand(3, 1, 8, 8).cuda(), [0, 1, 2], 0.2, samples=40, n=1000, parts=parts
    )
    assert [e.name for e in shown] == ["layers", "distribution", "last_layer"]


@pytest.mark.browser
def test_the_page_shows_its_figures_in_a_browser(folder: Path, browser: Browser) -> None:
    """Every figure loads, in light and dark, nothing is fetched, nothing overflows a phone."""
    browser.open(folder / "inspect.html")
    for width, dark in ((1200, False), (1200, True), (390, False)):
        browser.resize(width, 900, dark)
        loaded = "[...document.images].filter(i => i.complete && i.naturalWidth > 100).length"
        assert browser.run(loaded) == len(NAMES)
        assert browser.run("document.documentElement.scrollWidth") <= width
    fetched = [
        e["params"]["request"]["url"] for e in browser.events
        if e["method"] == "Network.requestWillBeSent"
    ]  # fmt: skip
    assert all(url.startswith(("file:", "data:")) for url in fetched)
