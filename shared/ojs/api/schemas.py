"""Schemas of job arguments (ojs-schema-registry), in three forms over one store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ojs import runtime
from ojs.domain import times
from ojs.domain.access import Scope
from ojs.domain.errors import InvalidRequest
from ojs.domain.schemas import (
    SchemaMode,
    SchemaModeRequest,
    SchemaRegistration,
    SchemaRequest,
)
from ojs.http.answer import Answer, AsIs, made, moment, shown, source
from ojs.http.answers import Moment
from ojs.http.binding import paging
from ojs.http.binding.paging import Paged
from ojs.http.binding.request import Request
from ojs.http.endpoint import Permission, QueueScope, Reply, Resource, Success
from ojs.http.parameters import PAGING

if TYPE_CHECKING:
    from ojs.http.binding.paging import Listed
    from ojs.services.schemas.manage import SchemaStatus


def _version(text: str) -> int | str:
    """Return a version for an answer. A whole number is shown as a number."""
    return int(text) if text.isdecimal() else text


def _document(schema: Any) -> dict[str, Any]:
    from ojs.services.schemas.manage import parse_document

    return dict(parse_document(schema))


def _wrapped(seen: SchemaStatus) -> dict[str, Any]:
    it = seen.schema
    return {
        "job_type": it.type,
        "version": _version(it.version),
        "schema": _document(it),
        "created_at": times.format_ms(it.created_ms),
    }


_s: SchemaStatus = source()
_l: Listed[SchemaStatus] = source()
_v: Sequence[SchemaStatus] = source()


class SchemaVersion(Answer["SchemaStatus"]):
    """A version of a schema, without the schema."""

    job_type: str = _s.schema.type
    type: str = job_type
    version: int | str = made(_version, _s.schema.version)
    uri: str = _s.schema.uri
    created_at: Moment = moment(_s.schema.created_ms)
    mode: SchemaMode = _s.mode
    is_latest: bool = _s.is_latest


class SchemaAnswer(SchemaVersion):
    """A version of a schema."""

    schema: dict[str, Any] = shown(made(_document, _s.schema), says="the schema")


class RegisteredSchemaAnswer(SchemaVersion):
    """A version of a schema. If the request names no URI, `schema` has the type and version too."""

    schema: dict[str, Any] = shown(
        made(_wrapped, _s), says="the schema, or an object that contains it"
    )


class SchemasAnswer(Paged["SchemaStatus"]):
    """A page of the latest versions of all types."""

    items: list[SchemaVersion] = SchemaVersion.each(_l.items)
    schemas: list[SchemaVersion] = items


class SchemaVersionsAnswer(Answer["Sequence[SchemaStatus]"]):
    """All versions of a type, the newest first."""

    type: str = _v[0].schema.type
    mode: SchemaMode = _v[0].mode
    versions: list[SchemaVersion] = SchemaVersion.each(_v)
    schemas: list[SchemaVersion] = versions


class SchemaDeletedAnswer(AsIs):
    """The version that was deleted."""

    deleted: Literal[True]
    type: str
    version: int | str


# --- endpoints ------------------------------------------------------------------------------------

_LOOK = Permission(Scope.ADMIN_READ, QueueScope.NONE)
_READ = Permission(Scope.JOBS_READ, QueueScope.NONE, (Scope.JOBS_WRITE, Scope.WORK))
# A schema applies to jobs of all queues.
_MANAGE = Permission(Scope.ADMIN_WRITE, QueueScope.ALL)
_DOCUMENT = {
    "type": "object",
    "required": ["to"],
    "properties": {"to": {"type": "string", "format": "email"}},
}
both = Resource("schemas", "schemas", also={"admin_{}": "admin/schemas"})
schemas = Resource("schemas", "schemas")
admin_schemas = Resource("admin/schemas", "admin", form="admin_{}")


@both.endpoint("GET", _READ, SchemasAnswer, query=PAGING, admin=_LOOK)
def list_schemas(request: Request) -> Reply:
    """List the job types that have a schema.

    One page of the latest versions, in order of type.
    """
    return Reply(SchemasAnswer.of(paging.asked(request.query, runtime.current().schemas.list)))


@both.endpoint("GET /{type}/versions", _READ, SchemaVersionsAnswer, errors=(404,), admin=_LOOK)
def list_schema_versions(request: Request) -> Reply:
    """List the versions of a schema."""
    return Reply(SchemaVersionsAnswer.of(runtime.current().schemas.list_versions(request.named)))


@both.endpoint("DELETE /{type}/{version}", _MANAGE, SchemaDeletedAnswer, errors=(404,))
def delete_schema_version(request: Request) -> Reply:
    """Delete a version of a schema.

    Jobs that name it are then not checked. In mode `strict` they are rejected.
    """
    return _deleted(runtime.current().schemas.delete(request.named, request.second_named))


def _deleted(seen: SchemaStatus) -> Reply:
    it = seen.schema
    body: Mapping[str, Any] = {"type": it.type, "version": _version(it.version)}
    return Reply({"deleted": True, **body})


@schemas.endpoint(
    "POST",
    _MANAGE,
    {201: Success(RegisteredSchemaAnswer, "The schema is registered.")},
    errors=(409,),
    request=SchemaRegistration,
    example={"job_type": "email.send", "version": "1.0.0", "schema": _DOCUMENT},
)
def register_schema(request: Request) -> Reply:
    """Register a schema of job arguments."""
    body = SchemaRegistration.model_validate(request.object())
    found = runtime.current().schemas.register(body.named, body.version, body, body.uri)
    named = body.type is not None or body.uri is not None
    return Reply((SchemaAnswer if named else RegisteredSchemaAnswer).of(found), 201)


@schemas.endpoint("GET /{schema}", _READ, RegisteredSchemaAnswer, errors=(404,))
def get_schema(request: Request) -> Reply:
    """Read the latest version of a schema by job type, or a version by URI."""
    name, current = request.named, runtime.current().schemas
    if ":" in name:
        return Reply(SchemaAnswer.of(current.find(name)))
    return Reply(RegisteredSchemaAnswer.of(current.get(name)))


@schemas.endpoint("DELETE /{schema}", _MANAGE, SchemaDeletedAnswer, errors=(404,))
def delete_schema(request: Request) -> Reply:
    """Delete the version of a schema that has a URI."""
    if ":" not in (name := request.named):
        raise InvalidRequest("schema", "must be a URI, or a job type and a version", value=name)
    it = runtime.current().schemas.find(name).schema
    return _deleted(runtime.current().schemas.delete(it.type, it.version))


@admin_schemas.endpoint(
    "PUT /{type}/{version}",
    _MANAGE,
    {201: Success(SchemaAnswer, "The schema is registered.")},
    errors=(409,),
    request=SchemaRequest,
    example={"schema": _DOCUMENT},
)
def put_schema(request: Request) -> Reply:
    """Register a version of a schema."""
    body = SchemaRequest.model_validate(request.object())
    version = request.second_named
    return Reply(
        SchemaAnswer.of(runtime.current().schemas.register(request.named, version, body)), 201
    )


@admin_schemas.endpoint("GET /{type}/{version}", _LOOK, SchemaAnswer, errors=(404,))
def get_schema_version(request: Request) -> Reply:
    """Read a version of a schema."""
    return Reply(
        SchemaAnswer.of(runtime.current().schemas.get(request.named, request.second_named))
    )


@admin_schemas.endpoint("GET /{type}", _LOOK, SchemaAnswer, errors=(404,), name="get_schema")
def get_latest_schema(request: Request) -> Reply:
    """Read the latest version of a schema."""
    return Reply(SchemaAnswer.of(runtime.current().schemas.get(request.named)))


@admin_schemas.endpoint(
    "PATCH /{type}",
    _MANAGE,
    SchemaAnswer,
    errors=(404,),
    request=SchemaModeRequest,
    example={"mode": "strict"},
)
def set_schema_mode(request: Request) -> Reply:
    """Set what an enqueue does with arguments that don't match their schema."""
    body = SchemaModeRequest.model_validate(request.object())
    return Reply(SchemaAnswer.of(runtime.current().schemas.set_mode(request.named, body.mode)))
