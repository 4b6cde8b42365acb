"""The layers of the design, held by reading every module's imports and calls."""

from __future__ import annotations

import re

import pytest

from tests.architecture.modules import ROOT, SHIPPED, WHOLE, Module, modules, within

# Who may import whom, by the longest prefix that fits. What is not listed here is an error, so a
# new layer has to be put in its place: here and in CONTRIBUTING's table.
ALLOWED: dict[str, set[str]] = {
    "ojs.clock": set(),
    "ojs.bounded": set(),
    "ojs.records": set(),
    "ojs.environment": set(),
    "ojs.settings": {"ojs.environment"},
    # What a deployment's own middleware imports: it must not break with what is behind it.
    "ojs.middleware": set(),
    "ojs.domain": {"ojs.domain", "ojs.clock"},
    "ojs.store": {"ojs.store", "ojs.domain", "ojs.bounded", "ojs.clock"},
    # What follows from a change comes after the use cases and must not hold them up: no use case
    # and no HTTP function imports it. Where a caller would notice the stream's delay, the use case
    # calls the idempotent function of the store itself.
    "ojs.projections": {"ojs.projections", "ojs.store", "ojs.domain", "ojs.bounded", "ojs.clock"},
    # What pushes go out by. Use cases know it by the protocols of `ojs.domain.delivery.push`.
    "ojs.targets": {
        "ojs.targets", "ojs.store.table.clients", "ojs.domain", "ojs.bounded", "ojs.clock",
    },
    "ojs.services": {"ojs.services", "ojs.store", "ojs.domain", "ojs.bounded", "ojs.clock"},
    "ojs.services.jobs.middleware": {"ojs.services", "ojs.middleware", "ojs.domain"},
    "ojs.http": {"ojs.http", "ojs.domain", "ojs.clock"},
    "ojs.api": {"ojs.api", "ojs.http", "ojs.runtime", "ojs.services", "ojs.domain"},
    "ojs.runtime": {
        "ojs.bounded", "ojs.services", "ojs.targets", "ojs.store", "ojs.domain", "ojs.clock",
        "ojs.settings",
    },
    # Loads next to nothing: the authorizer is in front of every request.
    "ojs.access_runtime": {
        "ojs.services.operations.authentication", "ojs.services.operations.origin",
        "ojs.services.operations.setup", "ojs.store", "ojs.domain", "ojs.clock", "ojs.environment",
    },
    "functions.authorizer": {"ojs.access_runtime"},
    "functions.ticket": {"ojs.access_runtime"},
    "functions.dashboard": {
        "functions.dashboard", "ojs.access_runtime", "ojs.domain.errors", "ojs.environment",
    },
    "functions.setup": {"functions.custom_resource", "ojs.access_runtime"},
    "functions.declare": {
        "functions.admin", "functions.custom_resource", "ojs.access_runtime", "ojs.domain",
        "ojs.http", "ojs.runtime",
    },
    "functions": {
        "functions", "ojs.api", "ojs.runtime", "ojs.http", "ojs.services", "ojs.domain",
    },
    # No requests: what the stream brings, and the metrics of a sweep.
    "functions.stream": {"functions", "ojs.runtime", "ojs.projections", "ojs.domain"},
    "functions.notify": {"ojs.runtime", "ojs.projections"},
    "functions.sweep": {
        "functions", "ojs.runtime", "ojs.projections", "ojs.services", "ojs.settings", "ojs.domain",
    },
    # Installed where a package called `ojs` is somebody else's: it knows the server by a file.
    "ojs_aws": {"ojs_aws"},
    "infra": {
        "infra", "ojs_aws", "ojs.store.table.schema", "ojs.api.openapi", "ojs.api.operations",
        "ojs.http.endpoint", "ojs.http.models", "ojs.http.binding.negotiation",
        "ojs.projections.project", "local.emulator",
    },
    "local": {"local", "ojs", "functions"},
    "cli": {
        "cli", "ojs.services.operations.tidy", "ojs.store.table.clients", "ojs.store.jobs.orphans",
        "ojs.store.table.table", "ojs.domain.edits", "ojs.domain.errors", "ojs.domain.times",
        "ojs.clock", "ojs_aws",
    },
    "examples": {"ojs_aws"},
    "examples.middleware": {"ojs.middleware"},
}  # fmt: skip
# Every module of the server declares its dataclasses with it, except what users import.
FREE = ("ojs.records",)
SDK = ("boto3", "botocore", "s3transfer")
TOOLS_ONLY = ("aws_cdk", "constructs", "cdk_nag", "moto", "ministack", "pytest", "hypothesis")


def place(module: Module, name: str, line: int) -> str:
    return f"{module.at(line)} {name}"


def test_there_is_something_to_check() -> None:
    names = {module.name for module in modules(*SHIPPED)}
    assert {"ojs.domain.job.job", "ojs.runtime", "functions.jobs.handler"} <= names


def test_imports_go_one_way() -> None:
    wrong = []
    for module in modules(*WHOLE):
        layer = max(
            (layer for layer in ALLOWED if within(module.name, (layer,))), key=len, default=None
        )
        if layer is None:
            assert module.path.name == "__init__.py", f"{module.name} belongs to no layer"
            continue
        wrong += [
            place(module, name, line)
            for name, line in module.imports()
            if within(name, ("ojs", "ojs_aws", "functions", "infra", "local", "tests"))
            and not within(name, ALLOWED[layer])
            and not (within(name, FREE) and within(layer, ("ojs", "functions")))
        ]
    assert wrong == []


def test_contributing_has_the_same_table() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", page, re.MULTILINE)
    told = {name: set(re.findall(r"`([\w.]+)`", others)) for name, others in rows}
    assert told == {name: others - {name} for name, others in ALLOWED.items()}


def test_only_the_store_and_what_goes_out_know_the_sdk() -> None:
    wrong = [
        place(module, name, line)
        for module in modules(*SHIPPED)
        if not within(module.name, ("ojs.store", "ojs.projections", "ojs.targets"))
        for name, line in module.imports()
        if within(name, SDK)
    ]
    assert wrong == []


def test_functions_import_nothing_that_is_not_shipped() -> None:
    wrong = [
        place(module, name, line)
        for module in modules(*SHIPPED)
        for name, line in module.imports()
        if within(name, TOOLS_ONLY)
    ]
    assert wrong == []


def test_only_one_module_reads_the_environment() -> None:
    wrong = [
        place(module, name, line)
        for module in modules(*SHIPPED)
        if module.name != "ojs.environment"
        for name, line in module.attributes()
        if within(name, ("os.environ", "os.getenv", "os.environb"))
    ]
    assert wrong == []


def test_only_the_clock_tells_the_time() -> None:
    clocks = (
        "time.time", "time.time_ns", "datetime.datetime.now", "datetime.datetime.utcnow",
        "datetime.datetime.today", "datetime.date.today",
    )  # fmt: skip
    wrong = [
        place(module, name, line)
        for module in modules(*SHIPPED)
        if module.name != "ojs.clock"
        for name, line in module.attributes()
        if name in clocks
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", [*WHOLE, "tests"])
def test_a_module_is_named_for_what_it_holds(folder: str) -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "misc"}
    wrong = [
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*.py")
        if vague & set(path.relative_to(ROOT).with_suffix("").parts)
    ]
    assert wrong == []
