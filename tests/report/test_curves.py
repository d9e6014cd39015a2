import xml.etree.ElementTree as ElementTree
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from certifications import add_estimates, draw_rows, make_run, tsv
from PIL import Image

from covprop.report.curves import figures
from covprop.report.read import read
from covprop.report.style import line, shorten
from covprop.report.summary import Summary, summarize


@pytest.fixture
def summaries(tmp_path: Path) -> list[Summary]:
    log = make_run(tmp_path / "_hidden $x^$ 数", 1)
    add_estimates(log, {"shared": {r["idx"]: r["radius"] / 2 for r in draw_rows(1, 0.25)}})
    make_run(tmp_path / "other", 2, 0.5)
    return summarize(read([tmp_path])[0])[1]


def test_every_figure_as_png_and_svg(summaries: list[Summary]) -> None:
    made = figures(summaries)
    names = [f"{n}.{k}" for n in ("curves", "p_a", "estimated") for k in ("png", "svg")]
    assert list(made) == names
    for name, content in made.items():
        if name.endswith("svg"):
            assert ElementTree.fromstring(content).tag.endswith("svg")
        else:
            pixels = np.asarray(Image.open(BytesIO(content)).convert("RGB"))
            assert pixels.shape[1] > 600
            assert pixels.std() > 5  # something is drawn


def test_a_log_without_more_gives_curves_alone(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text(tsv(draw_rows(1, 0.25)))
    made = figures(summarize(read([tmp_path])[0])[1])
    assert list(made) == ["curves.png", "curves.svg"]


def test_the_same_report_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text(tsv(draw_rows(1, 0.25)))
    one, two = (figures(summarize(read([tmp_path])[0])[1]) for _ in range(2))
    assert one == two


def test_many_runs_find_room(tmp_path: Path) -> None:
    for seed in range(9):
        make_run(tmp_path / f"run-{seed}-{'long ' * 12}", seed)
    made = figures(summarize(read([tmp_path])[0])[1])
    assert "curves.png" in made


def test_28_runs_look_different() -> None:
    looks = [line(i) for i in range(28)]
    assert len({(look.light, look.dash) for look in looks}) == 28
    assert len({(look.dark, look.dash) for look in looks}) == 28


def test_shorten() -> None:
    assert shorten("cifar10_resnet110_noise_0.25", 15) == "cifar10…se_0.25"
    assert shorten("short") == "short"
    assert len(shorten("x" * 99, 44)) == 44
