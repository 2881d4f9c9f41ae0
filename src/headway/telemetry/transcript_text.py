"""Transcripts for a terminal, from the plain values that `transcript` gives.

What the policy sampled is coloured, or without colours in marks: [[trained]], ((left out)). Everything that a
model, a task or a program wrote is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from headway.telemetry.rollout_list import part_name
from headway.telemetry.text import figures, number, seconds
from headway.telemetry.visible import cut_middle, short_line, visible, visible_line

LOW_LOGPROB = -2.302585  # nats: the token had a chance of less than 1 in 10
MAX_PIECE = 3000  # characters of a piece that are shown unless all are asked for
MAX_FACT = 500  # characters of a line of facts, likewise
SEE_ALL = "--full shows them"
_STYLES = {"trained": "green", "sampled": "cyan", "left_out": "yellow", "masked": "dim"}
_WORDS = {"left_out": "left out for its age"}
_MARKS = {"trained": ("[[", "]]"), "sampled": ("[[", "]]"), "left_out": ("((", "))"), "masked": ("", "")}

Plain = Mapping[str, Any]


class TranscriptWriter:
    """Turns transcripts into lines, one after the other; a prompt that was shown is not shown twice.

    Args:
        marks: show by marks what the policy sampled, for want of colours.
        full: shorten nothing.
        width: of a line of log-probs, characters.
    """

    def __init__(self, *, marks: bool, full: bool = False, width: int = 100) -> None:
        self._marks = marks
        self._full = full
        self._width = width
        self._shown: dict[str, str] = {}  # first piece -> the rollout that it was shown with

    def lines(self, item: Plain) -> Iterator[Text]:
        """Yield the lines of one rollout; a line may hold line feeds."""
        yield Text(_title(item), style="bold")
        for fact in _facts(item):
            yield Text(f"  {visible_line(fact) if self._full else short_line(fact, MAX_FACT)}")
        if item["missing"]:
            yield Text(f"  {visible_line(item['missing'])}")
        if item.get("undecoded"):
            yield Text(f"  {visible_line(item['undecoded'])}; its messages, and its tokens by their ids:")
            for message in item["messages"]:
                yield Text(f"--- {visible_line(str(message['role']))} ---", style="bold")
                yield from self._long(str(message["content"]), "masked")
        for at, branch in enumerate(item["branches"], 1):
            if len(item["branches"]) > 1:
                yield Text(f"=== branch {at} of {len(item['branches'])} ===", style="bold")
            yield from self._branch(item, branch)

    def _branch(self, item: Plain, branch: Plain) -> Iterator[Text]:
        pieces = branch["pieces"]
        turns = {turn["turn"]: turn for turn in item["turns"]}
        for at, piece in enumerate(pieces):
            yield Text(f"--- {_head(item, piece)} ---", style="bold")
            yield from self._piece(item["rollout"], piece, first=at == 0)
            turn = piece.get("turn")
            following = pieces[at + 1].get("turn") if at + 1 < len(pieces) else None
            if turn in turns and turn != following:
                yield from _after(turns[turn])
        yield Text(f"--- {_count_of(item, branch)} ---", style="bold")

    def _piece(self, rollout: str, piece: Plain, *, first: bool) -> Iterator[Text]:
        kind, text = piece["kind"], piece["text"]
        if "token_ids" in piece:
            text = " ".join(map(str, piece["token_ids"]))
        elif first and kind == "masked" and not self._full:
            before = self._shown.setdefault(text, rollout)
            if before != rollout:
                yield Text(f"[as for rollout {before} above; {SEE_ALL}]", style="dim italic")
                return
        yield from self._long(text, kind)
        if tokens := piece.get("tokens"):
            yield self._logprobs(tokens)

    def _long(self, text: str, kind: str) -> Iterator[Text]:
        before, after = _MARKS[kind] if self._marks else ("", "")
        limit = len(text) if self._full else MAX_PIECE
        head, note, tail = cut_middle(text, limit, SEE_ALL)
        line = Text(before + visible(head), style=_STYLES[kind])
        if note:
            line.append("\n" * (not head.endswith("\n")))
            line.append(f"{note}\n", style="dim italic")
            line.append(visible(tail))
        line.append(after)
        if line.plain.endswith("\n"):
            line.right_crop(1)  # the line's own end is one
        yield line

    def _logprobs(self, tokens: Sequence[tuple[str, float]]) -> Text:
        """Return every token with its log-prob; unlikely ones stand out."""
        line, column = Text("log-probs:", style="dim"), 10
        for text, value in tokens:
            low = value < LOW_LOGPROB
            mark = "!" if low and self._marks else ""
            cell = f'"{visible_line(text)}" {round(value, 2) + 0.0:.2f}{mark}'  # no minus before a 0
            if column + len(cell) + 2 > self._width:
                line.append("\n ")
                column = 1
            line.append("  ")
            column += 2
            line.append(cell, style="bold red not dim" if low else "")
            column += len(cell)
        return line


def _title(item: Plain) -> str:
    level = f", level {item['level']}" if item["level"] else ""
    source = f", source {item['source']}" if item["source"] else ""
    text = f"rollout {item['rollout']} of group {item['group']}: {item['purpose']} task {item['task_id']}"
    return visible_line(f"{text}{level}{source}")


def _facts(item: Plain) -> Iterator[str]:
    yield _fate(item)
    if item["reward"] is not None:
        why = "; ".join(item["reasons"])
        measures = ", ".join(f"{name} {figures(value)}" for name, value in item["reward_metrics"].items())
        yield f"reward {figures(item['reward'])}" + f": {why}" * bool(why) + f" ({measures})" * bool(measures)
    if item["turn_rewards"]:
        yield f"rewards of its turns: {', '.join(map(figures, item['turn_rewards']))}"
    if item["advantage"] is not None:
        turns = ", ".join(f"{value:+.3g}" for value in item["turn_advantages"])
        yield f"advantage {item['advantage']:+.3g}" + f"; of its turns {turns}" * bool(turns)
    yield _lengths(item)
    if item["latency"] is not None:
        parts = {name: value for name, value in item["latency"].items() if value >= 0.0005}
        split = ", ".join(f"{part_name(name)} {seconds(value)}" for name, value in parts.items())
        yield f"time {seconds(item['end_to_end_s'])}" + f": {split}" * bool(split)
    elif item["ended_s"] is not None and item["ended_s"] > item["started_s"]:
        yield f"time {seconds(item['ended_s'] - item['started_s'])}"
    for failure in item["failures"]:
        then = "retried" if failure["retried"] else "not retried"
        who = f"{failure['owner']}, {failure['cause']}, {then}"
        yield f"attempt {failure['attempt'] + 1} failed ({who}): {failure['message']}"
    if item["audit"]:
        verdict = "wrongly" if item["audit_wrong"] else "rightly"
        yield f"an audit: {item['audit']} would have pruned it, {verdict}"


def _fate(item: Plain) -> str:
    parts = [item["state"].replace("_", " ") + (f" ({item['reason']})" if item["reason"] else "")]
    if item["step"] is not None:
        parts[0] += f" in step {item['step']}"
        ages = {"token": item["token_staleness"], "trajectory": item["trajectory_staleness"]}
        told = [f"{name} {age}" for name, age in ages.items() if age is not None]
        parts.append(f"staleness {', '.join(told)}" if told else "")
        parts.append(f"weight {figures(item['weight'])}" if item["weight"] not in (None, 1.0) else "")
        masked = item["num_masked_tokens"]
        parts.append(f"{_count(masked, 'token')} left out for their age" if masked else "")
    if item["environment_staleness"]:
        parts.append(f"acted on a sandbox {item['environment_staleness']} steps old")
    versions = [_version(span) for span in item["spans"]]
    if versions:
        parts.append(
            f"version {versions[0]}" if len(versions) == 1 else f"versions {versions[0]} to {versions[-1]}"
        )
    parts.append(f"attempt {item['attempt'] + 1}" if item["attempt"] else "")
    parts.append(f"taken back {item['num_revived']} times before" if item["num_revived"] else "")
    return "; ".join(filter(None, parts))


def _lengths(item: Plain) -> str:
    prompt = item["num_prompt_tokens"]
    parts = [] if prompt is None else [f"{prompt:,} prompt tokens"]
    parts.append(f"{item['num_tokens']:,} sampled")
    parts += [_count(item["num_turns"], "turn"), _count(item["num_tool_calls"], "tool call")]
    return ", ".join(parts) + (", truncated" if item["truncated"] else "")


def _head(item: Plain, piece: Plain) -> str:
    kind = piece["kind"]
    word = "trainable" if kind == "trained" and item["step"] is None else _WORDS.get(kind, kind)
    parts = [f"{word}, {_count(piece['num_tokens'], 'token')}"]
    if kind == "masked":
        return parts[0]
    if len(item["turns"]) > 1 and piece["turn"] is not None:
        parts.insert(0, f"turn {piece['turn'] + 1}")
    parts.append(f"version {_version(piece['version'])}")
    parts.append(
        f"log-prob mean {number(piece['mean_logprob'], 2)}, lowest {number(piece['min_logprob'], 2)}"
    )
    if item["turn_advantages"] and piece["advantage"] is not None:
        parts.append(f"advantage {piece['advantage']:+.3g}")
    return ", ".join(parts)


def _after(turn: Plain) -> Iterator[Text]:
    if turn["finish"] != "stop":
        yield Text(f"[the answer ended by {visible_line(turn['finish'])}]", style="dim italic")
    for tool in turn["tools"]:
        took = seconds(tool["duration_s"])
        yield Text(
            f"[tool call {tool['call'] + 1}: {visible_line(tool['cause'])} after {took}]", style="dim italic"
        )


def _count_of(item: Plain, branch: Plain) -> str:
    num = f"of {_count(branch['num_tokens'], 'token')}"
    if item["purpose"] == "eval":
        return f"{branch['num_sampled_tokens']:,} {num} were sampled"
    verb = {"trained": "were trained", "training": "are being trained"}.get(item["state"], "could be trained")
    return f"{branch['num_trained_tokens']:,} {num} {verb}"


def _version(span: Sequence[int]) -> str:
    lineage, version = span[:2]
    return f"{version}" + (f" of lineage {lineage}" if lineage else "")


def _count(number_of: int, what: str) -> str:
    return f"{number_of:,} {what}{'' if number_of == 1 else 's'}"
