"""A service with typed jobs, and fifteen wrong calls. Type checkers report each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ojs_aws import (
    AsyncJobContext,
    JobContext,
    Jobs,
    RateLimit,
    Retry,
    Unique,
    Worker,
    batch,
    chain,
    dag,
    declare,
    group,
    injected,
)


@dataclass
class Order:
    id: int
    sku: str


@dataclass
class Receipt:
    charge: str
    cents: int


class Smtp:
    def send(self, to: str) -> None: ...


worker = Worker(queues=["orders", "mail"])
jobs = Jobs(queue="mail", retry=Retry(max_attempts=5, initial_interval="PT10S"))
worker.include(jobs)


@worker.provide
def smtp() -> Iterator[Smtp]:
    yield Smtp()


@worker.job("order.charge", queue="orders", timeout_s=30, unique=Unique(keys=["args"]))
async def charge(job: AsyncJobContext, order: Order, currency: str = "EUR") -> Receipt:
    return Receipt(f"{job.id} {currency}", order.id)


@worker.job("order.ship", queue="orders")
def ship(job: JobContext, order: Order) -> str:
    paid = job.parents[charge]
    cents: int = paid.cents
    carrier: str = job.parents["carrier"]
    return f"{carrier} {cents} {order.sku}"


@jobs.job("mail.send", rate_limit=RateLimit(key=lambda to, **_: to, rate=5, period="PT1M"))
def send(to: str, template: str = "welcome", *, smtp: Smtp = injected()) -> int:
    smtp.send(to)
    return len(template)


@jobs.job()
async def clean() -> None: ...


stock = declare("stock.take", Order, result=Receipt, queue="stock")


async def right(order: Order) -> None:
    length: int = send.enqueue("a@b.org", template="x").result(wait_s=5)
    receipt: Receipt = await (await charge.aenqueue(order)).aresult()
    send.options(delay_s=60, idempotency_key="k").delay(f"{receipt.cents}@b.org")
    send.map([f"{number}@b.org" for number in range(length)])
    send.map(["a@b.org"], ["x"])
    taken: Receipt = stock.enqueue(1, sku="x").result()
    chain(charge.job(order), group(ship.job(order), clean.job())).enqueue(name=taken.charge)
    batch(charge.job(order), on_success=ship.job(order)).enqueue()
    steps = {"charge": charge.job(order), "ship": ship.job(order).after("charge")}
    await dag(steps).aenqueue()


def wrong(order: Order, job: JobContext) -> None:
    send.enqueue(5)  # wrong: type
    send.enqueue("a@b.org", templat="x")  # wrong: misspelt
    charge.enqueue(currency="USD")  # wrong: missing
    ship.enqueue(order, "x")  # wrong: extra
    send.enqueue(charge.enqueue(order).result().charged)  # wrong: result
    send.options(delay="PT1M").enqueue("a@b.org")  # wrong: option
    send.options(retry={"max_attempts": 5}).enqueue("a@b.org")  # wrong: policy
    name: str = job.parents[charge]  # wrong: parent
    chain(charge.job(order), ship).enqueue(name=name)  # wrong: step
    stock.enqueue("1", "x")  # wrong: field of a declaration
    worker.job("mail.send", retries=5)  # wrong: option of a declaration
    send.map([5])  # wrong: type of an item
    send.map(["a@b.org"], [5])  # wrong: type of an item of the second list
    clean.map(["a@b.org"])  # wrong: list without an argument


@worker.job("report.send")
def report(month: str, *, smtp: Smtp) -> None:
    smtp.send(month)


report.enqueue("may")  # wrong: without injected(), smtp is missing
