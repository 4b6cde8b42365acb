"""The program of examples/fargate_worker, as its image runs it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from ojs_aws.client.job import Job
from ojs_aws.worker.settings import Settings

IMAGE = Path(__file__).resolve().parents[2] / "examples" / "fargate_worker" / "image"
# As the construct has it.
STOP_S = 120


def test_the_worker_does_its_jobs_and_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OJS_QUEUES", "texts,more")
    monkeypatch.setenv("OJS_URL", "http://localhost:1")
    spec = importlib.util.spec_from_file_location("counting", IMAGE / "worker.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    settings: Settings = module.worker.settings
    assert list(settings.queues or ()) == ["texts", "more"]
    assert settings.grace_s + settings.longest_end_s < STOP_S
    ended = module.worker.perform(Job("j", "text.count", args=["to be or to"], attempt=1))
    assert ended.how == "acks"
    told = json.loads(json.dumps(ended.entry["result"]))
    assert told == {"words": 4, "most": [["to", 2], ["be", 1], ["or", 1]]}


def test_the_image_has_what_it_copies_and_no_shell_before_the_program() -> None:
    lines = (IMAGE / "Dockerfile").read_text("utf-8").splitlines()
    assert lines[-1] == 'CMD ["python", "/app/worker.py"]'
    assert "USER worker" in lines
    ignored = (IMAGE / ".dockerignore").read_text("utf-8").splitlines()
    assert ignored == ["*", "!worker.py", "!*.whl"]
