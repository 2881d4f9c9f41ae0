"""Pack sequences into token trees, so that what rollouts of a group share is computed once.

Sequences of a group become a prefix tree (`trie`): what any of them begin with alike is in the row once, to
any depth, whether it is a prompt, a turn or tokens that several of them sampled. Positions count from the
root along each branch, and a token attends to those before it on its branch alone. Several trees may sit in
one packed row. There is no padding.

Invariant: a trained token's log-prob and gradient do not depend on what else is in its row. A token that
several sequences train is computed once and counts once for each of them. Tokens that replayed routing sends
to different experts are not shared. Positions after the last one that predicts a trained token are left out.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.trainer.attention import dense_mask
from headway.trainer.routing import route_rows
from headway.trainer.support import KeptIds, kept_ids
from headway.trainer.trie import Block, Node, Tree, common_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.trainer.sequences import TrainSequence


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One forward pass: s positions, t trained tokens."""

    token_ids: Tensor  # [s]
    position_ids: Tensor  # [s]
    blocks: tuple[Block, ...]  # which positions attend to which
    predict_at: Tensor  # position whose output predicts each distinct trained token, [d]
    targets: Tensor  # their ids, [d]
    temperatures: Tensor  # of sampling, float64, [d]
    copies: Tensor  # the distinct one that each trained token is, [t]
    behaviour_logp: Tensor  # nats, float32, [t]
    advantages: Tensor  # float64, [t]
    weights: Tensor  # float64, [t]
    fresh: Tensor  # bool, [t]
    sequences: Tensor  # index into `members` of each trained token, [t]
    keep: Tensor | None  # what the loss's batch half said, bool, [t]
    routes: Tensor | None  # experts to send each position to, -1 for free, [s, expert layers, per token]
    members: tuple[int, ...]  # sequences in the order of their trained tokens
    lengths: tuple[int, ...]  # trained tokens of each member; sums to t
    kept: KeptIds | None = None  # what the trained tokens were drawn from, where truncated

    def attention_mask(self, dtype: torch.dtype) -> Tensor:
        """Return the additive mask [1, 1, s, s]: 0 where attended, else the dtype's lowest number."""
        mask = torch.full((len(self.token_ids),) * 2, torch.finfo(dtype).min, dtype=dtype)
        return mask.masked_fill_(dense_mask(self.blocks, len(mask), mask.device), 0.0)[None, None]


def pack(sequences: Sequence[TrainSequence], max_tokens: int) -> list[PackedRow]:
    """Return packed rows of at most `max_tokens` positions, or of one longer sequence each.

    Sequences without trained tokens are left out. The order depends on the sequences alone.
    """
    rows: list[list[Tree]] = []
    room: list[int] = []
    trees = sorted(_trees(sequences, max_tokens), key=lambda tree: -tree.num_tokens)
    for tree in trees:  # first fit, longest first
        for index, left in enumerate(room):
            if tree.num_tokens <= left:
                rows[index].append(tree)
                room[index] -= tree.num_tokens
                break
        else:
            rows.append([tree])
            room.append(max_tokens - tree.num_tokens)
    return [_lay_out(row, sequences) for row in rows]


def num_positions(sequence: TrainSequence) -> int:
    """Return the positions a sequence needs alone: up to the one that predicts its last trained token."""
    return sequence.positions[-1] if sequence.positions else 0


def _trees(sequences: Sequence[TrainSequence], max_tokens: int) -> list[Tree]:
    groups: dict[tuple[str, bool], list[int]] = {}
    for index, sequence in enumerate(sequences):
        if sequence.positions:
            groups.setdefault((sequence.group, sequence.routes is None), []).append(index)
    trees: list[Tree] = []
    for members in groups.values():
        keys = [_key(sequences[index]) for index in members]
        width = len(keys[0]) // num_positions(sequences[members[0]])
        tree, last = Tree(), b""
        # In the order of their tokens, neighbours share the most.
        for key, index in sorted(zip(keys, members, strict=True)):
            length, common = num_positions(sequences[index]), common_length(last, key, width)
            if tree.num_tokens and tree.num_tokens + length - tree.shared(common) > max_tokens:
                trees.append(tree)
                tree, common = Tree(), 0
            tree.add(index, length, common)
            last = key
        trees.append(tree)
    return trees


def _key(sequence: TrainSequence) -> bytes:
    """Return the tokens that a sequence needs, each beside the experts that it goes to."""
    num = num_positions(sequence)
    tokens = torch.tensor(sequence.token_ids[:num], dtype=torch.int32)[:, None].view(torch.uint8)
    if sequence.routes is not None:
        routes = route_rows(sequence.routes)[:num].to(torch.int16).flatten(1).view(torch.uint8)
        tokens = torch.cat([tokens, routes], 1)
    return tokens.numpy().tobytes()


def _lay_out(trees: Sequence[Tree], sequences: Sequence[TrainSequence]) -> PackedRow:
    nodes: list[Node] = []
    blocks: list[Block] = []
    num = 0
    for tree in trees:
        own, attended = tree.lay_out(num)
        nodes += own
        blocks += attended
        num += tree.num_tokens
    token_ids = array("i")
    position_ids: list[int] = []
    for node in nodes:
        token_ids += sequences[node.member].token_ids[node.start : node.end]
        position_ids += range(node.start, node.end)
    members = tuple(member for tree in trees for member in tree.leaves)
    chosen = [sequences[member] for member in members]
    lengths = tuple(len(sequence.positions) for sequence in chosen)
    kept = kept_ids([sequence.kept for sequence in chosen], lengths)
    # What decides a log-prob: where it is predicted, of what, and how it was drawn. Among tokens that
    # truncated sampling drew none is taken for another's copy.
    distinct: dict[tuple[int, int, float, int], int] = {}
    copies: list[int] = []
    for tree in trees:
        for member in tree.leaves:
            sequence = sequences[member]
            before = tree.position(member, [p - 1 for p in sequence.positions])
            for at, p in zip(before, sequence.positions, strict=True):
                copy = len(copies) if kept else 0
                what = (at, sequence.token_ids[p], sequence.temperature, copy)
                copies.append(distinct.setdefault(what, len(distinct)))
    predict_at, targets, temperatures, _ = zip(*distinct, strict=True)

    def per_token(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(torch.tensor(lengths))

    return PackedRow(
        token_ids=torch.tensor(token_ids, dtype=torch.int64),
        position_ids=torch.tensor(position_ids),
        blocks=tuple(sorted(blocks, key=lambda block: not block.causal)),
        predict_at=torch.tensor(predict_at),
        targets=torch.tensor(targets),
        temperatures=torch.tensor(temperatures, dtype=torch.float64),
        copies=torch.tensor(copies),
        behaviour_logp=torch.tensor([value for s in chosen for value in s.behaviour_logp]),
        advantages=torch.tensor([value for s in chosen for value in s.advantages], dtype=torch.float64),
        weights=per_token([s.weight for s in chosen]),
        fresh=torch.tensor([flag for s in chosen for flag in s.fresh]),
        sequences=torch.arange(len(chosen)).repeat_interleave(torch.tensor(lengths)),
        keep=_keep(chosen),
        routes=_routes(nodes, sequences),
        members=members,
        lengths=lengths,
        kept=kept,
    )


def _routes(nodes: Sequence[Node], sequences: Sequence[TrainSequence]) -> Tensor | None:
    """Return the experts of a row's positions, in their order; None when nothing is recorded."""
    recorded = {
        node.member: route_rows(stream)
        for node in nodes
        if (stream := sequences[node.member].routes) is not None
    }
    if not recorded:
        return None
    free = next(iter(recorded.values())).new_full((1, 1, 1), -1)
    width = next(iter(recorded.values())).shape[1:]
    parts: list[Tensor] = []
    for node in nodes:
        rows = recorded.get(node.member)
        num = node.end - node.start
        parts.append(free.expand(num, *width) if rows is None else rows[node.start : node.end])
    return torch.cat(parts)


def _keep(chosen: Sequence[TrainSequence]) -> Tensor | None:
    flags = [flag for sequence in chosen for flag in sequence.keep or ()]
    return torch.tensor(flags) if flags else None
