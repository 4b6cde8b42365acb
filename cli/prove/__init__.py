"""`ojs-aws prove`: verifies a deployment, with numbers. docs/prove.md describes it."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from cli import target

PARTS = ("conformance", "behavior", "wiring", "latency", "pickup", "ramp", "cost")
MAX_RATE = 200


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "prove",
        help="verify a deployment: its API, wiring, durations, rates, and cost; creates separate "
        "queues and jobs, and deletes them",
    )
    target.add_arguments(parser)
    only = f"parts to run, of {', '.join(PARTS)} (default: all)"
    price = "skip a part that could exceed this price (default: 1.00)"
    rate = "highest rate of the ramp in jobs/s, at most 200 (default: 50)"
    report = "folder for the reports (default: the name of the run)"
    clean = "delete what a run that was broken off left behind"
    for name, metavar, kind, default, help_text in (
        ("--only", "PART,…", _parts, PARTS, only),
        ("--max-cost", "DOLLARS", _dollars, 1.0, price),
        ("--rate", "JOBS", _rate, 50, rate),
        ("--report", "DIR", Path, None, report),
        ("--clean", "RUN", _run_name, None, clean),
    ):
        parser.add_argument(name, metavar=metavar, type=kind, default=default, help=help_text)
    for name, help_text in (
        ("--long", "also count jobs over the end of a stream window; takes 20 min more"),
        ("--shared", "run despite other traffic of more than 1 request/s"),
        ("--yes", "don't ask for confirmation"),
    ):
        short = ["-y"] if name == "--yes" else []
        parser.add_argument(name, *short, action="store_true", help=help_text)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from cli.prove import session

    session.run(options)


def _parts(text: str) -> tuple[str, ...]:
    chosen = [part.strip() for part in text.split(",")]
    if unknown := [part for part in chosen if part not in PARTS]:
        raise argparse.ArgumentTypeError(f"'{unknown[0]}' must be one of {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in chosen)


def _dollars(text: str) -> float:
    if not (re.fullmatch(r"\d{1,4}(\.\d+)?", text, re.ASCII) and float(text)):
        raise argparse.ArgumentTypeError(f"must be a number of dollars above 0, but is '{text}'")
    return float(text)


def _rate(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_RATE):
        raise argparse.ArgumentTypeError(f"must be from 1 to {MAX_RATE}, but is '{text}'")
    return int(text)


def _run_name(text: str) -> str:
    from cli.prove.made import RUN_NAME

    if not RUN_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be a name such as prove-7f3a, but is '{text}'")
    return text
