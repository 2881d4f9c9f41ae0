"""The tables of the text report."""

from __future__ import annotations

from rich.table import Table


def plain_table(first: str, *others: str, left: int = 1) -> Table:
    """Return an empty table without lines; the first `left` columns stand left, `shares` too."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="", show_edge=False)
    table.add_column(first)
    for place, name in enumerate(others, 1):
        table.add_column(name, justify="left" if place < left or name == "shares" else "right")
    return table
