"""What the policies give up, the housekeeper's measurements, and a resume's view of what is there."""

from dataclasses import replace

import pytest

from headway.config.load import load_config
from headway.config.retention import RetentionSettings
from headway.core.events import DiskFull, Noticed, RunResumed, RunStarted
from headway.core.notes import Warned
from headway.queue.scheduler import Scheduler
from headway.queue.settings import SchedulerSettings
from headway.queue.state import GroupState, RolloutState, State
from headway.runtime import reserve, retention
from headway.runtime.housekeeper import Housekeeper, Tidy, measure
from headway.runtime.kept import best_checkpoint
from headway.runtime.retention import Needs, needs_of, spare_segments, spare_snapshots
from headway.sandbox.store import Store
from headway.telemetry.disk import DiskUse, SegmentAges
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.records import Stat
from headway.telemetry.steps import EvalPoint
from headway.trainer.checkpoints import beyond, retain, writing

NOTHING = Needs(40, frozenset(), (1000, 1000), 0, frozenset())


def group(name, stage="queued", step=0, **rollout):
    made = GroupState(name, "eval" if name[0] == "e" else "train", 0, 0, stage=stage, step=step)
    made.rollouts = [RolloutState(f"{name}.0", name, 0, 0.0, **{"station": stage, **rollout})]
    return made


@pytest.fixture
def store(tmp_path):
    """Three train segments of ten steps each, with samples and parked ones; two of evaluations."""
    for name in ("train-t000000", "train-t000001", "train-t000002", "sample-t000000", "parked-t000001"):
        (tmp_path / f"environment0.0.{name}.bin").write_bytes(b"x")
    for name in ("eval-e000000", "eval-e000001"):
        (tmp_path / f"environment0.0.{name}.bin").write_bytes(b"x")
    (tmp_path / "environment0.0.bin").write_bytes(b"x")
    return tmp_path


def going(store, needs=NOTHING, **policy):
    spare = spare_segments(store, needs, RetentionSettings(**policy), {0: 10, 1: 20, 2: 30})
    return [path.name.removeprefix("environment0.0.").removesuffix(".bin") for path in spare]


def test_each_policy_gives_up_what_it_says(store):
    trains = ["train-t000000", "train-t000001", "train-t000002"]
    assert going(store) == ["parked-t000001"]
    assert going(store, payloads="none") == ["parked-t000001", *trains]
    assert going(store, payloads=20) == ["parked-t000001", *trains[:2]]
    assert going(store, payloads=11) == ["parked-t000001", *trains[:2]]
    assert going(store, payloads=10) == ["parked-t000001", *trains]
    assert going(store, payloads="none", evaluations=False, sample_groups=0) == [
        "eval-e000000", "eval-e000001", "parked-t000001", "sample-t000000", *trains,
    ]  # fmt: skip


def test_what_is_needed_or_still_written_stays(store):
    needed = replace(NOTHING, segments=frozenset({(False, 1), (True, 0)}))
    assert going(store, needed, payloads="none", evaluations=False) == [
        "eval-e000001", "train-t000000", "train-t000002",
    ]  # fmt: skip
    begun = replace(NOTHING, begun=(47, 32))  # the last group of segment 2 has not begun
    assert going(store, begun, payloads="none", evaluations=False) == [
        "eval-e000000", "eval-e000001", "parked-t000001", "train-t000000", "train-t000001",
    ]  # fmt: skip
    over = replace(begun, writer_life=None)
    assert "train-t000002" in going(store, over, payloads="none")
    other = replace(begun, writer_life=3)  # nobody writes into an earlier life's files
    assert "train-t000002" in going(store, other, payloads="none")


def test_the_needs_of_a_state():
    state = State(step=4, next_group=50, next_eval_group=7)
    state.groups = {
        g.id: g
        for g in (
            group("t000001~late"),
            group("t000017", "trained", 2),
            group("t000033", "trained", 4, station="parked", partial="p"),
            group("e000002", "running", station="running"),
        )
    }
    needs = needs_of(state, writer_life=1)
    assert needs.segments == {(False, 0), (False, 1), (False, 2), (True, 0)}
    assert (needs.step, needs.begun) == (4, (50, 7))
    assert needs.rollouts == {"t000033.0", "e000002.0"}
    over = needs_of(state, contained=2)
    assert over.segments == {(False, 0), (False, 2)}
    assert over.rollouts == {"t000033.0"}


def test_snapshots_that_no_rollout_goes_on_from_go(tmp_path):
    store, work = Store(tmp_path / "snapshots"), tmp_path / "work"
    work.mkdir()
    (work / "shared").write_text("shared")
    taken = {}
    for name in ("t000001.0", "t000002~1.3"):
        (work / "file").write_text(name)
        taken[name] = store.take(work, {"rollout": name})
    draft = tmp_path / "snapshots" / "drafts" / "left"
    draft.write_text("x")
    needs = replace(NOTHING, rollouts=frozenset({"t000002~1.3"}))
    with spare_snapshots(tmp_path, needs) as spare:
        assert [path.parent.name for path in spare] == ["snapshots", "trees", "blobs", "drafts"]
        assert (spare[0].name, spare[2].read_text(), spare[3]) == (taken["t000001.0"], "t000001.0", draft)
        assert retention.remove(spare) > 0
    assert list(store.snapshots()) == [taken["t000002~1.3"]]
    with spare_snapshots(tmp_path, needs) as spare:
        assert spare == []
    with spare_snapshots(tmp_path / "none", needs) as spare:
        assert spare == []


@pytest.fixture
def checkpoints(tmp_path):
    for step in range(2, 21, 2):
        with writing(tmp_path, step, {}) as staging:
            (staging / "weights").write_bytes(b"12345678")
    return tmp_path


def test_newest_milestones_and_best_stay(checkpoints):
    def kept(step, keep, **more):
        gone = {path.name for path in beyond(checkpoints, step, keep, **more)}
        return [int(path.name[-6:]) for path in sorted(checkpoints.iterdir()) if path.name not in gone]

    assert kept(20, 2) == [18, 20]
    assert kept(20, 2, every=8) == [8, 16, 18, 20]
    assert kept(20, 1, also=(4, 5)) == [4, 20]
    assert kept(12, 2, every=8) == [8, 10, 12]  # 16 and later are of a branch that was lost
    retain(checkpoints, 20, 1, every=10)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-000010", "step-000020"]


def test_the_best_checkpoint_is_there_and_of_the_surviving_branch(checkpoints):
    metrics = RunMetrics()
    assert best_checkpoint(metrics, checkpoints) == ()
    for step, reward in ((0, 0.9), (4, 0.5), (7, 0.8), (10, 0.5), (12, None), (14, 0.2)):
        metrics.steps.evals.append(EvalPoint(step, 0.0, reward, 8, 0))
    assert best_checkpoint(metrics, checkpoints) == (10,)


def test_a_full_disk_ends_the_run_and_a_notice_is_a_warning():
    scheduler = Scheduler(SchedulerSettings())
    scheduler.handle(RunStarted(), 0.0)
    _, notes = scheduler.handle(Noticed("disk_low", "little is free"), 1.0)
    assert notes == [Warned("disk_low", "little is free")]
    commands, _ = scheduler.handle(DiskFull("trainer", "no room for x"), 2.0)
    assert (commands[-1].outcome, commands[-1].message, commands[-1].failed) == (
        "disk_full",
        "no room for x",
        True,
    )


def test_a_resume_forgets_checkpoints_that_are_not_whole():
    scheduler = Scheduler(SchedulerSettings())
    scheduler.state.saved_steps = [10, 20, 30]
    scheduler.handle(RunResumed(1, 20, 5.0, saved=(20,)), 5.0)
    assert scheduler.state.saved_steps == [20]


def test_disk_use_from_stats():
    use = DiskUse()
    assert set(use.summary().values()) == {None}
    use.feed(Stat(0.0, {"driver_cpu_s": 1.0}), 0)
    sizes = {f"disk.{kind}_bytes": 100.0 for kind in ("checkpoints", "payloads", "journal", "weights")}
    use.feed(Stat(1.0, {**sizes, "disk.free_bytes": 9000.0}), 2)
    assert use.summary()["rl.disk.growth_bytes_per_step"] is None
    use.feed(Stat(2.0, {**sizes, "disk.payloads_bytes": 300.0, "disk.free_bytes": 8000.0}), 6)
    assert use.summary() == {
        "rl.disk.checkpoints_bytes": 100.0,
        "rl.disk.payloads_bytes": 300.0,
        "rl.disk.journal_bytes": 100.0,
        "rl.disk.weights_bytes": 100.0,
        "rl.disk.free_bytes": 8000.0,
        "rl.disk.growth_bytes_per_step": 50.0,
        "rl.disk.steps_until_full": 160.0,
    }


def test_a_segment_is_as_old_as_its_newest_group():
    ages = SegmentAges()
    for name, step in (("t000003", 2), ("t000015~1", 5), ("t000002", 3), ("t000016", 1), ("e000001", 9)):
        ages.touch(name, step)
    assert ages.newest == {0: 5, 1: 1}


def test_the_housekeeper_measures_tidies_and_warns_once(tmp_path):
    run, handed = tmp_path / "run", tmp_path / "shm"
    for folder in (run / "payloads", run / "checkpoints", handed):
        folder.mkdir(parents=True)
    (run / "payloads" / "environment0.0.train-t000000.bin").write_bytes(b"x" * 10_000)
    (run / "journal.jsonl").write_bytes(b"x" * 5000)
    (handed / "version").write_bytes(b"x" * 20_000)
    sizes = measure(run, handed)
    assert sizes["disk.journal_bytes"] == 8192
    assert sizes["disk.payloads_bytes"] >= 12_288
    assert sizes["disk.weights_bytes"] >= 20_480
    told = []
    keeper = Housekeeper(run, handed, 1 << 60, told.append)
    keeper.start()
    keeper.tidy(Tidy(NOTHING, RetentionSettings(payloads="none"), {}, 0))
    keeper.stop()
    stats = [values for values in told if isinstance(values, dict)]
    assert stats[-1]["disk.payloads_bytes"] < stats[0]["disk.payloads_bytes"]
    assert stats[-1]["disk.weights_bytes"] == 0
    (notice,) = [event for event in told if isinstance(event, Noticed)]
    assert notice.code == "disk_low"
    assert "the next 2 checkpoints need " in notice.text
    assert not list((run / "payloads").iterdir())


def test_the_reserve_is_taken_once_and_given_up_once(tmp_path):
    reserve.take(tmp_path)
    reserve.take(tmp_path)
    assert (tmp_path / reserve.NAME).stat().st_blocks * 512 >= reserve.NUM_BYTES
    assert reserve.give_up(tmp_path)
    assert not reserve.give_up(tmp_path)


def test_settings_are_all_none_or_a_number():
    base = ["model.path=tiny", "environment.name=arithmetic"]
    assert load_config(None, [*base, "retention.payloads=20"]).retention.payloads == 20
    assert load_config(None, [*base, "retention.payloads=none"]).retention.payloads == "none"
    for wrong in ("0", "some", "-1"):
        with pytest.raises(Exception, match=r"retention\.payloads"):
            load_config(None, [*base, f"retention.payloads={wrong}"])
