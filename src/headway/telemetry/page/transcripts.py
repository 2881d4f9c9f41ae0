"""A selection of rollouts to read, cut to what a page can hold.

Takes what telemetry's `transcript` gives of each: its record's fields, `missing`, `branches` of `pieces`. A
key that is not there is taken as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.telemetry.text import figures, number
from headway.telemetry.visible import short_line

MAX_CHARACTERS = 21_000  # of one branch; its middle is left out
MAX_BRANCHES = 4  # of one rollout
_MAX_REASON = 80  # characters of it, on the folded line
_KINDS = ("trained", "sampled", "masked", "left_out")

Transcript = Mapping[str, Any]


def views(groups: Sequence[tuple[str, Sequence[Transcript]]]) -> list[dict[str, Any]]:
    """Return what the template shows of groups of transcripts, each with its title; empty groups leave."""
    return [{"title": title, "rollouts": [_view(one) for one in found]} for title, found in groups if found]


def _view(found: Transcript) -> dict[str, Any]:
    branches = list(found.get("branches") or ())
    lines = [str(reason) for reason in found.get("reasons") or ()]
    lines += [
        f"attempt {failure['attempt']} failed ({failure['owner']}, {failure['cause']}): {failure['message']}"
        for failure in found.get("failures") or ()
    ]
    lines += [f"{text}." for key in ("missing", "undecoded") if (text := found.get(key))]
    if len(branches) > MAX_BRANCHES:
        lines.append(f"{len(branches) - MAX_BRANCHES} more branches are left out.")
    return {
        "rollout": str(found.get("rollout", "")),
        "facts": list(_facts(found)),
        "lines": lines,
        "branches": [_pieces(branch.get("pieces") or ()) for branch in branches[:MAX_BRANCHES]],
    }


def _facts(found: Transcript) -> Sequence[str]:
    facts: list[str] = []
    if (reward := found.get("reward")) is not None:
        facts.append(f"reward {number(reward, 3)}")
    if (advantage := found.get("advantage")) is not None:
        facts.append(f"advantage {advantage:+.3f}")
    facts += [str(found[key]) for key in ("state", "task_id") if found.get(key)]
    if (tokens := found.get("num_tokens")) is not None:
        facts.append(f"{tokens:,} tokens")
    if (step := found.get("step")) is not None:
        facts.append(f"step {step}")
    if reasons := found.get("reasons"):
        facts.append(short_line(str(reasons[0]), _MAX_REASON))
    return facts


def _pieces(pieces: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    texts = [_text(piece) for piece in pieces]
    whole = sum(map(len, texts))
    head, tail = 2 * MAX_CHARACTERS // 3, whole - MAX_CHARACTERS // 3
    shown: list[dict[str, str]] = []
    at = 0
    noted = whole <= MAX_CHARACTERS
    for piece, text in zip(pieces, texts, strict=True):
        start, at = at, at + len(text)
        kind = piece.get("kind") if piece.get("kind") in _KINDS else "masked"
        look = {"kind": str(kind), "title": _title(piece)}
        if whole <= MAX_CHARACTERS:
            shown.append({**look, "text": text})
            continue
        if before := text[: max(0, head - start)]:
            shown.append({**look, "text": before})
        if at > head and not noted:
            noted = True
            left = f"\n[... {tail - head:,} of {whole:,} characters are left out ...]\n"
            shown.append({"kind": "note", "title": "", "text": left})
        if at > tail and (after := text[max(0, tail - start) :]):
            shown.append({**look, "text": after})
    return shown


def _text(piece: Mapping[str, Any]) -> str:
    return str(piece.get("text") or " ".join(map(str, piece.get("token_ids") or ())))


def _title(piece: Mapping[str, Any]) -> str:
    facts = [str(piece.get("kind", "")).replace("_", " "), f"{piece.get('num_tokens', 0):,} tokens"]
    if (turn := piece.get("turn")) is not None:
        facts.append(f"turn {turn}")
    if version := piece.get("version"):
        facts.append(f"version {version[-1]}" + (f" of lineage {version[0]}" if version[0] else ""))
    if (advantage := piece.get("advantage")) is not None:
        facts.append(f"advantage {advantage:+.3f}")
    if (logprob := piece.get("mean_logprob")) is not None:
        facts.append(f"mean log-prob {figures(logprob)}")
    return ", ".join(facts)
