"""Commands, programs and JSON texts of tutorials and guides are run, or have a reason.

`test_commands.py` checks those that have neither.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.docs.blocks import RUN, blocks, pages

ROOT = Path(__file__).resolve().parents[3]
MAX_REASONS = 20


def test_few_blocks_have_a_reason() -> None:
    found = [b for page in pages() for b in blocks(page, (ROOT / page).read_text("utf-8"))]
    reasons = [each for each in found if each.reason]
    assert len(reasons) <= MAX_REASONS, reasons
    assert not [each for each in reasons if each.test]


@pytest.mark.parametrize("page", RUN)
def test_the_runner_of_a_page_names_it(page: str) -> None:
    for test in set(RUN[page].values()):
        sources = [ROOT / test, *(ROOT / test).parent.glob("pages.py")]
        path = Path(page)
        named = path.parent.name or "README" if path.stem == "README" else path.stem
        assert any(named in source.read_text("utf-8") for source in sources), test


PAGE = """
```sh
make run
```

<!-- not run: it needs an AWS account -->
```sh
aws s3 ls
```

`jobs.py`:

```python
pass
```

```sh
curl localhost:8080
```

```json
{}
```

```console
$ make
```
"""


def test_a_block_is_run_by_its_name_or_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUN, "page.md", {"file": "a.py", "exchange": "b.py"})
    found = [(each.line, each.kind, each.test, each.reason) for each in blocks("page.md", PAGE)]
    assert found == [
        (2, "sh", None, None),
        (7, "sh", None, "it needs an AWS account"),
        (13, "python", "a.py", None),
        (17, "sh", "b.py", None),
        (21, "json", "b.py", None),
    ]
