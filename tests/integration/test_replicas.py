"""Two generator processes behind one run: they share the groups, take turns at updates, and one may die."""


def test_replicas_share_the_work_and_take_turns_and_a_dead_one_comes_back(bench):
    two = ["generator.replicas=2", "queue.max_updating_replicas=1", "generator.threads=1"]
    command = bench.start("train", bench.config, *bench.environment(), "stop.steps=8", *two).until_step(2)
    bench.kill_one(command, "generator1")
    ended = command.ended()
    assert ended.code == 0, ended.text
    report = bench.check()
    assert (report["outcome"], report["steps"]) == ("steps", 8)
    assert {turn["replica"] for turn in bench.entries("TurnEnded")} == {"generator0", "generator1"}
    applies = bench.entries("ApplyVersion")
    assert applies
    assert all(len(apply["replicas"]) == 1 for apply in applies)
    assert [lost["replica"] for lost in bench.entries("ReplicaLost")] == ["generator1"]
