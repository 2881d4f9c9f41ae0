"""The flow of sampled tokens, from started to trained: what leaves, and before which stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headway.telemetry.ledger import FATES
from headway.telemetry.page.parts import Plot
from headway.telemetry.page.thin import rounded
from headway.telemetry.page.traces import ACCENT, QUIET, SECOND, Trace
from headway.telemetry.text import percent

Summary = Mapping[str, Any]
_LABELS = {
    "filtered": "no signal",
    "pruned": "pruned early",
    "cancelled": "cancelled by oversampling",
    "stale": "too old",
    "voided": "voided with their group",
    "failed_infrastructure": "lost to infrastructure",
    "failed_environment": "lost to the environment",
    "failed_reward": "could not be scored",
    "stopped": "in flight at the end",
    "unused": "left over at the end",
    "carried": "kept for the next life",
}
_STAGES = (  # what goes on, and the fates that leave before it
    ("finished", ("pruned", "cancelled", "failed_infrastructure", "failed_environment", "stopped")),
    ("with signal", ("failed_reward", "filtered", "voided")),
    ("trained", ("stale", "unused", "carried")),
)
_PAD = 40  # pixels between two nodes of a column: two lines of text
_SMALL = 0.01  # of all tokens; several ways out below it are one


class Node(NamedTuple):
    """A stage, or a way out."""

    name: str
    value: int  # tokens
    color: str


def tokens(summary: Summary) -> Plot | None:
    """Return where the sampled tokens of train rollouts went, from started to trained."""
    fates = _train_tokens(summary)
    whole = sum(fates.values())
    if not whole:
        return None
    columns = [[Node("sampled", whole, ACCENT)]]
    left = whole
    for name, lost in _STAGES:
        leaks = _together(
            [Node(_LABELS[fate], fates[fate], _color(fate)) for fate in lost if fates[fate]], whole
        )
        left -= sum(node.value for node in leaks)
        if leaks or name == "trained":  # a stage that loses nothing says nothing
            columns.append([*([Node(name, left, ACCENT)] if left else []), *leaks])
        if not left:
            break
    trained = percent(fates["trained"] / whole)
    caption = f"Of {_count(whole)} tokens that train rollouts sampled, {trained} are in the weights."
    figure = _sankey(columns)
    return Plot("tokens-flow", "Where the tokens went", "sampled tokens", caption, figure, wide=True)


def _together(nodes: list[Node], whole: int) -> list[Node]:
    small = [node for node in nodes if node.value < _SMALL * whole]
    if len(small) < 2:
        return nodes
    rest = Node(f"{len(small)} other ways", sum(node.value for node in small), QUIET)
    return [*(node for node in nodes if node not in small), rest]


def _sankey(columns: list[list[Node]]) -> dict[str, Any]:
    """Draw columns of nodes: the first of each is what goes on, the others leak from the column before."""
    whole = columns[0][0].value
    most = max(map(len, columns))
    height = 210 + 40 * most
    inside = height - 28.0  # without margins
    scale = (inside - _PAD * (most - 1)) / whole
    nodes: list[tuple[Node, float, float]] = []
    links: list[tuple[int, int, int, str]] = []
    source = 0
    for place, column in enumerate(columns):
        x, y, first = place / max(1, len(columns) - 1), 0.0, len(nodes)
        for position, node in enumerate(column):
            tall = node.value * scale
            nodes.append((node, min(0.999, max(0.001, x)), min(0.999, (y + tall / 2) / inside)))
            if place:
                good = position == 0 and node.color == ACCENT
                links.append((source, len(nodes) - 1, node.value, "--link-good" if good else "--link-lost"))
            y += tall + _PAD
        source = first
    trace: Trace = {
        "type": "sankey",
        "arrangement": "fixed",
        "valueformat": ",",
        "valuesuffix": " tokens",
        "node": {
            "label": [
                f"{node.name}<br>{_count(node.value)}, {_share(node.value / whole)}" for node, _, _ in nodes
            ],
            "color": [node.color for node, _, _ in nodes],
            "x": [rounded(x) for _, x, _ in nodes],
            "y": [rounded(y) for _, _, y in nodes],
            "align": "left",
            "pad": _PAD,
            "thickness": 14,
            "line": {"width": 0},
        },
        "link": {
            key: [link[at] for link in links] for at, key in enumerate(("source", "target", "value", "color"))
        },
    }
    layout = {"showlegend": False, "margin": {"l": 8, "r": 8, "b": 16}, "font": {"size": 13}}
    return {"data": [trace], "layout": layout, "height": height}


def _train_tokens(summary: Summary) -> dict[str, int]:
    """Return sampled tokens of train rollouts by fate."""
    fates: dict[str, int] = {}
    for fate in FATES:
        if fate == "evaluated":
            continue
        if fate in ("trained", "carried"):
            fates[fate] = int(summary["conservation.tokens_by_fate"].get(fate, 0))
        else:
            fates[fate] = int(summary[f"rl.discard.{fate}.tokens"])
    return fates


def _color(fate: str) -> str:
    return QUIET if fate in ("stopped", "unused", "carried") else SECOND


def _count(value: int) -> str:
    if value < 10_000:
        return f"{value:,}"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return str(value)


def _share(share: float) -> str:
    return percent(share) if share >= _SMALL else "below 1%"
