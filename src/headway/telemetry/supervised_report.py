"""The report of a supervised run, for people and for programs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, cast

from headway.telemetry.text import figures, number, seconds, sparkline
from headway.telemetry.visible import harmless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.telemetry.supervised import SupervisedRun

_MOST_EVALS = 12  # shown


def perplexity(loss: float | None) -> float | None:
    """Return exp(loss), None where there is none or it is too large to write."""
    return None if loss is None or not math.isfinite(loss) or loss > 700 else math.exp(loss)


def supervised_summary(run: SupervisedRun) -> dict[str, Any]:
    """Return a run's numbers by name; a loss is in nats a token. Unknown ones are None."""
    losses = [step["loss"] for step in run.steps if step["loss"] is not None]
    tenth = max(1, len(losses) // 10)
    tokens, spent_s = (sum(step[key] for step in run.steps) for key in ("num_tokens", "duration_s"))
    evals = [
        {"step": one["step"], "loss": one["loss"], "perplexity": perplexity(one["loss"])} for one in run.evals
    ]
    return {
        "kind": "sft",
        "outcome": run.ended["outcome"] if run.ended else "unfinished",
        "message": run.ended["message"] if run.ended else "it is still going, or was killed",
        "steps": run.steps[-1]["step"] if run.steps else 0,
        "planned_steps": (run.resumed[-1] if run.resumed else run.began)["planned_steps"],
        "epochs": run.steps[-1]["epochs"] if run.steps else 0.0,
        "num_rows": run.began["num_rows"],
        "num_eval_rows": run.began["num_eval_rows"],
        "num_trained_tokens": sum(step["num_trained_tokens"] for step in run.steps),
        "wall_s": run.last_s,
        "loss_first": _mean(losses[:tenth]),
        "loss_last": _mean(losses[-tenth:]),
        "tokens_per_s": tokens / spent_s if spent_s else None,
        "evals": evals,
        "num_resumes": len(run.resumed),
        "changes": [list(change) for change in run.changes],
    }


def supervised_json(run: SupervisedRun) -> str:
    """Return the summary as one JSON object."""
    return json.dumps(supervised_summary(run), allow_nan=False, indent=2)


def supervised_text(run: SupervisedRun) -> str:
    """Return the report as plain text; works on a run that goes on, and without a step."""
    found = cast("dict[str, Any]", harmless(supervised_summary(run)))
    evals = f", {found['num_eval_rows']:,} to evaluate" if found["num_eval_rows"] else ""
    resumes = f", resumed {_times(found['num_resumes'])}" if found["num_resumes"] else ""
    outcome = [
        f"supervised: {found['outcome']}" + (f": {found['message']}" if found["message"] else ""),
        f"{found['steps']:,} of {found['planned_steps']:,} steps, {found['epochs']:.2f} epochs of "
        f"{found['num_rows']:,} conversations{evals}",
        f"{found['num_trained_tokens']:,} trained tokens in {seconds(found['wall_s'])}{resumes}; "
        f"{number(found['tokens_per_s'], 0)} tokens/s in the steps",
    ]
    sections = [
        ("Outcome", outcome),
        ("Loss", _losses(run, found)),
        ("Evaluation", _evaluations(found["evals"])),
    ]
    if found["changes"]:
        sections.append(("Settings that changed", [f"{key} = {value!r}" for key, value in found["changes"]]))
    parts = [f"{title}\n{'-' * len(title)}\n" + "\n".join(lines) for title, lines in sections if lines]
    return "\n\n".join(parts) + "\n"


def _losses(run: SupervisedRun, found: dict[str, Any]) -> list[str]:
    if not run.steps:
        return []
    first, last = found["loss_first"], found["loss_last"]
    norms = [step["grad_norm"] for step in run.steps if step["grad_norm"] is not None]
    return [
        f"train {figures(first)} to {figures(last)} nats/token (first and last tenth of the steps)",
        f"      {sparkline([step['loss'] for step in run.steps])}",
        f"gradient norm {figures(_mean(norms))} in the mean, {figures(max(norms, default=None))} at most",
    ]


def _evaluations(evals: Sequence[dict[str, Any]]) -> list[str]:
    if not evals:
        return []
    shown = list(evals)
    if len(shown) > _MOST_EVALS:
        every = (len(shown) - 1) / (_MOST_EVALS - 1)
        shown = [shown[round(index * every)] for index in range(_MOST_EVALS)]
    lines = [f"{'step':>8}{'nats/token':>13}{'perplexity':>13}"]
    lines += [f"{e['step']:>8,}{figures(e['loss']):>13}{figures(e['perplexity']):>13}" for e in shown]
    known = [one for one in evals if one["loss"] is not None]
    best = min(known, key=lambda one: one["loss"], default=None)
    if best is not None and best["step"] != evals[-1]["step"]:
        lines.append(f"the lowest was at step {best['step']}: more training made it worse (overfitting)")
    return lines


def _times(num: int) -> str:
    return "once" if num == 1 else f"{num} times"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
