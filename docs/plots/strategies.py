"""Draw docs/pictures/strategies.svg from a real run: `make plots`.

    strategies.py PYTHON    PYTHON runs the local server

The same run gives the same file, byte for byte.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.plots import backlog

PICTURE = backlog.ROOT / "docs" / "pictures" / "strategies.svg"
# Told apart by those who see colours otherwise, and by their dashes in print.
# Of so many points one is drawn: nobody sees the others.
_EVERY = 9
_STYLES = {"critical": ("#d55e00", "-"), "default": ("#0072b2", "--"), "low": ("#009e73", ":")}


def draw(orders: Mapping[str, Sequence[str]], to: Path) -> None:
    """One small plot for each setting, by its title: jobs handed out by queue."""
    mpl.use("svg")
    # Without these each run would have other ids, and a date.
    mpl.rcParams.update({"svg.hashsalt": "strategies", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot  # after `use`

    figure, axes = pyplot.subplots(2, 3, figsize=(9.6, 5.6), sharex=True, sharey=True)
    *plots, legend = axes.flat
    for plot, (title, order) in zip(plots, orders.items(), strict=True):
        for queue, counts in backlog.cumulated(order).items():
            colour, dashes = _STYLES[queue]
            points = range(0, len(counts), _EVERY)
            shown = [counts[at] for at in points]
            plot.plot(points, shown, color=colour, linestyle=dashes, linewidth=1.8, label=queue)
        plot.set_title(title, fontsize=10)
        plot.grid(color="#dddddd", linewidth=0.6)
        plot.set_axisbelow(b=True)
        plot.set_xlim(0, len(order))
        plot.set_ylim(0)
        for side in ("top", "right"):
            plot.spines[side].set_visible(False)
    for plot in plots[2:]:
        plot.set_xlabel("jobs handed out in all")
        plot.xaxis.set_tick_params(labelbottom=True)
    for plot in axes[:, 0]:
        plot.set_ylabel("of this queue")
    legend.axis("off")
    handles, labels = plots[0].get_legend_handles_labels()
    legend.legend(handles, labels, title="queue", loc="center", frameon=False, fontsize=10)
    figure.tight_layout()
    figure.savefig(to, format="svg", metadata={"Date": None, "Creator": None})


def main(python: str) -> None:
    with backlog.server(python) as send:
        orders = {each.title: backlog.worked_off(send, each) for each in backlog.SETTINGS}
    PICTURE.parent.mkdir(exist_ok=True)
    draw(orders, PICTURE)
    print(PICTURE.relative_to(backlog.ROOT))


if __name__ == "__main__":
    main(sys.argv[1])
