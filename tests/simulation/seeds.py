"""Seeds that broke a promise once, and what was wrong. They are run by every `make test`."""

from __future__ import annotations

# By scenario and seed.
FOUND: dict[tuple[str, int], str] = {
    ("hooks", 1006): (
        "A container read the directory of webhooks from a replica that did not know of a "
        "subscription yet, and took that for 10 s: events in the meantime reached nobody."
    ),
    ("leases", 50000146): (
        "A queue got a size limit while the reconcile ran. It did not count jobs that are known by "
        "lease notes only, and its count overtook that of the request: running jobs did not count."
    ),
    ("leases", 70000158): "The same, with the calls in their present order.",
    ("ending", 317): (
        "A fetch that saw a job in the queue that it was just moved from could claim it there, "
        "when its place was the same in both lines: the claim did not name the line."
    ),
    ("rejected", 13): (
        "A queue with jobs was to be deleted with `reject`. When taking the end back was repeated "
        "for a lost answer, or done by the sweep as well, LostRace went to whoever asked, or ended "
        "the sweep."
    ),
    ("ending", 413): (
        "A queue was deleted with `discard` while the index did not show a job of it that ran. "
        "When its worker died nobody looked at the lease any more."
    ),
    ("dropped", 879): (
        "A dead letter came back, the answer was lost, a worker took the job, and the transaction "
        "was repeated as another one, since a conflict had come in between. It lost then, so that "
        "the room of the job was given back: the queue could hold more than its bound."
    ),
    ("contents", 1252): (
        "A job ended and was deleted between its claim and the reading of its content: the worker "
        "was handed a job without args."
    ),
    ("dead-letters", 697): (
        "A dead letter came back to a bounded queue, the answer was lost, and a worker took the "
        "job before the SDK asked again. Its room was given back, though the job was there: the "
        "queue could hold more than its bound."
    ),
    ("pools", 28): (
        "A pool without a limit was deleted and made anew with one. What its workers had got "
        "before ran on and did not count: more could run than the limit until the sweep looked."
    ),
    ("pools", 61): (
        "A pool was given a limit and fewer queues at once. What ran from the queues that it no "
        "longer had did not count, as long as it ran."
    ),
    ("late", 6): (
        "The first try of a staged write had no answer, and took effect after its repetition, the "
        "commit and a claim: the claimed job stood in line again."
    ),
    ("batches", 2): (
        "The item of a batch was written by a first try that had no answer, after its repetition "
        "and the commit: the batch was hidden, and the sweep would have undone it."
    ),
    ("batches", 28): (
        "A container died before it committed a batch in a bounded queue. When the client asked "
        "again it was told that the ids were taken, and the batch was undone later."
    ),
    ("owners", 718): (
        "The first try of a heartbeat had no answer, and took effect after its repetition and a "
        "later heartbeat: it made the lease shorter, and its event was in the log twice."
    ),
    ("late", 492): (
        "Staged jobs of a batch that had been undone were written late. A sweep took them for jobs "
        "that the depth counter had missed, and counted them: the counter passed its bound."
    ),
}
# Where these were found first, as the calls came in another order.
FOUND_BEFORE = (
    ("late", 36),
    ("ending", 6699),
    ("dropped", 164),
    ("dead-letters", 1860),
    ("dropped", 5550009),
    ("bucket", 5550647),
    ("rates", 70320),
    ("pool", 10148),
    # A fetch whose short lease ended while it went on claimed the job again, with a permit that it
    # had released.
    ("pool", 150),
    ("owners", 20027),
    ("contents", 17),
    ("ending", 2454),
    ("rejected", 68),
    ("ending", 919),
    ("late", 5),
    ("rejected", 151),
    ("ending", 3423),
    ("dead-letters", 614),
    # A sweep had noted the end of a lease and lost its race to the worker, who handed the job back.
    # The next run began in the same millisecond, and its worker's error was not stored.
    ("owners", 1588),
    # A queue was deleted by two at once and created again; then a late try of the first took its
    # name out of the registry, and no sweep looked at its jobs.
    ("ending", 3037),
    # A sweep that had seen a queue with fewer lanes made its replicas after one that had seen more:
    # those that were too many stayed, and no change of the queue reached them.
    ("lanes", 10),
    # A workflow was cancelled while its last jobs ended, and retried: it was completed at once, and
    # neither its new start nor its end were told.
    ("workflows", 11000219),
    # A slow dispatch had a permit for a job, which a worker fetched and lost meanwhile. The permit
    # was taken from it, and it claimed the job all the same.
    ("push", 11000484),
    # A job was stored a moment before an erasure began by whoever had a clock behind: it was taken
    # for one that had come later, and stayed.
    ("erasing", 1000008),
)
