"""The table of accelerators."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from headway.core.errors import UserError
from headway.core.near import did_you_mean, nearest

if TYPE_CHECKING:
    from headway.matching.spec import Precision

BYTES: dict[Precision, float] = {"f32": 4.0, "bf16": 2.0, "fp8": 1.0}
"""Bytes of a value of each precision."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator as its table row says; dense peaks, one direction of links."""

    name: str
    bf16_flops: float
    fp8_flops: float  # that of bf16 where it has no fp8
    memory_bytes: float
    bandwidth: float  # bytes/s of its memory
    link: float  # bytes/s to a neighbour in the same domain
    link_domain: int  # accelerators that such links join
    internode: float  # bytes/s out of the domain
    power_w: float
    usd_per_hour: float  # 0 where no price was seen
    price_source: str
    source: str

    def peak(self, precision: Precision) -> float:
        """Return the dense peak FLOP/s; of f32, half that of bf16."""
        return {"f32": self.bf16_flops / 2, "bf16": self.bf16_flops, "fp8": self.fp8_flops}[precision]

    def link_for(self, count: int) -> float:
        """Return the bytes/s between `count` accelerators that work together."""
        return self.link if count <= self.link_domain else self.internode


@functools.cache
def accelerators() -> dict[str, Accelerator]:
    """Return the package's table by name."""
    text = resources.files("headway.matching").joinpath("data/accelerators.csv").read_text(encoding="utf-8")
    return {row["gpu"]: _from_row(row) for row in csv.DictReader(text.splitlines())}


def find_accelerator(name: str, key: str) -> Accelerator:
    """Return an accelerator by its name, or the first word of it (`H200`).

    Raises UserError for an unknown one.
    """
    table = accelerators()
    folded = name.casefold()
    for known, found in table.items():
        if folded in (known.casefold(), known.casefold().partition(" ")[0]):
            return found
    remedy = did_you_mean(nearest(name, table)) or "The table has " + ", ".join(table)
    raise UserError("must be an accelerator of the table", value=name, key=key, remedy=remedy)


def _from_row(row: dict[str, str]) -> Accelerator:
    def number(name: str) -> float:
        return float(row[name] or 0.0)

    return Accelerator(
        name=row["gpu"],
        bf16_flops=number("bf16_dense_tflops") * 1e12,
        fp8_flops=(number("fp8_dense_tflops") or number("bf16_dense_tflops")) * 1e12,
        memory_bytes=number("memory_gib") * 2**30,
        bandwidth=number("bandwidth_tb_per_s") * 1e12,
        link=number("link_gb_per_s") * 1e9,
        link_domain=int(number("link_domain")),
        internode=number("internode_gb_per_s") * 1e9,
        power_w=number("power_w"),
        usd_per_hour=number("usd_per_hour"),
        price_source=row["price_source"],
        source=row["source"],
    )
