"""`ojs-aws` commands for configuration, the audit, and operation, against the handlers."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli import __main__ as terminal
from cli import completion, kinds, operate, output
from cli.target import Exit
from tests.unit.functions import hooked
from tests.unit.functions.terminal import Ojs, answers, bridge, runner

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

V1 = "/ojs/v1"
FILE: dict[str, Any] = {
    "queues": {"mail": {"concurrency": 5, "retention": {"completed": "P3D"}}},
    "pools": {"general": {"queues": ["mail", "low"], "weights": {"mail": 5, "low": 1}}},
    "crons": {
        "daily": {
            "expression": "0 9 * * *",
            "job_template": {"type": "report.build", "args": [1], "options": {"queue": "mail"}},
        }
    },
    "limits": {"api": {"rate": {"limit": 10, "period": "PT1M"}}},
}


@pytest.fixture
def ojs(api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ojs:
    bridge(monkeypatch, api)
    return runner(capsys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return saved(tmp_path / "ojs.json", FILE)


def saved(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


# --- configuration as code ------------------------------------------------------------------------


def test_a_file_is_planned_applied_and_exported(ojs: Ojs, file: Path) -> None:
    plan = ojs("config", "plan", str(file), "--json")
    assert {(it["change"], it["name"]) for it in plan.objects} == {
        ("create", "queues/mail"), ("create", "pools/general"), ("create", "crons/daily"),
        ("create", "limits/api"),
    }  # fmt: skip
    assert ojs("config", "plan", str(file), "--check").status == Exit.FAILED
    assert ojs("config", "export").out == "{}\n"  # a plan changes nothing
    assert ojs("config", "apply", str(file)).status == Exit.USAGE  # nobody to ask
    assert ojs("config", "apply", str(file), "--yes").status == Exit.DONE
    exported = json.loads(ojs("config", "export").out)
    exported["queues"].pop("low")  # the pool created it
    assert exported == FILE
    again = ojs("config", "apply", str(file))
    assert (again.status, again.out.splitlines()[-1]) == (Exit.DONE, "0 changes")
    assert json.loads(ojs("config", "export", "--kind", "limits").out).keys() == {"limits"}


def test_a_plan_shows_each_field_and_unlisted_objects(ojs: Ojs, file: Path) -> None:
    ojs("config", "apply", str(file), "--yes")
    changed = json.loads(json.dumps(FILE))
    changed["queues"]["mail"] = {"concurrency": 6}
    changed["pools"] = {}
    saved(file, changed)
    shown = ojs("config", "plan", str(file)).out
    assert "~ queues/mail" in shown
    assert "    concurrency: 5 -> 6" in shown
    assert '    retention: {"completed":"P3D"} -> (none)' in shown
    assert "? pools/general" in shown
    assert shown.endswith("1 change\n")
    ojs("config", "apply", str(file), "--yes")
    assert list(json.loads(ojs("config", "export").out)["pools"]) == ["general"]
    for bad in ("pools/other", "queues/low", "limits/api"):
        assert ojs("config", "apply", str(file), "--yes", "--prune", bad).status == Exit.USAGE
    pruned = ojs("config", "apply", str(file), "--yes", "--prune", "pools/general")
    assert pruned.status == Exit.DONE
    assert "- pools/general" in pruned.out
    assert "pools" not in json.loads(ojs("config", "export").out)


def test_a_change_since_the_plan_is_not_overwritten(
    api: Api, ojs: Ojs, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And after the failure, the command continues with what is left."""
    ojs("config", "apply", str(file), "--yes")
    changed = json.loads(json.dumps(FILE))
    changed["queues"]["mail"]["concurrency"] = 6
    changed["pools"]["general"]["concurrency"] = 7
    changed["limits"]["api"]["concurrency"] = 8
    saved(file, changed)
    put, write = f"{V1}/admin/pools/general", kinds.write

    def meanwhile(server: Any, found: Any, wanted: Any) -> Any:
        if found.kind is kinds.POOLS:
            api("PUT", put, {"queues": ["mail"], "concurrency": 99})
        return write(server, found, wanted)

    monkeypatch.setattr(kinds, "write", meanwhile)
    failed = ojs("config", "apply", str(file), "--yes")
    assert failed.status == Exit.REFUSED
    assert "pools/general: precondition_failed" in failed.err
    assert "1 of 3 changes made" in failed.err
    assert api.get(put).json["concurrency"] == 99
    monkeypatch.setattr(kinds, "write", write)
    assert ojs("config", "apply", str(file), "--yes").out.endswith("2 changes\n")
    assert ojs("config", "plan", str(file), "--check").status == Exit.DONE


def test_a_paused_cron_stays_paused_unless_the_file_says_otherwise(ojs: Ojs, file: Path) -> None:
    ojs("config", "apply", str(file), "--yes")
    ojs("cron", "pause", "daily")
    changed = json.loads(json.dumps(FILE))
    changed["crons"]["daily"]["expression"] = "0 8 * * *"
    ojs("config", "apply", str(saved(file, changed)), "--yes")
    assert ojs("cron", "show", "daily", "--json").objects[0]["enabled"] is False
    changed["crons"]["daily"]["enabled"] = True
    ojs("config", "apply", str(saved(file, changed)), "--yes")
    assert ojs("cron", "show", "daily", "--json").objects[0]["enabled"] is True


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"queue": {}}', '{"pools": []}', '{"webhooks": {"u": {"secret": "s"}}}']
)
def test_a_file_that_cannot_be(ojs: Ojs, tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    assert ojs("config", "plan", str(path)).status == Exit.USAGE


def test_toml_is_read_and_the_policy_is_a_queue(ojs: Ojs, tmp_path: Path) -> None:
    path = tmp_path / "ojs.toml"
    path.write_text('[queues._default]\nconcurrency = 9\n[pools.p]\nqueues = ["a"]\n')
    assert ojs("config", "apply", str(path), "--yes").status == Exit.DONE
    exported = json.loads(ojs("config", "export").out)
    assert exported["queues"] == {"_default": {"concurrency": 9}, "a": {}}
    assert exported["pools"] == {"p": {"queues": ["a"]}}


def test_webhooks_are_exported_without_secrets(
    hooks: hooked.Hooks,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    api, _, _ = hooks
    bridge(monkeypatch, api)
    ojs = runner(capsys)
    hooked.made(api, secret="whk_test_secret_001_of_ours")
    exported = ojs("config", "export")
    assert "secret" not in exported.out
    content = json.loads(exported.out)
    url, fields = next(iter(content["webhooks"].items()))
    other = {**fields, "events": ["job.cancelled"]}
    wanted = {"webhooks": {url: {**fields, "timeout_s": 9}, f"{url}/2": other}}
    applied = ojs("config", "apply", str(saved(tmp_path / "f.json", wanted)), "--yes")
    assert applied.status == Exit.DONE, applied.err
    assert "rotate-secret" in applied.err
    assert json.loads(ojs("config", "export").out)["webhooks"] == wanted["webhooks"]
    hooked.made(api, secret="whk_test_secret_002_of_ours")
    doubled = ojs("config", "export")
    assert "several webhooks" in doubled.err
    assert list(json.loads(doubled.out)["webhooks"]) == [f"{url}/2"]


# --- one configuration ----------------------------------------------------------------------------


def test_a_queue_is_set_with_a_diff_first(api: Api, ojs: Ojs, monkeypatch: Any) -> None:
    api("POST", f"{V1}/queues", {"name": "mail"})
    sets = ("queue", "set", "mail", "concurrency=4", "retention.completed=P2D")
    dry = ojs(*sets, "--diff")
    assert "    concurrency: (none) -> 4" in dry.out
    assert dry.out.endswith("dry run: nothing was changed\n")
    assert ojs(*sets, "--diff", "--json").objects[0]["dry_run"] is True
    assert api.get(f"{V1}/queues/mail/config").json["own"] == {}
    assert ojs(*sets).status == Exit.DONE
    own = api.get(f"{V1}/queues/mail/config").json["own"]
    assert own == {"concurrency": 4, "retention": {"completed": "P2D"}}
    ojs("queue", "set", "mail", "concurrency=null")
    assert "concurrency" not in ojs("queue", "show", "mail", "--json").objects[0]["own"]
    assert ojs("queue", "set", "maill", "lanes=2").status == Exit.USAGE
    answers(monkeypatch, "n\n")
    assert ojs("queue", "set", "maill", "lanes=2").status == Exit.FAILED
    assert api.get(f"{V1}/queues/maill/config").status == 404
    for bad in ("lanes", "=1", "a..b=1"):
        assert ojs("queue", "set", "mail", bad).status == Exit.USAGE


def test_pools_and_limits_are_set_listed_and_deleted(ojs: Ojs) -> None:
    assert ojs("pools", "set", "p", 'queues=["a","b"]', "concurrency=3").status == Exit.DONE
    assert ojs("pools", "set", "p", "concurrency=4").status == Exit.DONE
    row = ojs("pools", "list").out.splitlines()[1].split()
    assert row == ["p", "round-robin", '["a","b"]', "4", "0", "0"]
    assert ojs("pools", "delete", "p").status == Exit.USAGE
    assert ojs("pools", "delete", "p", "--yes").out == "pool p is deleted\n"
    assert ojs("pools", "delete", "p", "--yes").status == Exit.NOT_FOUND
    rate = 'rate={"limit":5,"period":"PT1M"}'
    assert ojs("limits", "set", "api", rate, "concurrency=null").status == Exit.DONE
    override = ojs("limits", "show", "api", "--json").objects[0]["override"]
    assert (override["limit"], override["concurrency"]) == (5, None)
    assert "api" in ojs("limits", "list").out
    ojs("limits", "delete", "api", "--yes")
    assert "override" not in ojs("limits", "show", "api", "--json").objects[0]


def test_a_cron_is_put_paused_run_and_deleted(api: Api, ojs: Ojs) -> None:
    fields = ("expression=0 9 * * 1-5", "job_template.type=mail.send", "job_template.args=[1]")
    assert ojs("cron", "put", "daily", *fields).status == Exit.DONE
    assert ojs("cron", "put", "daily", "description=Reports").status == Exit.DONE
    row = ojs("cron", "list").out.splitlines()[1]
    assert row.split()[:2] == ["daily", "active"]
    assert ojs("cron", "pause", "daily").out == "daily is paused\n"
    assert ojs("cron", "resume", "daily").out == "daily is active\n"
    job_id = ojs("cron", "run", "daily").out.strip()
    assert api.get(f"{V1}/jobs/{job_id}").json["type"] == "mail.send"
    named = ojs("cron", "next", "daily", "--count", "2")
    assert len(named.out.splitlines()) == 3
    zone = ojs("cron", "next", "0 9 * * 1-5", "--timezone", "Europe/Berlin", "--json")
    assert len(zone.objects[0]["firings"]) == 5
    assert ojs("cron", "delete", "daily", "--yes").status == Exit.DONE


# --- audit ----------------------------------------------------------------------------------------


def test_an_action_is_shown_and_undone(api: Api, ojs: Ojs) -> None:
    ojs("pools", "set", "p", 'queues=["a"]', "concurrency=3")
    ojs("pools", "set", "p", "concurrency=4")
    action = ojs("actions", "list", "--json", "--limit", "1").objects[0]
    assert "yes" in ojs("actions", "list").out
    shown = ojs("actions", "show", action["id"]).out
    assert "concurrency: 3 -> 4" in shown
    assert ojs("actions", "undo", action["id"]).status == Exit.USAGE
    undone = ojs("actions", "undo", action["id"], "--yes")
    assert "concurrency: 4 -> 3" in undone.out
    assert api.get(f"{V1}/admin/pools/p").json["concurrency"] == 3
    # The configuration is no longer that of after the action, except that it is as wanted.
    ojs("pools", "set", "p", "concurrency=9")
    assert ojs("actions", "undo", action["id"], "--yes").status == Exit.REFUSED
    api("POST", f"{V1}/queues", {"name": "mail"})
    created = ojs("actions", "list", "--json", "--limit", "1").objects[0]
    assert ojs("actions", "undo", created["id"], "--yes").status == Exit.REFUSED


# --- operation ------------------------------------------------------------------------------------


def test_a_job_is_enqueued(api: Api, ojs: Ojs) -> None:
    job = ojs(
        "enqueue", "mail.send", "ada", "3", '{"a":1}', "--queue", "mail", "--max-attempts", "2",
        "--meta", '{"k":1}', "--tag", "t", "--at", "+PT1H", "--json",
    ).objects[0]  # fmt: skip
    stored = api.get(f"{V1}/jobs/{job['id']}").json
    assert (stored["args"], stored["queue"], stored["state"]) == (
        ["ada", 3, {"a": 1}], "mail", "scheduled",
    )  # fmt: skip
    assert ojs("enqueue", "mail.send").out.endswith("is available in default\n")
    assert ojs("enqueue", "mail.send", "--meta", "3").status == Exit.USAGE


def test_a_missing_queue_is_paused_only_after_a_question(
    api: Api, ojs: Ojs, monkeypatch: pytest.MonkeyPatch
) -> None:
    api("POST", f"{V1}/queues", {"name": "mail"})
    assert ojs("pause", "mail").out == "mail is paused\n"
    assert ojs("pause", "maill").status == Exit.USAGE
    answers(monkeypatch, "n\n")
    assert ojs("resume", "maill").status == Exit.FAILED
    assert api.get(f"{V1}/queues/maill/config").status == 404
    assert ojs("pause", "maill", "--yes").status == Exit.DONE


def test_workers_and_maintenance(api: Api, ojs: Ojs) -> None:
    api("POST", f"{V1}/workers/register", {"worker_id": "w-1", "queues": ["mail"]})
    assert ojs("workers", "quiet", "w-1").out == "w-1 has the directive quiet\n"
    assert ojs("workers", "stop", "w-1", "--json").objects[0]["directive"] == "terminate"
    assert ojs("workers", "list").out.splitlines()[1].split()[0] == "w-1"
    assert ojs("maintenance", "on").status == Exit.USAGE
    begun = ojs("maintenance", "on", "--reason", "move", "--duration", "30m", "--yes")
    assert begun.out.startswith("maintenance is on, reason move, ends_at ")
    assert ojs("maintenance", "show", "--json").objects[0]["enabled"] is True
    assert ojs("maintenance", "off").out == "maintenance is off\n"


def test_top_makes_one_request_for_each_refresh(
    api: Api, ojs: Ojs, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.push("mail")
    waited: list[float] = []
    monkeypatch.setattr(output, "wait", waited.append)
    asked: list[object] = []
    read = operate._read

    def counted(*it: Any) -> Any:
        asked.append(it)
        return read(*it)

    monkeypatch.setattr(operate, "_read", counted)
    shown = ojs("top", "--sort", "name", "--count", "3", "--json")
    assert (len(shown.objects), waited, len(asked)) == (3, [2.0, 2.0], 3)
    assert shown.objects[0]["queues"][0]["name"] == "mail"
    assert "DEPTH" in ojs("top", "--count", "1").out
    assert ojs("top", "--interval", "0").status == Exit.USAGE


# --- all commands ---------------------------------------------------------------------------------


def whole() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ojs-aws")
    commands = parser.add_subparsers()
    for module in terminal.MODULES:
        module.add(commands)
    return parser


def test_each_command_has_json() -> None:
    found = dict(completion.words(whole()))
    groups = {path for path in found if any(it.startswith(f"{path} ") for it in found)}
    plain = {path for path, words in found.items() if path and "--json" not in words}
    # `prove` and `schemas generate` have formats of their own.
    assert plain - groups == {"completion", "prove", "schemas generate"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_all_commands(ojs: Ojs, shell: str) -> None:
    script = ojs("completion", shell).out
    for path, words in completion.words(whole()):
        assert f"'{path}'" in script
        assert " ".join(words) in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("ojs-aws ma", ["maintenance"]),
        ("ojs-aws config ", ["export", "plan", "apply"]),
        ("ojs-aws --url u cron pa", ["pause"]),
        ("ojs-aws pools set p --di", ["--diff"]),
    ],
)
def test_bash_completes(ojs: Ojs, typed: str, expected: list[str]) -> None:
    words = typed.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _ojs_aws; echo ${{COMPREPLY[@]}}"
    text = ojs("completion", "bash").out.replace("complete -o", ": complete -o") + asked
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert [it for it in done.stdout.split() if it in expected or it[0] != "-"] == expected
