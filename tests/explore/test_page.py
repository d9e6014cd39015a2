import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from covprop.explore.compute import Explorer
from covprop.explore.server import Desk, Server

pytestmark = pytest.mark.browser
READY = "document.body.dataset.state === 'ready'"


@pytest.fixture
def server(explorer: Explorer) -> Iterator[Server]:
    made = Server(Desk(explorer, "a <i>run</i>"))
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def page(server: Server, browser: Any) -> Any:
    browser.open(server.url)
    browser.resize(1200, 900)
    browser.wait(READY)
    return browser


def text(page: Any, selector: str) -> str:
    return page.run(f"document.querySelector({selector!r}).innerText")


def estimated(page: Any) -> dict[str, float]:
    rows = page.run(
        "Array.from(document.querySelectorAll('#estimates tr')).map(r => "
        "[r.cells[0].innerText, r.cells[3].innerText])"
    )
    return {name: float(value.replace("−", "-")) for name, value in rows}


def set_slider(page: Any, sigma: float) -> None:
    page.run(
        f"(s => {{ s.value = {sigma}; s.dispatchEvent(new Event('input')); }})"
        "(document.getElementById('slider'))"
    )
    page.wait(READY)


def test_clicking_through(page: Any, explorer: Explorer) -> None:
    def expected(index: int, sigma: float) -> dict[str, float]:
        found = explorer.estimates(index, sigma)["margins"]
        found["calibrated"] = explorer.calibrated(index, sigma)["margin"]
        return {name: pytest.approx(m["estimated_radius"], abs=6e-4) for name, m in found.items()}

    assert text(page, "h1") == "Explore a <i>run</i>"
    assert estimated(page) == expected(0, 0.25)
    clean = page.run("document.getElementById('clean').src")
    assert clean == explorer.estimates(0, 0.25)["clean"]

    page.mouse("#next", click=True)
    page.wait(READY)
    assert page.run("document.getElementById('index').value") == "1"
    assert page.run("document.getElementById('clean').src") != clean
    assert estimated(page) == expected(1, 0.25)

    for sigma in (0.3, 0.4, 0.5):  # as fast as a hand: only the last one has to be answered
        page.run(
            f"(s => {{ s.value = {sigma}; s.dispatchEvent(new Event('input')); }})"
            "(document.getElementById('slider'))"
        )
    page.wait(READY)
    assert estimated(page) == expected(1, 0.5)
    assert page.run("document.getElementById('sigma').value") == "0.5"

    page.mouse("#thumbnails button:nth-child(6)", click=True)
    page.wait(READY)
    assert estimated(page) == expected(5, 0.5)
    page.mouse("#random", click=True)
    page.wait(READY)
    index = int(page.run("document.getElementById('index').value"))
    assert estimated(page) == expected(index, 0.5)


def test_noise_layers_and_samples_can_be_chosen(page: Any, explorer: Explorer) -> None:
    noisy = page.run("document.getElementById('noisy').src")
    page.mouse("#redraw", click=True)
    page.wait(READY)
    assert page.run("document.getElementById('noisy').src") != noisy
    ellipses = "document.querySelectorAll('#logits .ellipse').length"
    assert page.run(ellipses) == 4  # shared, calibrated, linearized, samples
    last = len(explorer.inside.layers) - 1
    page.run(
        f"(s => {{ s.value = {last}; s.dispatchEvent(new Event('change')); }})"
        "(document.getElementById('layer'))"
    )
    page.wait(READY)
    assert explorer.inside.layers[last].name in text(page, "#place")
    page.run(
        "(s => { s.value = 64; s.dispatchEvent(new Event('change')); })"
        "(document.getElementById('n'))"
    )
    page.wait(READY)
    dots = page.run("document.querySelector('#channels .cloud').getAttribute('d')")
    assert dots.count("M") == 64
    assert "64 noisy samples" in text(page, "#votes-note")
    frame = page.run("document.getElementById('logits').innerText")
    page.mouse("#zoom", click=True)
    assert page.run("document.getElementById('logits').innerText") != frame


def test_a_certificate_is_made_on_request_and_stays_with_its_view(
    page: Any, explorer: Explorer
) -> None:
    assert "Not certified" in text(page, "#certificate")
    page.mouse("#certify", click=True)
    page.wait("document.querySelector('#certificate .big') !== null")
    shown = text(page, "#certificate")
    assert re.search(r"n = 1?0?,?\d00.*α = 0\.001", shown)
    assert "everywhere within this ℓ₂ distance" in shown
    page.mouse("#next", click=True)
    page.wait(READY)
    assert "Not certified" in text(page, "#certificate")
    page.mouse("#previous", click=True)
    page.wait(READY)
    assert text(page, "#certificate") == shown
    set_slider(page, 0.3)
    assert "Not certified" in text(page, "#certificate")


def test_a_long_certificate_shows_progress_and_can_be_stopped(page: Any) -> None:
    page.run("document.getElementById('samples').add(new Option('1,000,000', 1000000))")
    page.run("document.getElementById('samples').value = 1000000")
    page.mouse("#certify", click=True)
    page.wait("document.getElementById('progress').innerText.includes('image 0, σ = 0.25')")
    page.mouse("#next", click=True)  # the page stays alive meanwhile
    page.wait(READY)
    page.wait("!document.getElementById('stop').hidden")
    page.mouse("#stop", click=True)
    page.wait("document.getElementById('progress').hidden")
    assert "Not certified" in text(page, "#certificate")


def test_a_certificate_is_judged_by_the_label_of_its_own_image(
    page: Any, explorer: Explorer
) -> None:
    """Also where it is asked for before the estimates of that image have come."""
    first, second = (int(label) for label in explorer.images.labels[:2])
    assert first != second
    page.mouse("#next", click=True)
    page.wait(READY)
    page.run("['previous', 'certify'].forEach(id => document.getElementById(id).click())")
    page.wait("document.querySelector('#certificate .big') !== null")
    assert f"class {first} (correct) everywhere" in text(page, "#certificate")


def test_a_certificate_that_another_page_replaces_ends_quietly(page: Any, server: Server) -> None:
    page.run("document.getElementById('samples').add(new Option('1,000,000', 1000000))")
    page.run("document.getElementById('samples').value = 1000000")
    page.mouse("#certify", click=True)
    page.wait("document.getElementById('progress').innerText.includes('image 0, σ = 0.25')")
    server.desk.certifier.start(1, 0.25, 1000, 0.001)
    page.wait("document.getElementById('progress').hidden")
    assert page.run("document.getElementById('trouble').hidden")


def test_mistakes_and_a_server_that_is_gone_are_told(page: Any, server: Server) -> None:
    channels = "(s => { s.value = %d; s.dispatchEvent(new Event('change')); })"
    page.run(channels % 9999 + "(document.getElementById('a'))")
    page.wait(READY)
    assert "two different" in text(page, "#trouble")
    page.run(channels % 2 + "(document.getElementById('a'))")
    page.wait(READY)
    assert page.run("document.getElementById('trouble').hidden")
    server.shutdown()
    server.socket.close()
    page.run("fetch = () => Promise.reject(new TypeError('gone'))")
    page.mouse("#next", click=True)
    page.wait(READY)
    assert "still running" in text(page, "#trouble")


def test_nothing_goes_wrong_in_light_dark_and_narrow(page: Any, server: Server) -> None:
    for width, dark in ((1200, False), (1200, True), (360, False)):
        page.resize(width, 900, dark=dark)
        set_slider(page, 0.2 + width / 10_000)
        assert page.run("document.documentElement.scrollWidth") <= width
    faults = ("Log.entryAdded", "Runtime.exceptionThrown", "Page.javascriptDialogOpening")
    assert [event for event in page.events if event["method"] in faults] == []
    sent = [e["params"] for e in page.events if e["method"] == "Network.requestWillBeSent"]
    fetched = {request["request"]["url"] for request in sent}
    assert len(fetched) > 3
    assert all(url.startswith((server.url, "data:")) for url in fetched)
