"""Sends events to subscribers: in order for each connection, several connections at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ojs.domain.realtime import Connections, Posted, Subscriber, render_message
from ojs.domain.realtime_events import MAX_SINGLE, LiveEvent, make_drop_notices, make_messages
from ojs.services.for_each import ForEach

Subscribed = tuple[Subscriber, Sequence[LiveEvent]]


class EventSender:
    """Sends events. Nothing is kept for a client that doesn't receive them."""

    def __init__(self, messages: Connections, for_each: ForEach) -> None:
        self._connections = messages
        self._for_each = for_each

    def send(self, subscribed: Sequence[Subscribed], *, single: int = MAX_SINGLE) -> set[str]:
        """Send events, each to its subscriber. Raises nothing.

        Args:
            subscribed: Subscribers, and the events of the channel of each.
            single: Maximum number of events for a subscriber that receives them one by one.

        Returns:
            IDs of the connections that no longer exist.
        """
        by_connection: defaultdict[str, list[Subscribed]] = defaultdict(list)
        for each in subscribed:
            by_connection[each[0].connection].append(each)
        parts = list(by_connection.items())
        there = self._for_each(lambda part: self._connection(part[1], single), parts)
        return {name for (name, _), found in zip(parts, there, strict=True) if not found}

    def _connection(self, subscribed: Sequence[Subscribed], single: int) -> bool:
        """Send events of the channels of one connection. Return false if it has ended."""
        return all(self._channel(*each, single) for each in subscribed)

    def _channel(self, subscriber: Subscriber, events: Sequence[LiveEvent], single: int) -> bool:
        parts = make_messages(subscriber, events, single=single)
        for at, (text, _) in enumerate(parts):
            posted = self._post_twice(subscriber, text)
            if posted is Posted.GONE:
                return False
            if posted is Posted.FAILED:
                return self._drop(subscriber, [each for _, part in parts[at:] for each in part])
        return True

    def _drop(self, subscriber: Subscriber, left: Sequence[LiveEvent]) -> bool:
        """Send the newest of the events that are left, after what tells that others are dropped."""
        dropped, newest = left[:-1] or left, left[-1:] if len(left) > 1 else []
        if subscriber.digest:
            return True
        texts = make_drop_notices(subscriber.channel, dropped)
        texts += [text for text, _ in make_messages(subscriber, newest)]
        for text in texts:
            posted = self._post(subscriber, text)
            if posted is not Posted.POSTED:
                return posted is not Posted.GONE
        return True

    def _post_twice(self, subscriber: Subscriber, text: str) -> Posted:
        """Post a message, with one retry. Clients drop an event that they receive twice."""
        posted = self._post(subscriber, text)
        return self._post(subscriber, text) if posted is Posted.FAILED else posted

    def _post(self, subscriber: Subscriber, text: str) -> Posted:
        shown = render_message(text, subscriber.principal.tenant)
        return self._connections.post(subscriber.connection, shown)
