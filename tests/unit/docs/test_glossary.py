"""docs/glossary.md against the names of the public classes: one word for one thing."""

from __future__ import annotations

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "shared" / "ojs"
PAGE = (ROOT / "docs" / "glossary.md").read_text("utf-8")

# The types of requests and answers, which may have the name of what they show.
CONTRACT = {
    SOURCE / "api",
    SOURCE / "http" / "answers.py",
    SOURCE / "http" / "contract",
    SOURCE / "http" / "binding" / "paging.py",
}

# Words of the Open Job Spec and of HTTP, where they mean what they say.
SPECIFICATION = {
    "actor": "ojs-execution-history: who did something",
    "admin": "ojs-admin-api",
    "available": "ojs-core: a job's state",
    "args": "ojs-core: a job's arguments",
    "authentication": "HTTP: who asks",
    "beat": "ojs-worker-protocol: a heartbeat",
    "cancelled": "ojs-core: a job's state",
    "lineage": "ojs-execution-history: the jobs that a job comes from",
    "deduplicated": "ojs-unique-jobs: a request that another job answers",
    "draining": "ojs-queue-config: a queue's state",
    "enqueue": "ojs-core",
    "exhaustion": "ojs-retry: `on_exhaustion`",
    "extension": "ojs-core: part of the manifest",
    "execution": "ojs-cron: an entry of a run log",
    "history": "ojs-admin-api: statistics by period",
    "implementation": "ojs-core: part of the manifest",
    "manifest": "ojs-core",
    "next": "ojs-middleware: the rest of a chain",
    "metadata": "ojs-core: a job's `meta`",
    "method": "HTTP",
    "pagination": "ojs-admin-api",
    "priority": "ojs-core",
    "progress": "ojs-progress",
    "purge": "ojs-dead-letter",
    "push": "ojs-core: the same as enqueue",
    "register": "ojs-worker-protocol",
    "registered": "ojs-cron: a cron job is registered",
    "result": "ojs-core",
    "triggered": "ojs-cron: fired by hand",
    "type": "ojs-core: a job's type",
}

# Words that say what part a class plays, whatever it is about.
ROLES = {
    "action": "what is done to something",
    "average": "of many values",
    "erase": "a request for an erasure",
    "adjustment": "a value before and after",
    "answer": "the body of an answer",
    "as": "`AsIs`: an answer that the domain builds",
    "reply": "status, headers and body",
    "routes": "the operations by their paths",
    "shown": "how a field of an answer is described",
    "application": "an HTTP function",
    "authorizer": "checks the permission of a request",
    "cache": "remembers what it read",
    "extras": "additional writes",
    "intents": "what is about to be written",
    "processor": "processes messages",
    "candidate": "what may turn out to be one",
    "change": "a value before and after",
    "clock": "tells the time",
    "condition": "one rule of a filter",
    "confirmed": "said to be meant",
    "config": "as a client sends or sees it",
    "configuration": "changes the configuration of something",
    "context": "what a step begins with",
    "default": "what holds unless said otherwise",
    "delta": "the difference between two values",
    "detail": "more about something",
    "entry": "one of a list",
    "field": "a part of a request, by its name",
    "filter": "which of many are meant",
    "id": "an identifier",
    "ids": "identifiers",
    "info": "what somebody says of itself",
    "kind": "which of several",
    "listing": "gives items page by page",
    "many": "several at once",
    "management": "changes things one by one",
    "model": "a class that is a request's object",
    "move": "brings something elsewhere",
    "name": "what something is called",
    "option": "a part of a request that may be left out",
    "outline": "the little that is read of many things first",
    "outlet": "where measurements go",
    "page": "part of a listing or of a log",
    "parameter": "part of a query or path",
    "part": "some of a listing, in order",
    "period": "a length of time",
    "planner": "makes plans",
    "point": "a point in time",
    "projector": "projects",
    "registry": "knows all of a kind",
    "report": "what a run did and saw",
    "request": "what a client asks for",
    "run": "one pass, under way",
    "runner": "carries something on",
    "runtime": "holds the services of a container",
    "search": "finds and lists",
    "schema": "the form of something",
    "settings": "of a function or deployment",
    "setup": "runs in each deployment",
    "source": "where something comes from",
    "query": "of a URL",
    "ref": "a reference",
    "slices": "parts of a bulk operation",
    "strategy": "one of a closed set of ways to do something",
    "stats": "the specification's short form of statistics",
    "status": "how something is at a time",
    "summary": "an entry of a listing",
    "system": "of the machine or of AWS",
    "target": "where something goes",
    "total": "of everything together",
    "usage": "how much is taken",
    "use": "how much is taken",
}

# Names of services and products.
PRODUCTS = {
    "gateway": "API Gateway",
    "api": "OpenAPI",
    "bridge": "EventBridge",
    "https": "HTTPS",
    "lambda": "AWS Lambda",
    "ojs": "Open Job Spec",
    "open": "OpenAPI",
    "s": "S3",
    "3": "S3",
    "sdk": "an official SDK",
    "sqs": "SQS",
}

# What an exception says of its cause.
ERRORS = {
    "required": "a request lacks it",
    "allowed": "a rule forbids it",
    "backend": "the table or the bucket",
    "blocked": "may not be called",
    "conflict": "HTTP 409",
    "denied": "HTTP 403",
    "duplicate": "it exists already",
    "exceeded": "more than a limit",
    "failed": "did not succeed",
    "mismatch": "does not have the required form",
    "suspended": "an operator stopped a tenant",
    "form": "how something is stored",
    "found": "HTTP 404",
    "full": "no room",
    "invalid": "HTTP 400",
    "large": "HTTP 413",
    "malformed": "cannot be read",
    "nothing": "there is none",
    "reached": "of a bound",
    "stay": "is perhaps not deleted",
    "taken": "somebody else has it",
    "trim": "remove what is too much",
    "unauthenticated": "HTTP 401",
    "unavailable": "HTTP 503",
    "unknown": "only a newer version knows it",
    "unsupported": "not offered here",
    "validation": "HTTP 422",
}

# Plain words, which mean in the code what they mean in a sentence.
PLAIN = {
    "addition": "a write of the same transaction",
    "check": "a condition of a transaction",
    "ends": "what follows the end of something",
    "save": "store",
    "saved": "stored",
    "sent": "by a client",
    "after": "",
    "applied": "took effect",
    "capacity": "the number of jobs that a limit allows",
    "conformance": "to the Open Job Spec",
    "signal": "tells a waiting step to continue",
    "stale": "older than the stored state",
    "transaction": "DynamoDB's",
    "activity": "transitions in a span of time",
    "backward": "towards older",
    "before": "",
    "bucket": "of a histogram, or of S3",
    "budget": "what may still be spent",
    "control": "cancels and retries",
    "create": "make one",
    "creation": "making one",
    "day": "of the calendar, UTC",
    "embedded": "inside of something",
    "family": "of metrics: Prometheus",
    "forward": "towards newer",
    "guard": "checks where a request comes from",
    "gauge": "a metric that goes up and down: Prometheus",
    "histogram": "Prometheus",
    "holder": "who has it",
    "last": "",
    "made": "was created",
    "maker": "creates them",
    "manual": "moved by hand",
    "map": "keys and values",
    "match": "fits a pattern",
    "max": "",
    "may": "",
    "missing": "was not given",
    "new": "not stored yet",
    "no": "",
    "not": "",
    "of": "",
    "on": "",
    "oldest": "the first by time",
    "phase": "how far something is",
    "preview": "what would be",
    "turn": "one caller after another",
    "quirk": "what one client does differently",
    "range": "from the first to the last",
    "refusal": "why something was refused",
    "removal": "taking away",
    "removed": "is gone",
    "sample": "one value of a metric",
    "scheduling": "of worker pools",
    "secret": "AWS Secrets Manager's",
    "set": "without order",
    "skipped": "passed over",
    "success": "the good answer",
    "suspected": "seen once, not yet confirmed",
    "test": "to see whether it works",
    "throughput": "jobs in a time",
    "to": "",
    "too": "",
    "undone": "taken back",
    "filling": "how full",
    "yet": "",
    "for": "",
    "each": "",
    "unreadable": "damaged, or of a newer form",
    "item": "of the table",
}


# Verbs that names of functions begin with.
VERBS = frozenset(
    """
    get list create update delete read write claim reserve release enqueue dispatch retry
    build parse to from is has add remove save find count query check make send run apply
    start stop cancel note record register schedule prune purge replay erase move merge format
    render split push fetch ack nack beat resume pause undo fold note publish project test
    close open put set use change handle describe register join wake forget settle load select
    with issue redeem revoke post take stream
    flush ask agree group matches
    """.split()  # noqa: SIM905 - a list of words is easier to read without quotes
)
# Names that say nothing of a function.
PARTICIPLES = frozenset(["told", "said", "meant", "apart", "anew", "carried"])
WITHOUT_A_VERB = 1_233


@cache
def stem(word: str) -> str:
    """A word without its endings: `pruned`, `pruning` and `prunes` are one word."""
    word = word.lower()
    for endings in (("s",), ("ation", "ion", "ment", "ed", "ing", "er")):
        for ending in endings:
            if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
                word = word.removesuffix(ending)
                break
    return word.rstrip("eyi") or word


def words(name: str) -> list[str]:
    """A class name, split at its capitals."""
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+|\d+", name)


@cache
def terms() -> frozenset[str]:
    """The words of the glossary's terms."""
    rows = re.findall(r"^\| (\*\*.*?) \|", PAGE, re.MULTILINE)
    return frozenset(stem(word) for row in rows for word in re.findall(r"[A-Za-z]+", row))


@cache
def known() -> frozenset[str]:
    exceptions = [
        name for name in vars(builtins) if name.endswith(("Error", "Warning", "Exception"))
    ]
    library = {stem(word) for name in exceptions for word in words(name)}
    listed = {stem(word) for word in [*SPECIFICATION, *ROLES, *PRODUCTS, *ERRORS, *PLAIN]}
    return terms() | library | listed


def classes() -> Iterator[tuple[Path, str]]:
    """Every public class at the top of a module, with the module's file."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield path, node.name


def test_class_names_are_made_of_the_words_of_the_glossary() -> None:
    unknown = defaultdict(list)
    for path, name in classes():
        for word in words(name):
            if stem(word) not in known():
                unknown[word].append(f"{path.relative_to(ROOT)}: {name}")
    assert not unknown, f"not in docs/glossary.md: {dict(unknown)}"


def test_no_class_name_stands_for_two_things() -> None:
    """A type of the contract may have the name of what it shows; no other two classes may."""
    found = defaultdict(list)
    for path, name in classes():
        if not CONTRACT & {path, *path.parents}:
            found[name].append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


def public_functions() -> Iterator[tuple[Path, str]]:
    """Every public function and method, without properties, with the module's file."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            if not any("property" in ast.dump(each) for each in node.decorator_list):
                yield path, node.name


def test_no_function_is_named_by_a_participle() -> None:
    """`told` or `meant` say neither what a function does nor what it returns."""
    found = [f"{path.relative_to(ROOT)}: {name}" for path, name in public_functions()]
    assert not [each for each in found if each.rpartition(" ")[2] in PARTICIPLES]


def test_no_more_functions_are_named_without_a_verb() -> None:
    """The number of names that begin with no verb of the list may only fall."""
    # A function of `keys` is named by the key that it returns.
    bare = [
        name
        for path, name in public_functions()
        if path.name != "keys.py" and name.split("_")[0] not in VERBS
    ]
    assert len(bare) <= WITHOUT_A_VERB


def test_each_term_stands_once() -> None:
    rows = re.findall(r"^\| \*\*(.*?)\*\*", PAGE, re.MULTILINE)
    assert len(rows) > 80
    assert not {row for row in rows if rows.count(row) > 1}


@pytest.mark.parametrize("row", re.findall(r"^\| \*\*.*$", PAGE, re.MULTILINE))
def test_each_term_says_what_it_is_and_what_others_call_it(row: str) -> None:
    _, _, here, *elsewhere, _ = row.split("|")
    assert here.strip()
    # Terms in the code have no column for other products.
    assert all(
        cell.strip() == "—" or re.search(r"Oban|River|Sidekiq|SQS", cell) for cell in elsewhere
    )
