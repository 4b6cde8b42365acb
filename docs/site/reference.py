"""Write the reference pages: `make facts`.

Settings, construct, command line, event types, metrics, and limits are tables, made from the code.
The texts of events and limits, which the code has no place for, are in `events.tsv` and
`limits.tsv`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from cli import __main__ as terminal
from docs.site import api
from docs.site.api import cell, table
from ojs.domain.counters import definitions
from ojs.domain.events.types import EventType
from ojs_aws.cdk.settings import DeploymentSettings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Written by `make facts` from the code. Do not edit. -->"
_UNITS_MS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))


def _rows(name: str) -> list[list[str]]:
    lines = (ROOT / "docs" / "site" / name).read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def _page(title: str, first: str) -> str:
    return f"{NOTE}\n\n# {title}\n\n{first}\n\n"


def _duration(ms: int) -> str:
    for name, size in _UNITS_MS:
        if ms % size == 0 and ms >= size:
            return f"{ms // size:,} {name}{'s' if ms > size else ''}"
    return f"{ms:,} ms"


def amount(value: int, unit: str) -> str:
    """A limit with its unit, as a reader knows it."""
    if unit in {"ms", "s"}:
        return _duration(value * (1_000 if unit == "s" else 1))
    if unit == "bytes" and value % 1024 == 0:
        mib = value % 2**20 == 0
        return f"{value:,} bytes ({value >> 20 if mib else value >> 10} {'MiB' if mib else 'KiB'})"
    return f"{value:,} {unit}".rstrip()


def limits() -> str:
    """The page of limits."""
    text = _page(
        "Limits", "Each value is a constant of the code. Explanations: [limits](../limits.md)."
    )
    section = ""
    rows: list[tuple[str, ...]] = []
    for name, what, unit, constant in [*_rows("limits.tsv"), ["", "", "", ""]]:
        if name != section:
            if rows:
                text += f"## {section}\n\n" + table(("Limit", "Value", "Constant"), rows)
            section, rows = name, []
        if constant:
            path, _, half = constant.partition("/")
            module, _, attribute = path.rpartition(".")
            value = getattr(importlib.import_module(module), attribute)
            rows.append((what, amount(value // int(half or 1), unit), f"`{path}`"))
    return text


def events() -> str:
    """The page of event types. Raises ValueError if a type has no text."""
    rows = _rows("events.tsv")
    if [name for name, _ in rows] != list(EventType):
        raise ValueError(f"events.tsv must have {', '.join(EventType)}, in this order")
    text = _page("Event types", "How to read events, and their envelope: [events](../events.md).")
    return text + table(("Type", "When"), [(f"`{name}`", when) for name, when in rows])


def metrics() -> str:
    """The page of metrics. Raises KeyError if a metric has no labels in `metrics.tsv`."""
    text = _page("Metrics", "Endpoints, definitions, and CloudWatch: [metrics](../metrics.md).")
    labels = dict(_rows("metrics.tsv"))
    rows = [
        (f"`{one.exported}`", f"`{one.name}`", one.kind, labels[one.name], cell(one.help))
        for one in definitions.METRICS if one.name
    ]  # fmt: skip
    return text + table(("Prometheus", "Specification", "Kind", "Labels", "Description"), rows)


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default")
    return "none" if value in (None, "", [], {}) else f"`{json.dumps(value)}`".replace('"', "")


def settings() -> str:
    """The page of settings."""
    text = _page(
        "Settings",
        "Fields of `DeploymentSettings`. On the command line: `cdk deploy -c NAME=VALUE`."
        " Guides: [deploy](../deploy.md), [endpoint and encryption](../endpoint.md).",
    )
    properties = DeploymentSettings.model_json_schema()["properties"]
    rows = []
    for name, schema in properties.items():
        bounds = (
            "; ".join(
                dict.fromkeys(api.bounds({k: v for k, v in schema.items() if k != "default"}))
            )
            or "none"
        )
        rows.append(
            (f"`{name}`", api.kind(schema), _default(schema), bounds, cell(schema["description"]))
        )
    return text + table(("Setting", "Type", "Default", "Bounds", "Description"), rows)


def _signature(function: ast.FunctionDef) -> str:
    return ast.unparse(function.args).removeprefix("self, ").removeprefix("self")


def _sections(docstring: str) -> str:
    """A docstring in Google style, as Markdown."""
    titled = re.sub(r"^(Args|Returns|Raises|Yields):$", r"**\1**\n", docstring, flags=re.MULTILINE)
    return re.sub(r"^ {4}(\w+): ", r"- `\1`: ", titled, flags=re.MULTILINE)


def construct() -> str:
    """The page of the construct: its parameters, attributes and methods."""
    path = ROOT / "package" / "ojs_aws" / "cdk" / "construct.py"
    tree = ast.parse(path.read_text("utf-8"))
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "OpenJobSpec"]
    text = _page("Construct", "The class `OpenJobSpec`. A guide: [construct](../construct.md).")
    text += "## Attributes\n\n"
    rows = []
    for one, following in zip(found.body, [*found.body[1:], None], strict=True):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            said = following.value if isinstance(following, ast.Expr) else None
            about = cell(str(said.value)) if isinstance(said, ast.Constant) else ""
            kind = ast.unparse(one.annotation).replace("|", "\\|")
            rows.append((f"`{one.target.id}`", f"`{kind}`", about))
    text += table(("Attribute", "Type", "Description"), rows)
    for one in found.body:
        if isinstance(one, ast.FunctionDef) and (one.name == "__init__" or one.name[0] != "_"):
            name = "OpenJobSpec" if one.name == "__init__" else one.name
            text += f"## {name}\n\n```python\n{name}({_signature(one)})\n```\n\n"
            text += f"{_sections(ast.get_docstring(one) or '')}\n\n"
    return text


def _option(action: argparse.Action) -> tuple[str, str]:
    value = ""
    if action.option_strings and action.nargs != 0:
        choices = "|".join(map(str, action.choices or ()))
        value = f" {choices or action.metavar or action.dest.upper()}"
    names = action.option_strings or [str(action.metavar or action.dest).upper()]
    about = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    return f"`{', '.join(names)}{value}`".replace("|", "\\|"), cell(about)


def _commands(
    parser: argparse.ArgumentParser, name: str, about: str
) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Each command without subcommands: its name, its help text, and its options."""
    actions = [each for each in parser._actions if each.dest != "help"]
    below = [each for each in actions if isinstance(each, argparse._SubParsersAction)]
    if not below:
        yield name, about, [_option(each) for each in actions]
    for action in below:
        for one in action._choices_actions:
            yield from _commands(action.choices[one.dest], f"{name} {one.dest}", one.help or "")


def command_line() -> str:
    """The page of the command line."""
    parser = argparse.ArgumentParser(prog="ojs-aws")
    commands = parser.add_subparsers()
    for module in vars(terminal).values():
        if isinstance(module, ModuleType) and hasattr(module, "add"):
            module.add(commands)
    text = _page("Command line", "Servers, keys, and examples: [terminal](../terminal.md).")
    found = list(_commands(parser, "ojs-aws", ""))
    counts = Counter(option for _, _, options in found for option in options)
    common = [option for option, count in counts.items() if count > len(found) // 2]
    text += "## Common options\n\n" + table(("Option", "Description"), common)
    for name, about, options in found:
        text += f"## {name}\n\n{cell(about).rstrip('.')}.\n\n"
        if own := [option for option in options if option not in common]:
            text += table(("Option", "Description"), own)
    return text


def decisions() -> str:
    """The page of decisions."""
    text = _page(
        "Architecture decisions",
        "Each record has the context, the decision, a measured number, and the consequences."
        " Records 1 to 55 are not changed after their decision. A later record names the record"
        " that it changes.",
    )
    rows = []
    for path in sorted((ROOT / "docs" / "adr").glob("*.md")):
        number, _, title = (
            path.read_text("utf-8").splitlines()[0].removeprefix("# ").partition(". ")
        )
        rows.append((f"[{number}](adr/{path.name})", title))
    return text + table(("ADR", "Decision"), rows)


def pages() -> dict[Path, str]:
    """All generated pages, by their path."""
    texts = {
        **api.pages(),
        "settings.md": settings(),
        "construct.md": construct(),
        "command-line.md": command_line(),
        "event-types.md": events(),
        "metrics.md": metrics(),
        "limits.md": limits(),
        "../decisions.md": decisions(),
    }
    return {(FOLDER / name).resolve(): text.rstrip("\n") + "\n" for name, text in texts.items()}


def main() -> int:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
