"""Schemas of job arguments: their versions, limits, and breaking changes (ojs-schema-registry).

Each key, version, and limit is checked here, before the validator sees a schema. Enqueues import
this module only if a schema exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from ojs.domain import jsontext
from ojs.domain.errors import InvalidRequest, ValidationFailed
from ojs.domain.job.envelope import VERSION, JobType
from ojs.domain.requests import Field, Model
from ojs.records import record

MAX_TYPES = 2_000
MAX_VERSIONS = 100
MAX_BYTES = 65_536
# Maximum subschemas, with each reference replaced by its target. The time of a check grows with it.
MAX_NODES = 1_000
MAX_LEVELS = 50
MAX_PATTERN = 1_000
MAX_URI = 1_000
MAX_ERRORS = 20
URN = "urn:ojs:schema:"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[!-~]+")
_ONE = ("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
# References that the limits can't follow.
_REFUSED = ("$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef")
_MOST = ("exclusiveMaximum", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum")
_LEAST = ("exclusiveMinimum", "minContains", "minItems", "minLength", "minProperties", "minimum")
_SAME = (
    "const",
    "contains",
    "format",
    "multipleOf",
    "not",
    "pattern",
    "propertyNames",
    "uniqueItems",
)


class SchemaMode(StrEnum):
    """What an enqueue does with arguments that don't match their schema."""

    STRICT = "strict"
    WARN = "warn"
    OFF = "off"


@record(frozen=True, order=True)
class Version:
    """A version of one to three numbers. Versions are compared by number."""

    numbers: tuple[int, int, int]

    @classmethod
    def of(cls, value: object) -> Version:
        """Read a version. Raises ValueError if it is invalid."""
        text = str(value)
        if isinstance(value, bool) or not VERSION.fullmatch(text):
            raise ValueError("must be one to three numbers separated by dots, for example 1.2.0")
        parts = [int(part) for part in text.split(".")]
        first, second, third = (*parts, 0, 0)[:3]
        return cls((first, second, third))

    @property
    def key(self) -> str:
        """The sort key: the order of the texts is the order of the versions."""
        return ".".join(f"{number:09d}" for number in self.numbers)


@record(frozen=True)
class Schema:
    """A version of a schema. `version` is the registered text. A whole number is shown as one."""

    type: str
    version: str
    text: str = ""
    created_ms: int = 0
    given_uri: str | None = None

    @property
    def uri(self) -> str:
        """Its URI: the registered one, or one of the type and the version."""
        return self.given_uri or f"{URN}{self.type}:{self.version}"

    @property
    def number(self) -> Version:
        """The version, to compare it."""
        return Version.of(self.version)


class SchemaRequest(Model):
    """A schema of job arguments. `args_schema` is another name of `schema`."""

    schema_: dict[str, Any] | None = Field(None, alias="schema", description="draft 2020-12")
    args_schema: dict[str, Any] | None = Field(None, description="the same as schema")
    compatible_with: str | int | None = Field(
        None, description="registered version whose arguments must stay valid"
    )

    @property
    def document(self) -> dict[str, Any]:
        """The schema. Raises InvalidRequest if there is none, or two."""
        if self.schema_ is not None and self.args_schema not in (None, self.schema_):
            raise InvalidRequest("args_schema", "conflicts with schema. Send only one of them")
        found = self.args_schema if self.schema_ is None else self.schema_
        if found is None:
            raise InvalidRequest("schema", "is required")
        return found


class SchemaRegistration(SchemaRequest):
    """A schema with its job type and version. `type` is another name of `job_type`."""

    job_type: JobType | None = None
    type: JobType | None = Field(None, description="the same as job_type")
    version: str | int = Field()
    uri: str | None = Field(
        None, max_length=MAX_URI, description="default: urn:ojs:schema:{type}:{version}"
    )

    @property
    def named(self) -> str:
        """The job type. Raises InvalidRequest if there is none, or two."""
        if self.job_type is not None and self.type not in (None, self.job_type):
            raise InvalidRequest("type", "conflicts with job_type. Send only one of them")
        if (found := self.job_type or self.type) is None:
            raise InvalidRequest("job_type", "is required")
        return found


class SchemaModeRequest(Model):
    """The mode of a job type."""

    mode: SchemaMode = Field()


def is_encoded(content: Mapping[str, Any]) -> bool:
    """Return whether a codec of the client encoded the arguments, for example by encryption."""
    meta, args = content.get("meta") or {}, content.get("args") or ()
    return any(name.startswith("ojs.codec.") for name in meta) or any(
        isinstance(each, Mapping) and each.get("ojs_encoded") is True for each in args
    )


def check_document(schema: Mapping[str, Any]) -> int:
    """Check the limits of a schema that the validator doesn't know.

    Returns:
        The number of subschemas, with each reference replaced by its target.

    Raises:
        InvalidRequest: The schema breaks a limit.
    """
    if (size := jsontext.size_of(schema)) > MAX_BYTES:
        raise _bad(f"must have at most {MAX_BYTES} bytes, but has {size}")
    if schema.get("$schema", DRAFT).rstrip("#") != DRAFT if _is_text(schema, "$schema") else True:
        raise InvalidRequest("schema.$schema", f"must be {DRAFT}, or absent")
    count = 0
    # Subschemas to visit, each with the schemas that enclose it.
    waiting: list[tuple[Any, tuple[int, ...]]] = [(schema, ())]
    while waiting:
        node, above = waiting.pop()
        count += 1
        if count > MAX_NODES:
            raise _bad(f"must have at most {MAX_NODES} list_subschemas, references included")
        if not isinstance(node, Mapping):
            continue
        if len(above) >= MAX_LEVELS:
            raise _bad(f"must have at most {MAX_LEVELS} levels, references included")
        if id(node) in above:
            raise _bad("must not refer to a schema that contains the reference")
        _check_keywords(node, root=not above)
        within = (*above, id(node))
        waiting += [(each, within) for _, each in list_subschemas(node)]
        if "$ref" in node:
            waiting.append((_target(schema, node["$ref"]), within))
    return count


def _is_text(node: Mapping[str, Any], name: str) -> bool:
    return name not in node or isinstance(node[name], str)


def _check_keywords(node: Mapping[str, Any], *, root: bool) -> None:
    if "$id" in node and not root:
        raise InvalidRequest("schema.$id", "is only supported at the top of the schema")
    for name in _REFUSED:
        if name in node:
            raise InvalidRequest(f"schema.{name}", "is not supported. Use $defs and $ref")
    patterns = [node.get("pattern"), *(node.get("patternProperties") or ())]
    if any(isinstance(each, str) and len(each) > MAX_PATTERN for each in patterns):
        raise InvalidRequest("schema.pattern", f"must have at most {MAX_PATTERN} characters")
    if node.get("format") == "regex":
        raise InvalidRequest("schema.format", "must not be regex")


def list_subschemas(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the subschemas of a schema, with their keywords and names."""
    for name in _ONE:
        if isinstance(node.get(name), Mapping | bool):
            yield name, node[name]
    for name in (*_LISTS, "items"):
        if isinstance(node.get(name), list):
            yield from ((f"{name}[{index}]", each) for index, each in enumerate(node[name]))
    for name in _MAPS:
        if isinstance(node.get(name), Mapping):
            yield from ((f"{name}.{key}", each) for key, each in node[name].items())


def _target(root: Mapping[str, Any], reference: object) -> Any:
    """Return what a reference of the form `#/…` refers to. Raises InvalidRequest."""
    found: Any = root
    if not isinstance(reference, str) or not re.fullmatch(r"#(/.*)?", reference):
        raise InvalidRequest("schema.$ref", "must be # or a path of the form #/$defs/name")
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            rule = "must refer to a part of this schema"
            raise InvalidRequest("schema.$ref", rule, value=reference)
    return found


def _bad(rule: str) -> InvalidRequest:
    return InvalidRequest("schema", rule)


# Keywords whose values can contain anything, also the names of other keywords.
_VALUES = ("const", "default", "enum", "examples")


def format_schema(node: Any) -> Any:
    """Return a schema for the validator: arrays in `items` have another name in draft 2020-12."""
    if isinstance(node, list):
        return [format_schema(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    if isinstance(listed := node.get("items"), list):
        node = {key: each for key, each in node.items() if key != "items"}
        if (rest := node.pop("additionalItems", None)) is not None:
            node["items"] = rest
        node["prefixItems"] = listed
    return {key: each if key in _VALUES else format_schema(each) for key, each in node.items()}


# --- compatibility --------------------------------------------------------------------------------


def check_compatible(old: Schema, new: Schema) -> None:
    """Raise ValidationFailed if `new` rejects arguments that `old` accepts."""
    before, after = (format_schema(jsontext.stored(each.text)) for each in (old, new))
    changes = list(breaking_changes(before, after))
    if changes:
        major = old.number.numbers[0] + 1
        rule = (
            f"has breaking changes compared to {old.version}. Use the major version {major}.0.0, "
            "or see details.breaking_changes"
        )
        shown = {"breaking_changes": changes[:MAX_ERRORS]}
        raise ValidationFailed("schema", rule, details=shown)


def breaking_changes(old: Any, new: Any, path: str = "args") -> Iterator[str]:
    """Yield the breaking changes between two schemas (ojs-schema-registry, section 8.2)."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if old != new and new is not True and old is not False:
            yield f"The schema of '{path}' was changed."
        return
    for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
        yield f"Required field '{path}.{name}' was added."
    was, now = old.get("properties", {}), new.get("properties", {})
    for name in was:
        if name in now:
            yield from breaking_changes(was[name], now[name], f"{path}.{name}")
        else:
            yield f"Field '{path}.{name}' was removed."
    for name in ("items", "prefixItems", "additionalProperties", "$ref", "$defs"):
        yield from _changed_part(old.get(name), new.get(name), name, path)
    yield from _narrowed(old, new, path)


def _narrowed(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the constraints of a schema that were narrowed."""
    if (types := _types(new)) is not None and not types >= (_types(old) or {"anything"}):
        yield f"The type of '{path}' was changed to {', '.join(sorted(types))}."
    for names, narrower in ((_MOST, -1), (_LEAST, 1)):
        for name in names:
            limit, before = new.get(name), old.get(name)
            if limit is not None and (before is None or (limit - before) * narrower > 0):
                yield f"{name} of '{path}' was narrowed to {limit}."
    if "enum" in new and any(each not in new["enum"] for each in old.get("enum", [None, new])):
        yield f"Values of '{path}' were removed from enum."
    for name in (*_SAME, "allOf", "anyOf", "oneOf", "if", "then", "else", "patternProperties"):
        if name in new and new[name] != old.get(name):
            yield f"{name} of '{path}' was added or changed."


def _changed_part(old: Any, new: Any, name: str, path: str) -> Iterator[str]:
    if name == "additionalProperties" and new is False and old in (None, True):
        yield f"additionalProperties of '{path}' was set to false."
    elif name in ("$ref", "$defs", "prefixItems"):
        if new is not None and old != new:
            parts = zip(old, new, strict=False) if isinstance(old, list) else ()
            if name == "prefixItems" and isinstance(old, list) and len(new) >= len(old):
                for index, pair in enumerate(parts):
                    yield from breaking_changes(*pair, f"{path}[{index}]")
            elif name != "$defs":
                yield f"{name} of '{path}' was changed."
            else:
                for each in (old or {}).keys() & new.keys():
                    yield from breaking_changes(old[each], new[each], f"{path}({each})")
    elif isinstance(new, Mapping) or new is False:
        suffix = "[]" if name == "items" else ".*"
        yield from breaking_changes(True if old is None else old, new, f"{path}{suffix}")


def _types(schema: Mapping[str, Any]) -> set[str] | None:
    found = schema.get("type")
    types = None if found is None else {found} if isinstance(found, str) else set(found)
    return types | {"integer"} if types and "number" in types else types
