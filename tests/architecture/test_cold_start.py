"""What importing a function costs: a cold start pays for it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Powertools' tracer and the tools of tests and of local runs would each add their part to every
# cold start; so would what the functions once had: boto3, its transfers, pydantic, and Powertools'
# router; and the zones of periodic jobs, which are read with the first one of them.
FORBIDDEN = (
    "aws_xray_sdk", "aws_cdk", "moto", "ministack", "hypothesis", "local", "h11", "boto3",
    "s3transfer", "pydantic", "pydantic_core", "aws_lambda_powertools.event_handler", "zoneinfo",
    "tzdata",
)  # fmt: skip

# Function → what it takes to be ready, at most: its modules and its clients, in units of a bare
# botocore client of DynamoDB. Measured (docs/performance.md): 1.0 for the authorizer, which
# loads hardly more than its client, and 1.5 to 1.9 for the others.
BOUNDS = {
    "jobs": 2.2, "workers": 2.2, "admin": 2.4, "stream": 2.4, "sweep": 2.4, "authorizer": 1.4,
    "setup": 1.6, "ticket": 1.4, "socket": 2.2, "notify": 2.4,
}  # fmt: skip
BARE = "import botocore.session; botocore.session.get_session().create_client('dynamodb')"
# As in a function: the table is named, so that the runtime is built when the handler is imported.
FUNCTION = {
    "OJS_TABLE": "jobs",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    # With bytecode, which a bundle has: the first repetition leaves it to the next one.
    "PYTHONDONTWRITEBYTECODE": "",
}


@cache
def loaded(code: str, _repetition: object = 0) -> tuple[float, frozenset[str]]:
    """The CPU seconds that code takes in a process of its own, and the modules it loads."""
    timed = (
        f"import sys, time; start = time.process_time(); {code};"
        "print(time.process_time() - start, *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", timed],
        cwd=ROOT,
        env=os.environ | FUNCTION | {"PYTHONPATH": f"{ROOT / 'shared'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    took_s, *modules = done.stdout.split()
    return float(took_s), frozenset(modules)


def imported(function: str, repetition: object = 0) -> tuple[float, frozenset[str]]:
    return loaded(f"import functions.{function}.handler", repetition)


@pytest.mark.parametrize("function", BOUNDS)
def test_only_what_is_needed_is_imported(function: str) -> None:
    _, modules = imported(function)
    assert not [name for name in FORBIDDEN if name in modules]


def test_the_dashboard_loads_no_sdk() -> None:
    """But behind a firewall, where it reads a secret."""
    _, modules = imported("dashboard")
    assert not {"botocore", "ojs.access_runtime"} & modules
    settings = "os.environ['OJS_ORIGIN_SECRET'] = 'arn'"
    _, modules = loaded(f"import os; {settings}; import functions.dashboard.handler")
    assert {"botocore", "ojs.access_runtime"} <= modules


# Once of some times is enough, so that neighbours on the machine do not count.
REPETITIONS = range(5)


@pytest.mark.parametrize("function", ["jobs", "workers", "admin", "sweep"])
def test_without_middleware_nothing_is_loaded_for_it(function: str) -> None:
    _, modules = imported(function)
    assert not {"ojs.middleware", "ojs.services.jobs.middleware"} & modules


# What a deployment without a WebSocket API never loads.
REALTIME = (
    "ojs.services.realtime", "ojs.store.realtime", "ojs.targets.connections",
    "ojs.domain.realtime_events", "ojs.domain.socket_messages", "ojs.projections.notify",
)  # fmt: skip


@pytest.mark.parametrize("function", sorted(BOUNDS.keys() - {"ticket", "socket", "notify"}))
def test_without_realtime_nothing_is_loaded_for_it(function: str) -> None:
    _, modules = imported(function)
    assert not [name for name in modules if name.startswith(REALTIME)]


def test_requests_without_realtime_load_nothing_for_it() -> None:
    code = (
        "from tests.store.ringing import in_memory; world = in_memory(None);"
        "job = world.push(queue='mail'); world.fetch('mail'); world.run.finish.ack(job.id);"
        "world.sweep(); world.run.flush()"
    )
    _, modules = loaded(code)
    assert "ojs.services.jobs.fetch" in modules
    assert not [name for name in modules if name.startswith(REALTIME)]


# What jobs without durable code never load.
DURABLE = (
    "ojs.services.jobs.checkpoints", "ojs.services.jobs.steps", "ojs.services.jobs.suspensions",
    "ojs.services.jobs.signals", "ojs.services.jobs.children", "ojs.services.jobs.durable_ends",
    "ojs.services.jobs.leased_write", "ojs.store.jobs.checkpoints", "ojs.store.jobs.steps",
    "ojs.domain.job.suspending",
)  # fmt: skip


@pytest.mark.parametrize("function", sorted(BOUNDS))
def test_without_durable_code_nothing_is_loaded_for_it(function: str) -> None:
    _, modules = imported(function)
    assert not [name for name in DURABLE if name in modules]


def test_requests_without_durable_code_load_nothing_for_it() -> None:
    code = (
        "from tests.store.ringing import in_memory; world = in_memory(None);"
        "job = world.push(queue='mail'); world.fetch('mail'); world.run.finish.ack(job.id);"
        "job = world.push(queue='mail'); world.fetch('mail');"
        "world.run.finish.nack(job.id, error={'message': 'no'}); world.sweep();"
        "world.run.jobs.report_progress(job.id, progress=0.5); world.run.jobs.get(job.id)"
    )
    _, modules = loaded(code)
    assert "ojs.services.jobs.finish" in modules
    assert not [name for name in DURABLE if name in modules]


def test_middleware_is_loaded_with_the_import(tmp_path: Path) -> None:
    (tmp_path / "own_hooks.py").write_text("def f(job, following): ...\n")
    # While the function is initialized, with all of a CPU.
    setting = f"os.environ['OJS_MIDDLEWARE'] = 'own_hooks:f'; sys.path.append({str(tmp_path)!r})"
    _, modules = loaded(f"import os, sys; {setting}; import functions.jobs.handler")
    assert {"ojs.middleware", "ojs.services.jobs.middleware", "own_hooks"} <= modules


@pytest.mark.parametrize("function", BOUNDS)
def test_a_function_is_ready_in_little_more_time_than_its_client(function: str) -> None:
    def ratio(repetition: int) -> float:
        # One after the other, so that both meet the same neighbours.
        bare_s, _ = loaded(BARE, (function, repetition))
        return imported(function, repetition)[0] / bare_s

    assert any(ratio(n) <= BOUNDS[function] for n in REPETITIONS)


def test_schedules_of_periodic_jobs_are_quick_to_import() -> None:
    """At most 30 ms of CPU, without what every function loads anyway."""
    code = (
        "import dataclasses, pathlib, ojs.domain.errors, ojs.domain.times;"
        "start = time.process_time(); import ojs.domain.cron.schedule"
    )
    assert any(loaded(code, n)[0] < 0.030 for n in REPETITIONS)


@pytest.mark.parametrize("function", ["jobs", "workers", "admin", "stream", "sweep"])
def test_the_runtime_is_built_with_the_import(function: str) -> None:
    """Afterwards, a function has only a part of a CPU, and a request waits."""
    built = f"import functions.{function}.handler; from ojs import runtime; runtime._current.table"
    loaded(built)


def test_without_a_table_nothing_is_built() -> None:
    """As in the local server, which brings its own."""
    code = "import functions.jobs.handler; from ojs import runtime; assert not runtime._current"
    loaded(f"import os; del os.environ['OJS_TABLE']; {code}")


def test_a_wrong_setting_is_left_to_the_first_request() -> None:
    """That is answered, with an error body: a function that cannot be loaded answers nothing."""
    loaded("import os; os.environ['OJS_SERVICE'] = '/'; import functions.jobs.handler")


def test_the_authorizer_starts_quickest() -> None:
    """Every first request with a key waits for it, and then for its own function."""
    others = ("jobs", "workers", "admin", "stream", "sweep")
    assert any(
        imported("authorizer", n)[0] < min(imported(function, n)[0] for function in others)
        for n in REPETITIONS
    )
    _, modules = imported("authorizer")
    heavy = ("aws_lambda_powertools", "ojs.domain.job.job", "ojs.runtime")
    assert not [name for name in heavy if name in modules]
