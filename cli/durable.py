"""`ojs-aws jobs steps` and `jobs signal`: jobs with durable code."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from cli import output, target
from ojs_aws.client.call import place, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

# What a retried dead letter keeps or clears, with its description.
_KEPT = {"steps": "outcomes of its steps", "checkpoint": "its checkpoint"}


def add(verbs: Any) -> list[argparse.ArgumentParser]:
    """Add the commands to the parser, and return their parsers."""
    steps = verbs.add_parser(
        "steps",
        argument_default=argparse.SUPPRESS,
        help="list the stored outcomes of a job's steps and waits",
    )
    signal = verbs.add_parser(
        "signal",
        argument_default=argparse.SUPPRESS,
        help="send a signal that a job waits for, or will wait for",
    )
    for each, run in ((steps, _steps), (signal, _signal)):
        each.add_argument("id", type=target.name, help="ID of the job")
        each.set_defaults(run=run)
    signal.add_argument("name", type=target.name, help="name of the signal")
    signal.add_argument(
        "--data",
        type=_json,
        metavar="JSON",
        default=None,
        help="data of the signal (default: null)",
    )
    return [steps, signal]


def add_kept(parser: argparse.ArgumentParser) -> None:
    """Add the options for what a retried job keeps."""
    for name, what in _KEPT.items():
        parser.add_argument(
            f"--{name}", choices=("keep", "clear"),
            help=f"clear: the job continues without {what} (default: keep)",
        )  # fmt: skip


def kept(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of `add_kept` as fields of a request."""
    given = {name: getattr(options, name) for name in _KEPT}
    return {name: value for name, value in given.items() if value is not None}


def _json(text: str) -> Any:
    try:
        value = json.loads(text)
        to_json(value).encode()
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError(f"must be JSON, but is {text!r}") from None
    return value


def _steps(options: argparse.Namespace) -> None:
    server = target.server(options)
    listing = partial(server.ask, "GET", place("jobs/{}/steps", options.id))
    pages = list(server.pages(listing))
    if options.json:
        for page in pages:
            output.as_json(page)
        return
    columns = ("STEP", "KIND", "STATUS", "#ATTEMPT", "STARTED", "DURATION", "STORED", "RESULT")
    output.print_table(columns, [_row(step) for page in pages for step in page["steps"]])
    waits = [wait for page in pages for wait in page["waits"]]
    if waits:
        print()
        rows = [(wait["name"], wait["kind"], wait["until"], wait["over"]) for wait in waits]
        output.print_table(("WAIT", "KIND", "UNTIL", "OVER"), rows)


def _row(step: Any) -> Sequence[object]:
    ms = step.get("duration_ms")
    length = ms if ms is None else f"{ms} ms" if ms < 1_000 else output.span(ms / 1_000)
    value = step["result"] if step["status"] == "completed" else step["error"]
    return (
        step["name"], step["kind"], step["status"], step["attempt"], step.get("started_at"), length,
        step["stored_at"], output.compact(value),
    )  # fmt: skip


def _signal(options: argparse.Namespace) -> None:
    path = place("jobs/{}/signals/{}", options.id, options.name)
    sent = target.server(options).ask("POST", path, {"data": options.data})
    if options.json:
        output.as_json(sent)
    else:
        woken = "it is available" if sent["woken"] else "it doesn't wait for the signal now"
        print(output.printable(f"{sent['name']} is stored for {sent['job_id']}: {woken}"))
