"""`ojs-aws schemas`: register, list, and delete schemas of job arguments, and generate code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import target
from cli.output import add_json, as_json, printable

if TYPE_CHECKING:
    import argparse

_PYTHON = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_TYPESCRIPT = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean",
               "null": "null"}  # fmt: skip


def add(commands: Any) -> None:
    """Add the command and its subcommands to the parser."""
    parser = commands.add_parser("schemas", help="schemas of job arguments, and code from them")
    actions = parser.add_subparsers(required=True, metavar="list|show|put|delete|mode|generate")
    listed = actions.add_parser("list", help="list the latest versions")
    listed.set_defaults(run=_list)
    show = actions.add_parser("show", help="print a schema as JSON")
    put = actions.add_parser("put", help="register a version")
    delete = actions.add_parser("delete", help="delete a version")
    mode = actions.add_parser("mode", help="set what happens to jobs that don't match")
    for each in (show, put, delete, mode):
        each.add_argument("type", help="job type")
    show.add_argument("version", nargs="?", help="default: the latest")
    show.set_defaults(run=_show)
    put.add_argument("version", help="one to three numbers, for example 1.0.0")
    put.add_argument("file", help="file with the JSON Schema, or - for standard input")
    put.set_defaults(run=_put)
    delete.add_argument("version")
    delete.set_defaults(run=_delete)
    mode.add_argument("mode", choices=("strict", "warn", "off"))
    mode.set_defaults(run=_mode)
    generate = actions.add_parser("generate", help="print types and enqueue functions")
    generate.add_argument("--language", required=True, choices=("python", "typescript"))
    generate.set_defaults(run=_generate)
    for each in (listed, show, put, delete, mode):
        add_json(each)
    for each in (listed, show, put, delete, mode, generate):
        target.add_arguments(each)


def _list(options: argparse.Namespace) -> None:
    server = target.server(options)
    for each in server.each(server.list_schemas, limit=200):
        _print(options, each)


def _print(options: argparse.Namespace, seen: Mapping[str, Any]) -> None:
    if options.json:
        as_json(seen)
    else:
        print(printable(f"{seen['type']}  {seen['version']}  {seen['mode']}  {seen['created_at']}"))


def _show(options: argparse.Namespace) -> None:
    server = target.server(options)
    if options.version is None:
        found = server.admin_get_schema(options.type)
    else:
        found = server.admin_get_schema_version(options.type, options.version)
    if options.json:
        as_json(found)
    else:
        print(json.dumps(found["schema"], indent=2))


def _put(options: argparse.Namespace) -> None:
    try:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text("utf-8")
        schema = json.loads(text)
    except (OSError, ValueError) as error:
        raise target.CommandError(f"file: {error}", target.Exit.USAGE) from None
    server = target.server(options)
    _print(options, server.admin_put_schema(options.type, options.version, schema=schema))


def _delete(options: argparse.Namespace) -> None:
    gone = target.server(options).delete_schema_version(options.type, options.version)
    if options.json:
        as_json(gone)
    else:
        print(printable(f"{gone['type']}  {gone['version']}  deleted"))


def _mode(options: argparse.Namespace) -> None:
    seen = target.server(options).admin_set_schema_mode(options.type, mode=options.mode)
    _print(options, seen)


# --- code -----------------------------------------------------------------------------------------


def _generate(options: argparse.Namespace) -> None:
    server = target.server(options)
    names = [each["type"] for each in server.each(server.list_schemas, limit=200)]
    found = [server.admin_get_schema(name) for name in names]
    print("\n".join((python if options.language == "python" else typescript)(found)))


def _name(job_type: str) -> str:
    return "".join(part.capitalize() for part in re.split(r"[._-]", job_type))


def _is_object(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type", "object" if "properties" in schema else None)
    return bool(kind == "object")


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    required = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        yield name, each, name in required


def _literals(schema: Mapping[str, Any]) -> list[Any] | None:
    values = schema.get("enum")
    plain = values and all(each is None or isinstance(each, str | int) for each in values)
    return list(values) if plain and isinstance(values, list) else None


def _python_type(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "Any"
    if (values := _literals(schema)) is not None:
        return f"Literal[{', '.join(map(repr, values))}]"
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_python_type({**schema, "type": each}) for each in kind)
    if kind == "array":
        items = schema.get("items")
        return f"list[{_python_type(items)}]"
    return "dict[str, Any]" if kind == "object" else _PYTHON.get(str(kind), "Any")


def python(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Python module: a TypedDict and an enqueue function for each type."""
    yield '"""Written by `ojs-aws schemas generate`."""\n\nfrom __future__ import annotations\n'
    yield "from typing import Any, Literal, NotRequired, TypedDict\n\nimport ojs_aws"
    for each in found:
        schema, name = each["schema"], _name(each["type"])
        kind = "list[Any]"
        if _is_object(schema):
            kind = f"{name}Args"
            fields = ", ".join(
                f"{field!r}: {of if needed else f'NotRequired[{of}]'}"
                for field, inner, needed in _fields(schema)
                for of in (repr(_python_type(inner)),)
            )
            # In this form, any text can be the name of a field.
            yield f"\n{kind} = TypedDict({kind!r}, {{{fields}}})"
        args = "[args]" if _is_object(schema) else "args"
        function = re.sub(r"[.-]", "_", each["type"])
        yield f"\n\ndef enqueue_{function}("
        yield f"    client: ojs_aws.Client, args: {kind}, **options: Any"
        yield ") -> Any:"
        yield f'    """Enqueue a job of the type {each["type"]}."""'
        named = f"{each['type']}@{each['version']}"
        yield f"    return client.enqueue({named!r}, {args}, **options)"


def _typescript_type(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "unknown"
    if (values := _literals(schema)) is not None:
        return " | ".join(map(json.dumps, values))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_typescript_type({**schema, "type": each}) for each in kind)
    if kind == "array":
        return f"({_typescript_type(schema.get('items'))})[]"
    if kind == "object":
        return "Record<string, unknown>"
    return _TYPESCRIPT.get(str(kind), "unknown")


def typescript(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a TypeScript module: an interface and an enqueue function by type."""
    yield "// Written by `ojs-aws schemas generate`."
    yield "type Enqueue<T> = (type: string, args: unknown[], options?: object) => Promise<T>;"
    for each in found:
        schema, name = each["schema"], _name(each["type"])
        kind, args = "unknown[]", "args"
        if _is_object(schema):
            kind, args = f"{name}Args", "[args]"
            yield f"\nexport interface {kind} {{"
            for field, inner, needed in _fields(schema):
                yield f"  {json.dumps(field)}{'' if needed else '?'}: {_typescript_type(inner)};"
            yield "}"
        yield f"\nexport function enqueue{name}<T>("
        yield f"  enqueue: Enqueue<T>, args: {kind}, options?: object,"
        yield "): Promise<T> {"
        named = json.dumps(f"{each['type']}@{each['version']}") + f", {args}, options"
        yield f"  return enqueue({named});"
        yield "}"
