"""Write the pages about the HTTP API: `make facts`.

The pages are made from the OpenAPI document, which is made from the declarations in `ojs.api`.
There is one page for each group of operations, and one for the objects that they share.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ojs.api import openapi, operations
from ojs.http.binding import errors

Schema = Mapping[str, Any]
TITLES = {
    "jobs": "Jobs", "workers": "Workers", "queues": "Queues", "dead-letter": "Dead letters",
    "cron": "Cron jobs", "workflows": "Workflows", "rate limits": "Rate limits",
    "scheduling": "Worker pools", "deliveries": "Push deliveries", "webhooks": "Webhooks",
    "tenants": "Tenants",
    "schemas": "Schemas",
    "events": "Events",
    "keys": "Access keys", "system": "System", "admin": "Administration",
}  # fmt: skip
NOTE = "<!-- Written by `make facts` from the API's declarations. Do not edit. -->"
# Answers that each operation can give: they are described once, on the page of error codes.
_OBJECT = re.compile(r"\[(\w+)\]\(api-objects\.md")
_ALWAYS = {"500", "503", "504"}
_BOUNDS = (
    ("minimum", "maximum", ""), ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"), ("minProperties", "maxProperties", " names"),
)  # fmt: skip


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document of a server with access keys."""
    return openapi.document("main", "keys")


def file(tag: str) -> str:
    """The name of a group's page."""
    return f"api-{tag.replace(' ', '-')}.md"


def _schema(name: str) -> Schema:
    found: Schema = document()["components"]["schemas"][name]
    return found


def cell(text: str) -> str:
    """A text as a cell of a table."""
    flat = " ".join(text.split())
    return (flat[:1].upper() + flat[1:]).replace("|", "\\|").replace("<", "&lt;")


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = (header, ("---",) * len(header), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def _variants(schema: Schema) -> list[Schema]:
    several = schema.get("anyOf") or schema.get("oneOf")
    return list(several) if several else [schema]


def kind(schema: Schema) -> str:
    """The type of a value, with links to the objects it contains."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if (values := _schema(name).get("enum")) and len(values) <= 8:
            return " or ".join(f"`{value}`" for value in values)
        return f"[{name}](api-objects.md#{name.lower()})"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema or "oneOf" in schema or "allOf" in schema:
        several = schema.get("allOf") or _variants(schema)
        return " or ".join(dict.fromkeys(found for each in several if (found := kind(each))))
    name = schema.get("type", "any")
    if isinstance(name, list):
        return " or ".join(name)
    if name == "array":
        return f"array of {kind(schema.get('items', {}))}"
    more = schema.get("additionalProperties")
    if name == "object" and isinstance(more, Mapping) and more:
        return f"object of {kind(more)}"
    return str(name)


def bounds(schema: Schema) -> Iterator[str]:
    """What the values are limited to, and the default."""
    for each in _variants(schema):
        for lowest, highest, unit in _BOUNDS:
            least, most = each.get(lowest), each.get(highest)
            if least is not None and most is not None:
                yield f"{least:,} to {most:,}{unit}"
            elif most is not None:
                yield f"at most {most:,}{unit}"
            elif least == 1 and unit:
                yield "not empty"
            elif least:
                yield f"at least {least:,}{unit}"
        if "default" in each:
            yield f"default `{json.dumps(each['default'])}`"


def _described(schema: Schema) -> str:
    parts = [schema.get("description", "")]
    parts += [each.get("description", "") for each in _variants(schema) if each is not schema]
    parts += list(bounds(schema))
    return cell("; ".join(dict.fromkeys(part.rstrip(".") for part in parts if part)))


def fields(schema: Schema, always: str) -> str:
    """The fields of an object, as a table. `always` is the title of the third column."""
    if "properties" not in schema:
        return f"Type: {kind(schema)}.\n\n"
    required = set(schema.get("required", ()))
    # Fields that are accepted and ignored come from a set: they have no order of their own.
    ordered = sorted(schema["properties"].items(), key=lambda each: "" if each[1] else each[0])
    rows = [
        (f"`{name}`", kind(each), "yes" if name in required else "no", _described(each))
        for name, each in ordered
    ]
    return table(("Field", "Type", always, "Description"), rows) if rows else "No fields.\n\n"


def _body(content: Schema, always: str) -> str:
    schema: Schema = next(iter(content.values()))["schema"]
    if "$ref" in schema:
        schema = _schema(schema["$ref"].rpartition("/")[2])
    return fields(schema, always)


def _example(method: str, path: str, content: Schema) -> str:
    verb = "" if method == "get" else f" -X {method.upper()}"
    lines = [f'curl{verb} "$OJS_URL{path}" -H "Authorization: Bearer $OJS_KEY"']
    example = next(iter(content.values())).get("example") if content else None
    if example is not None:
        lines[0] += " \\"
        lines.append("  -H 'Content-Type: application/json' -d '")
        lines[1] += json.dumps(example, ensure_ascii=False).replace("'", "'\\''") + "'"
    return "```sh\n" + "\n".join(lines) + "\n```\n\n"


def _permission(operation_id: str) -> str:
    permission = operations.get(operation_id).permission
    scope = f"`{permission.scope}`" if permission.scope else "any valid key"
    return f"Scope: {scope}. Queues: {permission.reach}."


def _operation(path: str, method: str, found: Schema, also: list[str]) -> Iterator[str]:
    yield f"## {found['summary']}\n\n`{method.upper()} {path}`\n\n"
    yield f"{_permission(found['operationId'])}\n\n"
    if also:
        yield "Also:\n\n" + "".join(f"- {each}\n" for each in also) + "\n"
    if parameters := found.get("parameters"):
        rows = [
            (f"`{p['name']}`", p["in"], kind(p["schema"]), _described({**p["schema"], **p}))
            for p in parameters
        ]
        yield table(("Parameter", "In", "Type", "Description"), rows)
    content: Schema = found.get("requestBody", {}).get("content", {})
    if content:
        yield f"**Request body**\n\n{_body(content, 'Required')}"
    yield _example(method, path, content)
    refused = []
    for status, answer in found["responses"].items():
        if "$ref" in answer:
            refused.append(status)
            continue
        yield f"**Response {status}**: {answer.get('description', '')}\n\n"
        if "content" in answer:
            yield _body(answer["content"], "Always")
    listed = ", ".join(f"`{status}`" for status in refused if status not in _ALWAYS)
    yield f"**Errors**: {listed}. See [error codes](errors.md).\n\n"


def groups() -> dict[str, str]:
    """The pages of operations, by tag. Operations that differ in their path only are one."""
    alike: dict[str, list[tuple[str, str, Schema]]] = {}
    paths = document()["paths"]
    for path in sorted(paths, key=lambda each: ("/admin/" in each, "/bulk/" in each)):
        methods = paths[path]
        for method, found in methods.items():
            same = {k: v for k, v in found.items() if k not in {"operationId", "tags", "security"}}
            key = json.dumps([method, same], sort_keys=True)
            alike.setdefault(key, []).append((path, method, found))
    texts = {
        tag: f"{NOTE}\n\n# HTTP API: {title}\n\nHeaders, versions, paging, and error bodies:"
        " [conventions](../http-api.md).\n\n"
        for tag, title in TITLES.items()
    }
    for (path, method, found), *others in alike.values():
        also = [
            f"`{method.upper()} {other}`. {_permission(each['operationId'])}"
            for other, _, each in others
        ]
        texts[found["tags"][0]] += "".join(_operation(path, method, found, also))
    return texts


def _object(name: str) -> str:
    schema = _schema(name)
    text = f"## {name}\n\n"
    if description := schema.get("description"):
        text += f"{description}\n\n"
    if "enum" in schema:
        return text + f"One of {', '.join(f'`{value}`' for value in schema['enum'])}.\n\n"
    return text + fields(schema, "Always")


def objects(linked: str) -> str:
    """The page of the objects that these texts link to, and that these objects contain."""
    found: dict[str, str] = {}
    while missing := set(_OBJECT.findall(linked)) - found.keys():
        found |= {name: _object(name) for name in missing}
        linked = "".join(found.values())
    text = f"{NOTE}\n\n# HTTP API: objects\n\nObjects that requests and responses contain.\n\n"
    return text + "".join(found[name] for name in sorted(found))


def error_codes() -> str:
    """The page of error codes."""
    text = f"{NOTE}\n\n# Error codes\n\n"
    text += "The `code` of an error body, and its number in the catalog of the specification.\n\n"
    rows = sorted(
        (f"`{code}`", str(each.status), f"[{each.catalogue}]({each.docs_url})", cell(each.hint))
        for code, each in errors.KINDS.items()
    )
    return text + table(("Code", "Status", "Catalog", "Hint"), rows)


def index() -> str:
    """The page that lists all operations."""
    text = f"{NOTE}\n\n# HTTP API: all operations\n\n"
    rows = [
        (each.method, f"`{each.path}`", each.summary, f"`{each.permission.scope or 'any'}`")
        for each in sorted(operations.OPERATIONS, key=lambda each: each.path)
    ]
    return text + table(("Method", "Path", "Operation", "Scope"), rows)


def pages() -> dict[str, str]:
    """All pages, by the name of the file."""
    texts = groups()
    return {
        **{file(tag): text for tag, text in texts.items()},
        "api-objects.md": objects("".join(texts.values())),
        "api.md": index(),
        "errors.md": error_codes(),
    }
