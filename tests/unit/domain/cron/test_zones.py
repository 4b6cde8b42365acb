"""Which zones are taken, and from which data."""

from __future__ import annotations

import shutil
import zoneinfo
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path

import pytest

from ojs.domain.cron import zones
from ojs.domain.cron.schedule import Schedule, zone_data_version
from ojs.domain.cron.zones import TimeZones
from ojs.domain.errors import InvalidRequest
from tests.unit.domain.cron import oracle

JULY = oracle.instant("2026-07-01") * 1000


@pytest.mark.requirement("CRON-13")
@pytest.mark.parametrize(
    "name",
    [
        "UTC", "Etc/UTC", "America/New_York", "America/Argentina/Buenos_Aires", "Asia/Kolkata",
        "Australia/Lord_Howe", "Europe/Kyiv", "US/Eastern", "Pacific/Auckland",
    ],
)  # fmt: skip
def test_names_of_places_are_taken(name: str) -> None:
    Schedule.parse("0 9 * * *", name)


def test_every_zone_of_the_data_can_be_read() -> None:
    for name in oracle.zone_names():
        tick = Schedule.parse("0 9 * * *", name).next_after(JULY, anchor_ms=0)
        assert tick is not None
        assert tick.at_ms - JULY <= 86_400_000


@pytest.mark.requirement("CRON-14")
@pytest.mark.parametrize(
    "name",
    [
        "EST", "PST", "CST", "EST5EDT", "CET", "GMT", "GMT+0", "UCT", "Zulu", "utc", "Z", "+05:00",
        "-08:00", "UTC+5", "UTC-5", "Etc/GMT", "Etc/GMT+5", "Etc/GMT-14", "Japan", "local", "",
        "Europe", "UTC ",
    ],
)  # fmt: skip
def test_offsets_and_abbreviations_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="must be UTC or an IANA name of a place") as caught:
        Schedule.parse("0 9 * * *", name)
    assert caught.value.field == "timezone"


@pytest.mark.parametrize(
    "name",
    [
        "Nowhere/City", "europe/berlin", "Europe/Berlin ", "/Europe/Berlin", "Europe//Berlin",
        "../zones", "Europe/../Europe/Berlin", "Europe/Berlin/..", "/etc/passwd", "Europe/",
        "Europe/Berlin\0", "Ä/Ö", "x/" * 500, "zoneinfo/UTC", "America/__init__.py",
    ],
)  # fmt: skip
def test_names_that_the_data_lacks_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"is not in the time zone data {zone_data_version()}"):
        Schedule.parse("0 9 * * *", name)


@pytest.mark.requirement("CRON-33")
def test_the_version_is_that_of_the_installed_data() -> None:
    said = resources.files("tzdata").joinpath("zoneinfo", "tzdata.zi").read_text("ascii")
    assert said.startswith(f"# version {zone_data_version()}\n")
    assert metadata.version("tzdata").startswith(f"{zone_data_version()[:4]}.")


# --- other data ----------------------------------------------------------------------------------


def data(folder: Path, **sources: str) -> Path:
    """Data in which `Area/<name>` has the clocks of a real zone."""
    installed = Path(str(resources.files("tzdata")))
    (folder / "zoneinfo" / "Area").mkdir(parents=True)
    (folder / "zones").write_text("".join(f"Area/{name}\n" for name in sources))
    for name, source in sources.items():
        shutil.copy(installed / "zoneinfo" / source, folder / "zoneinfo" / "Area" / name)
    return folder


def test_new_data_move_the_next_firing(tmp_path: Path) -> None:
    """A government stops changing the clocks: 9:00 is an hour later in summer."""
    old = TimeZones(data(tmp_path / "old", City="Europe/Berlin"), "2026a")
    new = TimeZones(data(tmp_path / "new", City="Africa/Algiers"), "2026b")

    def next_at(zones_then: TimeZones) -> int:
        schedule = Schedule.parse("0 9 * * *", "Area/City", data=zones_then)
        tick = schedule.next_after(JULY, anchor_ms=0)
        assert tick is not None
        return tick.at_ms

    assert next_at(old) == oracle.instant("2026-07-01T07:00") * 1000
    assert next_at(new) == oracle.instant("2026-07-01T08:00") * 1000


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[None]:
    """A machine whose own data are wrong: Berlin has the clocks of Tokyo."""
    installed = Path(str(resources.files("tzdata")))
    (tmp_path / "Europe").mkdir()
    shutil.copy(installed / "zoneinfo" / "Asia" / "Tokyo", tmp_path / "Europe" / "Berlin")
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([str(tmp_path)])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath(before)
    zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.usefixtures("machine")
def test_the_data_of_the_machine_are_not_used() -> None:
    fresh = TimeZones(Path(str(resources.files("tzdata"))), zones.bundled().version)
    assert fresh.zone("Europe/Berlin").offset_s(JULY // 1000) == 2 * 3_600
    theirs = zoneinfo.ZoneInfo("Europe/Berlin")
    assert zones.TimeZone(theirs).offset_s(JULY // 1000) == 9 * 3_600
