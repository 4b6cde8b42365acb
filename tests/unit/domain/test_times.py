from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ojs.domain import times
from tests.unit.domain.arbitrary import NOW_MS

all_ms = st.integers(0, times.MAX_MS)
DAY_MS = 86_400_000


@given(all_ms)
@example(0)
@example(times.MAX_MS)
def test_a_formatted_instant_is_read_back_to_the_millisecond(ms: int) -> None:
    assert times.timestamp_ms(times.format_ms(ms), now_ms=NOW_MS) == ms


@given(all_ms, all_ms)
def test_formatted_instants_sort_as_the_instants_do(one: int, other: int) -> None:
    assert (times.format_ms(one) < times.format_ms(other)) == (one < other)


def test_the_format_is_rfc_3339_in_utc_with_milliseconds() -> None:
    assert times.format_ms(1_770_892_200_007) == "2026-02-12T10:30:00.007Z"


@given(
    st.datetimes(datetime(1971, 1, 1), datetime(9998, 12, 31)),  # noqa: DTZ001 - made aware below
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_an_offset_names_the_same_instant_as_its_utc_form(local: datetime, minutes: int) -> None:
    moment = local.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    in_utc = moment.astimezone(UTC).isoformat()
    assert times.timestamp_ms(moment.isoformat(), now_ms=0) == times.timestamp_ms(in_utc, now_ms=0)


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-12T10:30:00Z", "2026-02-12t10:30:00z", "2026-02-12 10:30:00Z",
        "2026-02-12T11:30:00+01:00", "2026-02-12T10:30:00-00:00", "2026-02-12T10:30:00.0004Z",
        "2026-02-12T10:30:00.000999999Z",
    ],
)  # fmt: skip
def test_forms_rfc_3339_allows_are_read_and_cut_to_the_millisecond(text: str) -> None:
    assert times.timestamp_ms(text, now_ms=0) == 1_770_892_200_000


@pytest.mark.parametrize(
    "text",
    [
        "", "tomorrow", "1770892200", "2026-02-12", "2026-02-12T10:30Z", "2026-02-12T10:30:00",
        "2026-02-12T10:30:00.Z", "2026-02-12T10:30:00,5Z", "2026-02-12T10:30:00+0100",
        "20260212T103000Z", "2026-2-12T10:30:00Z", "2026-02-12T10:30:00Z\n",
        "2026-02-12T10:30:00.0000000001Z", " 2026-02-12T10:30:00Z",
        "2026-02-30T10:30:00Z", "2026-13-01T10:30:00Z", "2026-02-12T25:00:00Z",
        "2026-02-12T10:61:00Z", "0000-01-01T00:00:00Z", "2026-02-12T10:30:00+25:00",
        "\u0662\u0660\u0662\u0666-02-12T10:30:00Z", "PT2S", "-PT2S", "++PT2S", "+", "+-PT2S",
        "+2S", 0, 1.5, None, True, ["2026-02-12T10:30:00Z"],
    ],
)  # fmt: skip
def test_what_is_no_timestamp_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"^must be "):
        times.timestamp_ms(text, now_ms=0)


def test_instants_outside_the_representable_range_are_taken_to_its_ends() -> None:
    assert times.timestamp_ms("1969-12-31T23:59:59Z", now_ms=0) == 0
    assert times.timestamp_ms("9999-12-31T23:59:59.9-23:59", now_ms=0) == times.MAX_MS
    assert times.timestamp_ms("+P36500D", now_ms=times.MAX_MS) == times.MAX_MS


@given(st.integers(0, 10**14), st.integers(0, times.MAX_DURATION_MS))
def test_a_relative_time_counts_from_now(now_ms: int, ms: int) -> None:
    text = f"+PT{ms // 1000}.{ms % 1000:03d}S"
    assert times.timestamp_ms(text, now_ms=now_ms) == now_ms + ms


@given(st.integers(0, times.MAX_DURATION_MS))
def test_a_duration_in_seconds_is_exact_to_the_millisecond(ms: int) -> None:
    assert times.duration_ms(f"PT{ms // 1000}.{ms % 1000:03d}S") == ms


parts = st.tuples(*(st.none() | st.integers(0, 9_999) for _ in range(4))).filter(
    lambda given: any(part is not None for part in given)
)


@given(parts)
def test_a_duration_is_the_sum_of_its_parts(
    given: tuple[int | None, int | None, int | None, int | None],
) -> None:
    days, hours, minutes, seconds = given
    date = "" if days is None else f"{days}D"
    clock = "".join(
        f"{part}{letter}"
        for part, letter in ((hours, "H"), (minutes, "M"), (seconds, "S"))
        if part is not None
    )
    expected = (
        (days or 0) * DAY_MS
        + (hours or 0) * 3_600_000
        + (minutes or 0) * 60_000
        + (seconds or 0) * 1_000
    )
    assert times.duration_ms(f"P{date}" + (f"T{clock}" if clock else "")) == expected


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT0S", 0),
        ("PT0.0009S", 0),
        ("PT0.5S", 500),
        ("PT1.5M", 90_000),
        ("P0.5D", DAY_MS // 2),
        ("P1W", 7 * DAY_MS),
        ("P30D", 30 * DAY_MS),
        ("P36600D", times.MAX_DURATION_MS),
    ],
)
def test_durations_of_the_forms_clients_send(text: str, ms: int) -> None:
    assert times.duration_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "", "P", "PT", "P1DT", "1S", "T1S", "PT1", "PT.5S", "PT1.S", "PT1,5S", "pt1s", "PT-1S",
        "-PT1S", "+PT1S", "P1Y", "P1M", "P1Y2D", "P1W2D", "PT1S1H", "PT1H ", "PT1S\n", "PT1e3S",
        "PT\u0661S", "P36601D", "P99999999999999999999D", "PT1" + "0" * 400 + "S", "5m", 5, 1.5,
        None, True,
    ],
)  # fmt: skip
def test_what_is_no_duration_of_fixed_length_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"^must be "):
        times.duration_ms(text)


@given(st.text(alphabet="PTWDHMSYZ+-:.0123456789eE t\u0661", max_size=30))
def test_no_text_raises_anything_but_a_rule(text: str) -> None:
    for read in (times.duration_ms, lambda given: times.timestamp_ms(given, now_ms=NOW_MS)):
        rule, found = "must be ", 0
        try:
            found = read(text)
        except ValueError as error:
            rule = str(error)
        assert rule.startswith("must be ")
        assert 0 <= found <= times.MAX_MS


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("7d", "P7D"), ("24h", "P1D"), ("1m", "PT1M"), ("90s", "PT90S"), ("1h30m", "PT90M"),
        ("250ms", "PT0.250S"), ("PT60S", "PT60S"), ("P1W", "P1W"),
    ],
)  # fmt: skip
def test_a_short_duration_is_kept_as_iso_8601(sent: str, shown: str) -> None:
    """What is stored is read by versions that know no other form."""
    assert times.iso_duration(sent) == shown
    assert times.duration_ms(shown) == times.short_duration_ms(sent)
