"""Listings of dead letters: no job is lost or repeated, and what a page costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.clock import ManualClock
from ojs.domain.errors import InvalidRequest
from ojs.domain.ids import IdSource
from ojs.domain.job import Job
from ojs.domain.page import Page
from ojs.domain.states import State
from ojs.http.contract import MAX_LIMIT, MAX_OFFSET
from ojs.services import dead_letter
from ojs.services.dead_letter import DeadLetter
from ojs.store import items

if TYPE_CHECKING:
    from ojs.services.bounds import Bounds
    from ojs.store.jobs import Jobs
    from ojs.store.queues import Queues
    from tests.unit.functions.client import Api

START_MS = 1_800_000_000_000


def letter(number: int, queue: str = "q", kind: str = "kind.a", **more: Any) -> Job:
    """The dead letter that was discarded as number `number`."""
    return Job(
        id=f"019539a4-0000-7000-8000-{number:012x}",
        type=kind,
        queue=queue,
        state=State.DISCARDED,
        created_ms=START_MS,
        # Two each millisecond, so that the id decides between them.
        discarded_ms=START_MS + number // 2,
        completed_ms=START_MS + number // 2,
        dead_letter=True,
        attempt=3,
        **{"content": {"args": [number]}, **more},
    )


def key_of(job: Job) -> str:
    return str(items.index_entries(job)["wsk"])


@dataclass
class Shelf:
    """Stands for the store: heads, an index that may be behind, and what was asked of both."""

    letters: Sequence[Job]
    stale: Sequence[tuple[str, str, str]] = ()  # queue, job id, key

    def __post_init__(self) -> None:
        self.by_id = {job.id: job for job in self.letters}
        entries = [(job.queue, job.id, key_of(job)) for job in self.letters]
        self.index = sorted([*entries, *self.stale], key=lambda entry: entry[2], reverse=True)
        self.asked: list[tuple[str, int]] = []
        self.read: list[int] = []
        self.loaded: list[str] = []
        self.latest: list[int] = []

    def names(self, **_: Any) -> tuple[list[str], None]:
        return sorted({queue for queue, _, _ in self.index}), None

    def dead(self, queue: str, *, limit: int, before: str | None = None) -> list[tuple[str, str]]:
        self.asked.append((queue, limit))
        line = [(job_id, key) for name, job_id, key in self.index if name == queue]
        return [entry for entry in line if before is None or entry[1] < before][:limit]

    def heads(self, job_ids: Iterable[str]) -> dict[str, Job]:
        wanted = list(job_ids)
        self.read.append(len(wanted))
        found = {job_id: self.by_id[job_id] for job_id in wanted if job_id in self.by_id}
        return {
            job_id: replace(job, content=None) if job.content_bytes else job
            for job_id, job in found.items()
        }

    def with_contents(self, jobs: Sequence[Job]) -> list[Job]:
        self.loaded += [job.id for job in jobs]
        return [self.by_id[job.id] for job in jobs]

    def with_errors(self, jobs: Sequence[Job], *, latest: int) -> list[Job]:
        self.latest.append(latest)
        return list(jobs)

    def service(self) -> DeadLetter:
        clock = ManualClock(START_MS)
        jobs, queues = cast("Jobs", self), cast("Queues", self)
        # Listing asks for no room.
        return DeadLetter(jobs, queues, cast("Bounds", None), clock, IdSource(clock))


def by_number(shelf: Shelf, limit: int, **asked: Any) -> Iterator[Page[Job]]:
    """Pages 1, 2, … until the last, or the one that is refused."""
    skip = 0
    while True:
        try:
            page = shelf.service().list(limit=limit, skip=skip, **asked)
        except InvalidRequest:
            return
        yield page
        if page.next_cursor is None:
            return
        skip += limit


def by_cursor(shelf: Shelf, limit: int, **asked: Any) -> Iterator[Page[Job]]:
    cursor = None
    while True:
        page = shelf.service().list(limit=limit, cursor=cursor, **asked)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


@st.composite
def shelves(draw: st.DrawFn) -> Shelf:
    size = draw(st.integers(0, 60))
    where = st.sampled_from(["a", "b", "c"])
    letters = [
        letter(number, draw(where), draw(st.sampled_from(["kind.a", "kind.b"])))
        for number in range(size)
    ]
    stale = []
    for job in letters:
        if draw(st.booleans()) and draw(st.booleans()):
            # Retried and dead again: the index still has the old place, too.
            older = replace(job, discarded_ms=(job.discarded_ms or 0) - draw(st.integers(1, 40)))
            stale.append((job.queue, job.id, key_of(older)))
    gone = letter(size + draw(st.integers(0, 9)), "a")
    return Shelf(letters, [*stale, (gone.queue, gone.id, key_of(gone))])


@given(
    shelf=shelves(),
    limit=st.integers(1, 20),
    most=st.integers(1, 90),
    queue=st.sampled_from([None, "a"]),
    kind=st.sampled_from([None, "kind.b"]),
)
def test_pages_join_without_gap_or_overlap(
    shelf: Shelf, limit: int, most: int, queue: str | None, kind: str | None
) -> None:
    wanted = [
        job.id
        for job in sorted(shelf.letters, key=key_of, reverse=True)
        if queue in (None, job.queue) and kind in (None, job.type)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dead_letter, "MAX_READ", most)
        paged = list(by_cursor(shelf, limit, queue=queue, type=kind))
        assert [job.id for page in paged for job in page.items] == wanted
        numbered = list(by_number(shelf, limit, queue=queue, type=kind))
        shown = [job.id for page in numbered for job in page.items]
        assert shown == wanted[: len(shown)]
        # A page is short only where the way by numbers ends, and then the cursor goes on.
        assert all(len(page.items) == limit for page in numbered[:-1])
        rest, cursor = list(shown), numbered[-1].next_cursor
        while cursor is not None:
            page = shelf.service().list(limit=limit, cursor=cursor, queue=queue, type=kind)
            rest += [job.id for job in page.items]
            cursor = page.next_cursor
        assert rest == wanted


def test_every_numbered_page_is_within_reach() -> None:
    assert MAX_OFFSET + MAX_LIMIT < dead_letter.MAX_READ
    shelf = Shelf([letter(n) for n in range(MAX_OFFSET + MAX_LIMIT + 1)])
    page = shelf.service().list(limit=MAX_LIMIT, skip=MAX_OFFSET)
    assert len(page.items) == MAX_LIMIT
    assert page.next_cursor is not None


def test_a_filter_reads_in_rounds_of_a_hundred_and_ends() -> None:
    shelf = Shelf([letter(n) for n in range(5_000)])
    page = shelf.service().list(type="no.such", limit=1, queue="q")
    assert page.items == []
    assert page.next_cursor is not None
    assert shelf.read == [100] * (dead_letter.MAX_READ // 100)
    assert len(shelf.asked) <= len(shelf.read) + 1


def test_without_a_queue_each_is_asked_once_and_only_used_ones_again() -> None:
    quiet = [letter(n, f"q{n}") for n in range(40)]
    busy = [letter(1_000 + n, "busy") for n in range(300)]
    shelf = Shelf([*quiet, *busy])
    assert len(shelf.service().list(limit=MAX_LIMIT).items) == MAX_LIMIT
    asked = [queue for queue, _ in shelf.asked]
    assert {queue: asked.count(queue) for queue in asked if queue != "busy"} == {
        f"q{n}": 1 for n in range(40)
    }
    assert asked.count("busy") <= 3
    assert sum(limit for _, limit in shelf.asked) <= 41 * 25 + 200


def test_one_page_of_one_queue_is_one_query_and_one_round() -> None:
    shelf = Shelf([letter(n) for n in range(300)])
    assert len(shelf.service().list(queue="q", limit=50).items) == 50
    assert (shelf.asked, shelf.read) == ([("q", 51)], [50])


def test_what_is_skipped_is_not_loaded() -> None:
    shelf = Shelf([letter(n, content_bytes=1_000, content_ref="r") for n in range(30)])
    page = shelf.service().list(queue="q", limit=5, skip=20)
    assert shelf.loaded == [job.id for job in page.items]
    assert len(page.items) == 5


def test_contents_beyond_an_answer_s_size_are_not_loaded() -> None:
    large = dead_letter.MAX_PAGE_BYTES // 3 + 1
    letters = [
        letter(n, content_bytes=large if n % 2 else 1_000, content_ref="r") for n in range(50)
    ]
    page = Shelf(letters).service().list(limit=50)
    assert [job.id for job in page.items] == [job.id for job in letters[::-1]]
    loaded = [job for job in page.items if job.content is not None]
    assert sum(job.content_bytes for job in loaded) <= dead_letter.MAX_PAGE_BYTES
    # The first large ones, and all of the small ones.
    assert [job.content_bytes for job in loaded].count(large) == 2
    assert [job.content_bytes for job in loaded].count(1_000) == 25


# --- through the API ----------------------------------------------------------------------------


def stock(api: Api, letters: Sequence[Job]) -> list[str]:
    """Put dead letters into the table as they are; their ids, latest first."""
    for name in {job.queue for job in letters}:
        api.post(f"/ojs/v1/queues/{name}/resume")
    for job in letters:
        api.runtime.dead_letter._jobs.create(job)
    return [job.id for job in sorted(letters, key=key_of, reverse=True)]


@pytest.mark.parametrize("style", [{"per_page": "20"}, {"limit": "20"}])
def test_pages_of_large_jobs_are_full(api: Api, style: dict[str, str]) -> None:
    # Twenty of these have 6 MB of contents; an answer has room for a few.
    ids = stock(api, [letter(n, content={"args": ['"' * 150_000]}) for n in range(70)])
    listed: list[str] = []
    for number in range(1, 5):
        place = {"page": str(number)} if "per_page" in style else {"offset": str(20 * number - 20)}
        page = api.get("/ojs/v1/dead-letter", **style, **place).json
        assert len(page["jobs"]) == (20 if number < 4 else 10)
        listed += [job["id"] for job in page["jobs"]]
        cut = ["omitted" in job for job in page["jobs"]]
        assert cut[0] is False
        assert cut[-1] is True
        assert all(("args" in job) != ("omitted" in job) for job in page["jobs"])
    assert listed == ids


def test_filtered_pages_are_full(api: Api) -> None:
    rare = [n % 7 == 0 for n in range(200)]
    letters = [letter(n, f"q{n % 3}", "rare" if rare[n] else "usual") for n in range(200)]
    ids = stock(api, letters)
    wanted = [job_id for job_id in ids if rare[int(job_id[-12:], 16)]]
    listed: list[str] = []
    for number in range(1, 5):
        page = api.get("/ojs/v1/dead-letter", type="rare", per_page="8", page=str(number)).json
        listed += [job["id"] for job in page["jobs"]]
    assert listed == wanted
    assert page["total"] == len(wanted) == 29


def test_a_numbered_page_out_of_reach_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter, "MAX_READ", 20)
    ids = stock(api, [letter(n, kind="rare" if n % 4 == 0 else "usual") for n in range(60)])
    asked = {"type": "rare", "per_page": "10"}
    first = api.get("/ojs/v1/dead-letter", **asked).json
    assert len(first["jobs"]) == 5
    refused = api.get("/ojs/v1/dead-letter", **asked, page="2")
    assert (refused.status, refused.error["details"]["field"]) == (400, "offset")
    assert "cursor" in refused.error["message"]
    listed, page = first["jobs"], first
    while page["pagination"]["has_more"]:
        cursor = page["pagination"]["next_cursor"]
        page = api.get("/ojs/v1/dead-letter", type="rare", limit="10", cursor=cursor).json
        listed = listed + page["jobs"]
    assert [job["id"] for job in listed] == [
        job_id for job_id in ids if int(job_id[-12:], 16) % 4 == 0
    ]


def test_a_listing_has_the_latest_errors_and_a_detail_all(api: Api) -> None:
    job_id = api.push(options={"retry": {"max_attempts": 12, "initial_interval": "PT1S"}})
    numbers = range(1, 13)
    for number in numbers:
        api.clock.advance(3_600_000)
        api.fetch(worker_id="w")
        api.post(f"/ojs/v1/jobs/{job_id}/nack", {"error": {"message": f"no {number}"}})
    (listed,) = api.get("/ojs/v1/dead-letter").json["jobs"]
    assert [error["message"] for error in listed["errors"]] == [f"no {n}" for n in numbers[-10:]]
    assert listed["error"]["message"] == "no 12"
    detail = api.get(f"/ojs/v1/dead-letter/{job_id}").json
    assert [error["message"] for error in detail["errors"]] == [f"no {n}" for n in numbers]


def test_what_a_listing_costs(api: Api) -> None:
    stock(api, [letter(n, f"q{n % 10}") for n in range(150)])
    table = api.runtime.table
    table.measure = True
    table.meter.reset()
    api.get("/ojs/v1/dead-letter", limit="50")
    # The registry and each queue once; heads, and three errors of each: two calls for 150 keys.
    assert table.meter.calls.count("Query") == 11
    assert table.meter.calls.count("BatchGetItem") == 3
    table.meter.reset()
    api.get("/ojs/v1/dead-letter", type="no.such", limit="1")
    assert table.meter.calls.count("Query") == 11
    assert table.meter.calls.count("BatchGetItem") == 2
