"""One frame of the live view: a LiveState at one moment, laid out for a terminal's size.

Pure: the same state, time and size give the same lines. Where there is no room the least important lines go
first, and of each line the pieces at its end, so that nothing is wrapped and nothing is cut in its middle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size

from headway.telemetry.live_parts import BAD, CURVE, GOOD, NOTABLE, QUIET, Fact, Span, facts
from headway.telemetry.progress import time_left
from headway.telemetry.text import percent, seconds, sparkline
from headway.telemetry.visible import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headway.telemetry.live_state import LiveState

Line = list[Span]

_LABEL = 11  # columns of a label with its space
_TWO_COLUMNS = 100  # from this width on
_WIDEST = 160  # wider terminals get no wider frame
_LEAST_CURVE, _MOST_CURVE = 6, 60
_MOST_SLOWEST, _MOST_WARNINGS = 6, 3
_ASCII = str.maketrans("▁▂▃▄▅▆▇█░─…", "_.-~=+*##-~")


class _Block(NamedTuple):
    """Something of the frame that is shown whole or not at all."""

    rank: int
    part: Fact | Line


def frame(
    state: LiveState,
    *,
    name: str,
    now: float,
    width: int,
    height: int | None = None,
    notice: str = "",
    ascii_only: bool = False,
) -> list[Line]:
    """Return the lines of a frame.

    Args:
        state: what to show.
        name: of the run.
        now: seconds since the run began.
        width: columns that a line may take.
        height: lines that there may be, None for as many as it takes.
        notice: said in place of what the run does, for a run that nobody drives.
        ascii_only: for a terminal whose encoding has no block characters.
    """
    width = max(20, min(width, _WIDEST))
    if state.metrics.outcome != "unfinished":
        now = state.metrics.now
    columns = 2 if width >= _TWO_COLUMNS else 1
    blocks = [_Block(100, _title(state, name, now, width, notice)), _Block(99, _progress(state, now, width))]
    blocks += [_Block(fact.rank, fact) for fact in facts(state)]
    blocks += _lists(state, now, width)
    while height is not None and len(blocks) > 1 and _num_lines(blocks, columns) > height:
        blocks.remove(min(reversed(blocks), key=lambda block: block.rank))
    lines = list(_drawn(blocks, width, columns))
    if ascii_only:
        lines = [[Span(span.text.translate(_ASCII), span.style) for span in line] for line in lines]
    return lines


def plain(lines: Sequence[Line]) -> str:
    """Return a frame as text."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def _num_lines(blocks: Sequence[_Block], columns: int) -> int:
    num_facts = sum(isinstance(block.part, Fact) for block in blocks)
    return len(blocks) - num_facts + -(-num_facts // columns)


def _drawn(blocks: Sequence[_Block], width: int, columns: int) -> Iterator[Line]:
    """Yield lines; facts, which stand together, share lines where there are two columns."""
    shown = [block.part for block in blocks if isinstance(block.part, Fact)]
    column_width = width if columns == 1 else (width - 2) // 2
    told = False
    for block in blocks:
        if not isinstance(block.part, Fact):
            yield block.part
        elif not told:
            told = True
            for row in range(0, len(shown), columns):
                cells = [_fact(fact, column_width) for fact in shown[row : row + columns]]
                line = cells[0]
                if len(cells) > 1:
                    line = [*line, Span(" " * (column_width - _length(line) + 2)), *cells[1]]
                yield line


def _fact(fact: Fact, width: int) -> Line:
    line = _fitted(_label(fact.label), fact.pieces, width)
    left = width - _length(line) - 2
    if left >= _LEAST_CURVE and len(fact.curve) > 1:
        line += [Span("  "), Span(sparkline(fact.curve, min(left, _MOST_CURVE)), CURVE)]
    return line


def _label(text: str) -> Span:
    text = _cut(visible_line(text), _LABEL - 1)
    return Span(text + " " * (_LABEL - cell_len(text)), QUIET)


def _fitted(label: Span, pieces: Sequence[Span], width: int) -> Line:
    """Return as many pieces as fit, the first one in any case."""
    line: Line = [label]
    pieces = [Span(visible_line(piece.text), piece.style) for piece in pieces]
    for position, piece in enumerate(pieces):
        between = ", " if position and not piece.text.startswith(" ") else ""
        room = width - _length(line)
        if len(between) + cell_len(piece.text) > room:
            if not position:
                line.append(Span(_cut(piece.text, room), piece.style))
            break
        line += [Span(between), piece] if between else [piece]
    return line


def _title(state: LiveState, name: str, now: float, width: int, notice: str) -> Line:
    """A rule that parts the frame from the lines above it, with the run's name and what the run does."""
    doing, style = (notice, NOTABLE) if notice else _doing(state, now)
    name = _cut(visible_line(name), max(8, width // 2))
    room = width - cell_len(name) - 8
    doing = _cut(visible_line(doing), room) if room > 3 else ""
    rest = width - cell_len(name) - cell_len(doing) - 7
    return [
        Span("── ", QUIET),
        Span(name, "bold"),
        Span(" ── ", QUIET),
        Span(doing, style),
        Span(" " + "─" * (rest - 1) if rest > 1 else "", QUIET),
    ]


def _doing(state: LiveState, now: float) -> tuple[str, str]:
    metrics = state.metrics
    if metrics.outcome != "unfinished":
        return f"finished ({metrics.outcome})", BAD if metrics.failed else GOOD
    if state.stopping:
        return f"stopping ({state.stopping})", NOTABLE
    if not state.started:
        ready, wanted = state.num_workers
        since = seconds(max(0.0, now - state.life_began))
        return f"starting for {since}, {ready} of {wanted} processes are ready", NOTABLE
    if state.guard_paused or state.setting("guard", "paused", False):
        return "paused", BAD
    parts: list[str] = []
    if state.trainer:
        parts.append(f"{state.trainer} for {seconds(max(0.0, now - state.trainer_since))}")
    elif state.evaluation is None and not metrics.facts.only_evaluates:
        parts.append("waiting for a batch")
    if state.evaluation is not None:
        done, all_ = state.evaluation.num_scored, state.evaluation.num_rollouts
        parts.append(f"evaluating version {state.evaluation.number}, {done} of {all_}")
    if state.saving is not None:
        parts.append(f"saving step {state.saving}")
    return "; ".join(parts), ""


def _progress(state: LiveState, now: float, width: int) -> Line:
    limits, steps = state.metrics.facts, state.metrics.steps.steps_ended
    if limits.only_evaluates:
        done, every = (
            (state.evaluation.num_scored, state.evaluation.num_rollouts) if state.evaluation else (0, 0)
        )
        counted = [Span(f"{done}/{every} rollouts")] if every else []
        pieces = [*counted, Span(seconds(now)), *([Span(percent(done / every))] if every else [])]
        return _with_bar(_fitted(_label("progress"), pieces, width), done / every if every else None, width)
    share = None
    if limits.stop_steps:
        share = min(1.0, steps / limits.stop_steps)
    elif limits.stop_wall_s:
        share = min(1.0, now / limits.stop_wall_s)
    pieces = [Span(f"{steps}/{limits.stop_steps}" if limits.stop_steps else str(steps)), Span(seconds(now))]
    left = time_left(state.metrics, now)
    if left is not None and state.metrics.outcome == "unfinished":
        at_most = "" if state.metrics.steps.records else "at most "  # only the wall limit is known
        pieces.append(Span(f"{at_most}{seconds(left)} left", "bold"))
    if share is None:
        return _fitted(_label("step"), pieces, width)
    return _with_bar(_fitted(_label("step"), [*pieces, Span(percent(share))], width), share, width)


def _with_bar(line: Line, share: float | None, width: int) -> Line:
    if share is None:
        return line
    room = min(width - _length(line) - 2, _MOST_CURVE)
    if room >= _LEAST_CURVE:
        filled = int(room * share)
        line += [Span("  "), Span("█" * filled, GOOD), Span("░" * (room - filled), QUIET)]
    return line


def _lists(state: LiveState, now: float, width: int) -> Iterator[_Block]:
    """Yield the slowest rollouts and the last warnings, a line each."""
    for position, flight in enumerate(state.slowest(_MOST_SLOWEST)):
        age = max(0.0, now - flight.since)
        pieces = [
            Span(f"{seconds(age):>6} {flight.where:<10} {flight.rollout}"),
            Span(flight.task_id),
            Span(f"{flight.num_turns} answer{'' if flight.num_turns == 1 else 's'}"),
        ]
        label = _label("" if position else "slowest")
        yield _Block(52 if not position else 32 - position, _fitted(label, pieces, width))
    warnings = state.metrics.warnings[-_MOST_WARNINGS:]
    for position, warning in enumerate(warnings):
        label = _label("" if position else "warnings")
        text = " ".join(f"{seconds(warning['t'])} {warning['text']}".split())
        line = [label, Span(_cut(visible_line(text), width - _LABEL), NOTABLE)]
        yield _Block(82 if position == len(warnings) - 1 else 34 + position, line)


def _length(line: Line) -> int:
    return sum(cell_len(span.text) for span in line)


def _cut(text: str, width: int) -> str:
    """Return what fits into so many columns; some letters take two, and some none."""
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)).rstrip() + "…"
