"""Writes the tables of prices and ceilings into the pages: `make numbers`."""

from __future__ import annotations

from pathlib import Path

from docs.numbers import ROOT, assumed, counted, prices, scale


def pages() -> dict[Path, str]:
    """The pages as they should be. `<!-- name -->` and `<!-- end of name -->` enclose a block.

    Raises ValueError for a page that has not all blocks.
    """
    money, most = prices.Model(counted(), assumed()), scale.Scale(counted(), assumed())
    blocks = {
        "README.md": {"price": prices.sentence(money), "prices": "\n" + prices.brief(money) + "\n"},
        "docs/compared.md": {"price": prices.sentence(money)},
        "docs/performance.md": {
            "all in": _apart(prices.units(money)),
            "lasting": _apart(prices.lasting(money)),
            "consumer": _apart(prices.consumer(money)),
            "empty fetches": _apart(prices.empty_fetches(money)),
            "bare": prices.bare(money.numbers),
            "listening": _apart(prices.listening(money)),
            "pushed": _apart(prices.pushed_units(money)),
        },
        "docs/cost.md": {
            "durations": prices.durations(money.numbers),
            "prices": _apart(*(prices.prices(money, life) for life in prices.LIVES)),
            "options": _apart(prices.options(money)),
            "realtime": _apart(prices.realtime(money)),
            "idle workers": _apart(prices.idle_workers(money)),
            "spread": _apart(prices.spread(money)),
            "pushed": _apart(prices.pushed(money)),
            "durable": _apart(prices.durable(money)),
            "idle month": _apart(prices.idle_month(money)),
        },
        "docs/outbox.md": {"outbox": _apart(prices.outbox(money))},
        "docs/limits.md": {
            "draws": f"{scale.DRAWS:,}",
            "first": _apart(scale.falls_first(most)),
            "hashed": _apart(scale.hashed(most)),
            "ceilings": _apart(scale.ceilings(most)),
        },
        "docs/size-a-deployment.md": {
            "defaults": _apart(scale.defaults(most)),
            "hashed": _apart(scale.hashed(most)),
            "features": _apart(scale.features(most)),
            "deployment": _apart(scale.of_deployment(most)),
        },
    }
    found = {}
    for name, texts in blocks.items():
        text = (ROOT / name).read_text("utf-8")
        for block, new in texts.items():
            before, begin, rest = text.partition(f"<!-- {block} -->")
            _, end, after = rest.partition(f"<!-- end of {block} -->")
            if not end:
                raise ValueError(f"{name} has no block {block}")
            text = f"{before}{begin}{new}{end}{after}"
        found[ROOT / name] = text
    return found


def _apart(*tables: str) -> str:
    return "".join(f"\n\n{each}" for each in tables) + "\n\n"


def main() -> None:
    """Write them."""
    for page, text in pages().items():
        page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
