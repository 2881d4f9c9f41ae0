"""The table of rollouts, to the last field, from journals written by hand; and what a selection means."""

from dataclasses import replace

from headway.core import commands, events, notes
from headway.core.records import Latency, VersionSpan
from headway.telemetry.records import Entry, Stat
from headway.telemetry.rollout_list import mostly, table_lines
from headway.telemetry.rollout_record import Failure, RolloutRecord
from headway.telemetry.rollout_select import Selection, select
from headway.telemetry.rollout_table import RolloutTable

SPAN = VersionSpan(0, 0, 5)


def start(rollout, attempt=0, group="t0"):
    return commands.StartRollout(rollout, attempt, group, "train/7", "train", "policy", 1, 1.0, "g0")


def ended(rollout, attempt=0, spans=(SPAN,), num_turns=1, truncated=False):
    num_tokens = sum(span.num_tokens for span in spans)
    return events.RolloutEnded(
        rollout, attempt, f"f.bin:{rollout}:9", spans, num_turns, 0, 11, num_tokens, truncated
    )


def scored(rollout, reward, attempt=0, reasons=("so",)):
    return events.Scored(rollout, attempt, 1, reward, reasons, 0.5, 0.0, {"close": 0.25})


def turn(rollout, index=0, attempt=0, spans=(SPAN,)):
    return events.TurnEnded(rollout, attempt, index, "g0", spans, 11, 16, 0.0, 0.25, 1.0, "stop")


def settled(rollout, fate, tokens=5, reason=""):
    return notes.RolloutSettled(rollout, "t0", fate, tokens, reason)


def row(rollout, advantage, **more):
    return commands.Row(rollout, "t0", f"f.bin:{rollout}:9", advantage, **more)


def released(step, ages):
    return notes.BatchReleased(0, step, ("t0",), len(ages), 0, ages, ((0, 5),), 0, (0,) * len(ages))


# Two rollouts of one group. t0.0's first attempt fails after a turn; its second is trained in step 1. The
# run is killed before a checkpoint: it resumes at step 0 in lineage 1, and step 1 is taken again.
LIFE = [
    (0.0, events.RunStarted(), [commands.RequestTask(4, "hard", "train", 7, None)], []),
    (1.0, events.TaskOffered(4, "train/7", 3), [start("t0.0"), start("t0.1")], []),
    (2.0, turn("t0.0"), [], []),
    (
        3.0,
        events.RolloutFailed("t0.0", 0, "environment", "exception", "it broke", 6),
        [start("t0.0", 1)],
        [notes.AttemptFailed("t0.0", 0, "environment", "exception", "it broke", True)],
    ),
    (4.0, turn("t0.1"), [], []),
    (4.5, ended("t0.1"), [commands.Score("t0.1", 0, 1, "train/7", "f.bin:t0.1:9")], []),
    (5.0, scored("t0.1", 0.0, reasons=()), [], []),
    (5.0, turn("t0.0", 0, 1), [], []),
    (5.5, turn("t0.0", 0, 1), [], [notes.Ignored("TurnEnded", "t0.0")]),
    (6.0, turn("t0.0", 1, 1, (VersionSpan(0, 0, 1),)), [], []),
    (6.5, ended("t0.0", 1, (VersionSpan(0, 0, 6),), 2, truncated=True), [], []),
    (7.0, scored("t0.0", 1.0, 1), [commands.Signal("t0", ())], []),
    (7.5, scored("t0.0", 9.0, 1), [], [notes.Ignored("Scored", "t0.0")]),
    (
        8.0,
        events.GroupSignal("t0", (("t0.0", 1.5), ("t0.1", -1.5)), turns=((1.0, 2.0), (-1.5,))),
        [commands.Train(0, 1, (row("t0.0", 1.5, turns=(1.0, 2.0)), row("t0.1", -1.5)))],
        [notes.PruneAudited("t0.0", "length", 1.0, True), released(1, (0, 0))],
    ),
]
TRAINED = (
    9.0,
    events.StepEnded(0, 1, 1.0, 20, 11),
    [],
    [settled("t0.0", "trained", 6), settled("t0.1", "trained")],
)
RESUMED = (
    9.0,
    events.RunResumed(1, 0, 9.0),
    [],
    [notes.RolloutRevived("t0.0", "t0"), notes.RolloutRevived("t0.1", "t0")],
)
AGAIN = (
    10.0,
    events.WorkerJoined("trainer", "trainer"),
    [
        commands.Train(
            1, 1, (row("t0.0", 1.5, turns=(1.0, 2.0), weight=0.5), row("t0.1", -1.5, masked=((0, 0),)))
        )
    ],
    [released(1, (0, 0))],
)


def table(*moments):
    found = RolloutTable()
    for seq, (t, event, asked, noted) in enumerate(moments):
        found.feed(Stat(t, {"driver_cpu_s": 1.0}))
        found.feed(Entry(seq, t, event, tuple(asked), tuple(noted)))
    return found.records()


FIRST = RolloutRecord(
    rollout="t0.0",
    group="t0",
    task_id="train/7",
    level=3,
    source="hard",
    purpose="train",
    fate="trained",
    reason="",
    attempt=1,
    started_s=3.0,
    ended_s=7.0,
    payload="f.bin:t0.0:9",
    reward=1.0,
    reasons=("so",),
    reward_metrics={"close": 0.25},
    turn_rewards=(),
    advantage=1.5,
    turn_advantages=(1.0, 2.0),
    num_prompt_tokens=11,
    num_tokens=6,
    num_turns=2,
    num_tool_calls=0,
    truncated=True,
    spans=(VersionSpan(0, 0, 6),),
    latency=Latency(queue_s=1.0, prefill_s=0.5, decode_s=2.0, score_s=0.5),
    end_to_end_s=4.0,
    step=1,
    trajectory_staleness=0,
    token_staleness=0,
    environment_staleness=0,
    weight=1.0,
    masked=(),
    num_masked_tokens=0,
    num_revived=0,
    failures=(Failure(0, "environment", "exception", "it broke", True),),
    audit="length",
    audit_wrong=True,
)


def test_a_rollout_that_failed_once_and_was_trained():
    first, second = table(*LIFE, TRAINED)
    assert first == FIRST
    assert (second.advantage, second.turn_advantages, second.reward, second.step) == (-1.5, (), 0.0, 1)
    assert (second.duration_s, second.failed, first.failed) == (4.0, False, True)


def test_where_a_rollout_is_while_it_goes_on():
    states = [[record.state for record in table(*LIFE[:n])] for n in range(2, len(LIFE) + 1)]
    assert states == [
        ["running", "running"],
        ["running", "running"],
        ["running", "running"],
        ["running", "running"],
        ["running", "scoring"],
        ["running", "scored"],
        ["running", "scored"],
        ["running", "scored"],
        ["running", "scored"],
        ["scoring", "scored"],
        ["scored", "scored"],
        ["scored", "scored"],
        ["training", "training"],
    ]


def test_a_new_attempt_forgets_the_one_before():
    first = table(*LIFE[:4])[0]
    assert (first.attempt, first.num_tokens, first.num_turns, first.spans) == (1, 0, 0, ())
    assert (first.started_s, first.ended_s, first.num_prompt_tokens) == (3.0, None, None)


def test_a_lost_step_is_taken_back():
    first, second = table(*LIFE, TRAINED, RESUMED)
    expected = replace(
        FIRST,
        fate=None,
        step=None,
        trajectory_staleness=None,
        token_staleness=None,
        weight=None,
        num_revived=1,
    )
    assert (first, first.state, second.num_revived) == (expected, "queued", 1)


def test_a_step_that_is_taken_again_says_what_it_masks():
    first, second = table(*LIFE, TRAINED, RESUMED, AGAIN)
    assert (first.step, first.weight, first.state) == (1, 0.5, "training")
    assert (second.masked, second.num_masked_tokens) == (((0, 0),), 5)
    assert (second.trajectory_staleness, second.token_staleness) == (0, None)


def test_a_rollback_takes_back_only_what_lies_after_it():
    kept = (10.0, events.RolledBack(1, 1), [], [notes.RolledBackTo(1, 1, 1, "guard")])
    lost = (10.0, events.DeadlinePassed(), [], [notes.RolledBackTo(0, 1, 1, "guard")])
    assert [record.step for record in table(*LIFE, TRAINED, kept)] == [1, 1]
    assert [record.step for record in table(*LIFE, TRAINED, lost)] == [None, None]


def test_tokens_of_a_lost_branch_age_by_both_branches():
    """Sampled by version 3 of lineage 0, whose fork is at 1; trained in step 4: (3 - 1) + (3 - 1)."""
    span = VersionSpan(0, 3, 5)
    moments = [
        (0.0, events.TaskOffered(0, "train/7", 1), [start("t0.0")], []),
        (1.0, ended("t0.0", spans=(span,)), [], []),
        (2.0, events.RunResumed(1, 1, 2.0), [], []),
        (3.0, scored("t0.0", 1.0), [commands.Train(0, 4, (row("t0.0", 1.0),))], [released(4, (4,))]),
    ]
    assert [record.token_staleness for record in table(*moments)] == [4]


def test_late_members_change_their_group_and_a_rollout_that_never_started_has_no_record():
    split = notes.GroupSplit("t0", "t0~late", ("t0.1", "t0.9"))
    last = (20.0, events.DeadlinePassed(), [], [split, settled("t0.8", "stopped", 0)])
    assert [(record.rollout, record.group) for record in table(*LIFE[:3], last)] == [
        ("t0.0", "t0"),
        ("t0.1", "t0~late"),
    ]


# --- selection


def records():
    first, second = table(*LIFE, TRAINED)
    third = replace(second, rollout="t0.2", reward=0.0, advantage=-2.0, num_tokens=50, step=2, ended_s=99.0)
    fourth = replace(
        second, rollout="e0.0", purpose="eval", reward=None, fate="failed_reward", ended_s=None, step=None
    )
    return [first, second, third, fourth]


def names(**conditions):
    return [record.rollout for record in select(records(), Selection(**conditions))]


def test_orders():
    assert names() == ["e0.0", "t0.2", "t0.1", "t0.0"]
    assert names(order="oldest") == ["t0.0", "t0.1", "t0.2", "e0.0"]
    assert names(order="worst") == ["t0.2", "t0.1", "t0.0"]
    assert names(order="best") == ["t0.0", "t0.1", "t0.2"]
    assert names(order="longest") == ["t0.2", "t0.0", "e0.0", "t0.1"]
    assert names(order="slowest") == ["t0.2", "t0.1", "t0.0"]


def test_conditions_hold_together():
    assert names(purpose="eval") == ["e0.0"]
    assert names(step=1) == ["t0.1", "t0.0"]
    assert names(states=("failed_reward",)) == ["e0.0"]
    assert names(min_reward=0.5) == ["t0.0"]
    assert names(max_reward=0.5) == ["t0.2", "t0.1"]
    assert names(failed=True) == ["e0.0", "t0.0"]
    assert names(failed=True, purpose="train") == ["t0.0"]
    assert names(groups=("t0",), rollouts=("t0.1",)) == ["t0.1"]
    assert names(tasks=("train/8",)) == []


# --- the table as text


TABLE = """\
rollout  task     purpose  reward  advantage  tokens  turns  step  stale  fate            time  mostly      why
t0.0     train/7  train      1.00      +1.50       6      2     1      0  trained        4.00s  decode 50%  so
t0.1     train/7  train      0.00      -1.50       5      1     1      0  trained        4.00s  queue 56%   -
t0.2     train/7  train      0.00      -2.00      50      1     2      0  trained        1m38s  queue 56%   -
e0.0     train/7  eval          -      -1.50       5      1     -      0  failed_reward      -  queue 56%   -"""  # noqa: E501


def test_the_table_line_by_line():
    assert "\n".join(table_lines(records())) == TABLE


def test_a_narrow_table_leaves_columns_out_and_keeps_what_is_wanted():
    for width in (80, 70, 60, 50):
        assert max(map(len, table_lines(records(), width))) <= width
    assert "mostly" not in table_lines(records(), 60)[0]
    assert "mostly" in table_lines(records(), 60, ("mostly",))[0]


def test_the_reason_of_a_reward_is_whole_in_a_pipe_and_cut_to_a_terminal():
    why = "the answer is 17, not " + "1" * 200
    found = [replace(FIRST, reasons=(why, "more")), replace(FIRST, reasons=())]
    assert [line.split()[-1] for line in table_lines(found)[1:]] == ["1" * 200, "-"]
    assert table_lines(found)[1].endswith(why)
    for width in (140, 120, 80):
        head, line, _ = table_lines(found, width, ("why",))
        assert head.endswith("why")
        assert len(line) <= width
        assert line[head.index("why") :].startswith("the answer is 17, n")
    assert "why" not in table_lines([replace(FIRST, reasons=(), failures=())])[0]


def test_the_reason_of_a_rollout_without_a_reward_is_how_it_failed():
    failure = replace(FIRST.failures[-1], message="no\nmodule")
    line = table_lines([replace(FIRST, reward=None, reasons=(), failures=(failure,))])[1]
    assert line.endswith("no\\nmodule")


def test_what_took_most_of_a_failed_rollouts_time_is_its_failure():
    failed = replace(FIRST, latency=None, end_to_end_s=None)
    assert mostly(failed) == "exception"
    assert mostly(replace(failed, failures=())) == "-"


def test_names_from_outside_are_escaped_in_the_table():
    line = table_lines([replace(FIRST, task_id="a\x1b[31m\nb" + "x" * 60)])[1]
    assert "\x1b" not in line
    assert "\n" not in line
    assert "a\\x1b[31m\\nb" in line
