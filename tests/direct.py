"""A short way from the SDK to an engine of this machine, for tests of many small calls.

Most of what the SDK spends on a call goes into working out where to send it, signing it, sending it
through urllib3 and reading the answer along the service's model. None of that is under test where
an engine only holds a table: there this writes and reads HTTP itself. Checking parameters and the
service's errors stay the SDK's; so does the whole call, when it does not get through.

The SDK goes its whole way where tests run on moto or MiniStack, and in those of the local server.
"""

from __future__ import annotations

import base64
import json
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from io import BufferedReader
from threading import RLock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore.config import Config
from botocore.exceptions import ParamValidationError
from botocore.validate import ParamValidationDecorator, ParamValidator

from local.dynamodb import connect_to_streams
from ojs.store.table import clients

if TYPE_CHECKING:
    from botocore.model import Shape
    from mypy_boto3_dynamodb import DynamoDBClient

_TIMEOUT_S = 2.0  # as the SDK's clients have it
_HEAD = (
    "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-amz-json-1.0\r\n"
    # The engines want a signature and take any.
    "Authorization: AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/dynamodb/aws4_request, "
    "SignedHeaders=host, Signature=0\r\nX-Amz-Date: 20260101T000000Z\r\n"
    "X-Amz-Target: {target}\r\nContent-Length: {length}\r\n\r\n"
)

_CHECK = ParamValidator()
_ENCODER = json.JSONEncoder(
    separators=(",", ":"), default=lambda value: base64.b64encode(value).decode("ascii")
)
_OPEN: dict[str, _Direct] = {}


@contextmanager
def connected(url: str) -> Iterator[DynamoDBClient]:
    """A client of the engine at this URL, whose connections end with the block."""
    client = clients.dynamodb(
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        # Many threads; and the SDK works out anew with each call how it describes itself.
        # Parameters are checked here, if not in a deployment: a wrong one is a defect.
        config=clients.DYNAMODB_CONFIG.merge(
            Config(max_pool_connections=128, user_agent="tests", parameter_validation=True)
        ),
    )
    direct = _Direct(url)
    first = _OPEN.setdefault(url, direct) is direct
    direct.serve(client)
    try:
        yield client
    finally:
        if first:
            del _OPEN[url]
        direct.close()
        client.close()


@cache
def streams(url: str) -> Any:
    """A client for the streams of an engine's tables: by the short way if one is open there."""
    client = connect_to_streams(url)
    if url in _OPEN:
        _OPEN[url].serve(client)
    return client


Fits = Callable[[Any], bool]
_MAKING = RLock()


class Checks(dict[str, Fits]):
    """Checks of a service's shapes, by name: whether the SDK surely accepts a value.

    If one says no, the SDK decides. It takes ten times as long.
    """

    def of(self, shape: Shape) -> Fits:
        """The check of a shape."""
        name = shape.name
        with _MAKING:  # no thread may see a half of them
            if name not in self:
                # A shape can contain itself.
                self[name] = lambda value: self[name](value)  # noqa: PLW0108
                self[name] = self._made(shape)
            return self[name]

    def _made(self, shape: Any) -> Fits:
        least = shape.metadata.get("min", 0)
        if shape.serialization.keys() & {"hostLabel", "jsonvalue"}:
            return lambda _: False
        match shape.type_name:
            case "structure" if not shape.is_document_type:
                return self._structure(shape)
            case "map":
                key, inner = self.of(shape.key), self.of(shape.value)
                return lambda value: (
                    type(value) is dict
                    and all(key(name) and inner(each) for name, each in value.items())
                )
            case "list":
                member = self.of(shape.member)
                return lambda value: (
                    type(value) in (list, tuple) and len(value) >= least and all(map(member, value))
                )
            case "string":
                return lambda value: type(value) is str and len(value) >= least
            case "integer" | "long":
                return lambda value: type(value) is int and value >= least
            case "boolean":
                return lambda value: type(value) is bool
            case "blob":
                return lambda value: type(value) is bytes
            case _:
                return lambda _: False

    def _structure(self, shape: Any) -> Fits:
        members = {name: self.of(member) for name, member in shape.members.items()}
        required, one = set(shape.metadata.get("required", ())), shape.is_tagged_union

        def fits(value: Any) -> bool:
            if type(value) is not dict or (one and len(value) != 1) or required - value.keys():
                return False
            return all(name in members and members[name](each) for name, each in value.items())

        return fits


_CHECKS: defaultdict[str, Checks] = defaultdict(Checks)


class _Direct:
    """Makes calls in the SDK's place."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        # Each is used by one thread at a time.
        self._idle: deque[tuple[socket.socket, BufferedReader]] = deque()
        self._closed = False

    def serve(self, client: Any) -> None:
        """Make the calls of this client, and leave to the SDK those that do not get through."""
        model = client.meta.service_model
        prefix, service = model.metadata["targetPrefix"], model.service_id.hyphenize()
        checks, whole_way = _CHECKS[service], client._make_api_call
        checked = isinstance(client._serializer, ParamValidationDecorator)

        def call(operation: str, params: Mapping[str, Any]) -> Any:
            model_of = model.operation_model(operation)
            # Who listens to calls hears of these, too; a listener may put in what is missing.
            client.meta.events.emit(
                f"before-parameter-build.{service}.{operation}",
                params=params,
                model=model_of,
                context={},
            )
            if checked and not checks.of(model_of.input_shape)(params):
                wrong = _CHECK.validate(params, model_of.input_shape)
                if wrong.has_errors():
                    raise ParamValidationError(report=wrong.generate_report())
            found = self._call(f"{prefix}.{operation}", params)
            if found is None:
                return whole_way(operation, params)
            status, answer = found
            if status >= 300:
                raise client.exceptions.from_code(answer["Error"]["Code"])(answer, operation)
            return answer

        client._make_api_call = call

    def _call(self, target: str, params: Mapping[str, Any]) -> tuple[int, dict[str, Any]] | None:
        """Status and answer of a request; None without an answer that counts."""
        body = _ENCODER.encode(params).encode("ascii")
        head = _HEAD.format(host=self._host, target=target, length=len(body))
        connection = self._connection()
        try:
            status, answer = _exchange(*connection, head.encode("ascii") + body)
        except OSError:
            _close(*connection)
            return None
        if self._closed:
            # A thread that a test left behind: nothing else would close it.
            _close(*connection)
        else:
            self._idle.append(connection)
        if status >= 500:
            return None
        parsed = json.loads(answer, object_hook=_rich)
        if status >= 300:
            code = str(parsed.get("__type", "")).rpartition("#")[2]
            message = parsed.get("message", parsed.get("Message", ""))
            parsed["Error"] = {"Code": code, "Message": message}
        parsed["ResponseMetadata"] = {"HTTPStatusCode": status, "RetryAttempts": 0}
        return status, parsed

    def _connection(self) -> tuple[socket.socket, BufferedReader]:
        try:
            return self._idle.pop()
        except IndexError:
            host, _, port = self._host.partition(":")
            made = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made, made.makefile("rb")

    def close(self) -> None:
        """Close what is open; a call that is under way closes its own connection."""
        self._closed = True
        while self._idle:
            _close(*self._idle.pop())


def _exchange(made: socket.socket, reader: BufferedReader, request: bytes) -> tuple[int, bytes]:
    """Send a request and read the status and the body of its answer."""
    made.sendall(request)
    first = reader.readline().split()
    if not first:
        raise ConnectionResetError
    length = 0
    while (line := reader.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return int(first[1]), reader.read(length)


def _close(made: socket.socket, reader: BufferedReader) -> None:
    reader.close()
    made.close()


def _rich(found: dict[str, Any]) -> dict[str, Any]:
    """What JSON cannot hold: binary values, and the time of a stream's record."""
    if len(found) == 1:
        if isinstance(value := found.get("B"), str):
            return {"B": base64.b64decode(value)}
    elif isinstance(at := found.get("ApproximateCreationDateTime"), int | float):
        found["ApproximateCreationDateTime"] = datetime.fromtimestamp(at, UTC)
    return found
