"""Checks of the machine: cores, memory, disk, and sandboxes, as many as are asked for."""

import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections import namedtuple
from unittest.mock import AsyncMock, Mock

import pytest

from headway.core.errors import SandboxError
from headway.core.facts import ModelFacts
from headway.core.protocols import ExecResult, Guarantee
from headway.matching.memory import checkpoint_bytes, estimate_memory, handover_bytes, rollouts_in_flight
from headway.runtime.preflight import disk, machine, sandbox_limits, sandboxes
from headway.runtime.preflight.machine import memory_bytes, processes_free, uses_sandbox
from headway.sandbox import pools
from headway.sandbox.leases import LeaseBook, own_label, read_books
from headway.sandbox.settings import SandboxSettings
from tests.unit.preflight_parts import found, only, subject

MIB = 1 << 20
CODE = ("environment.name=python-code", "generator.max_context_tokens=256")
SMOLLM2 = ModelFacts(134_515_008, 30, 576, 9, 3, 64, 1536, 49_152, 8192)
QUICKSTART = (
    "generator.max_running=64",
    "generator.max_context_tokens=256",
    "queue.batch_size=32",
    "queue.depth=1",
    "eval.num_tasks=64",
)


def test_threads_within_the_cores_are_well(checkpoint, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    text = "4 cores, divided by who has something to do"
    assert only(found(subject(checkpoint), "cores"), "ok").text == text
    both = ("generator.threads=2", "trainer.threads=2")
    assert only(found(subject(checkpoint, *both), "cores"), "ok").text == "4 cores, as set"
    assert only(found(subject(checkpoint, "trainer.threads=4"), "cores"), "ok")


@pytest.mark.parametrize(
    ("key", "overrides"),
    [
        ("generator.threads", ["generator.threads=3", "trainer.threads=2"]),
        ("generator.replicas", ["generator.replicas=5"]),
        ("trainer.threads", ["trainer.threads=5"]),
    ],
)
def test_more_threads_than_cores(checkpoint, monkeypatch, key, overrides):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    finding = only(found(subject(checkpoint, *overrides), "cores"), "warning")
    assert (finding.key, finding.where) == (key, "command line")


def test_memory_against_what_is_free(checkpoint, monkeypatch):
    monkeypatch.setattr(machine, "memory_bytes", lambda: (8 << 30, 4 << 30))
    text = only(found(subject(checkpoint), "model", "memory"), "ok").text
    assert text.endswith("of 4.0 GiB that are free")
    monkeypatch.setattr(machine, "memory_bytes", lambda: (8 << 30, 100 * MIB))
    assert "0.1 GiB are free" in only(found(subject(checkpoint), "model", "memory"), "warning").text
    monkeypatch.setattr(machine, "memory_bytes", lambda: (500 * MIB, 400 * MIB))
    assert (
        "at least, and there are 0.5 GiB" in only(found(subject(checkpoint), "model", "memory"), "error").text
    )


def test_memory_of_the_machine_and_of_a_control_group(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\n")
    assert memory_bytes(proc, groups) == (1000 * 1024, 600 * 1024)
    inner = groups / "jobs" / "one"
    inner.mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/jobs/one\n")
    (inner / "memory.max").write_text("max\n")
    (groups / "jobs" / "memory.max").write_text("500000\n")
    (groups / "jobs" / "memory.current").write_text("300000\n")
    (groups / "jobs" / "memory.stat").write_text("anon 1\ninactive_file 50000\n")
    assert memory_bytes(proc, groups) == (500_000, 250_000)


def test_the_estimate_is_near_what_the_quickstart_took(checkpoint):
    """Measured peaks (VmHWM) of its processes on Linux with torch 2.13: 2101 and 2770 MiB."""
    config = subject(checkpoint, *CODE, *QUICKSTART).config
    estimate = estimate_memory(SMOLLM2, config, context_tokens=144)  # what `headway check` finds
    sizes = estimate.likely_processes
    assert sizes["trainer"] / MIB == pytest.approx(2101, rel=0.15)
    assert sizes["generator0"] / MIB == pytest.approx(2770, rel=0.15)
    assert estimate.processes["generator0"] - sizes["generator0"] == 128 * (256 - 144) * 46_080


def test_what_is_likely_of_kv_is_never_more_than_its_limit(checkpoint):
    config = subject(checkpoint, *CODE, *QUICKSTART, "generator.kv_cache_mb=100").config
    for context_tokens in (0, 8, 256, 1000):
        estimate = estimate_memory(SMOLLM2, config, context_tokens=context_tokens)
        (kv,) = (part for part in estimate.parts if part.what == "KV")
        expected = {0: None, 8: 128 * 8 * 46_080}.get(context_tokens, 100 * MIB)
        assert (kv.num_bytes, kv.likely_bytes) == (100 * MIB, expected)


@pytest.mark.parametrize(
    ("overrides", "measured"),
    [
        (["trainer.micro_batch_tokens=568"], 1660),
        (["trainer.micro_batch_tokens=1016"], 2120),
        (["trainer.micro_batch_tokens=568", "trainer.full=true"], 3083),
    ],
)
def test_the_estimate_of_a_step_is_near_what_it_took(checkpoint, overrides, measured):
    """Measured peaks (VmHWM, MiB) of three steps on random tokens; no checkpoint was written in them."""
    config = subject(checkpoint, *CODE, *QUICKSTART, *overrides).config
    parts = [part for part in estimate_memory(SMOLLM2, config).parts if part.process == "trainer"]
    size = sum(part.num_bytes for part in parts if part.what != "checkpoint")
    assert size / MIB == pytest.approx(measured, rel=0.15)


def test_each_further_rank_takes_what_the_trainer_takes_without_its_checkpoints(checkpoint):
    config = subject(checkpoint, "trainer.ranks=3").config
    sizes = estimate_memory(SMOLLM2, config).processes
    further = sizes["trainer"] - checkpoint_bytes(SMOLLM2, config)
    assert sizes["trainer rank 1"] == sizes["trainer rank 2"] == further


def test_sizes_follow_from_the_parameters(checkpoint):
    full = subject(checkpoint, "trainer.full=true").config
    assert checkpoint_bytes(SMOLLM2, full) == 12 * SMOLLM2.num_params
    assert handover_bytes(SMOLLM2, full) == 20 * SMOLLM2.num_params
    lora = subject(checkpoint, "trainer.lora_rank=8").config
    assert checkpoint_bytes(SMOLLM2, lora) == 12 * SMOLLM2.lora_params(8)


def test_rollouts_in_flight(checkpoint):
    def number(*overrides):
        return rollouts_in_flight(
            subject(checkpoint, "queue.batch_size=32", "eval.num_tasks=0", *overrides).config
        )

    assert number("queue.bound=0") == 32
    assert number("queue.bound=2") == 96
    assert number("queue.bound=2", "queue.depth=1") == 64
    assert number("queue.bound=0", "oversampling.rollouts_extra=2", "oversampling.groups_extra=1") == 50
    assert number("queue.bound=2", "queue.max_running_rollouts=20") == 20
    assert number("queue.bound=0", "eval.num_tasks=48") == 80
    assert (
        number("queue.bound=0", "eval.num_tasks=48", "eval.max_share=0.5", "generator.max_running=32") == 48
    )


def usage(free):
    return lambda path: namedtuple("Usage", "total used free")(10**12, 0, free)


def test_disk(checkpoint, tmp_path, monkeypatch):
    here = f"run.dir={tmp_path}/new/runs"
    text = only(found(subject(checkpoint, here), "model", "disk"), "ok").text
    assert text.startswith("3 checkpoints of 1.3 MB, rollouts of ")
    endless = only(
        found(subject(checkpoint, here, "stop.steps=0", "stop.wall_s=9"), "model", "disk"), "ok"
    ).text
    assert "rollouts without end (stop.steps is 0)" in endless
    monkeypatch.setattr(disk, "fits_shared_memory", lambda size: True)
    monkeypatch.setattr(shutil, "disk_usage", usage(3_000_000))
    finding = only(found(subject(checkpoint, here), "model", "disk"), "warning")
    assert finding.key == "run.dir"
    assert "3.0 MB are free" in finding.text
    monkeypatch.setattr(shutil, "disk_usage", usage(100_000))
    assert "room for a checkpoint" in only(found(subject(checkpoint, here), "model", "disk"), "error").text
    monkeypatch.setattr(shutil, "disk_usage", usage(10**10))
    monkeypatch.setattr(disk, "fits_shared_memory", lambda size: False)
    assert "/dev/shm has no room" in found(subject(checkpoint, here), "model", "disk")[-1].text


def test_a_run_directory_that_is_not_writable(checkpoint):
    finding = only(found(subject(checkpoint, "run.dir=/proc/1/runs"), "model", "disk"), "error")
    assert (finding.key, "not writable" in finding.text) == ("run.dir", True)


@pytest.mark.parametrize("below", ["", "/deeper/runs"])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_something_in_the_place_of_the_run_directory(checkpoint, tmp_path, kind, below):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    finding = only(found(subject(checkpoint, f"run.dir={tmp_path}/{kind}{below}"), "model", "disk"), "error")
    assert finding.key == "run.dir"
    assert f"{tmp_path}/{kind} is not a directory" in finding.text


def test_what_stays_on_disk(checkpoint):
    def sizes(*overrides):
        config = subject(checkpoint, "stop.steps=10", "eval.num_tasks=0", *overrides).config
        return disk.checkpoints_at_once(config), disk.record_bytes(config)

    payload = 1000 + 15 * 64
    assert sizes() == (3, 320 * (3000 + payload))
    assert sizes("retention.payloads=none") == (3, 320 * 3000)
    assert sizes("retention.payloads=2") == (3, 320 * 3000 + 64 * payload)
    assert sizes("checkpoint.keep_every_steps=5", "checkpoint.keep_best=true", "eval.num_tasks=8")[0] == 6


def test_rollouts_in_all(checkpoint):
    config = subject(
        checkpoint, "stop.steps=10", "eval.every_steps=5", "oversampling.rollouts_extra=4"
    ).config
    assert disk.rollouts_in_all(config) == 10 * 32 * 12 // 8 + 4 * 8


@pytest.mark.parametrize(("reward", "uses"), [("number", False), ("python-tests", True)])
def test_a_data_set_takes_sandboxes_where_its_reward_runs_code(checkpoint, tmp_path, reward, uses):
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1=", "answer": 2}')
    data = ("environment.name=dataset", f"environment.args.data={tmp_path}/a.jsonl")
    asked = subject(checkpoint, *data, f"environment.args.reward={reward}")
    assert uses_sandbox(asked.config) is uses
    assert ("no environment" in found(asked, "quota")[0].text) is not uses


def test_the_quota_of_sandboxes(checkpoint):
    assert "no environment" in only(found(subject(checkpoint), "quota"), "ok").text
    assert only(found(subject(checkpoint, *CODE), "quota"), "ok").text == (
        "12 rollouts hold a sandbox at once, of 104 in flight; 4 more places are for verifiers; at their "
        "limits 16 take 4.8 GB of memory"
    )
    finding = only(found(subject(checkpoint, *CODE, "sandbox.max_live=8"), "quota"), "warning")
    assert finding.sentence() == (
        "command line: sandbox.max_live: 6 rollouts hold a sandbox at once (2 of 8 places are kept for "
        "verifiers), so the 8 of a group wait for one another (got 8). Use sandbox.max_live = 11 or more"
    )
    assert only(found(subject(checkpoint, *CODE, "sandbox.max_live=11"), "quota"), "ok")


def test_places_for_what_several_workers_keep_ready_are_no_rollout_s(checkpoint):
    given = (*CODE, "sandbox.provider=local", "sandbox.warm=3", "environment.workers=2")
    text = only(found(subject(checkpoint, *given), "quota"), "ok").text
    assert text.startswith("9 rollouts hold a sandbox at once")


def test_the_sandbox_of_the_check_has_a_lease_and_a_label_of_its_own(checkpoint, monkeypatch):
    seen = []
    exec_once = Stranger.exec

    async def exec_and_look(self, argv):
        seen.extend(lease for book in read_books() if book.alive for lease in book.leases.values())
        return await exec_once(self, argv)

    monkeypatch.setattr(Stranger, "exec", exec_and_look)
    monkeypatch.setattr(pools, "make_provider", lambda settings: Stranger())
    found(subject(checkpoint, *CODE), "environment", "image", "sandbox")
    mine = [lease for lease in seen if lease.labels["run"] == own_label("check")]
    assert [lease.state for lease in mine] == ["live"]


def test_limits_of_this_process(checkpoint, monkeypatch):
    limits = {resource.RLIMIT_NOFILE: 200, resource.RLIMIT_NPROC: 300}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], limits[which]))
    allowed = {"user/max_user_namespaces": "20", "user/max_net_namespaces": "15"}
    monkeypatch.setattr(sandbox_limits, "read_sysctl", allowed.get)
    monkeypatch.setattr(sandbox_limits, "processes_free", lambda: (310, "kernel.pid_max"))
    findings = found(subject(checkpoint, *CODE), "quota")
    assert [one.level for one in findings] == ["error", *["warning"] * 4]
    assert findings[0].remedy.startswith("Run `ulimit -n 224`")
    assert findings[1].remedy.startswith("Run `ulimit -u 320`")
    assert findings[2].remedy.startswith("Raise kernel.pid_max by 10,")
    assert "user.max_user_namespaces=48" in findings[3].remedy
    assert "user.max_net_namespaces=16" in findings[4].remedy


@pytest.mark.parametrize(
    ("provider", "each_mb", "fits"),
    [("bubblewrap", 256 + 32, 3), ("local", 256 + 32 + 32, 3), ("podman", 256 + 32 + 2 * 32 + 64, 2)],
)
def test_memory_of_sandboxes_at_their_limits(checkpoint, monkeypatch, provider, each_mb, fits):
    monkeypatch.setattr(sandbox_limits, "memory_bytes", lambda: (8 << 30, 1 << 30))
    config = subject(checkpoint, *CODE, f"sandbox.provider={provider}")
    assert sandbox_limits.bytes_each(config.config.sandbox) == each_mb * MIB
    finding = found(config, "quota")[0]
    assert (finding.level, finding.key) == ("warning", "sandbox.max_live")
    assert finding.remedy.startswith(f"Use sandbox.max_live = {fits},")


def test_only_as_many_sandboxes_as_rollouts_in_flight_are_reckoned_with(checkpoint, monkeypatch):
    monkeypatch.setattr(sandbox_limits, "memory_bytes", lambda: (8 << 30, 1 << 30))
    few = ("queue.max_running_rollouts=8", "queue.group_size=2", "queue.batch_size=2", "queue.bound=0")
    given = (*CODE, *few, "eval.num_tasks=0", "sandbox.max_live=500")
    assert "2 take 604 MB of memory" in only(found(subject(checkpoint, *given), "quota"), "ok").text


def test_the_disk_of_work_folders(checkpoint, tmp_path, monkeypatch):
    given = (*CODE, f"sandbox.directory={tmp_path}/sandboxes")
    monkeypatch.setattr(sandbox_limits, "free_bytes", lambda folder: 500 * MIB)
    finding = only(found(subject(checkpoint, *given), "quota"), "warning")
    assert finding.key == "sandbox.directory"
    assert f"537 MB at their limits, and 524 MB are free in {tmp_path}/sandboxes" in finding.text
    local = subject(checkpoint, *given, "sandbox.provider=local")
    assert only(found(local, "quota"), "ok")  # they are memory there


def test_processes_that_there_may_still_be(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    for name in ("self", "7", "8", "sys/kernel"):
        (proc / name).mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("4:pids:/one\n0::/\n")
    assert processes_free(proc, groups) == (None, "")
    (proc / "sys" / "kernel" / "pid_max").write_text("100\n")
    assert processes_free(proc, groups) == (98, "the kernel setting kernel.pid_max")
    (groups / "pids" / "one").mkdir(parents=True)
    (groups / "pids" / "one" / "pids.max").write_text("50\n")
    (groups / "pids" / "one" / "pids.current").write_text("20\n")
    assert processes_free(proc, groups) == (30, f"the limit of the control group {groups}/pids/one")


@pytest.mark.parametrize("provider", ["bubblewrap", "local"])
def test_a_sandbox_is_made_used_and_ended(checkpoint, tmp_path, provider):
    here = (f"sandbox.directory={tmp_path}/sandboxes", f"sandbox.provider={provider}")
    findings = found(subject(checkpoint, *CODE, *here), "environment", "image", "sandbox")
    assert [one.level for one in findings] == ["ok"] * 3
    assert findings[0].text.startswith("a command ran in it; ")
    assert re.fullmatch(
        r"one was made in \d+ ms, its first command answered after \d+ ms more, and it was gone \d+ ms "
        "after its end was asked for",
        findings[1].text,
    )
    assert findings[2].text == "its clock shows this machine's time"
    assert not list(tmp_path.glob("sandboxes/*/*"))
    assert "no environment" in only(found(subject(checkpoint), "environment", "image", "sandbox"), "ok").text


def test_a_sandbox_that_cannot_be_made(checkpoint, tmp_path):
    (tmp_path / "file").touch()
    findings = found(
        subject(checkpoint, *CODE, f"sandbox.directory={tmp_path}/file/x"), "environment", "image", "sandbox"
    )
    assert only(findings, "error").error is not None


def test_what_a_sandbox_begins_with(checkpoint, tmp_path):
    def look(image):
        return only(found(subject(checkpoint, *CODE, f"sandbox.image={image}"), "image"), expected)

    expected = "ok"
    assert look("").text == "none: a sandbox begins with an empty folder"
    (tmp_path / "files").mkdir()
    (tmp_path / "needs.txt").write_text("")
    with tarfile.open(tmp_path / "files.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "files", "files")
    assert look(tmp_path / "files").text == f"{tmp_path}/files, a folder"
    assert look(tmp_path / "needs.txt").text == f"{tmp_path}/needs.txt, a requirements file"
    assert look(tmp_path / "files.tar.gz").text == f"{tmp_path}/files.tar.gz, an archive"
    assert "no environment" in only(found(subject(checkpoint), "image"), "ok").text
    expected = "error"
    (tmp_path / "files.zip").write_bytes(b"PK")
    for name in ("files.zip", "none"):
        finding = look(tmp_path / name)
        assert (finding.key, finding.value) == ("sandbox.image", f"{tmp_path}/{name}")


@pytest.mark.parametrize("provider", ["bubblewrap", "local"])
def test_a_sandbox_is_tried_with_its_image(checkpoint, tmp_path, monkeypatch, provider):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "data").write_text("x")
    given = (f"sandbox.image={tmp_path}/files", f"sandbox.provider={provider}")
    here = f"sandbox.directory={tmp_path}/sandboxes"
    findings = found(subject(checkpoint, *CODE, *given, here), "environment", "image", "sandbox")
    assert [one.level for one in findings] == ["ok"] * 3


def test_what_dead_runs_left_behind(checkpoint, tmp_path, monkeypatch):
    folder = tmp_path / "leases"
    folder.mkdir()
    monkeypatch.setattr("headway.sandbox.leases.lease_folder", lambda: folder)
    assert "no environment" in only(found(subject(checkpoint), "left over"), "ok").text
    text = "no dead run left a sandbox behind"
    assert only(found(subject(checkpoint, *CODE), "left over"), "ok").text == text
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom headway.sandbox.leases import LeaseBook\n"
        "from headway.sandbox.settings import SandboxSettings\n"
        "for run, count in (('first', 2), ('second', 1)):\n"
        f"    book = LeaseBook(run, SandboxSettings(), folder=Path({str(folder)!r}))\n"
        "    for number in range(count): book.begin(f'{run}{number}', {'run': run})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    finding = only(found(subject(checkpoint, *CODE), "left over"), "warning")
    assert finding.text == "dead processes left 3 sandboxes behind (first: 2, second: 1)"
    assert finding.remedy.startswith("Run `headway sandbox reap --all-dead`")
    for path in folder.iterdir():
        path.unlink()
    book = LeaseBook("mine", SandboxSettings(), folder=folder)
    book.begin("s", {"run": "mine"})
    found_text = only(found(subject(checkpoint, *CODE), "left over"), "ok").text
    assert found_text == f"{text}; live processes have 1 here"
    book.close()
    book = LeaseBook("mine", SandboxSettings(provider="local"), folder=folder)
    book.begin("s", {"run": "mine"})
    os.close(book._file)  # its owner is dead, and such a sandbox with it
    assert only(found(subject(checkpoint, *CODE), "left over"), "ok").text == text
    monkeypatch.setattr(sandboxes, "read_books", Mock(side_effect=SandboxError("the folder cannot be made")))
    assert "cannot be made" in only(found(subject(checkpoint, *CODE), "left over"), "warning").text


class Stranger:
    """A provider elsewhere: slow, with a clock of its own, and sandboxes that stay."""

    stays, ahead_s = False, 0.0
    snapshots = spawns = pauses = False

    async def preflight(self):
        return [Guarantee("network", "enforced")]

    async def create(self, sandbox_id, labels):
        return self

    async def exec(self, argv):
        return ExecResult(0, None, str(time.time() + self.ahead_s), "", False, "exit", 0.0)

    async def terminate(self):
        pass

    async def list(self, labels):
        return ["check"] * self.stays


def test_a_slow_start_a_wrong_clock_and_a_sandbox_that_stays_are_told(checkpoint, monkeypatch):
    provider = Stranger()
    monkeypatch.setattr(pools, "make_provider", lambda settings: provider)

    def look():
        return found(subject(checkpoint, *CODE), "environment", "image", "sandbox")

    assert [one.level for one in look()] == ["ok"] * 3
    provider.ahead_s = -90.0
    assert "its clock is 90.0 s behind this machine's" in look()[2].text
    provider.ahead_s = 3600.0
    assert "its clock is 3,600.0 s ahead of this machine's" in look()[2].text
    provider.stays = True
    assert "headway sandbox reap --all-dead" in look()[1].remedy
    monkeypatch.setattr(sandboxes, "_SLOW_S", -1.0)
    provider.stays = False
    assert (look()[1].level, look()[1].key) == ("warning", "sandbox.provider")
    monkeypatch.setattr(Stranger, "exec", broken := AsyncMock(return_value=NOTHING))
    (finding,) = look()
    assert (finding.level, "no such interpreter" in finding.text) == ("error", True)
    assert broken.await_count == 1


NOTHING = ExecResult(127, None, "", "no such interpreter", False, "exit", 0.0)
