"""Prefix trees over the sequences of a group: what several of them begin with is one node. No torch.

A tree is laid out depth first, so that a node's own tokens, and those of everything below it, are each one
range of the row. Which positions a token may attend to, all those before it on its way to the root, is then a
short list of rectangles and triangles over the row (`Block`) and never a mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_SPLIT_TOKENS = 4
"""Sequences that part ways this little after a node stay apart: a further node costs two blocks a layer."""


class Block(NamedTuple):
    """Queries [q_start, q_end) attend to keys [k_start, k_end): to all, or, where causal, up to their own."""

    q_start: int
    q_end: int
    k_start: int
    k_end: int
    causal: bool  # then both ranges are the same


@dataclass(slots=True, eq=False)
class Node:
    """Tokens [start, end) of every sequence below."""

    start: int
    end: int
    member: int  # one whose tokens these are
    parent: Node | None
    children: list[Node] = field(default_factory=list["Node"])
    offset: int = -1  # where its first token is in the row


@dataclass(slots=True)
class Tree:
    """Sequences in the order of their tokens, each sharing what it can with the one before it."""

    root: Node = field(default_factory=lambda: Node(0, 0, -1, None))
    leaves: dict[int, Node] = field(default_factory=dict[int, Node])  # the node in which each member ends
    num_tokens: int = 0
    _last: Node | None = None

    def shared(self, common: int) -> int:
        """Return how many tokens the next member would share, `common` being the same as in the last one."""
        node = self._last
        while node is not None and node.start >= common:
            node = node.parent
        if node is None or node.end <= common:  # the whole node, or there is none
            return 0 if node is None else node.end
        return common if node.start == 0 or common - node.start >= MIN_SPLIT_TOKENS else node.start

    def add(self, member: int, length: int, common: int) -> None:
        """Add the sequence that is next in order: its first `length` tokens, `common` as in the last one."""
        shared = self.shared(common)
        node = self._last or self.root
        while node.start >= shared and node.parent is not None:
            node = node.parent
        if node.end > shared:  # cut it; the lower part stays who it is, for members end in it
            parent = node.parent or self.root
            upper = Node(node.start, shared, node.member, parent, [node])
            parent.children[-1] = upper
            node.start, node.parent = shared, upper
            node = upper
        if length > shared:
            own = Node(shared, length, member, node)
            node.children.append(own)
            node = own
        self.num_tokens += length - shared
        self.leaves[member] = self._last = node

    def lay_out(self, offset: int) -> tuple[list[Node], list[Block]]:
        """Place the tree at `offset` of a row; return its nodes in the row's order, and who attends to whom.

        A node, its first child, that one's first child and so on to a leaf lie in one range: a triangle. What
        branches off below a node attends to the part of that range up to the node's end: a rectangle.
        Triangles come first, and hold every position once.
        """
        nodes: list[Node] = []
        blocks: list[Block] = []
        tops: list[int] = []  # where the range that a node lies in begins
        stack: list[tuple[Node | None, Node]] = [(None, child) for child in reversed(self.root.children)]
        while stack:
            first, node = stack.pop()
            node.offset = offset
            top = offset if first is None else first.offset
            tops.append(top)
            offset += node.end - node.start
            nodes.append(node)
            if node.children:
                stack += [(None, child) for child in reversed(node.children[1:])]
                stack.append((first or node, node.children[0]))
            else:
                blocks.append(Block(top, offset, top, offset, True))
        ends: dict[int, int] = {}  # where all below a node ends, by its offset
        for top, node in zip(reversed(tops), reversed(nodes), strict=True):
            end = node.offset + node.end - node.start
            ends[node.offset] = ends[node.children[-1].offset] if node.children else end
            if len(node.children) > 1:
                blocks.append(Block(node.children[1].offset, ends[node.offset], top, end, False))
        return nodes, blocks

    def position(self, member: int, indices: Sequence[int]) -> list[int]:
        """Return where tokens of a member are in the row; `indices` rise."""
        found: list[int] = []
        node = self.leaves[member]
        for index in reversed(indices):
            while index < node.start and node.parent is not None:
                node = node.parent
            found.append(node.offset + index - node.start)
        found.reverse()
        return found


def common_length(a: bytes, b: bytes, width: int) -> int:
    """Return how many items of `width` bytes two strings begin with alike."""
    low, high = 0, min(len(a), len(b)) // width
    while low < high:
        middle = (low + high + 1) // 2
        if a[low * width : middle * width] == b[low * width : middle * width]:
            low = middle
        else:
            high = middle - 1
    return low
