"""The trace context of a request: what counts as one, and what becomes of it (W3C)."""

from __future__ import annotations

import pytest

from ojs.domain.job import envelope
from ojs.domain.job.trace import MAX_STATE_CHARACTERS, TraceContext

ID, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{ID}-{SPAN}-01"


def parent_of(text: str) -> str | None:
    found = TraceContext.of({"traceparent": text})
    return None if found is None else found.traceparent


@pytest.mark.parametrize("flags", ["00", "01", "ff"])
def test_a_valid_parent_is_kept(flags: str) -> None:
    assert parent_of(f" 00-{ID}-{SPAN}-{flags} ") == f"00-{ID}-{SPAN}-{flags}"


@pytest.mark.parametrize("more", ["", "-", "-what-comes", "-" + "x" * 200])
def test_a_later_version_is_read_as_far_as_it_is_known(more: str) -> None:
    assert parent_of(f"cc-{ID}-{SPAN}-ff{more}") == PARENT
    assert parent_of(f"01-{ID}-{SPAN}-fe{more}") == PARENT[:-2] + "00"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "00",
        f"ff-{ID}-{SPAN}-01",
        f"00-{ID}-{SPAN}-01-more",
        f"cc-{ID}-{SPAN}-01more",
        f"cc-{ID}-{SPAN}-01-" + "x" * 201,
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{ID}-{'0' * 16}-01",
        f"00-{ID.upper()}-{SPAN}-01",
        f"00-{ID}-{SPAN}",
        f"00-{ID[:-1]}-{SPAN}-01",
        f"00-{ID}-{SPAN}-0x",
        f"00_{ID}_{SPAN}_01",
        # Sent twice: API Gateway joins them.
        f"{PARENT},{PARENT}",
        f"00-{ID}-{SPAN}-01\n0",
        "00-٣bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ],
)
def test_a_bad_parent_counts_as_none(bad: str) -> None:
    assert TraceContext.of({"traceparent": bad, "tracestate": "a=1"}) is None


def test_without_the_header_there_is_none() -> None:
    assert TraceContext.of({"tracestate": "a=1"}) is None


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        (" a=1 , ,b@vendor=2 ", "a=1,b@vendor=2"),
        ("a=" + "x" * 256, "a=" + "x" * 256),
        ("a=1,a=2", None),
        ("A=1", None),
        ("a", None),
        ("a==1", None),
        ("a=ü", None),
        ("a=" + "x" * 257, None),
        ("", None),
        (",".join(f"k{n}=1" for n in range(32)), ",".join(f"k{n}=1" for n in range(32))),
        (",".join(f"k{n}=1" for n in range(33)), None),
        ("a=" + "x" * 200 + ",b=" + "x" * 200 + ",c=" + "x" * 200, None),
    ],
)
def test_a_bad_state_is_left_out_alone(sent: str, kept: str | None) -> None:
    found = TraceContext.of({"traceparent": PARENT, "tracestate": sent})
    assert found == TraceContext(PARENT, kept)
    assert found.trace_id == ID
    assert kept is None or len(kept) <= MAX_STATE_CHARACTERS


def test_it_goes_into_meta_where_the_client_has_not_put_one() -> None:
    trace = TraceContext(PARENT, "a=1")
    plain = envelope.parse({"type": "a", "args": [], "meta": {"k": 1}})
    assert trace.into(plain).meta == {"k": 1, "traceparent": PARENT, "tracestate": "a=1"}
    assert plain.meta == {"k": 1}
    own = envelope.parse({"type": "a", "args": [], "meta": {"traceparent": "mine"}})
    assert trace.into(own) is own
    bare = envelope.parse({"type": "a", "args": []})
    assert TraceContext(PARENT).into(bare).meta == {"traceparent": PARENT}
