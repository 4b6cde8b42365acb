from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.errors import InvalidRequest
from ojs.domain.job import envelope
from ojs.domain.job.envelope import JobRequest
from ojs.services.jobs import middleware
from ojs.services.jobs.middleware import Middleware, Next


def _request() -> JobRequest:
    return envelope.parse({"type": "email.send", "args": [], "meta": {"seen": []}})


def _seen(request: JobRequest) -> list[str]:
    assert request.meta is not None
    found = request.meta["seen"]
    assert isinstance(found, list)
    return found


def _marks(name: str) -> Middleware:
    def link(request: JobRequest, following: Next) -> JobRequest:
        result = following(request.model_copy(update={"meta": {"seen": [*_seen(request), name]}}))
        return result.model_copy(update={"meta": {"seen": [*_seen(result), f"{name} back"]}})

    return link


def _vetoes(request: JobRequest, following: Next) -> JobRequest:
    raise InvalidRequest("type", "is not welcome here", value=request.type)


@pytest.mark.requirement("C-16")
@given(st.lists(st.text("abc", min_size=1), max_size=6))
def test_each_link_calls_the_next_and_sees_its_answer(names: list[str]) -> None:
    done = middleware.run([_marks(name) for name in names], _request())
    assert _seen(done) == [*names, *(f"{name} back" for name in reversed(names))]


def test_without_links_the_request_goes_through_as_it_is() -> None:
    request = _request()
    assert middleware.run([], request) is request


@pytest.mark.requirement("C-16")
def test_a_veto_stops_the_request_before_later_links_see_it() -> None:
    called: list[str] = []

    def witness(request: JobRequest, following: Next) -> JobRequest:
        called.append(request.type)
        return following(request)

    with pytest.raises(InvalidRequest, match="not welcome"):
        middleware.run([witness, _vetoes, witness], _request())
    assert called == ["email.send"]


def test_a_link_that_does_not_call_the_next_has_the_last_word() -> None:
    replaced = envelope.parse({"type": "other", "args": []})
    assert middleware.run([lambda _, __: replaced, _vetoes], _request()) is replaced


def test_a_link_may_catch_a_veto_of_a_later_one() -> None:
    def lenient(request: JobRequest, following: Next) -> JobRequest:
        try:
            return following(request)
        except InvalidRequest:
            return request

    request = _request()
    assert middleware.run([lenient, _vetoes], request) is request
