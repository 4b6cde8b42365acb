"""Golden files: `make golden` writes them anew."""

from __future__ import annotations

import pytest

from tests.golden.contents import FILES, FOLDER, text


@pytest.mark.parametrize("name", FILES)
def test_nothing_that_users_notice_has_changed(name: str) -> None:
    before, now = (FOLDER / name).read_text("utf-8").splitlines(), text(name).splitlines()
    gone, new = set(before) - set(now), set(now) - set(before)
    assert before == now, "\n".join([*map("- {}".format, gone), *map("+ {}".format, new)][:40])


def test_no_other_file_is_kept() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(FILES)
