"""`headway calibrate`: a SPEC from a run's journal.

Lengths, turns and times are lognormal, with what was discarded, cancelled or cut by a limit as right-censored
(`fits`, `components`); engine and trainer are lines (`engine_fit`, `fits.line`); solve rates are Beta. What a
journal cannot tell gets a stand-in that says why.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

from headway.matching import calibrate_lengths
from headway.matching.calibration import Calibration, Found
from headway.matching.engine_fit import EngineFit, fit_engine
from headway.matching.fits import line, lognormal, solve_rates, varies
from headway.matching.recording import record

if TYPE_CHECKING:
    from headway.matching.recorded_run import JournalLike, RecordedStep, Recording

MIN_STEPS = 8  # for a line through the trainer's steps
LOW_R2 = 0.2  # below which the load explains little of the engine's speed


_MOST_FAILURES = 0.99  # what workload.failure_rate takes


def calibrate(journal: JournalLike) -> Calibration:
    """Fit a SPEC to a journal, opened or in memory."""
    return calibrate_recording(record(journal))


def calibrate_recording(recording: Recording) -> Calibration:
    """Fit a SPEC to what was read of a journal."""
    found = Found()
    warnings = calibrate_lengths.fit(recording, found)
    _scores(recording, found)
    _solve_rates(recording, found)
    _failures(recording, found)
    _fleet(recording, found)
    engine = fit_engine(recording)
    _engine(recording, engine, found, warnings)
    _trainer(recording, found, warnings)
    _weights(recording, engine, found)
    steps = max((step.step for step in recording.steps), default=0)
    return Calibration(_config(recording), steps, tuple(found.parameters), tuple(warnings))


def _config(recording: Recording) -> dict[str, Any]:
    """Return the run's config with what was changed on the way."""
    config = {
        section: dict(cast("dict[str, Any]", values)) if isinstance(values, dict) else values
        for section, values in recording.header.config.items()
    }
    for key, value in recording.changes:
        section, _, name = key.partition(".")
        if isinstance(table := config.get(section), dict):
            table[name] = value
    return config


def _scores(recording: Recording, found: Found) -> None:
    times = [attempt.score_s for attempt in recording.train() if attempt.score_s is not None]
    fitted = lognormal(times)
    if fitted is None:
        found.stand_in("workload.score_s", 0.0, "no rollout was scored: 0")
        return
    source = "durations of Scored, without the start of a verifier's sandbox"
    # Whatever their shape, scores only add up: their own mean is what counts.
    found.add(
        "workload.score_s", fmean(times), source, num=fitted.num, ks=fitted.ks, low=fitted.low,
        high=fitted.high,
    )  # fmt: skip
    found.add("workload.score_sigma", fitted.sigma, source, num=fitted.num, ks=fitted.ks)


def _solve_rates(recording: Recording, found: Found) -> None:
    rows = [(note.num_solved, note.num_rollouts, step) for step, note in recording.groups]
    fitted = solve_rates(*(list(column) for column in zip(*rows, strict=True))) if rows else None
    if fitted is None:
        why = f"{len(rows)} groups of two rollouts or more are too few: uniform solve rates stand in"
        found.stand_in("workload.solve_alpha", 1.0, why)
        found.stand_in("workload.solve_beta", 1.0, why)
        return
    source = "solved rollouts of each settled group, beta-binomial"
    found.add("workload.solve_alpha", fitted.alpha, source, num=fitted.num, ks=fitted.ks)
    found.add("workload.solve_beta", fitted.beta, source, num=fitted.num, ks=fitted.ks)
    if fitted.learning_low > 0 or fitted.learning_high < 0:
        found.add(
            "workload.learning", fitted.learning, "slope of the log-odds over steps", num=fitted.num,
            low=fitted.learning_low, high=fitted.learning_high,
        )  # fmt: skip


def _failures(recording: Recording, found: Found) -> None:
    attempts = [attempt for attempt in recording.train() if attempt.outcome in ("ended", "failed")]
    failed = [attempt for attempt in attempts if attempt.outcome == "failed"]
    if not failed:
        return
    source = "attempts that ended as failures of infrastructure or environment"
    found.add(
        "workload.failure_rate", min(_MOST_FAILURES, len(failed) / len(attempts)), source, num=len(attempts)
    )
    turns = fmean(len(attempt.turns) for attempt in attempts if attempt.outcome == "ended") or 1.0
    share = fmean(len(attempt.turns) / turns for attempt in failed)
    found.add("workload.failure_after", min(1.0, share), "turns of failed attempts", num=len(failed))


def _fleet(recording: Recording, found: Found) -> None:
    starts = [one.sandbox_start_s for one in recording.attempts if one.sandbox_start_s is not None]
    found.add("workload.uses_sandbox", bool(starts), "whether rollouts asked for a sandbox", num=len(starts))
    fitted = lognormal(starts, [cut for cut in recording.starts_cut if cut > 0.0])
    if fitted is None:
        return
    source = "seconds from creation to ready"
    found.add(
        "fleet.start_s", fitted.mean, source, num=fitted.num, low=fitted.low, high=fitted.high,
        censored=fitted.censored, ks=fitted.ks,
    )  # fmt: skip
    found.add("fleet.start_sigma", fitted.sigma, source, num=fitted.num, ks=fitted.ks)
    if recording.sandbox_failures:
        share = recording.sandbox_failures / (recording.sandbox_failures + len(starts))
        found.add("fleet.failure_rate", share, "starts that failed", num=fitted.num)
    refused = (
        f"it refused {recording.sandbox_refusals} times" if recording.sandbox_refusals else "not met yet"
    )
    for name in ("creates_per_s", "max_starting"):
        found.stand_in(
            f"fleet.{name}", 0, f"the provider's limit is not in the journal ({refused}): no limit"
        )


def _engine(recording: Recording, fitted: EngineFit, found: Found, warnings: list[str]) -> None:
    missing = {one.name: one.reason for one in fitted.missing}
    low, high = fitted.running
    seen = f"turns' decode_s over {low:.0f} to {high:.0f} running, "
    seen += f"{fitted.resident[0]:,.0f} to {fitted.resident[1]:,.0f} resident tokens"
    decode, prefill = fitted.decode, fitted.prefill
    if decode is not None and decode.r2 < LOW_R2:
        warnings.append(
            f"the load explains {max(0.0, decode.r2):.0%} of how the engine's speed varied: other work on "
            "the machine, or the driver, does the rest, and another load may be faster or slower than told"
        )
    for place, name in enumerate(("decode_base_s", "decode_row_s", "decode_token_s")):
        if decode is None:
            found.stand_in(f"timings.{name}", None, f"{missing['decode']}: left to [hardware]")
        elif name in missing:
            found.stand_in(f"timings.{name}", decode.coefficients[place], missing[name], num=decode.num)
        else:
            value = decode.coefficients[place]
            found.add(f"timings.{name}", value, seen, num=decode.num, r2=decode.r2)
    for place, name in enumerate(("prefill_base_s", "prefill_token_s")):
        if prefill is None:
            found.stand_in(f"timings.{name}", None, f"{missing['prefill']}: left to [hardware]")
        elif name in missing:
            found.stand_in(f"timings.{name}", prefill.coefficients[place], missing[name], num=prefill.num)
        else:
            source = "bursts of prefills over their tokens"
            found.add(f"timings.{name}", prefill.coefficients[place], source, num=prefill.num, r2=prefill.r2)
    if not sum(recording.preemptions.values()):
        found.stand_in("timings.kv_tokens", 0, "no replica ran out of KV: no end")


def _trainer(recording: Recording, found: Found, warnings: list[str]) -> None:
    steps = recording.steps[1:] if len(recording.steps) > MIN_STEPS else recording.steps  # the first warms up
    names = ("step_base_s", "step_row_s", "step_token_s")
    if not steps:
        for name in names:
            found.stand_in(f"timings.{name}", None, "no step was taken: left to [hardware]")
        return
    rows, tokens = [float(step.num_rows) for step in steps], [float(step.num_tokens) for step in steps]
    seconds = [step.compute_s for step in steps]
    values, reasons, r2 = _step_line(rows, tokens, seconds)
    for name, value in zip(names, values, strict=True):
        if name in reasons:
            found.stand_in(f"timings.{name}", value, reasons[name], num=len(steps))
        else:
            source = "StepEnded.compute_s over the rows and the tokens of its rollouts"
            found.add(f"timings.{name}", value, source, num=len(steps), r2=r2)
    load_s = round(fmean(step.load_s for step in steps), 9)  # what is left of rounding is none
    source = "from Train, or the publish before it, to computing"
    found.add("timings.load_s", load_s, source, num=len(steps))
    _drift_of_steps(steps, warnings)


def _step_line(
    rows: list[float], tokens: list[float], seconds: list[float]
) -> tuple[tuple[float, float, float], dict[str, str], float | None]:
    """Return base, row and token; why some cannot be told; and R2."""
    ones = [1.0] * len(rows)
    weights = ones  # so that the fit's seconds sum to those that were measured
    same_rows = not varies(rows, 0.02)
    if len(rows) < MIN_STEPS or (same_rows and not varies(tokens, 0.02)):
        why = f"{len(rows)} steps are too few" if len(rows) < MIN_STEPS else "all steps were about as large"
        per_token = sum(seconds) / max(1.0, sum(tokens))
        why = f"{why}: all of a step's time is put on its tokens"
        return (0.0, 0.0, per_token), dict.fromkeys(("step_base_s", "step_row_s", "step_token_s"), why), None
    if same_rows:
        fitted = line((ones, tokens), seconds, weights)
        base, token = fitted.coefficients
        why = f"all steps had about {rows[0]:.0f} rows: the fixed time and the tokens tell it all"
        return (base, 0.0, token), {"step_row_s": why}, fitted.r2
    fitted = line((ones, rows, tokens), seconds, weights)
    base, row, token = fitted.coefficients
    if fitted.condition <= 30.0:
        return (base, row, token), {}, fitted.r2
    alone = line((ones, tokens), seconds, weights)
    why = f"rows go along with tokens (condition {fitted.condition:.0f}): the tokens tell both"
    return (alone.coefficients[0], 0.0, alone.coefficients[1]), {"step_row_s": why}, alone.r2


def _drift_of_steps(steps: list[RecordedStep], warnings: list[str]) -> None:
    """Warn when steps of the same size took longer and longer, or shorter: no line in tokens tells that."""
    if len(steps) < 4 * MIN_STEPS:
        return
    third = len(steps) // 3
    per_token = [step.compute_s / max(1, step.num_tokens) for step in steps]
    first, last = fmean(per_token[:third]), fmean(per_token[-third:])
    if not 0.67 < last / first < 1.5:
        warnings.append(
            f"the trainer took {first * 1e6:.3g} us a token in the first third of the run and "
            f"{last * 1e6:.3g} in the last one: the machine, or what is in a batch, changed"
        )


def _weights(recording: Recording, engine: EngineFit, found: Found) -> None:
    publishes = recording.publishes[1:] or recording.publishes
    for name, values, source in (
        ("publish_s", publishes, "VersionPublished"),
        ("apply_s", engine.swaps, "VersionApplied.pause_s, without computing KV anew"),
        ("save_s", recording.saves, "CheckpointDone"),
    ):
        if values:
            found.add(f"timings.{name}", fmean(values), f"mean of {source}", num=len(values))
        else:
            found.stand_in(f"timings.{name}", 0.0, f"the journal has no {source.partition('.')[0]}: 0")
