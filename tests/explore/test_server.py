import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.explore.compute import BLOCK, Explorer
from covprop.explore.server import Desk, Server, page

VIEW = {"page": 1, "turn": 1, "index": 7, "sigma": 0.4}


class Client:
    """Requests to a running server, as raw as needed."""

    def __init__(self, server: Server) -> None:
        self.server, self.token = server, server.token
        self.host = f"127.0.0.1:{server.server_port}"

    def send(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in {"Host": self.host, **headers}.items():
                connection.putheader(name, value)
            if body is not None and "Content-Length" not in headers:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(text) if is_json else text, answer.headers
        finally:
            connection.close()

    def get(self, name: str, **given: object) -> tuple[int, Any]:
        query = f"?{urlencode(given)}" if given else ""
        return self.send("GET", f"/{self.token}/{name}{query}")[:2]

    def post(self, name: str, given: object) -> tuple[int, Any]:
        return self.send("POST", f"/{self.token}/{name}", json.dumps(given).encode())[:2]


@pytest.fixture
def client(explorer: Explorer) -> Iterator[Client]:
    server = Server(Desk(explorer, "a run"))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield Client(server)
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_page_is_served_with_its_token_only(client: Client) -> None:
    status, text, headers = client.send("GET", f"/{client.token}/")
    assert (status, text) == (200, page())
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Python" not in headers["Server"]
    wrong = client.token[:-1] + ("A" if client.token[-1] != "A" else "B")
    for path in ("/", "/about", f"/{wrong}/", f"/{wrong}/about", "/favicon.ico", "//", "/%00/",
                 f"/?token={client.token}", f"/{client.token.swapcase()}/", "*"):  # fmt: skip
        for method in ("GET", "POST"):
            status, found, _ = client.send(method, path)
            assert status == 403, path
            assert client.token not in json.dumps(found)


def test_no_file_can_be_reached(client: Client) -> None:
    for path in ("../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "page.js", "about/",
                 "static/page.html", "__class__", "_quick", "explorer", "%2e%2e/"):  # fmt: skip
        status, found, _ = client.send("GET", f"/{client.token}/{path}")
        assert status == 404, path
        assert "root:" not in json.dumps(found)
    assert client.send("GET", f"/{client.token}")[0] == 404
    assert client.get("certify")[0] == 404  # asked for with POST only
    assert client.post("about", {})[0] == 404
    assert client.send("DELETE", f"/{client.token}/about")[0] == 501


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost", "127.0.0.1:1", ""])
def test_another_host_name_is_refused(client: Client, host: str) -> None:
    """A name that somebody made to point at 127.0.0.1 does not get in, token or not."""
    assert client.send("GET", f"/{client.token}/about", Host=host)[0] == 403


def test_this_server_is_known_by_its_two_names(client: Client) -> None:
    port = client.server.server_port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert client.send("GET", f"/{client.token}/about", Host=host)[0] == 200


@pytest.mark.parametrize(
    "lines",
    [
        "GET /{token}/about HTTP/1.1\r\nHost: {host}\r\nHost: x\r\n\r\n",
        "GET /{token}/about HTTP/1.1\r\n\r\n",
        "GET /é{token}/about HTTP/1.1\r\nHost: {host}\r\n\r\n",
        "GET http://{host}/{token}/about HTTP/1.1\r\nHost: {host}\r\n\r\n",
        "GET http://[ HTTP/1.1\r\nHost: {host}\r\n\r\n",
    ],
)
def test_odd_requests_are_refused(client: Client, lines: str) -> None:
    port = client.server.server_port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        raw.sendall(lines.format(token=client.token, host=client.host).encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 403 ")


def test_another_page_is_refused(client: Client) -> None:
    path = f"/{client.token}/about"
    assert client.send("GET", path, Origin="http://evil.example")[0] == 403
    assert client.send("GET", path, Origin="null")[0] == 403
    assert client.send("GET", path, Origin=f"http://{client.host}")[0] == 200


def test_it_listens_on_loopback_only_and_every_token_is_new(explorer: Explorer) -> None:
    first, second = (Server(Desk(explorer, "a run")) for _ in range(2))
    assert first.server_address[0] == "127.0.0.1"
    assert first.token != second.token
    assert len(first.token) == 32
    with pytest.raises(InvalidInput, match=f"port {first.server_port}"):
        Server(Desk(explorer, "a run"), first.server_port)
    with pytest.raises(InvalidInput, match="port 99999"):
        Server(Desk(explorer, "a run"), 99999)
    first.server_close()
    second.server_close()


def test_answers_are_the_explorers(client: Client) -> None:
    explorer = client.server.desk.explorer
    status, about = client.get("about")
    assert status == 200
    assert about == {"title": "a run", "most_sigma": 4.0, **explorer.about()}
    assert client.get("thumbnails", start=0)[1] == explorer.thumbnails(0)
    view = {"index": 7, "sigma": 0.4}
    assert client.get("estimates", **VIEW, draw=0, layer=2)[1] == explorer.estimates(
        **view, layer=2
    )
    assert client.get("calibrated", **VIEW)[1] == explorer.calibrated(**view)
    found = client.get("samples", **VIEW, draw=1, n=32, layer=2, a=0, b=1)[1]
    assert found == explorer.samples(**view, draw=1, n=32, layer=2, channels=(0, 1))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("estimates", {"index": 360}),
        ("estimates", {"index": "x"}),
        ("estimates", {"sigma": 0}),
        ("estimates", {"sigma": "nan"}),
        ("estimates", {"sigma": 5}),
        ("estimates", {"layer": 99}),
        ("estimates", {"layer": 1, "a": 0}),
        ("estimates", {"layer": 1, "a": 0, "b": 99}),
        ("estimates", {"file": "/etc/passwd"}),
        ("samples", {"n": 0}),
        ("samples", {"n": 1_000_000}),
        ("samples", {}),  # n is missing
    ],
)
def test_bad_parameters_are_one_sentence(client: Client, name: str, change: dict) -> None:
    status, found = client.get(name, **{**VIEW, "draw": 0, **change})
    assert status == 400
    assert list(found) == ["error"]
    assert found["error"].endswith(".")
    assert "Traceback" not in found["error"]


def test_bad_bodies_are_refused(client: Client) -> None:
    good = {"index": 0, "sigma": 0.25, "n": 1000, "alpha": 0.001}
    for change in ({"n": 10}, {"alpha": 0}, {"alpha": 0.9}, {"n": 10**9}, {"index": -1}, {"x": 1}):
        assert client.post("certify", {**good, **change})[0] == 400, change
    path = f"/{client.token}/certify"
    assert client.send("POST", path, b"{")[0] == 400
    assert client.send("POST", path)[0] == 400  # no length
    assert client.send("POST", path, **{"Content-Length": "99999999999"})[0] == 400
    assert client.send("POST", path, **{"Content-Length": "-1"})[0] == 400
    assert client.get("certificate", job=1)[0] == 400  # nothing was started


def test_a_certificate_is_asked_for_and_fetched(client: Client) -> None:
    asked = {"index": 3, "sigma": 0.25, "n": 1000, "alpha": 0.001}
    status, found = client.post("certify", asked)
    assert status == 200
    job, end = found["job"], time.monotonic() + 30
    while found["state"] == "running":
        assert time.monotonic() < end
        found = client.get("certificate", job=job)[1]
    assert found["state"] == "done"
    assert "certified_radius" in found
    assert not any("estimate" in name for name in found)
    assert client.post("stop", {"job": job})[1]["state"] == "done"


def test_estimates_never_speak_of_certificates(client: Client) -> None:
    text = json.dumps([client.get("estimates", **VIEW, draw=0), client.get("calibrated", **VIEW)])
    assert "estimated_radius" in text
    assert "certif" not in text


def test_what_is_out_of_date_is_dropped(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one question is computed two more wait; only the last of them is answered."""
    explorer = client.server.desk.explorer
    entered, go, computed = threading.Event(), threading.Event(), []

    def slow(index: int, sigma: float) -> dict[str, Any]:
        computed.append(sigma)
        entered.set()
        assert go.wait(20)
        return {"sigma": sigma}

    monkeypatch.setattr(explorer, "calibrated", slow)
    answers: dict[int, Any] = {}

    def ask(turn: int, page: int = 1) -> threading.Thread:
        given = {**VIEW, "page": page, "turn": turn, "sigma": turn / 10}

        def run() -> None:
            answers[turn] = client.get("calibrated", **given)[1]

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [ask(1)]
    assert entered.wait(10)
    threads.append(ask(9, page=2))  # another page is not disturbed
    for turn in (2, 3):
        threads.append(ask(turn))
        end = time.monotonic() + 10
        while client.server.desk._latest.get(1) != turn:
            assert time.monotonic() < end
            time.sleep(0.01)
    go.set()
    for thread in threads:
        thread.join(20)
    assert answers == {1: {"sigma": 0.1}, 2: {"stale": True}, 3: {"sigma": 0.3}, 9: {"sigma": 0.9}}
    assert sorted(computed) == [0.1, 0.3, 0.9]


def test_sampling_stops_between_two_blocks(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = client.server.desk
    passes = []
    run = type(desk.explorer.model).forward

    def counted(model: nn.Module, x: Tensor) -> Tensor:
        if len(x) == BLOCK:
            passes.append(1)
            desk._latest[1] = 2  # the page has moved on
        return run(model, x)

    monkeypatch.setattr(type(desk.explorer.model), "forward", counted)
    assert client.get("samples", **VIEW, draw=0, n=2048) == (200, {"stale": True})
    assert len(passes) == 1


def test_a_failure_is_told_without_its_traceback(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(index: int, sigma: float) -> dict[str, Any]:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(client.server.desk.explorer, "calibrated", broken)
    status, found = client.get("calibrated", **VIEW)
    assert status == 500
    assert "secret" not in found["error"]
    error = capsys.readouterr().err
    assert "secret detail" in error
    assert client.token not in error


def test_the_page_loads_nothing_from_elsewhere() -> None:
    text = page()
    assert "{{" not in text
    addresses = text.replace("http://www.w3.org/2000/svg", "")  # a name, not a place
    assert "http:" not in addresses
    assert "https:" not in addresses
    assert "@import" not in text
    assert "url(" not in text
    assert "innerHTML" not in text
