"""What some clients need beyond the specification: one table with an entry for each.

An entry is for one client, which is recognised by what it sends, and it changes only what the entry
names. Every other client gets exactly what it asks for. docs/clients.md shows the same table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ojs.http.binding import negotiation

# RFC 9110, section 10.1.5: User-Agent begins with a product, whose name is a token.
_PRODUCT = re.compile(r"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)")


@dataclass(frozen=True)
class Quirk:
    """A client that needs another media type than the one it asks for.

    It is recognised by `product`, the name of the first product in its User-Agent (in lower case),
    and by `accepts`, the only media type that its Accept names. It is answered with `answered`.
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
