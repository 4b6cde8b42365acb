"""Listings of dead letters: no job is lost or repeated, and what a page costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.errors import InvalidRequest
from ojs.domain.filters.dead_letters import DeadLetterFilter
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.http.parameters import MAX_LIMIT, MAX_OFFSET
from ojs.services.dead_letter import search as dead_letter
from ojs.services.dead_letter.search import DeadLetterSearch
from ojs.store.jobs import items
from ojs.store.table import keys

if TYPE_CHECKING:
    from ojs.store.jobs.records import JobStore
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
    """Stands for the store: records, an index that may be behind, and what was asked of both."""

    letters: Sequence[Job]
    stale: Sequence[tuple[str, str, str]] = ()  # queue, job id, key

    def __post_init__(self) -> None:
        self.by_id = {job.id: job for job in self.letters}
        entries = [(job.queue, job.id, key_of(job)) for job in self.letters]
        self.entries = sorted([*entries, *self.stale], key=lambda entry: entry[2], reverse=True)
        self.asked: list[tuple[str | None, int]] = []
        self.read: list[int] = []
        self.loaded: list[str] = []
        self.latest: list[int] = []

    @property
    def index(self) -> Shelf:
        """The index of jobs, of which the search asks for dead letters alone."""
        return self

    def dead(
        self,
        queue: str | None = None,
        *,
        limit: int,
        since_ms: int | None,
        until_ms: int | None,
        before: str | None,
    ) -> list[tuple[str, str]]:
        self.asked.append((queue, limit))
        line = [(job_id, key) for name, job_id, key in self.entries if queue in (None, name)]
        return [
            (job_id, key)
            for job_id, key in line
            if (before is None or key < before)
            and (since_ms is None or since_ms <= keys.instant_of(key))
            and (until_ms is None or keys.instant_of(key) < until_ms)
        ][:limit]

    def read_records(self, job_ids: Iterable[str], _: object = None) -> dict[str, Job]:
        wanted = list(job_ids)
        self.read.append(len(wanted))
        found = {job_id: self.by_id[job_id] for job_id in wanted if job_id in self.by_id}
        return {
            job_id: replace(job, content=None) if job.content_bytes else job
            for job_id, job in found.items()
        }

    def with_contents(self, jobs: Sequence[Job], _: object = None) -> list[Job]:
        self.loaded += [job.id for job in jobs]
        return [job if job.content is not None else self.by_id[job.id] for job in jobs]

    def with_errors(self, jobs: Sequence[Job], *, latest: int) -> list[Job]:
        self.latest.append(latest)
        return list(jobs)

    def service(self) -> DeadLetterSearch:
        return DeadLetterSearch(cast("JobStore", self))


def by_number(shelf: Shelf, limit: int, **asked: Any) -> Iterator[Page[Job]]:
    """Pages 1, 2, … until the last, or the one that is refused."""
    skip = 0
    while True:
        try:
            page = shelf.service().list(DeadLetterFilter(**asked), limit=limit, skip=skip)
        except InvalidRequest:
            return
        yield page
        if page.next_cursor is None:
            return
        skip += limit


def by_cursor(shelf: Shelf, limit: int, **asked: Any) -> Iterator[Page[Job]]:
    cursor = None
    while True:
        page = shelf.service().list(DeadLetterFilter(**asked), limit=limit, cursor=cursor)
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
        wanted_now = DeadLetterFilter(queue=queue, type=kind)
        rest, cursor = list(shown), numbered[-1].next_cursor
        while cursor is not None:
            page = shelf.service().list(wanted_now, limit=limit, cursor=cursor)
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
    page = shelf.service().list(DeadLetterFilter("q", type="no.such"), limit=1)
    assert page.items == []
    assert page.next_cursor is not None
    assert shelf.read == [100] * (dead_letter.MAX_READ // 100)
    assert len(shelf.asked) <= len(shelf.read) + 1


def test_one_page_of_all_queues_is_one_query_and_one_round() -> None:
    shelf = Shelf([letter(n, f"q{n % 40}") for n in range(300)])
    assert len(shelf.service().list(limit=MAX_LIMIT).items) == MAX_LIMIT
    assert (shelf.asked, shelf.read) == ([(None, MAX_LIMIT + 1)], [MAX_LIMIT])


def test_one_page_of_one_queue_is_one_query_and_one_round() -> None:
    shelf = Shelf([letter(n) for n in range(300)])
    assert len(shelf.service().list(DeadLetterFilter("q"), limit=50).items) == 50
    assert (shelf.asked, shelf.read) == ([("q", 51)], [50])


def test_what_is_skipped_is_not_loaded() -> None:
    shelf = Shelf([letter(n, content_bytes=1_000, content_ref="r") for n in range(30)])
    page = shelf.service().list(DeadLetterFilter("q"), limit=5, skip=20)
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
    api.clock.advance(max(0, START_MS + 1_000 - api.clock.now_ms()))
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


@pytest.mark.parametrize("queue", [None, "q3"])
@pytest.mark.parametrize("size", [150, pytest.param(1_000, marks=pytest.mark.exhaustive)])
def test_what_a_listing_costs(api: Api, queue: str | None, size: int) -> None:
    stock(api, [letter(n, "q3" if queue else f"q{n % 10}") for n in range(size)])
    table = api.runtime.table
    table.measure = True
    named = {"queue": queue} if queue else {}
    for asked, calls in (
        # The line, the records, their number; and three errors of each: two calls for 150 keys.
        ({"limit": "50"}, ["Query", "BatchGetItem", "BatchGetItem", "BatchGetItem", "GetItem"]),
        # What a filter passes over costs a round for each hundred.
        ({"limit": "1", "error_type": "Unknown"}, ["Query", "BatchGetItem", "BatchGetItem"]),
        ({"limit": "1", "since": "2027-01-15T08:00:00.060Z"}, ["Query", "BatchGetItem"] * 1),
    ):
        table.meter.reset()
        page = api.get("/ojs/v1/dead-letter", **named, **asked).json
        assert len(page["jobs"]) == int(asked["limit"])
        assert table.meter.calls[: len(calls)] == calls
        assert len(table.meter.calls) <= len(calls) + 1


def test_a_filter_that_fits_nothing_ends_after_so_many_entries(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter, "MAX_READ", 300)
    stock(api, [letter(n) for n in range(400)])
    table = api.runtime.table
    table.measure = True
    table.meter.reset()
    page = api.get("/ojs/v1/dead-letter", type="no.such", limit="1").json
    assert page["jobs"] == []
    assert page["pagination"]["has_more"] is True
    # What leads to the next page, as the total is not known.
    assert (page["total"], page["pagination"]["total_unknown"]) == (2, True)
    assert table.meter.calls == ["Query", "BatchGetItem"] * 3
    cursor = page["pagination"]["next_cursor"]
    last = api.get("/ojs/v1/dead-letter", type="no.such", limit="1", cursor=cursor).json
    assert last["pagination"]["has_more"] is False


# --- searching ----------------------------------------------------------------------------------


def ids_of(page: Any) -> list[str]:
    return [job["id"] for job in page.json["jobs"]]


@pytest.mark.requirement("DL-21", "DL-24", "DL-28")
@pytest.mark.parametrize("base", ["/ojs/v1/dead-letter", "/ojs/v1/admin/dead-letter"])
def test_dead_letters_are_searched_by_what_they_are(api: Api, base: str) -> None:
    letters = [
        letter(
            n,
            "billing" if n % 2 else "email",
            "invoice.generate" if n % 3 else "email.send",
            error_type="TimeoutError" if n % 5 else None,
        )
        for n in range(60)
    ]
    newest_first = sorted(letters, key=key_of, reverse=True)
    stock(api, letters)
    for asked, fits in (
        ({"queue": "billing"}, lambda job: job.queue == "billing"),
        ({"type": "email.send"}, lambda job: job.type == "email.send"),
        ({"error_type": "TimeoutError"}, lambda job: job.error_type == "TimeoutError"),
        ({"error_type": "Unknown"}, lambda job: job.error_type is None),
        ({"since": "2027-01-15T08:00:00.020Z"}, lambda job: job.discarded_ms >= START_MS + 20),
        ({"until": "2027-01-15T08:00:00.020Z"}, lambda job: job.discarded_ms < START_MS + 20),
        (
            {"since": "2027-01-15T08:00:00.005Z", "until": "2027-01-15T08:00:00.007Z"},
            lambda job: START_MS + 5 <= job.discarded_ms < START_MS + 7,
        ),
        (
            {"queue": "email", "type": "invoice.generate", "error_type": "TimeoutError"},
            lambda job: (
                (job.queue, job.type, job.error_type)
                == ("email", "invoice.generate", "TimeoutError")
            ),
        ),
    ):
        wanted = [job.id for job in newest_first if fits(job)]
        assert wanted
        assert ids_of(api.get(base, limit="200", **asked)) == wanted, asked
        paged: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = api.get(base, limit="7", **asked, **cursor).json
            paged += [job["id"] for job in page["jobs"]]
            if not page["pagination"]["has_more"]:
                break
            cursor = {"cursor": page["pagination"]["next_cursor"]}
        assert paged == wanted, asked


@pytest.mark.requirement("DL-22")
def test_dead_letters_are_searched_by_their_args(api: Api) -> None:
    letters = [
        letter(n, content={"args": [{"customer_id": f"cust_{n % 4}", "pad": "x" * 10 * n}]})
        for n in range(40)
    ]
    ids = stock(api, letters)
    wanted = [job_id for job_id in ids if int(job_id[-12:], 16) % 4 == 3]
    for args in ("cust_3", '"customer_id":"cust_3"', "$[0].customer_id=cust_3"):
        assert ids_of(api.get("/ojs/v1/dead-letter", args=args)) == wanted
    assert ids_of(api.get("/ojs/v1/dead-letter", args="$[0].no_such")) == []


def test_a_search_of_args_ends_after_so_many_bytes(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter, "MAX_ARGS_BYTES", 20_000)
    letters = [letter(n, content={"args": [f"{n % 2}" + "x" * 5_000]}) for n in range(20)]
    ids = stock(api, letters)
    wanted = [job_id for job_id in ids if int(job_id[-12:], 16) % 2]
    found: list[str] = []
    requests = 0
    cursor: dict[str, str] = {}
    while True:
        page = api.get("/ojs/v1/dead-letter", args="1xx", **cursor).json
        requests += 1
        found += [job["id"] for job in page["jobs"]]
        if not page["pagination"]["has_more"]:
            break
        cursor = {"cursor": page["pagination"]["next_cursor"]}
    assert found == wanted
    assert requests == 7, "three contents of 5 KB fit into each"


def test_pages_stay_right_while_jobs_come_and_go(api: Api) -> None:
    """A cursor names a place in time: what comes is not shown behind it, what goes is missed."""
    letters = [letter(n, f"q{n % 3}") for n in range(40)]
    ids = stock(api, letters)
    seen: list[str] = []
    gone: set[str] = set()
    cursor: dict[str, str] = {}
    for number in range(100):
        page = api.get("/ojs/v1/dead-letter", limit="6", **cursor).json
        seen += [job["id"] for job in page["jobs"]]
        if not page["pagination"]["has_more"]:
            break
        cursor = {"cursor": page["pagination"]["next_cursor"]}
        # One that was shown comes back and dies again, one that was not is deleted, one comes.
        assert api.post(f"/ojs/v1/dead-letter/{seen[-1]}/retry").status == 200
        left = [job_id for job_id in ids if job_id not in seen and job_id not in gone]
        if left:
            gone.add(left[-1])
            assert api("DELETE", f"/ojs/v1/dead-letter/{left[-1]}").status == 200
        api.runtime.dead_letter._jobs.create(letter(1_000 + number, "new"))
    assert seen == [job_id for job_id in ids if job_id not in gone]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("since", "yesterday"),
        ("since", "2099-01-01T00:00:00Z"),
        ("until", "tomorrow"),
        ("before", "+PT1H"),
        ("older_than", "30 days"),
        ("args", "$[0"),
        ("cursor", "bm8"),
    ],
)
@pytest.mark.parametrize("base", ["/ojs/v1/dead-letter", "/ojs/v1/admin/dead-letter"])
def test_a_bad_parameter_is_named(api: Api, base: str, name: str, value: str) -> None:
    refused = api.get(base, **{name: value})
    assert (refused.status, refused.error["details"]["field"]) == (400, name)


def test_a_cursor_outside_the_time_asked_for_finds_nothing(api: Api) -> None:
    ids = stock(api, [letter(n) for n in range(10)])
    page = api.get("/ojs/v1/dead-letter", limit="8").json
    assert [job["id"] for job in page["jobs"]] == ids[:8]
    cursor = page["pagination"]["next_cursor"]
    reply = api.get("/ojs/v1/dead-letter", since="2027-01-15T08:00:00.004Z", cursor=cursor)
    assert (reply.status, reply.json["jobs"]) == (200, [])
    assert reply.json["pagination"]["has_more"] is False
    assert api.get("/ojs/v1/dead-letter", state="discarded").json["total"] == 10
