"""Checks of commands, programs and JSON texts on pages that no test runs.

A request must have a path and a body that the API accepts; a command must have options that its
program knows; a program must call methods of the library and the construct as they are declared.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import botocore.session
from botocore import xform_name

from cli import __main__ as terminal
from docs.site import api
from infra.context import from_context
from ojs.api import operations
from ojs_aws import Client, Worker
from ojs_aws.cdk import DeploymentSettings, OpenJobSpec

ROOT = Path(__file__).resolve().parents[3]
KNOWN = {
    "cat", "cd", "cp", "docker", "echo", "export", "git", "jq", "mkdir", "node", "npm", "npx",
    "ojs", "openapi-python-client", "openapi-ts", "pip", "sam", "sleep", "terraform",
}  # fmt: skip
# Served by the local server alone.
_LOCAL = {"/ojs/v1/admin/reset", "/ojs/v1/admin/clock"}
_KEYWORDS = {"do", "then", "{", "(", "else", "exec", "time"}
_SKIPPED = {"for", "if", "done", "fi", "}", ")", "$", "while"}
_ID = "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"
_FREE = {"args", "meta", "result", "details", "error", "labels", "weights", "data", "headers"}


class Wrong(ValueError):
    """A text that its program, or the API, does not accept."""


def commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a script."""
    script = re.sub(r"(^|\s)#[^'\"\n]*$", "", script.replace("\\\n", " "), flags=re.MULTILINE)
    for inner in re.findall(r'"\$\(([^()]*)\)"', script):
        yield from commands(inner)
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace, lexer.whitespace_split = " \t", True
    words: list[str] = []
    redirected = False
    for token in [*lexer, ";"]:
        if set(token) <= set(";&|()\n"):
            while words and (words[0] in _KEYWORDS or re.match(r"\w+=", words[0])):
                words.pop(0)
            if words and words[0] not in _SKIPPED:
                yield words
            words = []
        elif set(token) <= set("<>"):
            redirected = True
        elif redirected:
            redirected = False
        else:
            words.append(token)


@cache
def _terminal() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ojs-aws", exit_on_error=False)
    below = parser.add_subparsers()
    for module in vars(terminal).values():
        if isinstance(module, ModuleType) and hasattr(module, "add"):
            module.add(below)
    return parser


def _curl(words: list[str]) -> None:
    options = dict(pairwise(words))
    url = next((word for word in words if "/ojs/" in word), None)
    if url is None:
        return
    # A variable, and a word in capitals, stand for an id.
    path = re.sub(
        r"\$\{?\w+\}?|\{\w+\}|(?<=/)[A-Z_]+(?=/|$)", _ID, "/ojs/" + url.partition("/ojs/")[2]
    )
    method = options.get("-X") or ("POST" if "-d" in options else "GET")
    found = operations.at(urlsplit(path).path).get(method)
    if found is None and path in _LOCAL:
        return
    if found is None:
        raise Wrong(f"no operation: {method} {path}")
    body = options.get("-d")
    if body and not body.startswith("$"):
        sent = json.loads(re.sub(r"\$\{?\w+\}?", _ID, body))
        if found.request is not None and isinstance(sent, dict):
            found.request.model_validate(sent)


def _cdk(words: list[str]) -> None:
    pairs = [word.partition("=") for before, word in pairwise(words) if before == "-c"]
    given = {name: value for name, _, value in pairs}
    if "--app" in words or "settings" in given:
        return
    if unknown := given.keys() - DeploymentSettings.model_fields.keys():
        raise Wrong(f"unknown settings: {unknown}")
    from_context({k: v for k, v in given.items() if not re.search(r"[$…]", v)})


def _aws(words: list[str]) -> None:
    service, name, *rest = words[1:]
    # Commands of the CLI that are not operations of a service.
    if name in {"wait", "deploy"} or service == "s3":
        return
    model = botocore.session.get_session().get_service_model(service)
    operation = next((n for n in model.operation_names if xform_name(n, "-") == name), None)
    if operation is None:
        raise Wrong(f"no operation: aws {service} {name}")
    shape = model.operation_model(operation).input_shape
    known = {xform_name(member, "-") for member in (shape.members if shape else ())}
    known |= {"output", "query", "region", "cli-binary-format", "profile", "no-cli-pager"}
    given = {word[2:] for word in rest if word.startswith("--")}
    if unknown := given - known - {f"no-{each}" for each in known}:
        raise Wrong(f"unknown options of aws {service} {name}: {unknown}")


def _python(words: list[str]) -> None:
    if words[1] == "-m":
        if importlib.util.find_spec(words[2]) is None:
            raise Wrong(f"no module {words[2]}")
    elif words[1].endswith(".py") and not list(ROOT.rglob(f"examples/**/{Path(words[1]).name}")):
        raise Wrong(f"no program {words[1]}")


def _ojs_aws(words: list[str]) -> None:
    # The parser exits if it does not accept the command.
    if words[1:] and "--help" not in words:
        _terminal().parse_args(words[1:])


def _make(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    if unknown := {word for word in words[1:] if "=" not in word} - set(targets):
        raise Wrong(f"no target: {unknown}")


_CHECKS = {
    "aws": _aws, "cdk": _cdk, "curl": _curl, "make": _make, "ojs-aws": _ojs_aws,
    "python": _python, "python3": _python,
}  # fmt: skip


def check_script(script: str, page: str = "") -> None:
    """Check the commands of a script. The page can define functions.

    Raises:
        Wrong: A program does not accept its command. Programs raise other errors, too.
    """
    own = set(re.findall(r"(\w+)\(\) *\{", script + page))
    shown = set(re.findall(r"^`([\w./]+)`:$", page, re.MULTILINE))
    for words in commands(script):
        name = Path(words[0]).name
        if name.startswith("python") and shown & set(words[1:2]):
            continue  # a program of the page
        if name in _CHECKS:
            _CHECKS[name](words)
        elif name not in KNOWN | own:
            raise Wrong(f"unknown program: {name}")


def check_program(program: str) -> None:
    """Check the calls of a program. Raises SyntaxError or Wrong."""
    kinds: tuple[Any, ...] = (Client, Worker, OpenJobSpec)
    for node in ast.walk(ast.parse(textwrap.dedent(program).replace("…", "..."))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            methods = [getattr(k, node.func.attr) for k in kinds if hasattr(k, node.func.attr)]
            given = {each.arg for each in node.keywords if each.arg}
            for method in methods[:1]:
                if not callable(method):
                    continue
                signature = inspect.signature(method)
                if any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
                    continue
                if unknown := given - signature.parameters.keys():
                    raise Wrong(f"{node.func.attr} has no parameter {unknown}")
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ojs_aws"):
            module = importlib.import_module(node.module or "")
            if missing := [each.name for each in node.names if not hasattr(module, each.name)]:
                raise Wrong(f"{node.module} has no {missing}")


@cache
def _fields() -> frozenset[str]:
    schemas = api.document()["components"]["schemas"].values()
    return frozenset(name for schema in schemas for name in schema.get("properties", ()))


def check_json(text: str) -> None:
    """Check that a JSON text has fields that the API knows."""

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            names = {name for name in value if not name.startswith(("$ref", "ojs."))}
            if unknown := names - _fields():
                raise Wrong(f"unknown fields: {unknown}")
            for name in value.keys() - _FREE:
                walk(value[name])
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(json.loads(text.replace(", …", "").replace("…", "x")))
