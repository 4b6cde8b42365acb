"""`ojs-aws` as a process: ended by Ctrl-C, or by who reads its output."""

from __future__ import annotations

import os
import signal
import subprocess
from functools import partial

import pytest

from cli.target import Exit
from tests.local.conftest import ROOT, RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]


def started(server: RunningServer, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(ROOT / "ojs-aws"), *arguments],
        env=os.environ | {"OJS_URL": server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # If a shell runs the tests in the background, they and what they start ignore Ctrl-C.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def test_ctrl_c_ends_what_follows(server: RunningServer) -> None:
    server.enqueue()
    following = started(server, "events", "--follow")
    assert following.stdout is not None
    assert "job.enqueued" in following.stdout.readline()
    server.enqueue(type="later")
    assert "later" in following.stdout.readline()
    following.send_signal(signal.SIGINT)
    _, complaint = following.communicate(timeout=120)
    assert (following.returncode, complaint) == (Exit.INTERRUPTED, "")


def test_whoever_reads_may_stop(server: RunningServer) -> None:
    following = started(server, "events", "--follow", "--json")
    assert following.stdout is not None
    following.stdout.readline()
    following.stdout.close()
    server.enqueue()
    assert following.wait(timeout=120) == Exit.DONE
    assert following.stderr is not None
    assert following.stderr.read() == ""
    following.stderr.close()
