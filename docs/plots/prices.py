"""Draw docs/pictures/prices.svg from the model of prices: `make plots`.

The same numbers give the same file, byte for byte.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.numbers import ROOT, assumed, counted, prices

PICTURE = ROOT / "docs" / "pictures" / "prices.svg"
# Told apart by those who see colours otherwise, and in grey; from the bottom to the top.
_SHOWN = {
    "requests": "#0072b2", "consumer": "#56b4e9", "API": "#009e73", "Lambda": "#f0e442",
    "logs": "#e69f00", "traces": "#d55e00", "the rest": "#999999",
}  # fmt: skip
_LABELS = {
    "requests": "DynamoDB: requests",
    "consumer": "DynamoDB: consumer",
    "API": "API Gateway",
    "traces": "X-Ray",
}
_REST = "the rest"


def draw(curves: Mapping[str, Mapping[str, Sequence[float]]], to: Path, said: str) -> None:
    """One plot for each way to live: dollars for a million jobs by rate, stacked.

    `said` is what the file says it was drawn from.
    """
    mpl.use("svg")
    # Without these each run would have other ids, and a date.
    mpl.rcParams.update({"svg.hashsalt": "prices", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot  # after `use`

    figure, axes = pyplot.subplots(1, len(curves), figsize=(9.6, 3.8), sharex=True, sharey=True)
    for plot, (life, parts) in zip(axes, curves.items(), strict=True):
        shown = {**parts, _REST: [sum(values) for values in zip(*_rest(parts), strict=True)]}
        plot.stackplot(
            prices.DRAWN, [shown[name] for name in _SHOWN], colors=_SHOWN.values(),
            labels=[_LABELS.get(name, name) for name in _SHOWN], edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        plot.set_title(life, fontsize=10)
        plot.set_xscale("log")
        plot.set_xlim(prices.DRAWN[0], prices.DRAWN[-1])
        plot.set_xticks(prices.RATES, [f"{rate:,}" for rate in prices.RATES])
        plot.minorticks_off()
        plot.set_xlabel("jobs a second")
        plot.grid(color="#dddddd", linewidth=0.6)
        for side in ("top", "right"):
            plot.spines[side].set_visible(False)
    axes[0].set_ylabel("dollars for a million jobs")
    handles, labels = axes[-1].get_legend_handles_labels()
    axes[-1].legend(handles[::-1], labels[::-1], frameon=False)
    figure.tight_layout()
    figure.savefig(to, format="svg", metadata={"Date": None, "Creator": None, "Description": said})


def _rest(parts: Mapping[str, Sequence[float]]) -> list[Sequence[float]]:
    return [values for name, values in parts.items() if name not in _SHOWN]


def main() -> None:
    model = prices.Model(counted(), assumed())
    curves = {life: prices.curve(model, life) for life in prices.LIVES}
    draw(curves, PICTURE, prices.fingerprint(model))
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
