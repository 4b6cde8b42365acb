"""`ojs-aws jobs`, `job`, `retry`, `cancel`, and `delete`."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from cli import bulk, durable, output, target
from cli.target import CommandError, Exit, Server
from ojs.clock import Clock, SystemClock
from ojs.domain import times
from ojs_aws.client.call import place

_SHOWN = 20
# Maximum page size, and maximum number of IDs per request.
_PAGE = 100
_MOST_IDS = 1_000
_LONGEST_WAIT_S = 86_400
_AGO = re.compile(r"(\d{1,6})([smhd])")
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_CLOCK = SystemClock()
# Not shown: the same for each job, or included in the history.
_HIDDEN = ("id", "specversion", "errors", "metadata")
_VERBS = {
    "retry": "retry dead letters and retryable jobs",
    "cancel": "cancel jobs that are not in a final state",
    "delete": "permanently delete jobs in a final state",
}


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    listed = commands.add_parser("jobs", help="list jobs in all states")
    add_filter(listed)
    listed.add_argument("--sort", choices=("created_at", "scheduled_at", "priority"))
    listed.add_argument("--order", choices=("asc", "desc"))
    add_limit(listed)
    listed.set_defaults(run=_list)
    verbs = listed.add_subparsers(metavar="command")
    single = [_add_wait(verbs), *durable.add(verbs)]
    for each in single:
        each.set_defaults(run=partial(_alone, each.get_default("run")))
    job = commands.add_parser("job", help="show a job and its history")
    job.add_argument("id", type=target.name, help="ID of the job")
    job.set_defaults(run=_show)
    for each in (listed, *single, job):
        output.add_json(each)
        target.add_arguments(each)
    for verb, does in _VERBS.items():
        many = commands.add_parser(verb, help=f"{does}, by ID or by filter")
        many.add_argument(
            "id", nargs="*", type=target.name, help="IDs of the jobs, instead of a filter"
        )
        add_filter(many)
        many.add_argument(
            "--older-than",
            metavar="WHEN",
            help="finished before this time: RFC 3339, or an age: `7d`",
        )
        bulk.add_options(many)
        output.add_json(many)
        target.add_arguments(many)
        many.set_defaults(run=partial(_many, verb))
    bulk.add_operation(commands)


def _add_wait(verbs: Any) -> argparse.ArgumentParser:
    wait: argparse.ArgumentParser = verbs.add_parser(
        "wait",
        # Options before the verb stay in effect.
        argument_default=argparse.SUPPRESS,
        help="wait until a job is completed, cancelled, or discarded",
    )
    wait.add_argument("id", type=target.name, help="ID of the job")
    wait.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="SECONDS",
        help="time to wait (default: 60)",
    )  # fmt: skip
    wait.set_defaults(run=_wait)
    return wait


def add_filter(parser: argparse.ArgumentParser) -> None:
    """Add the options that filter jobs."""
    parser.add_argument("--queue", help="jobs of this queue")
    parser.add_argument("--state", help="jobs in these states, separated by commas")
    parser.add_argument("--type", help="jobs of this type, or with this prefix: `mail.*`")
    parser.add_argument("--tag", help="jobs with this tag")
    add_span(parser, "created")
    parser.add_argument("--args", help="jobs whose args contain this text or JSON path")


def add_span(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options for a time range."""
    for name, does in (("since", "at or after"), ("until", "before")):
        parser.add_argument(
            f"--{name}", type=moment, metavar="WHEN",
            help=f"{what} {does} this time: RFC 3339, or an age: `2h`",
        )  # fmt: skip


def add_limit(parser: argparse.ArgumentParser) -> None:
    """Add the option for the maximum length of a list."""
    parser.add_argument(
        "--limit", type=output.count, default=_SHOWN, metavar="N",
        help=f"maximum number of rows (default: {_SHOWN}); 0 for all",
    )  # fmt: skip


def moment(text: str, clock: Clock = _CLOCK) -> str:
    """Return a time in the format of the API. An age such as `2h` is relative to now."""
    if (ago := _AGO.fullmatch(text)) is None:
        return text
    return times.format_ms(max(0, clock.now_ms() - int(ago[1]) * _UNITS_MS[ago[2]]))


def listed(
    server: Server,
    listing: Callable[..., Any],
    wanted: dict[str, Any],
    options: argparse.Namespace,
    page: int,
    what: str = "jobs",
) -> Iterator[Any]:
    """Yield the items of a list, up to the limit, and note omitted ones. Raises CommandError."""
    limit = options.limit or None
    # Request one more item, to know whether more exist.
    query = {**wanted, "limit": page if limit is None else min(page, limit + 1)}
    left_out = total = 0

    def every() -> Iterator[Any]:
        nonlocal left_out, total
        for answer in server.pages(listing, **query):
            if "total_unknown" not in answer["pagination"]:
                total = max(total, answer.get("total", 0))
            left_out += answer.get("unsearched", 0)
            yield from answer["items"]

    items = every()
    yield from islice(items, limit)
    if left_out:
        output.note(f"not searched, because their args are large: {output.number(left_out, 'job')}")
    if limit is not None and next(items, None) is not None:
        shown = f"{limit} of {total} {what} shown" if total > limit else f"more {what} exist"
        output.note(f"{shown}. Use --limit {limit * 10}, or --limit 0 for all")


def print_jobs(
    jobs: Iterator[Any], columns: Sequence[str], row: Any, options: argparse.Namespace
) -> None:
    """Print jobs as a table, or each one immediately as JSON."""
    if options.json:
        for job in jobs:
            output.as_json(job)
    else:
        output.print_table(columns, [row(job) for job in jobs])


def _list(options: argparse.Namespace) -> None:
    wanted = _filter(options) | {"sort": options.sort, "order": options.order}
    server = target.server(options)
    # `list_jobs` of the library requires another scope.
    found = listed(server, partial(server.ask, "GET", "admin/jobs"), wanted, options, _PAGE)
    columns = ("ID", "STATE", "QUEUE", "TYPE", "#ATTEMPT", "#PRIORITY", "CREATED", "ARGS")
    print_jobs(found, columns, _row, options)


def _row(job: Any) -> Sequence[object]:
    args = output.compact(job["args"]) if "args" in job else "(large)"
    attempt = f"{job['attempt']}/{job['max_attempts']}"
    return (
        job["id"], job["state"], job["queue"], job["type"], attempt, job["priority"],
        job["created_at"], args,
    )  # fmt: skip


def _filter(options: argparse.Namespace) -> dict[str, Any]:
    names = ("queue", "state", "type", "tag", "since", "until", "args", "older_than")
    given = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _show(options: argparse.Namespace) -> None:
    server = target.server(options)
    job = server.admin_get_job(options.id)["job"]
    try:
        history = list(server.each(server.job_history, job_id=options.id, limit=200))
    except CommandError as error:
        # The history requires a separate scope.
        if error.status is not Exit.NOT_ALLOWED:
            raise
        output.note(f"the history is not available: {error}")
        history = []
    if options.json:
        output.as_json({"job": job, "history": history})
        return
    told = {name: value for name, value in job.items() if name not in _HIDDEN and value != {}}
    plain = {name: value for name, value in told.items() if not isinstance(value, dict | list)}
    output.print_table(("JOB", job["id"]), list(plain.items()))
    for name in (name for name in told if name not in plain):
        print(f"\n{output.printable(name)}:")
        for line in json.dumps(told[name], indent=2, ensure_ascii=False).splitlines():
            print(f"  {output.printable(line)}")
    if history:
        print()
        rows = [
            (
                event["timestamp"],
                event["event_type"],
                f"{event['actor']['type']} {event['actor']['id']}",
                output.compact(event["data"], cut=120),
            )
            for event in history
        ]
        output.print_table(("HISTORY", "EVENT", "BY", "DATA"), rows)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST_WAIT_S:
        raise argparse.ArgumentTypeError(f"must be 0 to {_LONGEST_WAIT_S} seconds")
    return seconds


def _alone(run: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Run a command for one job. Raises CommandError."""
    if _filter(options):
        raise CommandError("id: can't be combined with a filter", Exit.USAGE)
    run(options)


def _wait(options: argparse.Namespace) -> None:
    job = target.server(options).wait_for(options.id, options.timeout)
    if options.json:
        output.as_json(job.raw)
    else:
        print(output.printable(f"{job.id} is {job.state}"))
    if job.state != "completed":
        raise CommandError(f"the job is {job.state}")


def _many(verb: str, options: argparse.Namespace) -> None:
    server = target.server(options)
    wanted = _filter(options)
    if bool(options.id) == bool(wanted):
        raise CommandError("id: required without a filter, rejected with one", Exit.USAGE)
    if len(options.id) > _MOST_IDS:
        raise CommandError(
            f"id: must have at most {_MOST_IDS:,} IDs, but has {len(options.id):,}", Exit.USAGE
        )
    if len(options.id) == 1 and not options.dry_run:
        _one(server, verb, options)
        return
    if "state" in wanted:
        wanted["state"] = wanted["state"].split(",")
    meant: dict[str, Any] = {"job_ids": options.id} if options.id else {"filter": wanted}
    total = len(options.id)
    if options.dry_run or (wanted and not options.yes):
        counted = _begun(server, verb, meant | {"dry_run": True})
        if options.dry_run:
            bulk.report(counted, options)
            return
        total = counted["matched"]
        if total:
            bulk.confirm(f"{verb.capitalize()} {output.number(total, 'job')}?", options)
    bulk.report(_begun(server, verb, meant | {"confirm": True}, total or None), options)


def _begun(server: Server, verb: str, body: dict[str, Any], total: int | None = None) -> Any:
    """Start an operation, and follow it until it ends."""
    begun = server.ask("POST", f"admin/jobs/bulk/{verb}", body)
    return bulk.follow(server.get_job_operation, begun, total)


def _one(server: Server, verb: str, options: argparse.Namespace) -> None:
    (job_id,) = options.id
    if verb == "delete":
        told = {"id": server.delete_job(job_id)["job_id"], "state": "deleted"}
    else:
        told = server.ask("POST", place(f"admin/jobs/{{}}/{verb}", job_id), {})["job"]
    if options.json:
        output.as_json(told)
    else:
        print(output.printable(f"{told['id']} is {told['state']}"))
