"""`python -m local.archive FILE…`: push archived jobs again, through the API of any deployment.

Files are those of the archive (`ojs.services.dead_letter.archive`), packed or not; `-` is standard
input. Each job is a new one with the type, args, meta, queue and id it had: one that is there
already is left alone, so that the same files can be pushed twice.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import sys
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "shared"))

from ojs.domain import jsontext
from ojs.domain.errors import InvalidPayload
from ojs.domain.job import replay

if TYPE_CHECKING:
    from io import BufferedReader

_PACKED = b"\x1f\x8b"
_BUSY = frozenset({429, 502, 503, 504})
_TRIES = 8
_LONGEST_WAIT_S = 30.0
# Fields of the life that is over.
_OF_THAT_LIFE = (replay.COUNT, replay.AT, replay.RULE)


class RestoreError(Exception):
    """It cannot go on; the message is one line for the person who asked."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Push what the files hold; the exit status: 0 if every job is there now."""
    parser = argparse.ArgumentParser(
        prog="python -m local.archive", description="Push archived jobs again."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="archived jobs; - is stdin")
    parser.add_argument("--url", default="http://localhost:8080", help="the server's")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    try:
        server = Server(options.url)
        for name in options.files:
            for number, job in enumerate(jobs(name), 1):
                status, answer = server.push(job)
                error = answer.get("error", {})
                code = error.get("code")
                if status == 201:
                    counts["pushed"] += 1
                elif status == 409 and code == "duplicate":
                    counts["there already"] += 1
                else:
                    counts["refused"] += 1
                    why = f"{job['id']} {status} {code}: {error.get('message')}"
                    print(f"{name}:{number}: {why}", file=sys.stderr)
    except RestoreError as error:
        print(f"ojs: {error}", file=sys.stderr)
        return 1
    finally:
        outcomes = ("pushed", "there already", "refused")
        print(", ".join(f"{counts[outcome]} {outcome}" for outcome in outcomes))
    return 1 if counts["refused"] else 0


def jobs(name: str) -> Iterator[dict[str, Any]]:
    """The jobs of a file as they are to be pushed. Raises RestoreError."""
    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            for number, line in enumerate(_lines(cast("BufferedReader", file)), 1):
                try:
                    yield request(jsontext.loads(line))
                except (InvalidPayload, KeyError, TypeError, AttributeError):
                    raise RestoreError(f"{name}:{number} is no archived job") from None
    except (OSError, EOFError) as error:
        raise RestoreError(f"{name} cannot be read: {error}") from error


def _lines(file: BufferedReader) -> Iterator[bytes]:
    """The lines of a file, unpacked if it is packed."""
    if file.peek(len(_PACKED)).startswith(_PACKED):
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield from unpacked
    else:
        yield from file


def request(archived: dict[str, Any]) -> dict[str, Any]:
    """What to push for an archived job. Raises KeyError."""
    meta = {key: value for key, value in archived["meta"].items() if key not in _OF_THAT_LIFE}
    wanted = {name: archived[name] for name in ("id", "type", "queue", "args")}
    return wanted | ({"meta": meta} if meta else {})


class Server:
    """Where jobs are pushed to."""

    def __init__(self, url: str) -> None:
        """Raises RestoreError for what is no URL."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RestoreError(f"{url} is not an http or https URL")
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=30)
        self._path = parts.path.rstrip("/").removesuffix("/ojs/v1") + "/ojs/v1/jobs"

    def push(self, job: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and answer; tried again while the server is busy. Raises RestoreError."""
        body = jsontext.dumps(job).encode()
        wait_s = 0.5
        for attempt in range(1, _TRIES + 1):
            try:
                status, after_s, answer = self._exchange(body)
            except (OSError, http.client.HTTPException, InvalidPayload) as error:
                self._connection.close()
                if attempt == _TRIES:
                    raise RestoreError(f"{self._connection.host}: {error}") from error
                after_s = 0.0
            else:
                if status not in _BUSY or attempt == _TRIES:
                    return status, answer
            time.sleep(min(_LONGEST_WAIT_S, max(after_s, wait_s)))
            wait_s *= 2
        raise AssertionError("the loop returns or raises")

    def _exchange(self, body: bytes) -> tuple[int, float, dict[str, Any]]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        self._connection.request("POST", self._path, body, headers)
        response = self._connection.getresponse()
        text = response.read()
        after = response.headers.get("Retry-After", "")
        answer: dict[str, Any] = jsontext.loads(text) if text else {}
        return response.status, float(after) if after.isdigit() else 0.0, answer


if __name__ == "__main__":
    sys.exit(main())
