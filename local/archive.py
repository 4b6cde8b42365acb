"""`python -m local.archive FILE…`: enqueues archived jobs again, through any deployment's API.

Files are from the archive (`ojs.services.dead_letter.archive`), compressed or not. `-` is standard
input. Each new job has the type, args, meta, queue, and ID of the archived job. An existing job
is unchanged, so the same files can be used twice.
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
# Fields of the previous attempts.
_OF_THAT_LIFE = (replay.COUNT, replay.AT, replay.RULE)


class RestoreError(Exception):
    """The command failed. The message is one line for the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Enqueue the jobs in the files. Returns 0 if all jobs exist afterwards."""
    parser = argparse.ArgumentParser(
        prog="python -m local.archive", description="Enqueue archived jobs again."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="archived jobs; - for stdin")
    parser.add_argument("--url", default="http://localhost:8080", help="URL of the server")
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
                    counts["enqueued"] += 1
                elif status == 409 and code == "duplicate":
                    counts["existing"] += 1
                else:
                    counts["rejected"] += 1
                    why = f"{job['id']} {status} {code}: {error.get('message')}"
                    print(f"{name}:{number}: {why}", file=sys.stderr)
    except RestoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        outcomes = ("enqueued", "existing", "rejected")
        print(", ".join(f"{counts[outcome]} {outcome}" for outcome in outcomes))
    return 1 if counts["rejected"] else 0


def jobs(name: str) -> Iterator[dict[str, Any]]:
    """Yield the new jobs of a file. Raises RestoreError."""
    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            for number, line in enumerate(_lines(cast("BufferedReader", file)), 1):
                try:
                    yield request(jsontext.loads(line))
                except (InvalidPayload, KeyError, TypeError, AttributeError):
                    raise RestoreError(f"{name}:{number} is not an archived job") from None
    except (OSError, EOFError) as error:
        raise RestoreError(f"can't read {name}: {error}") from error


def _lines(file: BufferedReader) -> Iterator[bytes]:
    """Return the lines of a file, decompressed if necessary."""
    if file.peek(len(_PACKED)).startswith(_PACKED):
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield from unpacked
    else:
        yield from file


def request(archived: dict[str, Any]) -> dict[str, Any]:
    """Return the request body for an archived job. Raises KeyError."""
    meta = {key: value for key, value in archived["meta"].items() if key not in _OF_THAT_LIFE}
    wanted = {name: archived[name] for name in ("id", "type", "queue", "args")}
    return wanted | ({"meta": meta} if meta else {})


class Server:
    """The server that receives the jobs."""

    def __init__(self, url: str) -> None:
        """Raise RestoreError if the URL is invalid."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RestoreError(f"--url: must be an http or https URL, but is {url}")
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=30)
        self._path = parts.path.rstrip("/").removesuffix("/ojs/v1") + "/ojs/v1/jobs"

    def push(self, job: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Send a job, and retry while the server is busy. Raises RestoreError."""
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
