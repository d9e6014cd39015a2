"""The local server: one page and a few small answers in JSON, for whoever holds the token.

It listens on 127.0.0.1 only. Every address begins with a random token, and the Host header must
name this very server, so that no other page in the browser can reach it, not even through a name
made to point here. No file is served: the page is one text, made when the server starts.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from covprop.errors import CovpropError, InvalidInput
from covprop.explore.certifier import Certifier, Turns
from covprop.explore.compute import SAMPLES, Explorer
from covprop.explore.parameters import Kinds, Real, Whole, from_body, from_query

ADDRESS = "127.0.0.1"
MOST_SIGMA = 4.0
MOST_BODY = 4096
MOST_PAGES = 64  # open pages whose latest request is remembered

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:; connect-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
}

VIEW: Kinds = {"page": Whole(), "turn": Whole(), "index": Whole(), "sigma": Real(MOST_SIGMA)}
LAYER: Kinds = {name: Whole(optional=True) for name in ("layer", "a", "b")}
QUESTIONS: dict[tuple[str, str], Kinds] = {
    ("GET", "about"): {},
    ("GET", "thumbnails"): {"start": Whole()},
    ("GET", "estimates"): {**VIEW, "draw": Whole(), **LAYER},
    ("GET", "calibrated"): VIEW,
    ("GET", "samples"): {**VIEW, "draw": Whole(), "n": Whole(1, SAMPLES[-1]), **LAYER},
    ("GET", "certificate"): {"job": Whole(1)},
    ("POST", "certify"): {
        "index": Whole(),
        "sigma": Real(MOST_SIGMA),
        "n": Whole(1, 1_000_000),
        "alpha": Real(0.5),
    },
    ("POST", "stop"): {"job": Whole(1)},
}


class Stale(Exception):
    """The page has asked something newer meanwhile."""


class Desk:
    """Answers questions about an explorer, one computation at a time."""

    def __init__(self, explorer: Explorer, title: str) -> None:
        self.explorer, self.title = explorer, title
        self.turns = Turns()
        self.certifier = Certifier(explorer, self.turns)
        self._latest: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """The answer as plain values; what the page no longer wants is dropped unanswered."""
        if "page" not in given:
            return self._quick(name, given)
        go_on = self._newest(given.pop("page"), given.pop("turn"))
        if "layer" in given:
            given["channels"] = _channels(given.pop("a"), given.pop("b"))
        try:
            with self.turns.front():
                go_on()
                if name == "samples":
                    given["go_on"] = go_on
                return getattr(self.explorer, name)(**given)
        except Stale:
            return {"stale": True}

    def _quick(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """What takes no turn: little work, or work in the background."""
        if name == "about":
            return {"title": self.title, "most_sigma": MOST_SIGMA, **self.explorer.about()}
        if name == "thumbnails":
            return self.explorer.thumbnails(**given)
        if name == "certify":
            return self.certifier.start(**given)
        if name == "stop":
            return self.certifier.stop(**given)
        return self.certifier.status(**given)

    def _newest(self, page: int, turn: int) -> Callable[[], None]:
        """Note a page's request; what is returned raises once a newer one has come."""
        with self._lock:
            self._latest[page] = max(turn, self._latest.get(page, 0))
            self._latest.move_to_end(page)
            while len(self._latest) > MOST_PAGES:
                self._latest.popitem(last=False)

        def go_on() -> None:
            if self._latest.get(page, turn) > turn:
                raise Stale

        return go_on

    def close(self) -> None:
        """Let what is being computed end; threads cut off inside torch would crash the exit."""
        self.certifier.close()
        self.turns.finish(10)


def _channels(a: int | None, b: int | None) -> tuple[int, int] | None:
    if (a is None) != (b is None):
        raise InvalidInput("a and b name two channels together; give both or neither.")
    return None if a is None or b is None else (a, b)


class Server(ThreadingHTTPServer):
    """Serves a desk on the loopback address; `url` is where, token included.

    Example:
        >>> server = Server(Desk(explorer, "a run"))     # doctest: +SKIP
        >>> server.url                                   # doctest: +SKIP
        'http://127.0.0.1:41234/oNv7…/'
        >>> server.serve_forever()                       # doctest: +SKIP
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, desk: Desk, port: int = 0) -> None:
        self.desk = desk
        self.token = secrets.token_urlsafe(24)
        self.page = page().encode()
        try:
            super().__init__((ADDRESS, port), Handler)
        except (OSError, OverflowError) as error:
            raise InvalidInput(
                f"port {port} cannot be used ({error}); leave --port out to get a free one."
            ) from None
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}
        self.url = f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed while it waited is nothing to report."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Free the port, then let the computation that is going on end."""
        super().server_close()
        self.desk.close()


def page() -> str:
    """The page as one text; its look is the report's."""
    own = resources.files("covprop.explore") / "static"
    report = resources.files("covprop.report") / "static"

    def read(folder: Any, name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    text = read(own, "page.html")
    text = text.replace("{{ style }}", read(report, "page.css") + read(own, "page.css"))
    scripts = (read(own, name) for name in ("tools.js", "plot.js", "page.js"))
    return text.replace("{{ script }}", "".join(scripts))


class Handler(BaseHTTPRequestHandler):
    """One connection: checks who asks and what, then hands over to the desk."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "covprop", ""
    timeout = 60  # seconds a silent connection stays open

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        path, _, query = self.path.partition("?")
        _, token, *rest = (*path.split("/"), "")
        mine = secrets.compare_digest(token.encode(), self.server.token.encode())
        if not (mine and self._from_here()):
            self._say(HTTPStatus.FORBIDDEN, "this address needs its token; copy it whole.")
        elif rest == ["", ""] and self.command == "GET":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        elif len(rest) != 2 or (self.command, rest[0]) not in QUESTIONS:
            self._say(HTTPStatus.NOT_FOUND, "there is nothing at this address.")
        else:
            self._answer(rest[0], query)

    def _from_here(self) -> bool:
        """Whether the request names this server, and comes from no other page."""
        hosts = self.headers.get_all("Host", [])
        origin = self.headers.get("Origin")
        own = len(hosts) == 1 and hosts[0] in self.server.hosts
        return own and origin in (None, f"http://{hosts[0]}")

    def _answer(self, name: str, query: str) -> None:
        kinds = QUESTIONS[self.command, name]
        try:
            if self.command == "POST":
                given = from_body(self._body(), kinds)
            else:
                given = from_query(query, kinds)
            found = self.server.desk.answer(name, given)
        except CovpropError as error:
            self._say(HTTPStatus.BAD_REQUEST, str(error))
        except ConnectionError:
            raise
        except Exception:
            traceback.print_exc(file=sys.stderr)
            self._say(
                HTTPStatus.INTERNAL_SERVER_ERROR, "the computation failed; the terminal says why."
            )
        else:
            text = json.dumps(found, allow_nan=False, separators=(",", ":"))
            self._send(HTTPStatus.OK, "application/json", text.encode())

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and int(length) <= MOST_BODY):
            raise InvalidInput(f"the request needs a body of {MOST_BODY} bytes at most.")
        return self.rfile.read(int(length))

    def _say(self, status: HTTPStatus, sentence: str) -> None:
        self.close_connection = True  # a body may be left unread
        self._send(status, "application/json", json.dumps({"error": sentence}).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the lines would hold the token."""
