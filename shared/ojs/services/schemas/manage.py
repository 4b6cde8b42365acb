"""Registers, lists, and deletes schemas of job arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain import schemas as domain
from ojs.domain.errors import Conflict, InvalidRequest, LimitReached, NotFound, naming_field
from ojs.domain.job.envelope import check_type
from ojs.domain.page import Page
from ojs.domain.schemas import Schema, SchemaMode, SchemaRequest, Version
from ojs.records import record
from ojs.store.deliveries.deliveries import DeliveryDirectory, DeliveryStore
from ojs.store.schemas import schemas as store
from ojs.store.schemas.schemas import SchemaDirectory, SchemaEntry, SchemaStore
from ojs.store.table.races import retry_on_race

_BUSY = "Concurrent requests changed the schemas."
# The class below has a method with the name `list`.
_Seen = list["SchemaStatus"]


@record(frozen=True)
class SchemaStatus:
    """A version of a schema, the mode of its type, and whether it is the latest version."""

    schema: Schema
    mode: SchemaMode
    is_latest: bool = True


class Schemas:
    """Manages schemas."""

    def __init__(
        self,
        *,
        schemas: SchemaStore,
        deliveries: DeliveryStore,
        directory: DeliveryDirectory,
        schema_mode: str | None,
        clock: Clock,
    ) -> None:
        """Create the service. `schema_mode` is the mode of types without a separate mode."""
        self._schemas = schemas
        self._deliveries = deliveries
        self._served = directory
        self._mode = SchemaMode(schema_mode or SchemaMode.OFF)
        self._clock = clock

    def register(
        self, job_type: str, version: str | int, body: SchemaRequest, uri: str | None = None
    ) -> SchemaStatus:
        """Register a version. Safe to repeat: the same schema again changes nothing.

        Raises:
            InvalidRequest: The schema or the version is invalid, or breaks a limit.
            ValidationFailed: A minor version has breaking changes.
            Conflict: The version or the URI exists, with another schema.
            LimitReached: There are too many types or versions.
        """
        from ojs.services.schemas.validate import check_schema

        with naming_field("version", version):
            number = Version.of(version)
        if uri is not None and not domain.URI.fullmatch(uri):
            raise InvalidRequest("uri", "must be a URI", value=uri)
        text = jsontext.dumps(body.document)
        given = uri if uri and not uri.startswith(domain.URN) else None
        new = Schema(job_type, str(version), text, self._clock.now_ms(), given)
        if uri not in (None, new.uri):
            raise InvalidRequest("uri", f"must be {new.uri}, or not start with {domain.URN}")
        check_schema(new)

        def make_attempt() -> SchemaStatus:
            directory = self._schemas.read_directory()
            entry = directory.entries.get(job_type)
            if (stored := self._schemas.get(job_type, number)) is not None and entry is not None:
                # An earlier attempt without a response, or another request.
                if (stored.text, stored.given_uri) != (text, given):
                    raise Conflict(
                        f"Version {stored.version} of '{job_type}' has another schema. Register a "
                        "new version, or delete this one first.",
                        details={"field": "version", "job_type": job_type},
                    )
                return self._status(stored, entry)
            self._check_uri(given)
            listed = self._schemas.list(job_type) if entry else []
            self._check_compatible(new, listed, body.compatible_with)
            latest = max([*listed, new], key=lambda each: each.number)
            after = directory.with_entry(
                job_type,
                SchemaEntry(
                    latest.version,
                    latest.created_ms,
                    None if entry is None else entry.mode,
                    directory.revision + 1,
                    len(listed) + 1,
                ),
            )
            self._check_room(after, len(listed) + 1)
            # Each container that enqueues reads the directory of deliveries.
            self._schemas.add(new, directory, after, self._deliveries.note_schemas())
            self._served.forget()
            return self._status(new, after.entries[job_type])

        return retry_on_race(make_attempt, busy=_BUSY)

    def _check_uri(self, uri: str | None) -> None:
        if uri is not None:
            try:
                job_type, version = self._schemas.find(uri)
            except NotFound:
                return
            raise Conflict(
                f"The URI belongs to version {version} of '{job_type}'. Use another URI.",
                details={"field": "uri", "job_type": job_type},
            )

    def _check_compatible(self, new: Schema, listed: list[Schema], named: str | int | None) -> None:
        """Raise ValidationFailed if a schema rejects what an earlier one accepts."""
        below = (each for each in listed if each.number < new.number)
        earlier = next((it for it in below if it.number.numbers[0] == new.number.numbers[0]), None)
        if named is not None:
            with naming_field("compatible_with", named):
                wanted = Version.of(named)
            earlier = next((each for each in listed if each.number == wanted), None)
            if earlier is None:
                raise InvalidRequest("compatible_with", "must be a registered version", value=named)
        if earlier is not None:
            domain.check_compatible(earlier, new)

    def _check_room(self, after: SchemaDirectory, versions: int) -> None:
        if versions > domain.MAX_VERSIONS:
            most = domain.MAX_VERSIONS
            raise LimitReached("version", f"A type can have {most} versions. Delete one.", most)
        size = len(after.format().encode())
        if len(after.entries) > domain.MAX_TYPES or size > store.MAX_DIRECTORY_BYTES:
            most = domain.MAX_TYPES
            raise LimitReached(
                "type", f"At most {most} types with short names can have schemas. Delete one.", most
            )

    def get(self, job_type: str, version: str | int | None = None) -> SchemaStatus:
        """Return a version, or the latest one. Raises NotFound, InvalidRequest."""
        with naming_field("type", job_type):
            check_type(job_type)
        entry = self._entry(job_type)
        with naming_field("version", version):
            number = Version.of(entry.latest if version is None else version)
        found = self._schemas.get(job_type, number)
        if found is None:
            raise NotFound("schema", f"{job_type}@{version}")
        return self._status(found, entry)

    def find(self, uri: str) -> SchemaStatus:
        """Return the version with a URI. Raises NotFound."""
        if uri.startswith(domain.URN):
            job_type, _, version = uri.removeprefix(domain.URN).rpartition(":")
        else:
            job_type, version = self._schemas.find(uri)
        try:
            found = self.get(job_type, version)
        except InvalidRequest:
            found = None
        if found is None or found.schema.uri != uri:
            raise NotFound("schema", uri)
        return found

    def list(self, *, limit: int, cursor: str | None = None) -> Page[SchemaStatus]:
        """Return a page of the latest versions, ordered by type, without their schemas."""
        entries = self._schemas.read_directory().entries
        names = [name for name in sorted(entries) if name > (cursor or "")]
        found = [
            self._status(Schema(name, it.latest, "", it.created_ms), it)
            for name in names[:limit]
            for it in (entries[name],)
        ]
        return Page(found, names[limit - 1] if len(names) > limit else None)

    def list_versions(self, job_type: str) -> _Seen:
        """Return all versions of a type, the newest first. Raises NotFound."""
        entry = self._entry(job_type)
        return [self._status(each, entry) for each in self._schemas.list(job_type)]

    def set_mode(self, job_type: str, mode: SchemaMode) -> SchemaStatus:
        """Set the mode of a type. Containers apply it within 10 seconds. Raises NotFound."""

        def make_attempt() -> None:
            directory = self._schemas.read_directory()
            entry = self._entry(job_type, directory)
            if entry.mode is not mode:
                after = directory.with_entry(job_type, replace(entry, mode=mode))
                self._schemas.put_directory(directory, after)

        retry_on_race(make_attempt, busy=_BUSY)
        return self.get(job_type)

    def delete(self, job_type: str, version: str | int) -> SchemaStatus:
        """Delete a version, and return it. Raises NotFound, InvalidRequest."""
        gone: list[SchemaStatus] = []

        def make_attempt() -> SchemaStatus:
            if not gone:
                gone.append(self.get(job_type, version))
            directory, old = self._schemas.read_directory(), gone[0].schema
            listed = self._schemas.list(job_type)
            left = [each for each in listed if each.number != old.number]
            if len(left) == len(listed):
                # Deleted by an earlier attempt without a response, or by another request.
                return gone[0]
            entry = directory.entries.get(job_type)
            after = None
            if left:
                new = directory.revision + 1
                mode = None if entry is None else entry.mode
                after = SchemaEntry(left[0].version, left[0].created_ms, mode, new, len(left))
            self._schemas.remove(old, directory, directory.with_entry(job_type, after))
            return gone[0]

        return retry_on_race(make_attempt, busy=_BUSY)

    def _entry(self, job_type: str, directory: SchemaDirectory | None = None) -> SchemaEntry:
        found = (directory or self._schemas.read_directory()).entries.get(job_type)
        if found is None:
            raise NotFound("schema", job_type)
        return found

    def _status(self, schema: Schema, entry: SchemaEntry) -> SchemaStatus:
        latest = schema.number == Version.of(entry.latest)
        return SchemaStatus(schema, entry.mode or self._mode, latest)


def parse_document(schema: Schema) -> Any:
    """Return the JSON document of a schema."""
    return jsontext.stored(schema.text) if schema.text else {}
