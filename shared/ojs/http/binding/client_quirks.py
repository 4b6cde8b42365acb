"""Exceptions for clients that do not follow the specification: a table with an entry for each.

A client is recognised by what it sends, and its entry changes only what it names. All other clients
get exactly what they ask for. docs/clients.md shows the same table.
"""

from __future__ import annotations

import re

from ojs.http.binding import negotiation
from ojs.records import record

# RFC 9110, section 10.1.5: User-Agent begins with a product, whose name is a token.
_PRODUCT = re.compile(r"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)")


@record(frozen=True)
class Quirk:
    """A client that needs a media type other than the one it asks for.

    It is recognised by `product`, the first product of its User-Agent (in lower case), and by
    `accepts`, the only media type in its Accept. It gets `answered`.
    """

    client: str
    product: str
    accepts: str
    answered: str
    why: str


QUIRKS = (
    Quirk(
        client="Python SDK",
        product="python-httpx",
        accepts=negotiation.MEDIA_TYPE,
        answered=negotiation.JSON,
        why="reads an answer as JSON only if its `Content-Type` contains `application/json`",
    ),
)


def media_type(accept: str | None, user_agent: str | None) -> str:
    """The media type to answer with: that of a client's quirk, or else what Accept asks for."""
    found = _PRODUCT.match(user_agent or "")
    product = found[1].lower() if found else None
    wanted = negotiation.weights(accept)
    for quirk in QUIRKS:
        if quirk.product == product and wanted.keys() == {quirk.accepts} and wanted[quirk.accepts]:
            return quirk.answered
    return negotiation.media_type(accept)
