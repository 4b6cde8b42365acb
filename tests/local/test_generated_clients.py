"""Clients that common generators make out of the OpenAPI document import and work.

`make clients` installs the generators, apart from all else: they and the server want different
versions of the same packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ojs_aws import Client
from tests.library.pages import files, page
from tests.local.conftest import ROOT, RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

TOOLS = ROOT / "build/clients"
NODE_TOOLS = TOOLS / "node_modules/.bin"
SCRIPTS = Path(__file__).parent / "clients"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with keys: its document says so, and clients show one."""
    assert (TOOLS / ".installed").exists(), "the generators are missing: run `make clients`"
    folder = tmp_path_factory.mktemp("clients")
    server = RunningServer(folder / "data", folder / "printed", "--keys")
    yield server
    server.end()


def key_file(server: RunningServer) -> Path:
    return server.data / "first-key"


@pytest.fixture(scope="module")
def document(closed: RunningServer) -> Path:
    """The document as the server has it."""
    key = key_file(closed).read_text().strip()
    file = closed.data.parent / "openapi.json"
    with Client(closed.url, key=key) as client:
        file.write_text(json.dumps(client.openapi()))
    return file


def run(folder: Path, *command: str | Path, **environment: str) -> str:
    """What a command printed; it must succeed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_python_client(closed: RunningServer, document: Path, tmp_path: Path) -> None:
    printed = run(
        tmp_path, TOOLS / "bin/openapi-python-client", "generate", "--path", document,
        "--meta", "none", "--output-path", "ojs_client", "--fail-on-warning",
        PATH=f"{TOOLS / 'bin'}:{os.environ['PATH']}",  # it formats with ruff
    )  # fmt: skip
    # It leaves out what it cannot make, and says so.
    assert printed.strip() == "Generating ojs_client"
    used = run(
        tmp_path, TOOLS / "bin/python", SCRIPTS / "use.py", closed.url, key_file(closed),
        PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert int(used.split()[0]) > 100
    # Types have names that a reader can guess, but for what has several forms.
    named = [each.stem for each in (tmp_path / "ojs_client/models").glob("*_type_[0-9].py")]
    assert len(named) <= 12, named


@pytest.mark.whole
def test_a_typescript_client(closed: RunningServer, document: Path, tmp_path: Path) -> None:
    printed = run(
        tmp_path, NODE_TOOLS / "openapi-ts", "--input", document, "--output", "ojs_client",
        "--client", "@hey-api/client-fetch", "--no-log-file",
    )  # fmt: skip
    assert "Done" in printed
    assert "warn" not in printed.lower()
    shutil.copy(SCRIPTS / "use.ts", tmp_path)
    run(
        tmp_path, NODE_TOOLS / "tsc", "--strict", "--noUncheckedIndexedAccess",
        "--target", "es2022", "--module", "commonjs",
        "--lib", "es2022,dom,dom.iterable,dom.asynciterable",
        "--outDir", "made", "use.ts",
    )  # fmt: skip
    run(tmp_path, "node", "made/use.js", closed.url, key_file(closed).read_text().strip())


# Of the types of Node.js, those that the programs of the page use.
NODE_TYPES = """
declare const process: {
  env: Record<string, string | undefined>; pid: number; exitCode: number;
  on(signal: string, handler: () => void): void;
};
declare module 'node:timers/promises' { export function setTimeout(ms: number): Promise<void>; }
"""


def test_the_programs_of_the_typescript_page(
    closed: RunningServer, document: Path, tmp_path: Path
) -> None:
    text = page("typescript")
    for name, program in files(text).items():
        (tmp_path / name).write_text(program)
    (tmp_path / "node.d.ts").write_text(NODE_TYPES)
    run(
        tmp_path, NODE_TOOLS / "openapi-ts", "-i", document, "-o", "ojs",
        "-c", "@hey-api/client-fetch", "--no-log-file",
    )  # fmt: skip
    run(
        tmp_path, NODE_TOOLS / "tsc", "--strict", "--target", "es2022", "--module", "commonjs",
        "--outDir", "made", "node.d.ts", "producer.ts", "worker.ts",
    )  # fmt: skip
    names = {"OJS_URL": closed.url, "OJS_KEY": key_file(closed).read_text().strip()}
    with subprocess.Popen(
        ["node", "made/worker.js"], cwd=tmp_path, env=os.environ | names
    ) as worker:
        printed = run(tmp_path, "node", "made/producer.js", **names)
        worker.terminate()
        assert worker.wait(timeout=30) == 0
    assert f"```console\n{printed}```" in text
