"""Places orders: payment, approval with a reminder, shipping, and refund.

    python orders.py

The same module runs on Lambda, with the entry point `orders.handler`. OJS_URL is the URL of the
server, and SHOP is the folder of the shop.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from shop import Declined, Shop

from ojs_aws import AsyncJobContext, JobFailed, Retry, StepFailed, Worker, lambda_handler

worker = Worker(queues=["orders"])
shop = Shop(Path(os.environ.get("SHOP", "shop")))
MANAGER = "manager@example.com"
# More expensive orders need an approval.
FREE_CENTS = 100_000


@dataclass
class Order:
    """An order of a customer."""

    id: str
    email: str
    cents: int


@dataclass
class Outcome:
    """The outcome of an order: `shipped`, `refunded`, or `declined`."""

    state: str
    parcel: str | None = None


@worker.job("order.ship", queue="orders")
def ship(order_id: str) -> str:
    """Send the parcel of an order."""
    try:
        return shop.ship(order_id)
    except KeyError:
        raise JobFailed("nothing is left", code="sold_out", retryable=False) from None


@worker.job("order.place", queue="orders", retry=Retry(max_attempts=4, jitter=False))
async def place(job: AsyncJobContext, order: Order) -> Outcome:
    """Place an order. Takes up to a week."""

    async def mail(name: str, to: str, text: str) -> None:
        await job.step(name, shop.mail, to, text, job.idempotency_key(name))

    async def approval() -> bool:
        await mail("ask", MANAGER, f"approve {order.id}?")
        answer = asyncio.create_task(job.wait_for("approval", timeout="P7D"))
        reminder = asyncio.create_task(remind())
        await asyncio.wait({answer, reminder}, return_when=asyncio.FIRST_COMPLETED)
        reminder.cancel()  # no effect if it was sent
        signal = await answer
        return signal is not None and signal.data == {"approved": True}

    async def remind() -> None:
        await job.sleep("P3D", name="before-reminder")
        await mail("remind", MANAGER, f"{order.id} still waits for your approval")

    try:
        key = job.idempotency_key("charge")
        charge = await job.step("charge", shop.charge, order.id, order.cents, key, final=Declined)
    except StepFailed:
        return Outcome("declined")
    parcel = None
    if order.cents <= FREE_CENTS or await approval():
        try:
            parcel = await job.run(ship.job(order.id), name="ship")
        except StepFailed as failed:
            job.progress(0.9, f"not shipped: {failed.error['code']}")
    if parcel is None:
        await job.step("refund", shop.refund, charge, job.idempotency_key("refund"))
        await mail("sorry", order.email, f"{order.id} is refunded")
        return Outcome("refunded")
    await mail("receipt", order.email, f"{order.id} is on its way")
    return Outcome("shipped", parcel)


handler = lambda_handler(worker)

if __name__ == "__main__":
    worker.run()
