"""Small certifications to report on, and a real browser to look at the page with."""

import base64
import json
import math
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
ROWS = 40


def phi(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def draw_rows(seed: int, sigma: float) -> list[dict[str, Any]]:
    """Rows as a certifier would make them: about a tenth wrong, a tenth abstained."""
    rng = random.Random(seed)
    rows = []
    for i in range(ROWS):
        label, kind = rng.randrange(10), rng.random()
        p_lower = rng.uniform(0.3, 0.5) if kind < 0.1 else 0.5 + 0.4999 * rng.random() ** 0.5
        radius = 0.0
        low, high = 0.0, 4.0
        for _ in range(60):  # invert Φ by bisection
            radius = (low + high) / 2
            low, high = (radius, high) if phi(radius) < p_lower else (low, radius)
        abstains = p_lower < 0.5
        correct = not abstains and kind > 0.2
        predict = -1 if abstains else label if correct else (label + 1) % 10
        rows.append(
            {
                "idx": 20 * i,
                "label": label,
                "predict": predict,
                "radius": 0.0 if abstains else sigma * radius,
                "correct": int(correct),
                "seconds": rng.uniform(1, 20),
                "p_lower": p_lower,
                "count": 900,
                "n": 1000,
                "nan": 0,
            }
        )
    rows[3] |= {"predict": rows[3]["label"], "correct": 1, "radius": 1.23e-05, "p_lower": 0.50001}
    return rows


def clock(seconds: float) -> str:
    micro = round(seconds * 1e6)
    return f"0:{micro // 60_000_000:02d}:{micro // 10**6 % 60:02d}.{micro % 10**6:06d}"


def tsv(rows: list[dict[str, Any]], time: Callable[[float], str] = clock) -> str:
    return HEADER + "".join(
        f"{r['idx']}\t{r['label']}\t{r['predict']}\t{r['radius']:.3}\t{r['correct']}"
        f"\t{time(r['seconds'])}\n"
        for r in rows
    )


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return draw_rows(1, 0.25)


@pytest.fixture
def write_log() -> Callable[..., Path]:
    """Write a log alone, in either time format."""

    def write(path: Path, rows: list[dict[str, Any]], plain: bool = False) -> Path:
        path.write_text(tsv(rows, (lambda s: f"{s:.3}") if plain else clock))
        return path

    return write


@pytest.fixture
def make_run() -> Callable[..., Path]:
    """Write a whole run folder as training and certification leave it."""

    def make(folder: Path, seed: int = 1, sigma: float = 0.25, method: str = "gaussian") -> Path:
        folder.mkdir(parents=True)
        rows = draw_rows(seed, sigma)
        (folder / "config.toml").write_text(
            f'[data]\nname = "digits"\n\n[noise]\nsigma = {sigma}\n\n[method]\nname = "{method}"\n'
        )
        epochs = [{"epoch": e, "loss": 1 / e, "seconds": 1.5 * e} for e in (1, 2, 3)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in epochs))
        log = folder / f"certify_sigma_{sigma}.tsv"
        log.write_text(tsv(rows))
        log.with_suffix(".rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        log.with_suffix(".json").write_text(json.dumps({"sigma": sigma, "n": 1000, "alpha": 0.001}))
        return folder

    return make


class Browser:
    """Headless Chromium, driven over the DevTools protocol through a pair of pipes."""

    def __init__(self, program: str, profile: Path) -> None:
        read_there, self._to = os.pipe()
        self._from, write_there = os.pipe()
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
        ]
        # Chromium reads commands from descriptor 3 and answers on 4.
        self._process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{read_there} 4>&{write_there}', "bash"),
                *(program, *flags, f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=(read_there, write_there),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_there)
        os.close(write_there)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._from, 1 << 16)
            assert chunk, "Chromium ended"
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def open(self, path: Path) -> None:
        self._session = ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self.events.append(self._receive())

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def mouse(
        self, selector: str, across: float = 0.5, down: float = 0.5, click: bool = False
    ) -> None:
        """Move the mouse to a place within an element, and click there if asked."""
        self.run(
            f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})"
        )
        box = self.run(
            f"(b => [b.left, b.top, b.width, b.height])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        place = {"x": box[0] + across * box[2], "y": box[1] + down * box[3]}
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        os.close(self._to)  # Chromium ends when its pipe does
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    program = program or shutil.which("google-chrome")
    if program is None:
        pytest.skip("Chromium is not installed")
    opened = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()
