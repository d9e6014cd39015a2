"""Fetch one file over HTTP: resumed where it stopped, trusted only when its checksum fits.

The bytes go to `FILE.part`; the checksum, not the server's word on length, decides when the file
is whole, and only then does it get its name.
"""

import errno
import http.client
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from covprop.data.locate import CHUNK, file_md5
from covprop.errors import CovpropError, InvalidInput

ATTEMPTS = 6
TIMEOUT = 30.0  # seconds without a byte before a connection counts as cut
# What may pass when tried again; any other OSError is our own disk's.
NETWORK = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)
Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where known


def fetch(
    url: str,
    target: Path,
    md5: str,
    *,
    progress: Progress = lambda done, total: None,
    pause: float = 1.0,
) -> None:
    """Download `url` to `target`, resuming `target.part`; several attempts, `pause` s apart."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise InvalidInput(f"{url}: an address must begin with http:// or https://.")
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch_part(url, part, md5, progress, pause)
        os.replace(part, target)
    except OSError as error:
        why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        raise CovpropError(
            f"{part} cannot be written ({why}): free space or choose another --data, then run the "
            "same command again; what came so far is kept."
        ) from error


def _fetch_part(url: str, part: Path, md5: str, progress: Progress, pause: float) -> None:
    trouble = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(pause * attempt)
        resumed = part.exists() and part.stat().st_size > 0
        try:
            whole = _receive(url, part, progress)
            trouble = "the connection was cut"
        except NETWORK as error:
            whole, trouble = False, _reason(url, error)
        if part.exists() and file_md5(part) == md5:
            return
        if whole:
            # A wrong file. If it was glued to an older part, that part is to blame: once more.
            found = file_md5(part)
            part.unlink()
            if not resumed:
                raise CovpropError(
                    f"{url} serves another file: its MD5 checksum is {found}, the official one "
                    f"{md5}; nothing was kept, try again later or give --mirror URL."
                )
    raise CovpropError(
        f"{url} could not be fetched ({trouble}, {ATTEMPTS} attempts): run the same command again "
        "to go on from where it stopped, or give --mirror URL."
    )


def _receive(url: str, part: Path, progress: Progress) -> bool:
    """Append what the server sends to `part`; True when the server says that was all of it."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "covprop", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return True  # nothing beyond what is here
        raise
    with response:
        have = min(have, _first_byte(response))
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        with part.open("r+b" if part.exists() else "wb") as file:
            file.seek(have)
            file.truncate()
            progress(have, total)
            while chunk := response.read1(CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress(have, total)
    return total is not None and have >= total


def _first_byte(response: http.client.HTTPResponse) -> int:
    """Where in the file the answer begins: at 0 from a server that ignores ranges."""
    if response.status != http.client.PARTIAL_CONTENT:
        return 0
    described = response.headers.get("Content-Range") or ""
    match = re.match(r"bytes (\d+)-", described)
    if not match:
        raise http.client.HTTPException(f"the server describes its part as {described!r}")
    return int(match[1])


def _reason(url: str, error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        if 400 <= error.code < 500 and error.code not in (408, 429):
            raise CovpropError(
                f"{url}: the server answers {error.code} {error.reason}; give --mirror URL, or "
                "fetch the file by hand."
            ) from None
        return f"the server answers {error.code}"
    if isinstance(error, urllib.error.URLError):
        # A name or port that does not answer at all will hardly do so seconds later.
        if isinstance(error.reason, socket.gaierror | ConnectionRefusedError):
            raise CovpropError(
                f"{url} cannot be reached ({error.reason}): check the network, or give "
                "--mirror URL; the same command goes on from where it stopped."
            ) from None
        return str(error.reason)
    return str(error) or type(error).__name__
