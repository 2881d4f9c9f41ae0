"""Pack sequences into token trees, so that what rollouts of a group share is computed once.

Rollouts of a group begin with the same prompt. A tree holds that prefix once and each sequence's own tokens
after it, as branches; positions count from the tree's root along each branch, and a token attends to the
prefix and to its own branch. Several trees may sit in one packed row. There is no padding.

Invariant: a trained token's log-prob and gradient do not depend on what else is in its row. Only tokens
that no sequence of the tree trains, and that replayed routing sends to the same experts, are shared, so a
trained token counts once for each rollout that sampled it. Positions after the last one that predicts a
trained token are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.trainer.routing import common_routes, route_rows
from headway.trainer.support import KeptIds, kept_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.trainer.sequences import TrainSequence


@dataclass(frozen=True, slots=True)
class Tree:
    """Sequences of one group that share their first `num_shared` tokens."""

    members: tuple[int, ...]  # indices into the packed sequences
    num_shared: int
    num_tokens: int  # forward positions


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One forward pass: s positions, t trained tokens."""

    token_ids: Tensor  # [s]
    position_ids: Tensor  # [s]
    trees: Tensor  # tree of each position, [s]
    branches: Tensor  # branch of each position, -1 in a shared prefix, [s]
    predict_at: Tensor  # position whose output predicts each trained token, [t]
    targets: Tensor  # the trained tokens' ids, [t]
    behaviour_logp: Tensor  # nats, float32, [t]
    advantages: Tensor  # float64, [t]
    weights: Tensor  # float64, [t]
    temperatures: Tensor  # float64, [t]
    fresh: Tensor  # bool, [t]
    sequences: Tensor  # index into `members` of each trained token, [t]
    keep: Tensor | None  # what the loss's batch half said, bool, [t]
    routes: Tensor | None  # experts to send each position to, -1 for free, [s, expert layers, per token]
    members: tuple[int, ...]  # sequences in the order of their trained tokens
    lengths: tuple[int, ...]  # trained tokens of each member; sums to t
    kept: KeptIds | None = None  # what the trained tokens were drawn from, where truncated

    def attention_mask(self, dtype: torch.dtype) -> Tensor:
        """Return the additive mask [1, 1, s, s]: 0 where attended, else the dtype's lowest number."""
        order = torch.arange(len(self.token_ids))
        allowed = order[None, :] <= order[:, None]
        allowed &= self.trees[None, :] == self.trees[:, None]
        allowed &= (self.branches[None, :] == -1) | (self.branches[None, :] == self.branches[:, None])
        mask = torch.full(allowed.shape, torch.finfo(dtype).min, dtype=dtype)
        return mask.masked_fill_(allowed, 0.0)[None, None]


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
    groups: dict[str, list[int]] = {}
    for index, sequence in enumerate(sequences):
        if sequence.positions:
            groups.setdefault(sequence.group, []).append(index)
    trees: list[Tree] = []
    for members in groups.values():
        shared = _num_shared([sequences[index] for index in members])
        ordered = sorted(members, key=lambda index: -num_positions(sequences[index]))
        current: list[int] = []
        used = shared
        for index in ordered:
            own = num_positions(sequences[index]) - shared
            if current and used + own > max_tokens:
                trees.append(Tree(tuple(current), shared, used))
                current, used = [], shared
            current.append(index)
            used += own
        trees.append(Tree(tuple(current), shared, used))
    return trees


def _num_shared(members: Sequence[TrainSequence]) -> int:
    """Return the length of the longest common prefix that no member trains a token of."""
    limit = min(member.positions[0] for member in members)
    first = members[0].token_ids[:limit]
    for member in members[1:]:
        other = member.token_ids[: len(first)]
        if other != first:
            same = next(i for i, (a, b) in enumerate(zip(first, other, strict=True)) if a != b)
            first = first[:same]
        first = first[: common_routes(members[0].routes, member.routes, len(first))]
    return len(first)


def _lay_out(trees: Sequence[Tree], sequences: Sequence[TrainSequence]) -> PackedRow:
    token_ids: list[int] = []
    position_ids: list[int] = []
    tree_of: list[int] = []
    branch_of: list[int] = []
    predict_at: list[int] = []
    for tree_index, tree in enumerate(trees):
        root = len(token_ids)
        shared = tree.num_shared
        token_ids += sequences[tree.members[0]].token_ids[:shared]
        position_ids += range(shared)
        branch_of += [-1] * shared
        for member in tree.members:
            sequence = sequences[member]
            start, end = len(token_ids), num_positions(sequence)
            token_ids += sequence.token_ids[shared:end]
            position_ids += range(shared, end)
            branch_of += [member] * (end - shared)
            # The token at p is predicted at p - 1, which may still be in the shared prefix.
            predict_at += [
                root + p - 1 if p - 1 < shared else start + p - 1 - shared for p in sequence.positions
            ]
        tree_of += [tree_index] * tree.num_tokens
    members = tuple(member for tree in trees for member in tree.members)
    chosen = [sequences[member] for member in members]
    lengths = tuple(len(sequence.positions) for sequence in chosen)

    def per_token(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(torch.tensor(lengths))

    return PackedRow(
        token_ids=torch.tensor(token_ids),
        position_ids=torch.tensor(position_ids),
        trees=torch.tensor(tree_of),
        branches=torch.tensor(branch_of),
        predict_at=torch.tensor(predict_at),
        targets=torch.tensor([s.token_ids[p] for s in chosen for p in s.positions]),
        behaviour_logp=torch.tensor([value for s in chosen for value in s.behaviour_logp]),
        advantages=torch.tensor([value for s in chosen for value in s.advantages], dtype=torch.float64),
        weights=per_token([s.weight for s in chosen]),
        temperatures=per_token([s.temperature for s in chosen]),
        fresh=torch.tensor([flag for s in chosen for flag in s.fresh]),
        sequences=torch.arange(len(chosen)).repeat_interleave(torch.tensor(lengths)),
        keep=_keep(chosen),
        routes=_routes(trees, sequences),
        members=members,
        lengths=lengths,
        kept=kept_ids([sequence.kept for sequence in chosen], lengths),
    )


def _routes(trees: Sequence[Tree], sequences: Sequence[TrainSequence]) -> Tensor | None:
    """Return the experts of a row's positions, in their order; None when nothing is recorded."""
    recorded = {
        member: route_rows(stream)
        for tree in trees
        for member in tree.members
        if (stream := sequences[member].routes) is not None
    }
    if not recorded:
        return None
    free = next(iter(recorded.values())).new_full((1, 1, 1), -1)
    width = next(iter(recorded.values())).shape[1:]
    parts: list[Tensor] = []
    for tree in trees:
        for start, end, member in [(0, tree.num_shared, tree.members[0])] + [
            (tree.num_shared, num_positions(sequences[member]), member) for member in tree.members
        ]:
            rows = recorded.get(member)
            parts.append(free.expand(end - start, *width) if rows is None else rows[start:end])
    return torch.cat(parts)


def _keep(chosen: Sequence[TrainSequence]) -> Tensor | None:
    flags = [flag for sequence in chosen for flag in sequence.keep or ()]
    return torch.tensor(flags) if flags else None
