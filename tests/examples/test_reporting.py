"""The report of the example, from results alone."""

from __future__ import annotations

from reporting import report

FOUND = {"sha256": "a", "size": 10, "lines": 1, "words": 3, "top_words": [["whale", 2], ["sea", 1]]}


def test_a_report_has_all_files_and_what_failed() -> None:
    other = {**FOUND, "sha256": "b", "top_words": [["sea", 4]]}
    text = report(
        "books",
        ["1", "2", "3", "4"],
        [FOUND, None, FOUND, other],
        [None, {"message": "not UTF-8"}, None, None],
    )
    assert text.startswith("# books\n\n3 of 4 files: 30 bytes, 9 words.\n")
    assert "| sea | 6 |\n| whale | 4 |" in text
    assert "## Identical files\n\n- 1 = 3\n" in text
    assert text.endswith("## Not read\n\n- 2: not UTF-8\n")


def test_a_report_on_nothing_that_could_be_read() -> None:
    text = report("books", ["1"], [None], [None])
    assert text == "# books\n\n0 of 1 files: 0 bytes, 0 words.\n\n## Not read\n\n- 1: unknown\n"
