"""A service with durable jobs, and wrong calls. Type checkers report each of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from ojs_aws import AsyncJobContext, JobContext, Signal, StepFailed, Worker, group


@dataclass
class Order:
    id: int


@dataclass
class Charge:
    key: str


class Declined(Exception): ...


worker = Worker(queues=["orders"])


def pay(order: Order, key: str, currency: str = "EUR") -> Charge:
    return Charge(f"{order.id} {key} {currency}")


async def refund(charge: Charge) -> int:
    return len(charge.key)


@worker.job("order.ship", queue="orders")
def ship(order_id: int) -> str:
    return f"parcel {order_id}"


@worker.job("order.place", queue="orders", version=2)
async def place(job: AsyncJobContext, order: Order) -> str:
    charge: Charge = await job.step("charge", pay, order, job.idempotency_key("charge"))
    more: Charge = await job.step("more", pay, order, key="1", currency="USD")
    last: Charge = await job.step("last", pay, order, "k", final=Declined)
    back: int = await job.step("refund", refund, charge)
    twice: int = await job.step("twice", refund, charge, key="1", final=(Declined, OSError))
    first, second = await asyncio.gather(job.step("a", refund, more), job.step("b", refund, last))
    await job.sleep("P3D", name="cool-off")
    await job.sleep(timedelta(days=3), name="more")
    await job.sleep(5)
    await job.sleep_until(datetime.now().astimezone(), name="until")
    signal: Signal | None = await job.wait_for("approved", timeout="P7D")
    parcel: str = await job.run(ship.job(order.id), name="ship")
    parcels: list[str] = await job.gather(ship.job(1), ship.job(2), name="both")
    await job.run(group(ship.job(1), ship.job(2)), name="group")
    await job.checkpoint({"row": 1})
    version: int = job.version
    return f"{back + twice + first + second + version} {signal} {parcel} {parcels}"


@worker.job("order.plain", queue="orders")
def plain(job: JobContext, order: Order) -> int:
    charge: Charge = job.step("charge", pay, order, key="1")
    try:
        parcel: str = job.run(ship.job(order.id), name="ship")
    except StepFailed as failed:
        parcel = str(failed.error["code"])
    signal = job.wait_for("approved", timeout=timedelta(days=7))
    job.sleep("P1D")
    both: list[str] = job.gather(ship.job(1), ship.job(2), name="both")
    return len(job.step("key", pay, order, "k").key + charge.key + parcel + both[0]) + bool(signal)


result: str = place.try_out(Order(1), steps={"ship": "parcel"}, signals={"approved": None})


async def wrong(job: AsyncJobContext, order: Order) -> None:
    await job.step("charge", pay, order, 5)  # wrong: type of an argument
    await job.step("charge", pay, order)  # wrong: missing
    await job.step("charge", pay, order, "k", curency="USD")  # wrong: misspelt
    await job.step("refund", refund, order)  # wrong: type of an argument of a coroutine function
    number: int = await job.step("charge", pay, order, "k")  # wrong: result
    text: str = await job.step("refund", refund, Charge("k"), key="1")  # wrong: result with a key
    await job.step("charge", pay, order, "k", final="Declined")  # wrong: no exception
    await job.wait_for("approved")  # wrong: without a timeout
    await job.wait_for("approved", timeout=60)  # wrong: seconds
    parcel: int = await job.run(ship.job(number), name="ship")  # wrong: result of a child job
    await job.run(ship, name="ship")  # wrong: a job type
    await job.gather(ship.job(text), name="ship")  # wrong: argument of a child job
    await job.run(ship.job(parcel))  # wrong: without a name


def wrong_plain(job: JobContext, order: Order) -> None:
    job.step("charge", pay, order, 5)  # wrong: type of an argument
    number: int = job.step("charge", pay, order, "k")  # wrong: result
    job.sleep_until(number)  # wrong: time
    data: dict[str, int] = job.wait_for("approved", timeout="P1D").data  # wrong: it can be None
    worker.job("order.ship", version=str(data))  # wrong: version
