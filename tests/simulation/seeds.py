"""Seeds that broke a promise once, and what was wrong. They are run by every `make test`."""

from __future__ import annotations

# By scenario and seed.
FOUND: dict[tuple[str, int], str] = {
    ("ending", 17): (
        "A fetch that saw a job in the queue that it was just moved from could claim it there, "
        "when its place was the same in both lines: the claim did not name the line."
    ),
    ("ending", 59): (
        "A queue with jobs was to be deleted with `reject`. When taking the end back was repeated "
        "for a lost answer, or done by the sweep as well, LostRace went to whoever asked, or ended "
        "the sweep."
    ),
    ("ending", 250): (
        "A queue was deleted with `discard` while the index did not show a job of it that ran. "
        "When its worker died nobody looked at the lease any more."
    ),
    ("pool", 10148): (
        "A claim went through, its answer was lost, and the job was taken back before the SDK "
        "asked again. That was taken for a lost race, so that the place which had been given "
        "back already was used for another job: more could run than the limit."
    ),
    ("dead-letters", 10837): (
        "A dead letter came back to a bounded queue, the answer was lost, and a worker took the "
        "job before the SDK asked again. Its room was given back, though the job was there: the "
        "queue could hold more than its bound."
    ),
}
