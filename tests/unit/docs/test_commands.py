"""Blocks of tutorials and guides that no test runs are checked."""

from __future__ import annotations

import pytest

from tests.unit.docs import commands
from tests.unit.docs.blocks import Block, pages, uncovered

BLOCKS = [block for page in [*pages(), "docs/site/home.md"] for block in uncovered(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=[f"{b.page}-{b.line}" for b in BLOCKS])
def test_a_block_is_accepted(block: Block) -> None:
    match block.kind:
        case "sh":
            commands.check_script(block.text, (commands.ROOT / block.page).read_text("utf-8"))
        case "python":
            commands.check_program(block.text)
        case _:
            commands.check_json(block.text)


@pytest.mark.parametrize(
    "script",
    [
        "curl localhost:8080/ojs/v1/jobz",
        'curl "$OJS_URL/ojs/v1/jobs" -d \'{"args": []}\'',
        "./ojs-aws job --nope 1",
        "cdk deploy -c stag=prod",
        "cdk deploy -c stage=PROD",
        "make nope",
        "aws dynamodb describe-tables",
        "aws dynamodb describe-table --table jobs",
        "python nope.py",
        "x && nope",
        "A=$(nope)",
    ],
)
def test_a_wrong_command_is_found(script: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        commands.check_script(script)


def test_a_right_command_is_accepted() -> None:
    commands.check_script(
        """
        post() { curl -s "$OJS_URL/ojs/v1/jobs" -d "$1"; }   # a function
        export OJS_URL=$(aws cloudformation describe-stacks --stack-name "$1" --output text)
        for id in 1 2; do post "{}" > file && make run ARGS='--port 1'; done
        """
    )


@pytest.mark.parametrize(
    "program", ["x = (", "jobs.add_queue('a', size=1)", "from ojs_aws import Nope"]
)
def test_a_wrong_program_is_found(program: str) -> None:
    with pytest.raises((SyntaxError, commands.Wrong)):
        commands.check_program(program)


def test_json_with_an_unknown_field_is_found() -> None:
    commands.check_json('{"type": "t", "args": [{"nope": 1}], "queue": "q"}')
    with pytest.raises(commands.Wrong):
        commands.check_json('{"typ": "t"}')
