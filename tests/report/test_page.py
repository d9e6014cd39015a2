import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certifications import Row, add_estimates, draw_rows, make_planned_run, make_run, tsv

from covprop.report import summarize, write, write_page
from covprop.report.page import render, step_path, ticks
from covprop.report.read import read

EVIL = "<script>alert(1)<∕script>"  # a slash cannot be part of a folder's name


class Outline(HTMLParser):
    """Tags with their attributes, and all text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] not in ("script", "style"):
            self.text += data


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Two runs, one with estimates and an evil name."""
    log = make_run(tmp_path / EVIL, 1)
    add_estimates(log, {"<b>": {r["idx"]: r["radius"] / 2 for r in draw_rows(1, 0.25)}})
    with log.with_name("config.toml").open("a") as file:
        file.write('\n[model]\nname = "</pre><img src=x onerror=alert(2)>"\n')
    make_run(tmp_path / "b", 2, 0.5, "macer")
    certifications, _ = read([tmp_path])
    return write_page(*summarize(certifications), tmp_path / "report.html", ["a <i>warning</i>"])


def test_an_unfinished_run_is_marked_in_table_and_details(tmp_path: Path) -> None:
    log = make_planned_run(tmp_path / "a", 400)
    assert render(*summarize(read([log])[0])).count("4.5 s, 3 of 400 epochs") == 2


def test_the_page_has_runs_taken_together(tmp_path: Path) -> None:
    for seed, sigma in ((1, 0.25), (2, 0.25), (3, 0.5)):
        log = make_run(tmp_path / str(sigma) / f"a <b>-seed{seed}", seed, sigma)
        with log.with_name("config.toml").open("a") as file:
            file.write(f"\n[train]\nseed = {seed}\n")
    radii, summaries = summarize(read([tmp_path])[0])
    outline = Outline(render(radii, summaries))
    headings = [name for name in ("Over seeds", "By data set and noise") if name in outline.text]
    assert len(headings) == 2
    mean = (summaries[0].acr.value + summaries[1].acr.value) / 2
    deviation = abs(summaries[0].acr.value - summaries[1].acr.value) / 2**0.5
    assert outline.text.count(f"{mean:.3f}±{deviation:.3f}") == 2
    assert "a <b>" in outline.text
    alone = Outline(render(radii, summaries[:1])).text
    assert not any(name in alone for name in headings)


def test_the_page_compares_runs_on_the_same_images(tmp_path: Path) -> None:
    for seed, name in enumerate(("a", "b", "c"), 1):
        make_run(tmp_path / name, seed)
    radii, summaries = summarize(read([tmp_path])[0])
    best = max(summaries, key=lambda s: s.acr.value)
    text = Outline(render(radii, summaries)).text
    assert "Compared with the best, on the same images" in text
    for other in summaries:
        difference = f"{other.acr.value - best.acr.value:.3f}".replace("-", "−")
        assert (f"{difference}±" in text) == (other is not best)
    assert "Compared with" not in Outline(render(radii, summaries[:1])).text


def test_the_page_loads_nothing_and_escapes_everything(page: Path) -> None:
    text = page.read_text()
    outline = Outline(text)
    tags = [tag for tag, _ in outline.tags]
    assert tags.count("script") == 2  # the facts and the page's own
    assert not {"img", "link", "iframe", "object", "base"} & set(tags)
    for _, attributes in outline.tags:
        assert not {"src", "href", "onerror", "onload", "onclick"} & set(attributes)
    assert not re.search(r"https?://|url\(|@import", text)
    assert "default-src 'none'" in text
    assert EVIL in outline.text
    assert "</pre><img src=x onerror=alert(2)>" in outline.text
    assert "a <i>warning</i>" in outline.text


def test_the_page_holds_table_curves_and_configuration(page: Path) -> None:
    outline = Outline(page.read_text())
    classes = [attributes.get("class") for _, attributes in outline.tags]
    assert classes.count("curve") == 2
    assert classes.count("band") == 2
    assert [tag for tag, _ in outline.tags].count("details") == 2
    for expected in ("macer", 'name = "digits"', "recorded at certification", "Pearson", "4.5 s"):
        assert expected in outline.text


def test_the_page_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    made = summarize(read([tmp_path])[0])
    assert render(*made) == render(*made)


def test_a_bare_log_has_no_p_and_no_estimates(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text(tsv(draw_rows(1, 0.25)))
    text = render(*summarize(read([tmp_path])[0]))
    assert "lower bound" not in text
    assert "stimated beside" not in text
    assert "configuration is not known" in text


def test_step_path_holds_each_value_up_to_its_radius() -> None:
    path = step_path(np.array([0.0, 0.5, 1.0]), np.array([0.8, 0.8, 0.2]), 2.0)
    assert path == "M0.0 200.0V200.0H250.0V800.0H500.0V1000"


@pytest.mark.parametrize("end", [1e-5, 0.1, 0.978, 1.03, 2.5, 4.0, 12.0])
def test_ticks_are_few_even_and_inside(end: float) -> None:
    made = ticks(end)
    assert 3 <= len(made) <= 7
    assert made[0] == ("0", 0.0)
    assert made[-1][1] <= 100
    for label, place in made:
        assert float(label) / end * 100 == pytest.approx(place, abs=0.01)


def test_write_makes_every_file_and_leaves_no_other(tmp_path: Path) -> None:
    log = make_run(tmp_path / "runs" / "a")
    add_estimates(log, {"shared": {0: 0.2, 20: 0.1, 40: 0.3}})
    out = tmp_path / "deep" / "out"
    written = write(*summarize(read([tmp_path / "runs"])[0]), out)
    assert sorted(out.iterdir()) == sorted(written)
    assert {path.name for path in written} == {
        "table.md",
        "table.tex",
        "table.csv",
        "curves.png",
        "curves.svg",
        "p_a.png",
        "p_a.svg",
        "estimated.png",
        "estimated.svg",
        "estimated.csv",
        "report.html",
    }


def accuracy(rows: list[Row], radius: float) -> float:
    return 100 * sum(r["correct"] and r["radius"] >= radius for r in rows) / len(rows)


def shows(selector: str) -> str:
    """Script: which of the elements take up room on the page."""
    found = f"Array.from(document.querySelectorAll({json.dumps(selector)}))"
    return f"{found}.map(e => e.getBoundingClientRect().width > 0)"


@pytest.mark.browser
def test_in_a_browser_sorting_hovering_and_switching_work(page: Path, browser: Any) -> None:
    browser.open(page)
    browser.resize(1200, 900)
    names = "Array.from(document.querySelectorAll('#summary tbody th')).map(e => e.textContent)"
    assert browser.run(names) == [EVIL, "b"]

    browser.mouse("#summary thead th:nth-child(4) button", click=True)  # σ, the largest first
    assert browser.run(names) == ["b", EVIL]
    browser.mouse("#summary thead th:nth-child(4) button", click=True)
    assert browser.run(names) == [EVIL, "b"]
    browser.mouse("#summary thead th:nth-child(1) button", click=True)
    browser.mouse("#summary thead th:nth-child(1) button", click=True)
    order = browser.run(names)
    browser.mouse("#summary thead th:nth-child(1) button", click=True)
    assert browser.run(names) == order[::-1]

    assert browser.run("document.getElementById('tip').hidden")
    browser.mouse("#curves", across=0.3)
    tip = browser.run("document.getElementById('tip').innerText")
    radius = float(re.search(r"r = ([\d.]+)", tip)[1])
    shown = [float(v) for v in re.findall(r"([\d.]+) %", tip)]
    for rows, value in zip((draw_rows(1, 0.25), draw_rows(2, 0.5)), shown, strict=True):
        near = [accuracy(rows, radius - 0.001), accuracy(rows, radius + 0.001)]
        assert min(near) - 0.06 <= value <= max(near) + 0.06

    browser.mouse("#legend button[data-run='0']", click=True)
    visible = shows("#curves g")
    assert browser.run(visible) == [False, True]
    browser.mouse("#curves", across=0.3)
    assert EVIL not in browser.run("document.getElementById('tip').innerText")
    browser.mouse("#legend button[data-run='0']", click=True)
    assert browser.run(visible) == [True, True]
    browser.mouse("#bands", click=True)
    assert browser.run(shows(".band")) == [False, False]
    assert browser.run(shows(".curve")) == [True, True]
    browser.mouse("h1")
    assert browser.run("document.getElementById('tip').hidden")


@pytest.mark.browser
def test_in_a_browser_nothing_is_fetched_or_goes_wrong(page: Path, browser: Any) -> None:
    browser.open(page)
    for width in (360, 1200):
        browser.resize(width, 900)
        assert browser.run("document.documentElement.scrollWidth") <= width
    faults = ("Log.entryAdded", "Runtime.exceptionThrown", "Page.javascriptDialogOpening")
    assert [event for event in browser.events if event["method"] in faults] == []
    requests = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert requests == [page.as_uri()]


@pytest.mark.browser
def test_in_a_browser_the_page_follows_the_colour_scheme(page: Path, browser: Any) -> None:
    browser.open(page)
    colours = "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
    browser.resize(1200, 900)
    light = browser.run(colours)
    browser.resize(1200, 900, dark=True)
    dark = browser.run(colours)

    def brightness(colour: str) -> int:
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert brightness(light[0]) > brightness(light[1])
    assert brightness(dark[0]) < brightness(dark[1])


def test_facts_are_json(page: Path) -> None:
    text = page.read_text()
    (facts,) = re.findall(r'<script type="application/json" id="facts">(.*?)</script>', text)
    assert [run["name"] for run in json.loads(facts)["runs"]] == [EVIL, "b"]
