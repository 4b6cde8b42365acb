"""Which local times an expression names, and which expressions are refused."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import islice

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.cron.schedule import MAX_CHARACTERS, Schedule, preview
from ojs.domain.errors import InvalidRequest
from tests.unit.domain.cron import oracle
from tests.unit.domain.cron.oracle import Case

START = oracle.instant("2026-02-12T10:30")


def named(expression: str, count: int = 3, after: int = START) -> list[str]:
    """The next local times, as `02-13 09:00`; with their seconds if it has six fields."""
    form = "%m-%d %H:%M" if len(expression.split()) < 6 else "%m-%d %H:%M:%S"
    firings = preview(expression, "UTC", after * 1000, count)
    return [datetime.fromtimestamp(each.tick.at_ms / 1000, UTC).strftime(form) for each in firings]


def days(expression: str, year: int, month: int) -> list[int]:
    """The days of a month on which an expression of three fields, those of days, fires."""
    begin = datetime(year, month, 1, tzinfo=UTC)
    schedule = Schedule.parse(f"0 12 {expression}", "UTC")
    found = []
    at_ms = int(begin.timestamp() * 1000) - 1
    while tick := schedule.next_after(at_ms, anchor_ms=0):
        moment = datetime.fromtimestamp(tick.at_ms / 1000, UTC)
        if (moment.year, moment.month) != (year, month):
            break
        found.append(moment.day)
        at_ms = tick.at_ms
    return found


@pytest.mark.requirement("CRON-8", "CRON-9", "CRON-10")
@pytest.mark.parametrize(
    ("expression", "times"),
    [
        ("* * * * *", ["02-12 10:31", "02-12 10:32", "02-12 10:33"]),
        ("*/15 * * * *", ["02-12 10:45", "02-12 11:00", "02-12 11:15"]),
        ("5/20 * * * *", ["02-12 10:45", "02-12 11:05", "02-12 11:25"]),
        ("10-20/5 3 * * *", ["02-13 03:10", "02-13 03:15", "02-13 03:20"]),
        ("10-10/5 3 * * *", ["02-13 03:10", "02-14 03:10", "02-15 03:10"]),
        ("1,59 10,11 * * *", ["02-12 10:59", "02-12 11:01", "02-12 11:59"]),
        ("30 10 * * *", ["02-13 10:30", "02-14 10:30", "02-15 10:30"]),
        ("05 09 * * *", ["02-13 09:05", "02-14 09:05", "02-15 09:05"]),
        ("  0\t9  * * mon-FRI ", ["02-13 09:00", "02-16 09:00", "02-17 09:00"]),
        ("0 9 * * sat-sun", ["02-14 09:00", "02-15 09:00", "02-21 09:00"]),
        ("0 9 * * 5-7", ["02-13 09:00", "02-14 09:00", "02-15 09:00"]),
        ("0 9 * * SUN,7,0", ["02-15 09:00", "02-22 09:00", "03-01 09:00"]),
        ("0 9 1 Mar,jun-AUG *", ["03-01 09:00", "06-01 09:00", "07-01 09:00"]),
        ("0 9 1 jan-Jul/3,DEC *", ["04-01 09:00", "07-01 09:00", "12-01 09:00"]),
        ("0 9 1 jul *", ["07-01 09:00", "07-01 09:00", "07-01 09:00"]),
        ("0 0 31 * *", ["03-31 00:00", "05-31 00:00", "07-31 00:00"]),
        ("*/30 * * * * *", ["02-12 10:30:30", "02-12 10:31:00", "02-12 10:31:30"]),
        ("15 30 10 * * *", ["02-12 10:30:15", "02-13 10:30:15", "02-14 10:30:15"]),
        ("0 30 10 * * *", ["02-13 10:30:00", "02-14 10:30:00", "02-15 10:30:00"]),
    ],
)
def test_fields(expression: str, times: list[str]) -> None:
    assert named(expression) == times


@pytest.mark.requirement("CRON-12")
@pytest.mark.parametrize(
    ("alias", "expression"),
    [
        ("@yearly", "0 0 1 1 *"), ("@annually", "0 0 1 1 *"), ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"), ("@daily", "0 0 * * *"), ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"), (" @Hourly ", "0 * * * *"),
    ],
)  # fmt: skip
def test_aliases(alias: str, expression: str) -> None:
    assert named(alias, 20) == named(expression, 20)
    assert len(named(alias, 20)) == 20


@pytest.mark.requirement("CRON-31")
@pytest.mark.parametrize(
    ("expression", "year", "month", "expected"),
    [
        ("L * *", 2026, 2, [28]), ("L * *", 2028, 2, [29]), ("1,l * *", 2026, 4, [1, 30]),
        # In August 2026 the 1st is a Saturday, the 15th too; in May the 31st is a Sunday.
        ("15W * *", 2026, 8, [14]), ("16w * *", 2026, 8, [17]), ("17W * *", 2026, 8, [17]),
        ("1W * *", 2026, 8, [3]), ("31W * *", 2026, 5, [29]), ("31W * *", 2026, 4, []),
        ("LW * *", 2026, 5, [29]), ("LW * *", 2026, 2, [27]), ("LW * *", 2026, 6, [30]),
        ("* * 5#3", 2026, 2, [20]), ("* * FRI#3", 2026, 2, [20]), ("* * 7#1", 2026, 2, [1]),
        ("* * SUN#5", 2026, 2, []), ("* * SUN#5", 2026, 3, [29]),
        ("* * 5L", 2026, 2, [27]), ("* * sunL", 2026, 3, [29]), ("* * 0L,1#1", 2026, 3, [2, 29]),
    ],
)  # fmt: skip
def test_last_nearest_and_nth(expression: str, year: int, month: int, expected: list[int]) -> None:
    assert days(expression, year, month) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # Fridays of February 2026: 6, 13, 20, 27.
        ("13 * 5", [6, 13, 20, 27]), ("1,2 * 5", [1, 2, 6, 13, 20, 27]), ("13 * *", [13]),
        ("* * 5", [6, 13, 20, 27]), ("L * 5#1", [6, 28]),
        # As crontab(5) has it: a field that begins with `*` does not widen the other.
        ("*/2 * 5", [13, 27]), ("13-20 * */5", [13, 15, 20]),
    ],
)  # fmt: skip
def test_two_days_mean_either(expression: str, expected: list[int]) -> None:
    assert days(expression, 2026, 2) == expected


WRONG = [
    ("", "must not be empty"),
    ("   ", "must not be empty"),
    ("*", "must have five fields"),
    ("* * * *", "but has 4"),
    ("0 0 0 0 0 0 0", "but has 7"),
    ("every five minutes", "but has 3"),
    ("once a day at nine", "minute 'ONCE': must be a whole number"),
    ("99 25 32 13 8", "minute '99': must be from 0 to 59"),
    ("60 * * * *", "minute '60': must be from 0 to 59"),
    ("60 * * * * *", "second '60': must be from 0 to 59"),
    ("0 24 * * *", "hour '24': must be from 0 to 23"),
    ("0 0 0 * *", "day of month '0': must be from 1 to 31"),
    ("0 0 32 * *", "day of month '32': must be from 1 to 31"),
    ("0 0 * 13 *", "month '13': must be from 1 to 12"),
    ("0 0 * 0 *", "month '0': must be from 1 to 12"),
    ("0 0 * * 8", "day of week '8': must be from 0 to 7"),
    ("*/0 * * * *", "minute '*/0': the step must be a whole number from 1 to 60"),
    ("*/61 * * * *", "minute '*/61': the step must be a whole number from 1 to 60"),
    ("* */25 * * *", "hour '*/25': the step must be a whole number from 1 to 24"),
    ("* * * * */8", "day of week '*/8': the step must be a whole number from 1 to 7"),
    ("*/x * * * *", "minute '*/X': the step must be a whole number"),
    ("*/-1 * * * *", "minute '*/-1': must be a value, a range, or *"),
    ("*/ * * * *", "minute '*/': must be a value"),
    ("/5 * * * *", "minute '/5': must be a value"),
    ("*/5/5 * * * *", "minute '*/5/5': must be a value"),
    ("10-5 * * * *", "minute '10-5': the start of the range must not be greater than its end"),
    (
        "* * * * FRI-MON",
        "day of week 'FRI-MON': the start of the range must not be greater than its end",
    ),
    ("* * * DEC-JAN *", "month 'DEC-JAN': the start of the range must not be greater than its end"),
    ("5- * * * *", "minute '5-': must be a value"),
    ("-5 * * * *", "minute '-5': must be a value"),
    ("1-2-3 * * * *", "minute '1-2-3': must be a value"),
    ("*-5 * * * *", "minute '*-5': * can't be part of a range"),
    ("5-* * * * *", "minute '*': must be a whole number"),
    ("** * * * *", "minute '**': must be a whole number"),
    ("1,,2 * * * *", "minute '': must be a value"),
    (", * * * *", "minute '': must be a value"),
    ("1.5 * * * *", "minute '1.5': must be a whole number"),
    ("+1 * * * *", "minute '+1': must be a whole number"),
    ("1_0 * * * *", "minute '1_0': must be a whole number"),
    ("? * * * *", "minute '?': ? is not supported. Use * instead"),
    ("0 0 ? * 1", "day of month '?': ? is not supported. Use * instead"),
    ("H * * * *", "minute 'H': H is not supported. Use a number"),
    ("H(0-29)/10 * * * *", "minute 'H(0-29)/10': H is not supported. Use a number"),
    ("0 0 L-3 * *", "day of month 'L-3': days before the last day are not supported"),
    (
        "CRON_TZ=Asia/Tokyo 0 9 * * *",
        "must not contain a time zone. Set the field timezone instead",
    ),
    ("TZ=UTC 0 9 * * *", "must not contain a time zone. Set the field timezone instead"),
    (f"{'9' * 400} * * * *", "must be a whole number"),
    ("* * * * MONDAY", "day of week 'MONDAY': must be a whole number or a name such as MON"),
    ("* * * FEBRUARY *", "month 'FEBRUARY': must be a whole number or a name such as FEB"),
    ("* * * APRIL *", "month 'APRIL': must be a whole number or a name such as FEB"),
    ("* * * * FRIDAY#2", "day of week 'FRIDAY#2': must be a whole number or a name such as MON"),
    ("* * * MON *", "month 'MON': must be a whole number or a name such as FEB"),
    ("MON * * * *", "minute 'MON': must be a whole number"),
    ("L * * * *", "minute 'L': L is allowed only in the day of month"),
    ("0 15W * * *", "hour '15W': W is allowed only in the day of month"),
    ("0 0 * LW *", "month 'LW': W is allowed only in the day of month"),
    ("0 0 * * 5W", "day of week '5W': W is allowed only in the day of month"),
    ("0 0 * * L", "day of week 'L': L must follow a weekday, for example 5L"),
    ("0 0 5L * *", "day of month '5L': L must be alone or followed by W in the day of month"),
    ("0 0 0W * *", "day of month '0': must be from 1 to 31"),
    ("0 0 32W * *", "day of month '32': must be from 1 to 31"),
    ("0 0 1-5W * *", "day of month '5W': must be a whole number"),
    ("0 0 W * *", "day of month 'W': must be a whole number"),
    ("0 0 L/2 * *", "day of month 'L': must be a whole number"),
    ("0 0 * 5L *", "month '5L': L is allowed only in the day of week"),
    ("0#1 0 * * *", "minute '0#1': # is allowed only in the day of week"),
    ("0 0 1#1 * *", "day of month '1#1': # is allowed only in the day of week"),
    ("0 0 * * 5#0", "day of week '5#0': # must be followed by 1 to 5, for example MON#2"),
    ("0 0 * * 5#6", "day of week '5#6': # must be followed by 1 to 5, for example MON#2"),
    ("0 0 * * 5#", "day of week '5#': # must be followed by 1 to 5, for example MON#2"),
    ("0 0 * * 8#1", "day of week '8': must be from 0 to 7"),
    ("0 0 * * #1", "day of week '#1': must be a whole number"),
    ("@reboot", "must be one of @yearly"),
    ("@daily 5", "must be one of @yearly"),
    ("@", "must be one of @yearly"),
    ("@every", "@every must be followed by one duration"),
    ("@every 1h 30m", "@every must be followed by one duration"),
    ("@every 10ms", "must be from one second to eight years"),
    ("@every 999ms", "must be from one second to eight years"),
    ("@every 0s", "must be from one second to eight years"),
    ("@every 3000d", "must be from one second to eight years"),
    ("@every -5m", "the duration of @every must be"),
    ("@every five", "the duration of @every must be"),
    ("@every P1M", "the duration of @every must be"),
    ("0 9 * * ＭＯＮ", "must contain only ASCII characters"),  # noqa: RUF001 - that is the point
    ("\u0661 * * * *", "must contain only ASCII characters"),
    ("0,0," * 200 + "0 * * * *", f"must have at most {MAX_CHARACTERS} characters"),
]


@pytest.mark.parametrize(("expression", "rule"), WRONG)
def test_wrong_expressions_are_refused_with_field_and_rule(expression: str, rule: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Schedule.parse(expression, "UTC", field="cron")
    assert caught.value.field == "cron"
    assert rule in caught.value.reason
    assert len(caught.value.message) < 700


@given(st.text(st.sampled_from("0123456789*/-,LW#@ MONJAevry"), max_size=25))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidRequest):
        Schedule.parse(text, "UTC").next_after(0, anchor_ms=0)


@pytest.mark.parametrize(
    "expression", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31W 2 *"]
)
def test_what_never_comes_has_no_tick(expression: str) -> None:
    assert Schedule.parse(expression, "UTC").next_after(START * 1000, anchor_ms=0) is None


def test_february_29_comes_even_where_a_leap_year_is_left_out() -> None:
    """2100 is none: from 2096 it takes eight years."""
    after = oracle.instant("2096-02-29T00:00")
    (firing,) = preview("0 0 29 2 *", "UTC", after * 1000, 1)
    assert firing.local == "2104-02-29T00:00:00+00:00"


@pytest.mark.parametrize(
    ("expression", "warned"),
    [
        ("0 0 31 * *", True), ("0 0 29 2 *", True), ("0 0 1-31 4 *", True), ("0 0 30 4 *", False),
        ("0 0 31 1,3,12 *", False), ("0 0 L * *", False), ("0 0 */2 * *", False),
        ("* * * * *", False), ("@daily", False), ("@every 1h", False),
    ],
)  # fmt: skip
def test_days_that_some_months_lack_are_warned_of(expression: str, warned: bool) -> None:
    assert (Schedule.parse(expression, "UTC").warning is not None) == warned


@pytest.mark.parametrize(
    ("expression", "has"),
    [
        ("* * * * *", False), ("0 * * * * *", False), ("5 * * * * *", True), ("* * * * * *", True),
        ("@every 5m", False), ("@every 90s", True), ("@every 1s", True), ("@hourly", False),
    ],
)  # fmt: skip
def test_it_is_known_which_schedules_have_seconds(expression: str, has: bool) -> None:
    assert Schedule.parse(expression, "UTC").has_seconds == has


instants = st.datetimes(datetime(2000, 1, 1), datetime(2090, 1, 1))  # noqa: DTZ001 - local times


@given(oracle.cases(for_cronsim=True), st.sampled_from(["", "*/7 ", "5,50-59 "]), instants)
def test_cronsim_agrees(case: Case, seconds: str, start: datetime) -> None:
    """The expression evaluator of Healthchecks, which is Debian's."""
    start = start.replace(microsecond=0)
    expression = seconds + case.text
    limit = start + timedelta(days=8 * 365)
    try:
        theirs = list(islice(CronSim(expression, start), 5))
    except CronSimError:
        theirs = []
    after_ms = int(start.replace(tzinfo=UTC).timestamp()) * 1000
    ours = [
        datetime.fromtimestamp(each.tick.at_ms / 1000, UTC).replace(tzinfo=None)
        for each in preview(expression, "UTC", after_ms, 5)
    ]
    assert [each for each in ours if each < limit] == [each for each in theirs if each < limit]


@given(oracle.cases(), st.dates(date(2020, 1, 1), date(2060, 1, 1)))
def test_days_are_those_that_the_oracle_finds(case: Case, start: date) -> None:
    begin = int(datetime(start.year, start.month, start.day, tzinfo=UTC).timestamp())
    schedule = Schedule.parse(case.text, "UTC")
    wanted = [day for n in range(500) if case.day(day := start + timedelta(days=n))]
    found: list[date] = []
    at_ms = begin * 1000 - 1
    while (tick := schedule.next_after(at_ms, anchor_ms=0)) and len(found) < len(wanted):
        found.append(datetime.fromtimestamp(tick.at_ms / 1000, UTC).date())
        # On to the end of that day.
        at_ms = (tick.at_ms // 86_400_000 + 1) * 86_400_000 - 1
    assert found == wanted
