"""Messages that clients of the WebSocket binding send (ojs-realtime section 3)."""

from __future__ import annotations

from typing import Annotated, Any

from ojs.domain import jsontext
from ojs.domain.errors import InvalidPayload, InvalidRequest, PayloadTooLarge
from ojs.domain.realtime import EVENT_TYPES, MAX_RECEIVED, check_channel, check_event_type
from ojs.domain.requests import After, Field, Model

_MAX_DEPTH = 10
_EventType = Annotated[str, After(check_event_type)]


class Message(Model):
    """A message with nothing but its action: `hello`, `ping`."""

    action: str


class Unsubscribe(Message):
    """The end of a subscription."""

    channel: Annotated[str, After(check_channel)]


class Subscribe(Unsubscribe):
    """A subscription, which replaces one of the same channel."""

    event_types: (
        Annotated[list[_EventType], Field(min_length=1, max_length=len(EVENT_TYPES))] | None
    ) = None
    batch: bool = False
    detail: bool = False
    digest: bool = False

    def agree(self) -> None:
        """Raise InvalidRequest where the options do not go together."""
        if self.digest and self.channel.startswith("job:"):
            raise InvalidRequest("digest", "must be left out for a job: a digest names queues")
        if self.digest and (self.batch or self.detail or self.event_types is not None):
            raise InvalidRequest(
                "digest", "cannot be combined with event_types, batch, or detail: it has no events"
            )


class Resume(Message):
    """A request for the events after one that the client has, on all its channels."""

    last_event_id: Annotated[str, Field(max_length=100)]


KINDS: dict[str, type[Message]] = {
    "hello": Message,
    "ping": Message,
    "subscribe": Subscribe,
    "unsubscribe": Unsubscribe,
    "resume": Resume,
}


def parse(text: str) -> Message:
    """Read a message. Raises InvalidPayload, InvalidRequest, PayloadTooLarge."""
    if (size := len(text.encode("utf-8", "surrogatepass"))) > MAX_RECEIVED:
        raise PayloadTooLarge("message", size=size, limit=MAX_RECEIVED)
    message: Any = jsontext.loads(text, max_depth=_MAX_DEPTH)
    if not isinstance(message, dict):
        raise InvalidPayload("A message must be a JSON object.")
    kind = KINDS.get(action) if isinstance(action := message.get("action"), str) else None
    if kind is None:
        raise InvalidRequest("action", f"must be one of {', '.join(KINDS)}", value=action)
    return kind.model_validate(message)
