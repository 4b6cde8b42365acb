"""Exceptions for clients that don't follow the specification: a table with one entry per client.

The headers of a request identify the client. Its entry changes only the media type of responses.
All other clients get the media type that they request. docs/clients.md shows the same table.
"""

from __future__ import annotations

import re

from ojs.http.binding import negotiation
from ojs.records import record

# RFC 9110, section 10.1.5: User-Agent starts with a product, whose name is a token.
_PRODUCT = re.compile(r"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)")


@record(frozen=True)
class Quirk:
    """A client that requires a different media type than the one it requests.

    Two headers identify the client: `product` is the first product of its User-Agent in lower case,
    and `accepts` is the only media type in its Accept. The response has the type `answered`.
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
    """Return the media type of the response, from the quirk of the client or else from Accept."""
    found = _PRODUCT.match(user_agent or "")
    product = found[1].lower() if found else None
    wanted = negotiation.weights(accept)
    for quirk in QUIRKS:
        if quirk.product == product and wanted.keys() == {quirk.accepts} and wanted[quirk.accepts]:
            return quirk.answered
    return negotiation.media_type(accept)
