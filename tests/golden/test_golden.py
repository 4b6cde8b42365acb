"""Golden files: `make golden` writes them anew."""

from __future__ import annotations

from typing import Any

import pytest

from ojs.api.operations import OPERATIONS
from ojs.http.answer import Answer, fields
from ojs.http.answers import ErrorAnswer
from tests.golden.answers import kinds, rendered
from tests.golden.contents import FILES, FOLDER, text


@pytest.mark.parametrize("name", FILES)
def test_nothing_that_users_notice_has_changed(name: str) -> None:
    before, now = (FOLDER / name).read_text("utf-8").splitlines(), text(name).splitlines()
    gone, new = set(before) - set(now), set(now) - set(before)
    assert before == now, "\n".join([*map("- {}".format, gone), *map("+ {}".format, new)][:40])


def test_no_other_file_is_kept() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(FILES)


# Fields that are there only where another is not.
APART = {
    "omitted", "unsearched", "queues", "completed_at", "paused_at", "resumed_at",
    "waiting_count_exact",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "answer"), [pytest.param(*each, id=each[0].__name__) for each in rendered()]
)
def test_an_answer_about_a_full_record_has_all_its_fields(
    kind: type[Answer[Any]], answer: dict[str, Any]
) -> None:
    told = {name for name, _ in fields(kind)}
    assert told - APART <= answer.keys()
    assert answer.keys() <= told


def test_every_answer_is_used() -> None:
    used = {success.shape for op in OPERATIONS for success in op.answers.values()}
    used.add(ErrorAnswer)
    assert kinds() - {Answer} == {shape for shape in used if isinstance(shape, type)}
