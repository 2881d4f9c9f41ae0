"""The guard: watches the run's numbers step by step, and acts when they collapse.

It looks once a step, at what StepEnded told and at the rollouts that were scored since the step before, and
at these also when a batch is empty; the statistics are in `watch`. What it does on an alarm: warn,
pause (no batch is released until a person says so, and the wait has a deadline), roll back to the last
checkpoint from before it with a lower learning rate (a bounded number of times), or stop, resumable and not
saving the collapsed weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.notes import GuardAlarm
from headway.queue.recovery import roll_back
from headway.queue.stopping import stop
from headway.queue.watch import WATCHED, Action, Course, Finding, back_to, observe

if TYPE_CHECKING:
    from headway.core.events import StepEnded
    from headway.queue.context import Context

OUTCOME = "guard"
_FEWEST_SHARE = (
    4  # a step's rollouts are judged from a quarter of a batch on; fewer count with the next step's
)
_UNITS = {"entropy": " nats a token", "mismatch_kl": " nats a token", "response_tokens": " tokens"}


def step_ended(ctx: Context, event: StepEnded) -> bool:
    """Look at the step that ended; return whether the run was taken back to an earlier one."""
    return _look(ctx, event.step, {name: event.metrics[name] for name in WATCHED if name in event.metrics})


def batch_empty(ctx: Context) -> bool:
    """No step is taken, for nothing has a signal; look at the rollouts all the same, as `step_ended` does.

    Where every reward is 0 no step ever ends.
    """
    return _look(ctx, ctx.state.step + 1, {})


def _look(ctx: Context, step: int, values: dict[str, float]) -> bool:
    state, settings = ctx.state.guard, ctx.settings.guard
    if state.num_scored >= max(1, ctx.settings.queue.batch_size // _FEWEST_SHARE):
        values["reward"] = state.sum_reward / state.num_scored
        values["response_tokens"] = state.sum_tokens / state.num_scored
        state.num_scored, state.sum_reward, state.sum_tokens = 0, 0.0, 0
    if settings.action == "off":
        return False
    found: list[Finding] = []
    for name, value in values.items():
        finding = observe(settings, name, state.courses.setdefault(name, Course()), step, value)
        if finding is not None:
            found.append(finding)
    if not found or ctx.state.phase != "running":
        return False
    return _alarm(ctx, found)


def paused(ctx: Context) -> bool:
    """Whether no batch may be released."""
    return ctx.state.guard.paused or ctx.settings.guard.paused


def begin(ctx: Context) -> None:
    """The run runs: where a setting pauses it, nobody waits for ever for a person either."""
    if ctx.settings.guard.paused:
        ctx.warn("guard", "guard.paused is true: no batch is released")
        ctx.expect("guard", ctx.settings.guard.max_pause_s)


def resume(ctx: Context) -> None:
    """A person looked at it: go on."""
    ctx.state.guard.paused = False
    ctx.met("guard")


def taken_back(ctx: Context, step: int) -> None:
    """The steps after `step` are gone, by a resume or by a rollback."""
    state = ctx.state.guard
    for course in state.courses.values():
        back_to(course, step)
    state.num_scored, state.sum_reward, state.sum_tokens = 0, 0.0, 0
    state.paused = False


def deadline(ctx: Context) -> None:
    """Nobody ended a pause."""
    limit = f"guard.max_pause_s = {ctx.settings.guard.max_pause_s:g}"
    stop(
        ctx,
        OUTCOME,
        f"the run was paused and nobody resumed it ({limit}). {_way_on(ctx)}",
        failed=False,
    )


def _alarm(ctx: Context, found: list[Finding]) -> bool:
    """Act once, on whatever was found at this step."""
    state, settings = ctx.state.guard, ctx.settings.guard
    since = min(finding.since for finding in found)
    good = _last_good(ctx, since)
    action: Action = settings.action
    why = ""
    if action == "rollback" and state.num_rollbacks >= settings.max_rollbacks:
        action, why = "stop", f" after {state.num_rollbacks} rollbacks (guard.max_rollbacks)"
    elif action == "rollback" and good is None:
        action, why = "stop", ": no checkpoint from before it is left (checkpoint.keep)"
    for finding in found:
        ctx.note(GuardAlarm(finding.metric, finding.value, finding.limit, action, finding.since))
    text = "; ".join(_words(finding) for finding in found)
    ctx.warn("guard", f"{text} (guard.action {settings.action})")
    if action == "pause":
        state.paused = True
        ctx.expect("guard", settings.max_pause_s)
    elif action == "stop":
        stop(ctx, OUTCOME, f"{text}{why}. {_way_on(ctx)}", failed=False)
    elif action == "rollback" and good is not None:
        state.num_rollbacks += 1
        state.tried.append(good)
        ctx.state.lr_scale *= settings.rollback_lr_scale
        taken_back(ctx, good)
        roll_back(ctx, good, text, same_steps=False)
        return True
    return False


def _last_good(ctx: Context, since: int) -> int | None:
    """Return the newest checkpoint from before step `since`; 0 is the run's beginning.

    Step `since` is measured on the weights of the step before it, so these are not good any more. One that a
    rollback went back to in vain is tried again only when there is no other.
    """
    state = ctx.state.guard
    choices = [*([] if state.dropped else [0]), *ctx.state.saved_steps]
    before = [step for step in choices if step < max(1, since - 1)]
    fresh = [step for step in before if step not in state.tried]
    return (fresh or before[:1] or [None])[-1]


def _words(finding: Finding) -> str:
    unit = _UNITS.get(finding.metric, "")
    side = "below" if finding.value < finding.limit else "above"
    usual = "" if finding.baseline is None else f" (before: {finding.baseline:.4g})"
    return (
        f"{finding.metric} is {finding.value:.4g}{unit} since step {finding.since}, {side} the limit of "
        f"{finding.limit:.4g}{usual}"
    )


def _way_on(ctx: Context) -> str:
    step = max(0, ctx.state.saved_step)
    return f"`headway resume` goes on from the checkpoint of step {step}; change a setting with it"
