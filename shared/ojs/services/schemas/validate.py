"""Checks arguments of jobs against schemas. The only module that imports the validator.

It is imported when a schema is registered, or when an enqueue names a job type with a schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema_rs
from aws_lambda_powertools import Logger

from ojs.bounded import BoundedMap
from ojs.domain import jsontext, schemas
from ojs.domain.errors import InvalidRequest, SchemaMismatch, shorten
from ojs.domain.schemas import MAX_ERRORS, Schema, SchemaMode, Version
from ojs.records import record
from ojs.store.schemas.schemas import SchemaEntry, SchemaStore

logger = Logger()

_REMEMBERED = 200
# Maximum bytes of a compiled pattern.
_PATTERN_BYTES = 1_000_000
# The validator finds all errors or the first one. Above this product of bytes and subschemas, only
# the first one: each error takes 40 µs.
_ALL_ERRORS = 20_000


@record(frozen=True)
class Validator:
    """A compiled schema, its number of subschemas, and whether it describes one object."""

    compiled: Any
    nodes: int
    of_object: bool

    def find_errors(self, args: Sequence[Any]) -> list[str]:
        """Return the errors of arguments, without their values. Empty: they are valid."""
        one = self.of_object and len(args) == 1 and isinstance(args[0], Mapping)
        value = args[0] if one else args
        if self.compiled.is_valid(value):
            return []
        found: list[Any] = []
        if jsontext.size_of(value) * self.nodes <= _ALL_ERRORS:
            found = list(self.compiled.iter_errors(value))[:MAX_ERRORS]
        else:
            try:
                self.compiled.validate(value)
            except jsonschema_rs.ValidationError as error:
                found = [error]
        return [_text(each, "args[0]" if one else "args") for each in found]


def _text(error: Any, root: str) -> str:
    parts = (f"[{each}]" if isinstance(each, int) else f".{each}" for each in error.instance_path)
    return f"{shorten(root + ''.join(parts))}: {shorten(error.message)}"


def _refuse(uri: str) -> Any:
    # Without a retriever, the validator would fetch the address.
    raise ValueError(f"{uri} is not a part of this schema")


def build_validator(schema: Mapping[str, Any]) -> Validator:
    """Compile a schema. Raises InvalidRequest if it is not valid or breaks a limit."""
    nodes = schemas.check_document(schema)
    left_out = ("$schema", "$id")
    whole = {key: each for key, each in schema.items() if key not in left_out}
    try:
        compiled = jsonschema_rs.Draft202012Validator(
            schemas.format_schema(whole),
            validate_formats=True,
            mask="value",
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES),
            retriever=_refuse,
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:  # type: ignore[misc]
        reason = str(getattr(error, "message", error))
        path = [str(each) for each in getattr(error, "instance_path", ())]
        rule = f"must be a valid JSON Schema of draft 2020-12: {reason}"
        raise InvalidRequest(".".join(["schema", *path])[:200], shorten(rule)) from None
    kind = schema.get("type", "object" if "properties" in schema else None)
    return Validator(compiled, nodes, kind == "object")


class SchemaValidation:
    """Checks the arguments of new jobs, with the compiled schemas of a container."""

    def __init__(
        self,
        *,
        schemas: SchemaStore,
        schema_mode: str | None,
    ) -> None:
        """Create the service. `schema_mode` is the mode of types without a separate mode."""
        self._schemas = schemas
        self._mode = SchemaMode(schema_mode or SchemaMode.OFF)
        # By type, revision in the directory, and version. None: the version is not registered.
        self._compiled: BoundedMap[tuple[str, int, str], list[Validator]] = BoundedMap(_REMEMBERED)

    def check(
        self,
        contents: Sequence[tuple[str, Mapping[str, Any]]],
        prefix: str,
    ) -> dict[int, list[str]]:
        """Check the arguments of jobs.

        Makes one call for each version that this container does not know, and one if its copy of
        the directory is too old.

        Args:
            contents: Type and payload of each job.
            prefix: Prefix of field names in errors, with `{}` for the index of the job.

        Returns:
            Warnings by index of the job.

        Raises:
            SchemaMismatch: Arguments don't match a schema, in mode `strict`.
            OjsError: The directory or a schema can't be read.
        """
        entries, warnings, told = self._schemas.read_cached().entries, {}, 0
        for index, (job_type, content) in enumerate(contents):
            entry = entries.get(job_type)
            mode = SchemaMode.OFF if entry is None else entry.mode or self._mode
            if entry is None or mode is SchemaMode.OFF or schemas.is_encoded(content):
                continue
            if mode is SchemaMode.WARN and told >= MAX_ERRORS:
                continue
            version, errors = self._errors(job_type, entry, content)
            if errors and mode is SchemaMode.STRICT:
                raise SchemaMismatch(prefix.format(index), job_type, version, errors, index)
            if errors:
                told += len(errors)
                logger.warning(
                    "Arguments don't match their schema", job_type=job_type, version=version
                )
                at = prefix.format(index)
                warnings[index] = [f"Schema validation warning: {at}{each}" for each in errors]
        return warnings

    def _errors(
        self, job_type: str, entry: SchemaEntry, content: Mapping[str, Any]
    ) -> tuple[str, list[str]]:
        version = shorten(str(content.get("version", entry.latest)))
        missing = [f"version {version} of '{job_type}' has no schema"]
        try:
            number = Version.of(version)
        except ValueError:
            return version, missing
        key = (job_type, entry.revision, number.key)
        known = self._compiled.get(key)
        if known is None:
            found = self._schemas.get(job_type, number)
            known = [] if found is None else [build_validator(jsontext.stored(found.text))]
            self._compiled.put(key, known)
        return version, known[0].find_errors(content["args"]) if known else missing


def check_schema(schema: Schema) -> None:
    """Raise InvalidRequest if a schema is not valid or breaks a limit."""
    build_validator(jsontext.stored(schema.text))
