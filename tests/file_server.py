"""A small HTTP server on 127.0.0.1 that serves bytes, and misbehaves in a chosen way."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class FileServer:
    """Serves `files` (name -> bytes); `fault` says how it misbehaves, `ranges` what was asked.

    cut        every answer stops half-way through what it announced
    cut once   only the first one does
    deaf       ignores Range, and cuts the first answer
    long       announces 100 bytes more than there are
    short      announces 10 bytes fewer than there are
    shifted    answers a Range with the bytes from 7 before, and says so
    busy once  answers 503 the first time
    """

    def __init__(self, files: dict[str, bytes], fault: str = "") -> None:
        self.files, self.fault = files, fault
        self.ranges: list[str | None] = []
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                server.answer(self)

        return Handler

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range")
        self.ranges.append(asked)
        first = len(self.ranges) == 1
        body = self.files.get(request.path.lstrip("/"))
        if body is None or (self.fault == "busy once" and first):
            request.send_error(503 if body else 404)
            return
        start = 0
        if asked and self.fault != "deaf":
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])  # type: ignore[index]
            start -= 7 if self.fault == "shifted" else 0
            if start >= len(body):
                request.send_error(416)
                return
        sent = body[start:]
        announced = len(sent) + {"long": 100, "short": -10}.get(self.fault, 0)
        if self.fault == "cut" or (self.fault in ("cut once", "deaf", "shifted") and first):
            sent = sent[: len(sent) // 2]
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(announced))
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        request.end_headers()
        request.wfile.write(sent)
