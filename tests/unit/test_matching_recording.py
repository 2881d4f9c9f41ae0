"""What is read of a journal, on journals of a few lines: exact values."""

import pytest

from headway.core import commands, events, notes
from headway.core.records import VersionSpan
from headway.matching.calibrate import calibrate
from headway.matching.engine_fit import fit_engine
from headway.matching.engine_requests import requests_of
from headway.matching.recording import record
from headway.telemetry.header import new_header
from headway.telemetry.records import Entry


class Lines:
    """A journal of hand-made lines."""

    def __init__(self, kv="keep"):
        self.header = new_header(config={"queue": {"batch_size": 2}}, seed=0, queue={"kv": kv})
        self.entries = []

    def __iter__(self):
        return iter(self.entries)

    def add(self, t, event, *more):
        asked = tuple(item for item in more if type(item).__name__ in commands.COMMANDS)
        said = tuple(item for item in more if type(item).__name__ in notes.NOTES)
        self.entries.append(Entry(len(self.entries), t, event, asked, said))
        return self

    def start(self, t, rollout, task="train/0", purpose="train", replica="g0"):
        group = rollout.partition(".")[0]
        return self.add(
            t,
            events.DeadlinePassed(),
            commands.StartRollout(rollout, 0, group, task, purpose, "main", 0, 1.0, replica),
        )

    def turn(self, t, rollout, turn, tokens, prompt, *, waiting=0.0, prefill=0.0, decode=1.0, finish="stop"):
        spans = (VersionSpan(0, 0, tokens),)
        event = events.TurnEnded(
            rollout, 0, turn, "g0", spans, prompt, prompt + tokens, waiting, prefill, decode, finish
        )
        return self.add(t, event)

    def end(self, t, rollout, turns, tokens, prompt, truncated=False):
        spans = (VersionSpan(0, 0, tokens),)
        ended = events.RolloutEnded(rollout, 0, "p", spans, turns, 0, prompt, tokens, truncated)
        return self.add(t, ended)


def test_the_time_between_answers_is_what_the_engine_does_not_explain():
    lines = Lines().start(0.0, "t000000.0")
    lines.turn(2.0, "t000000.0", 0, 10, 20, decode=1.5)
    lines.turn(9.0, "t000000.0", 1, 5, 40, waiting=0.5, prefill=0.25, decode=1.25)
    lines.end(9.75, "t000000.0", 2, 15, 30)
    (attempt,) = record(lines).attempts
    assert [turn.after_s for turn in attempt.turns] == [5.0, 0.75]
    assert not any(turn.cut_short for turn in attempt.turns)
    assert (attempt.outcome, attempt.num_tokens, attempt.prompt_tokens) == ("ended", 15, 30)


def test_standing_still_and_sandbox_starts_are_no_part_of_it():
    lines = Lines().start(0.0, "t000000.0")
    lines.turn(2.0, "t000000.0", 0, 10, 20)
    lines.add(2.5, events.SandboxWanted("t000000.0", 0, "s", "rollout"))
    lines.add(3.0, events.DeadlinePassed(), commands.GrantSandbox("t000000.0", 0, "s"))
    lines.add(4.5, events.SandboxReady("t000000.0", 0, "s", 1.5))
    lines.add(8.0, events.RolloutResumed("t000000.0", 0, "g0", 0, 1.0))
    lines.turn(10.0, "t000000.0", 1, 5, 40, decode=1.0)
    (attempt,) = record(lines).attempts
    # 7 s between the answers, of which 2 s for the sandbox and 1 s parked.
    assert attempt.turns[0].after_s == 4.0
    assert attempt.sandbox_start_s == 1.5


def test_what_was_ended_is_cut_short():
    lines = Lines().start(0.0, "t000000.0")
    lines.turn(2.0, "t000000.0", 0, 10, 20)
    lines.add(5.0, events.RolloutFailed("t000000.0", 0, "scheduler", "cancelled", "", 17))
    (attempt,) = record(lines).attempts
    assert (attempt.outcome, attempt.num_tokens, attempt.num_answered) == ("stopped", 17, 10)
    assert (attempt.turns[0].after_s, attempt.turns[0].cut_short) == (3.0, True)


def test_waiting_for_a_sandbox_that_never_came_is_no_tool_time():
    lines = Lines().start(0.0, "t000000.0")
    lines.turn(2.0, "t000000.0", 0, 10, 20)
    lines.add(2.5, events.SandboxWanted("t000000.0", 0, "s", "rollout"))
    lines.add(60.0, events.RolloutFailed("t000000.0", 0, "scheduler", "cancelled", "", 10))
    (attempt,) = record(lines).attempts
    assert (attempt.turns[0].after_s, attempt.turns[0].cut_short) == (0.5, True)


def test_a_start_that_was_given_up_took_at_least_so_long():
    lines = Lines().start(0.0, "t000000.0")
    lines.add(3.0, events.DeadlinePassed(), commands.GrantSandbox("t000000.0", 0, "s"))
    lines.add(7.0, events.DeadlinePassed(), commands.ReleaseSandbox("t000000.0", 0, "s"))
    assert record(lines).starts_cut == [4.0]


def trained(lines, t, step, compute_s, rollouts):
    rows = tuple(commands.Row(name, name.partition(".")[0], "p", 1.0) for name in rollouts)
    lines.add(t, events.DeadlinePassed(), commands.Train(step, step, rows))
    lines.add(t + 0.25 + compute_s, events.StepEnded(step, step, compute_s, 1, 1))


def test_a_step_is_its_rows_whole():
    """What prefix sharing saves is in the seconds, not in the tokens: so a simulation counts them too."""
    lines = Lines()
    for name, tokens in (("t000000.0", 30), ("t000000.1", 50)):
        lines.start(0.0, name)
        lines.turn(1.0, name, 0, tokens, 20)
        lines.end(1.5, name, 1, tokens, 20)
    trained(lines, 2.0, 1, 4.0, ["t000000.0", "t000000.1"])
    (step,) = record(lines).steps
    assert (step.step, step.num_rows, step.num_tokens, step.sum_squares) == (1, 2, 120, 50.0**2 + 70.0**2)
    assert (step.compute_s, step.load_s) == (4.0, pytest.approx(0.25))


def test_loading_begins_behind_the_publish_before_it():
    lines = Lines().start(0.0, "t000000.0")
    rows = (commands.Row("t000000.0", "t000000", "p", 1.0),)
    lines.add(2.0, events.DeadlinePassed(), commands.Train(1, 1, rows))
    lines.add(3.0, events.VersionPublished(0, 1, 1.0, "m", 1))
    lines.add(5.5, events.StepEnded(1, 1, 2.0, 1, 1))
    (step,) = record(lines).steps
    assert step.load_s == 0.5


def test_a_later_event_of_an_older_attempt_is_left_out():
    lines = Lines().start(0.0, "t000000.0")
    lines.turn(2.0, "t000000.0", 0, 10, 20)
    lines.turn(2.5, "t000000.0", 0, 10, 20)  # told again
    lines.add(3.0, events.TurnEnded("t000000.0", 7, 1, "g0", (), 1, 1, 0.0, 0.0, 1.0, "stop"))
    (attempt,) = record(lines).attempts
    assert len(attempt.turns) == 1


def test_a_resume_leaves_what_was_in_flight_open():
    lines = Lines().start(0.0, "t000000.0")
    lines.turn(2.0, "t000000.0", 0, 10, 20)
    lines.add(10.0, events.RunResumed(1, 0, 10.0))
    (attempt,) = record(lines).attempts
    assert (attempt.outcome, attempt.turns[0].cut_short) == ("open", True)


def test_rows_and_tokens_of_an_iteration_are_found_exactly():
    """Answers decoded alone, and in pairs, over short and long contexts: each takes what the line says."""
    base, row, token = 0.02, 0.005, 1e-5
    lines, t = Lines(), 0.0
    for number in range(40):
        together, prompt, length = 1 + number % 2, 100 * (1 + number % 5), 10 + number
        # Resident tokens grow from prompt to prompt + length while it is decoded.
        resident = together * (prompt + length / 2)
        seconds = length * (base + row * together + token * resident)
        for member in range(together):
            lines.start(t, f"t{number:06d}.{member}")
        t += seconds
        for member in range(together):
            name = f"t{number:06d}.{member}"
            lines.turn(t, name, 0, length, prompt, decode=seconds)
            lines.end(t, name, 1, length, prompt)
        t += 1.0
    fitted = fit_engine(record(lines)).decode
    assert fitted.coefficients == pytest.approx((base, row, token), rel=1e-6)
    assert fitted.r2 == pytest.approx(1.0, abs=1e-9)


def test_a_prefill_that_falls_into_an_answer_is_taken_off():
    lines = Lines()
    for number in range(40):
        t = 100.0 * number
        first, second, length = f"t{2 * number:06d}.0", f"t{2 * number + 1:06d}.0", 100 + number
        lines.start(t, first).start(t, second)
        # The second prompt takes 2 s while the first is being decoded, 10 tokens a second otherwise.
        held = 2.0 + number / 100
        lines.turn(t + 12, second, 0, 20, 200 + number, prefill=held, decode=2.0)
        lines.turn(t + 20, first, 0, length, 10, prefill=0.1, decode=held + 0.1 * length)
    requests = {one.num_tokens: one for one in requests_of(record(lines))}
    assert requests[20].prefill_tokens == 200 + 39
    fitted = fit_engine(record(lines))
    assert fitted.prefill.coefficients[1] == pytest.approx(0.01, rel=0.1)
    told = fitted.decode.coefficients
    assert told[0] + told[1] * 1.2 + told[2] * 150 == pytest.approx(0.1, rel=0.05)


def test_a_pause_in_which_kv_was_computed_anew_is_no_decoding():
    """It is in prefill_s, as the engine tells it; the answer began the earlier."""
    lines = Lines(kv="recompute").start(0.0, "t000000.0")
    lines.add(6.0, events.VersionApplied("g0", 0, 0, 1, 3.0))
    lines.turn(10.0, "t000000.0", 0, 60, 20, prefill=3.5, decode=6.0)
    (request,) = requests_of(record(lines))
    assert (request.begin_s, request.prefill_s, request.decode_s) == (1.0, 0.5, 6.0)


def test_members_of_a_group_share_its_prompt_until_a_new_version():
    lines = Lines(kv="recompute")
    for member, t in enumerate((1.0, 2.0, 9.0)):
        lines.start(0.0, f"t000000.{member}")
        if member == 2:
            lines.add(5.0, events.VersionApplied("g0", 0, 0, 1, 0.1))
        lines.turn(t, f"t000000.{member}", 0, 5, 300, prefill=0.1, decode=0.5)
    assert [one.prefill_tokens for one in requests_of(record(lines))] == [300, 1, 300]


def test_a_journal_of_nothing_tells_nothing_and_says_so():
    found = calibrate(Lines())
    assert found.steps == 0
    unknown = {one.key for one in found.parameters if not one.is_identified}
    assert {"timings.decode_base_s", "timings.prefill_token_s", "timings.step_base_s"} <= unknown
    assert {"workload.answer_tokens", "workload.turns", "workload.solve_alpha"} <= unknown
    assert found.timings.decode_base_s is None


def test_a_tool_that_was_done_when_its_rollout_was_ended_is_not_cut_short():
    """The call took 1.5 s; the rest until the end was the next answer, which never came."""
    lines = Lines().start(0.0, "t000000.0")
    lines.turn(2.0, "t000000.0", 0, 10, 20)
    lines.add(3.5, events.ToolEnded("t000000.0", 0, 0, 0, 1.5, "exit"))
    lines.add(30.0, events.RolloutFailed("t000000.0", 0, "scheduler", "cancelled", "", 10))
    (attempt,) = record(lines).attempts
    assert (attempt.turns[0].after_s, attempt.turns[0].cut_short) == (1.5, False)
