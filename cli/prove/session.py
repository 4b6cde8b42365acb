"""Runs `ojs-aws prove`: plan, price, question, parts, clean-up, report."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from cli import target
from cli.output import note, number
from cli.prove import conformance, cost, report, times, wiring
from cli.prove.aws import Cloud, Skip, Wrong
from cli.prove.made import Cleaner, Made, server_of
from cli.prove.probe import Probe
from cli.prove.state import Pace, Run
from cli.target import CommandError, Exit
from ojs_aws import OjsError, Unsupported

SCOPES = ("admin:read", "admin:write", "jobs:read", "jobs:write", "work")
_KEY_LASTS = "+PT2H"
_CLOCK_S = 300.0
# Requests per second of others that make the numbers useless.
_TRAFFIC = 1.0
_RUNS: dict[str, Callable[[Run], None]] = {
    "conformance": conformance.run_checks, "behavior": wiring.run_behavior,
    "wiring": wiring.run_wiring, "latency": times.run_latency, "pickup": times.run_pickup,
    "ramp": times.run_ramp, "cost": cost.run_cost,
}  # fmt: skip


def run(
    options: argparse.Namespace,
    pace: Pace | None = None,
    transport: httpx.BaseTransport | None = None,
) -> None:
    """Run the command. `pace` and `transport` are for tests.

    Raises:
        CommandError: A check failed (status 1), or the run did not finish (status 2).
    """
    pace = pace or Pace()
    try:
        if options.clean:
            _clean(options, pace, transport)
            return
        failed, folder = _prove(options, pace, transport)
    except (OjsError, OSError, Wrong, Skip, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandError(str(error) or type(error).__name__, Exit.USAGE) from None
    except CommandError as error:
        raise CommandError(str(error), Exit.USAGE) from None
    if failed:
        raise CommandError(f"{number(failed, 'check')} failed. See {folder}", Exit.FAILED)


def _connect(
    options: argparse.Namespace, transport: httpx.BaseTransport | None
) -> tuple[Probe, Cloud | None]:
    operator = Probe(*target.place_of(options), inner=transport)
    options.server = operator
    if not options.stage:
        return operator, None
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return operator, Cloud(options.stage)
    except (BotoCoreError, ClientError) as error:
        raise CommandError(f"AWS: {error}") from None


def _clean(options: argparse.Namespace, pace: Pace, transport: httpx.BaseTransport | None) -> None:
    if not (options.stage or options.url):
        server = server_of(options.report or Path(options.clean))
        options.stage, options.url = server.get("stage"), server.get("url")
    operator, _ = _connect(options, transport)
    _leave_nothing(operator, options.clean, pace)
    print(f"Nothing of {options.clean} is left on {operator.url}")


def _leave_nothing(operator: Probe, name: str, pace: Pace) -> None:
    client = operator.other(operator.key, tries=6)
    if left := Cleaner(client, name, quiet_s=pace.quiet_s).clean():
        raise CommandError(
            f"{', '.join(left)} could not be deleted. Run ojs-aws prove --clean {name}"
        )


def _prove(
    options: argparse.Namespace, pace: Pace, transport: httpx.BaseTransport | None
) -> tuple[int, Path]:
    operator, cloud = _connect(options, transport)
    name = f"prove-{secrets.token_hex(2)}"
    budget = cost.Budget(options.max_cost)
    folder: Path = options.report or Path(name)
    made = Made(folder, name, url=operator.url, stage=options.stage)
    run = Run(name, operator, operator, made, pace, cloud, options.rate, options.long)
    run.affords = budget.affords
    server = _examine(run, shared=options.shared)
    loads = _loads(run)
    _ask(options, name, budget, loads)
    folder.mkdir(parents=True, exist_ok=True)
    finished = False
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        try:
            _open(run)
            for part in options.only:
                if budget.affords(*loads[part]):
                    _RUNS[part](run)
                else:
                    run.check(part, "price", _too_dear, "")
            finished = True
        finally:
            _leave_nothing(operator, name, pace)
            run.say(f"Deleted everything that {name} created")
    except KeyboardInterrupt:
        raise CommandError(f"{name} was interrupted") from None
    finally:
        signal.signal(signal.SIGTERM, before)
        facts = {
            "run": name, "finished": finished, "seconds": round(time.time() - run.began),
            "parts": list(options.only), "spent": round(budget.spent, 4), "server": server,
        }  # fmt: skip
        report.write(run, folder, facts)
        cost.write_measured(run, folder)
    return sum(each.verdict == "failed" for each in run.checks), folder


def _too_dear(_run: Run) -> str:
    raise Skip("its price could exceed --max-cost")


def _examine(run: Run, *, shared: bool) -> dict[str, Any]:
    """Check that the deployment can be measured. Returns facts about it. Raises CommandError."""
    operator = run.operator
    caller = operator.get_caller()
    if missing := set(SCOPES) - set(caller["scopes"]):
        raise CommandError(f"the key needs the scopes {', '.join(sorted(missing))}, too")
    if caller.get("queues"):
        raise CommandError("the key must be allowed to use all queues")
    if abs((operator.transport.server_time_s or time.time()) - time.time()) > _CLOCK_S:
        raise CommandError("the clocks of this machine and the server differ by over 5 minutes")
    if operator.health().get("maintenance"):
        raise CommandError("the deployment is in maintenance mode")
    if run.cloud is not None and (raised := run.cloud.raised()):
        raise CommandError(f"alarms are raised: {', '.join(raised)}. Resolve them first")
    rate = cost.baseline(run) or 0.0
    if rate > _TRAFFIC and not shared:
        raise CommandError(f"others send {rate:.1f} requests/s. To run anyway, pass --shared")
    config = operator.system_config()
    facts: dict[str, Any] = {
        key: value for key, value in config.items() if isinstance(value, str | bool | list)
    }
    facts["realtime"] = operator.manifest()["extensions"].get("realtime", {})
    if run.cloud is not None:
        facts |= {"stage": run.cloud.stage, "region": run.cloud.region,
                  "emulated": run.cloud.emulated}  # fmt: skip
        facts["memory_mb"] = {n: each["MemorySize"] for n, each in run.cloud.functions.items()}
    return facts


def _loads(run: Run) -> dict[str, tuple[float, float]]:
    """Return the number of jobs, and of other requests, of each part."""
    pace = run.pace
    pickups = pace.pickups * (len(pace.polls_s) + 2)
    polls = sum(pace.pickups / 2 + 30 for _ in pace.polls_s)
    minutes = pace.long_s / 60 if run.long else 0
    return {
        "conformance": (40, 120), "behavior": (pace.counted + 20 * minutes, 200),
        "wiring": (0, 30), "latency": (pace.samples + pace.parallel, 2 * pace.samples),
        # Each step of the ramp asks for itself.
        "pickup": (pickups, 10 * pickups + polls), "ramp": (0, 0), "cost": (0, 0),
    }  # fmt: skip


def _ask(
    options: argparse.Namespace,
    name: str,
    budget: cost.Budget,
    loads: dict[str, tuple[float, float]],
) -> None:
    """Print the plan and its price, and ask. Raises CommandError without a yes."""
    loads = loads | {"ramp": (times.jobs_of_ramp(options.rate), 0)}
    where, total = options.stage or options.server.url, 0.0
    print(
        f"{name} on {where}: creates a key, queues, jobs, a cron job, and a delivery with this "
        "prefix, and deletes them at the end."
    )
    for part in options.only:
        price = budget.price(*loads[part])
        total += price
        print(f"  {part:12}{number(round(loads[part][0]), 'job'):>12}  ${price:.4f}")
    most, minutes = min(cost.MARGIN * total, budget.ceiling), 25 + 20 * options.long
    print(f"  at most ${most:.2f}, about {minutes} minutes with all parts")
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("to run without a question, pass --yes")
    if input("Run? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise CommandError("nothing was created")


def _open(run: Run) -> None:
    """Create the key of the run. Without access keys, the run uses that of the operator."""
    run.made.note("key", run.name)
    try:
        made = run.operator.create_key(
            run.name, SCOPES, queues=[f"{run.name}*"], expires_at=_KEY_LASTS
        )
    except Unsupported:
        note("The deployment has no access keys: the run uses yours")
        return
    if run.operator.key is not None:
        run.own = run.operator.other(made["secret"])
