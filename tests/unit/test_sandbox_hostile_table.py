"""The list of hostile programs, against the local provider: each ends as it should, and nothing is left.

Also run as an ordinary user, by test_sandbox_ordinary_user.py. A case prints what it could do; the table says
what must come of it: the cause, and what stdout must and must not hold.
"""

# ruff: noqa: ASYNC110, ASYNC220, E501 - other processes are watched by looking again

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest

import headway
from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.core.protocols import ExecLimits
from headway.sandbox.local import LocalProvider
from headway.sandbox.native import build
from headway.sandbox.programs import is_snippet
from headway.sandbox.settings import SandboxSettings
from tests.contract.sandbox_contract import PYTHON, running

LIMITS = {"work_mb": 4, "max_files": 50, "cpu_s": 1, "tmpfs_mb": 2, "memory_mb": 256, "max_processes": 16}

TRY = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    done = libc.syscall(*arguments)
    print(name, "ok" if done >= 0 else errno.errorcode[ctypes.get_errno()])
def attempt(name, work):
    try:
        work()
        print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
def refused(name, work):
    try:
        work()
        print(name, "ok")
    except OSError as error:
        print(name, "refused" if error.errno in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS) else error)
"""

# name: (program, cause, rc, stdout)
CASES = {
    "a fork bomb": (
        "import os, time\nwhile 1:\n  if os.fork() == 0: time.sleep(60)", "pids", 1, ""),
    "threads without end": (
        "import threading, time\nwhile 1: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()", "pids", 1, ""),
    "a million files": (
        "for i in range(10**6): open(str(i), 'w').close()", "inodes", 1, ""),
    "a million folders": (
        "import os\nfor i in range(10**6): os.mkdir(str(i))", "inodes", 1, ""),
    "a disk fill": (
        "for i in range(9): open(f'f{i}', 'wb').write(b'x' * (1 << 20))", "disk", 1, ""),
    "one big file": (
        "open('f', 'wb').write(b'x' * (5 << 20))", "disk", 1, ""),
    "a tmpfs balloon": (
        "open('/tmp/f', 'wb').write(b'x' * (3 << 20))", "disk", 1, ""),
    "a /dev/shm balloon": (
        "open('/dev/shm/f', 'wb').write(b'x' * (2 << 20))", "disk", 1, ""),
    "a heap balloon": ("x = bytearray(1 << 30)", "oom", 1, ""),
    "a heap balloon of many processes": (
        "import os, time\n"
        "for _ in range(4):\n"
        "  if os.fork() == 0: x = b'x' * (100 << 20); time.sleep(60)\n"
        "time.sleep(60)", "oom", None, ""),
    "a busy loop": ("while 1: pass", "cpu", None, ""),
    "a loop that ignores SIGTERM": (
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nwhile 1: time.sleep(1)", "wall", None, ""),
    "a program that stops itself": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "wall", None, ""),
    "hundreds of zombies": (
        "import os\n"
        "for _ in range(300):\n"
        "  if os.fork() == 0:\n"
        "    if os.fork() == 0: os._exit(0)\n"
        "    os._exit(0)\n"
        "  os.wait()\n"
        "print('done')", "exit", 0, "done\n"),
    "a flood of output": ("while 1: print('x' * 65536)", "output", None, None),
    "fifty megabytes on stderr": (
        "import sys\nfor _ in range(800): sys.stderr.write('x' * 65536)", "output", None, ""),
    "files of the host": (
        TRY + "for at in ('/proc/1/root/etc/shadow', '/work/../etc/shadow', '/proc/1/cwd/x', '/etc/hostname'):\n"
        "  attempt(at, lambda: open(at))", "exit", 0,
        "/proc/1/root/etc/shadow ENOENT\n/work/../etc/shadow ENOENT\n/proc/1/cwd/x ENOENT\n/etc/hostname ENOENT\n"),
    "the memory of pid 1": (
        TRY + "attempt('mem', lambda: open('/proc/1/mem', 'r+b'))\n"
        "attempt('environ', lambda: open('/proc/1/environ'))\n"
        "call('attach', 101, 16, 1, 0, 0)\n"
        "call('seize', 101, 0x4206, 1, 0, 0)\n"
        "call('readv', 310, 1, 0, 0, 0, 0, 0)\n"
        "call('getfd', 438, 0, 100, 0)", "exit", 0,
        "mem ENOENT\nenviron ENOENT\nattach EPERM\nseize EPERM\nreadv EPERM\ngetfd EPERM\n"),
    "signals to pid 1 and to everybody": (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for number in (9, 19, 15, 2):\n"
        "  try: os.kill(1, number)\n"
        "  except PermissionError: pass\n"
        "print('alive')\n", "exit", 0, "alive\n"),
    "settings of the network": (
        TRY + "for at in ('ipv4/ip_forward', 'ipv4/ip_unprivileged_port_start', 'core/somaxconn', 'ipv4/tcp_fin_timeout'):\n"
        "  refused(at, lambda: open('/proc/sys/net/' + at, 'w').write('1'))\n"
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname()); print('loopback')\n",
        "exit", 0,
        "ipv4/ip_forward refused\nipv4/ip_unprivileged_port_start refused\ncore/somaxconn refused\n"
        "ipv4/tcp_fin_timeout refused\nloopback\n"),
    "sysrq, kcore and the kernel's log": (
        TRY + "refused('sysrq', lambda: open('/proc/sysrq-trigger', 'w').write('h'))\n"
        "refused('kcore', lambda: open('/proc/kcore', 'rb').read(1))\n"
        "refused('hostname', lambda: open('/proc/sys/kernel/hostname', 'w').write('x'))\n"
        "call('syslog', 103, 3, 0, 0)\n", "exit", 0,
        "sysrq refused\nkcore refused\nhostname refused\nsyslog EPERM\n"),
    "kernel surface": (
        TRY + "for name, number in dict(bpf=321, io_uring=425, userfaultfd=323, keyctl=250, add_key=248,"
        " perf=298, kexec=246, module=175, swapon=167, reboot=169, memfd=319, x32=0x40000000 + 1).items():\n"
        "  call(name, number, 0, 0, 0, 0, 0)", "exit", 0,
        "".join(f"{name} EPERM\n" for name in (
            "bpf", "io_uring", "userfaultfd", "keyctl", "add_key", "perf", "kexec", "module", "swapon",
            "reboot", "memfd", "x32"))),
    "namespaces": (
        TRY + "call('unshare user', 272, 0x10000000)\n"
        "call('unshare mount', 272, 0x20000)\n"
        "call('clone user', 56, 0x10000000 | 17, 0, 0, 0, 0)\n"
        "call('clone3', 435, 0, 0)\n"
        "fd = os.open('/proc/self/ns/user', 0); call('setns', 308, fd, 0)\n"
        "print(open('/proc/sys/user/max_user_namespaces').read().strip())\n", "exit", 0,
        "unshare user EPERM\nunshare mount EPERM\nclone user EPERM\nclone3 ENOSYS\nsetns EPERM\n0\n"),
    "mounts and devices": (
        TRY + "call('mount', 165, b'x', b'/tmp', b'tmpfs', 0, 0, 0)\n"
        "call('mount with a guess', 165, b'x', b'/tmp', b'tmpfs', 0, 0, (1 << 64) - 1)\n"
        "call('remount', 165, b'x', b'/', b'x', 32, 0)\n"
        "call('umount', 166, b'/proc', 2)\n"
        "call('pivot', 155, b'/tmp', b'/tmp')\n"
        "call('chroot', 161, b'/tmp')\n"
        "attempt('mknod', lambda: os.mknod('/tmp/d', 0o60666, os.makedev(254, 0)))\n"
        "attempt('null', lambda: open('/dev/null', 'w').write('x'))\n", "exit", 0,
        "mount EPERM\nmount with a guess EPERM\nremount EPERM\numount EPERM\npivot EPERM\nchroot EPERM\nmknod EPERM\nnull ok\n"),
    "a copy that is set-uid": (
        "import os, shutil, subprocess\n"
        "shutil.copy('/usr/bin/id', 'id'); os.chmod('id', 0o6755)\n"
        "print(subprocess.run(['./id', '-u'], capture_output=True, text=True).stdout.strip())\n"
        "for name in ('su', 'mount', 'passwd'):\n"
        "  if os.path.exists(f'/usr/bin/{name}'): assert os.stat(f'/usr/bin/{name}')\n"
        "print([line for line in open('/proc/self/status') if line[:6] in ('CapEff', 'CapPrm', 'NoNewP')])\n",
        "exit", 0, "1000\n['CapPrm:\\t0000000000000000\\n', 'CapEff:\\t0000000000000000\\n', 'NoNewPrivs:\\t1\\n']\n"),
    "nothing outside work and tmp can be written": (
        "import os\n"
        "for at in ('/x', '/etc/x', '/usr/x', '/dev/x', '/opt/x', '/root/x', '/run/x', '/var/tmp/x', '/proc/x'):\n"
        "  try: open(at, 'w'); print(at)\n"
        "  except OSError: pass\n"
        "for at in ('/etc/passwd', '/usr/bin/env', '/dev/zero'):\n"
        "  try: os.chmod(at, 0o777); print(at)\n"
        "  except OSError: pass\n", "exit", 0, ""),
    "no descriptor is inherited": (
        "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:3], len(os.listdir('/proc/self/fd')))",
        "exit", 0, "[0, 1, 2] 4\n"),
    "secrets in the environment": (
        "import os; print('HEADWAY_TEST_SECRET' in os.environ, os.environ['HOME'])\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')): assert b's3cret' not in open(f'/proc/{pid}/environ', 'rb').read()",
        "exit", 0, "False /work\n"),
    "a prompt": ("input('sure? ')", "exit", 1, "sure? "),
    "other processes": (
        "import os; print([pid for pid in os.listdir('/proc') if pid.isdigit()] == [str(os.getpid())])",
        "exit", 0, "True\n"),
    "homes of the host in its mounts": (
        f"import sys; text = open('/proc/self/mountinfo').read().replace(sys.base_prefix, '')\n"
        f"print({str(Path(__file__).parents[2])!r} in text, 'sandboxes' in text)\n"
        "print('headway' in open('/proc/self/maps').read())", "exit", 0, "False False\nFalse\n"),
    "its own network": (
        "import socket, threading\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(s.getsockname()); print('own')\n"
        "for at in (('10.0.0.1', 80), ('169.254.169.254', 80)):\n"
        "  try: socket.create_connection(at, 1); print('open')\n"
        "  except OSError as error: print(error.errno)\n", "exit", 0, "own\n101\n101\n"),
}  # fmt: skip


@pytest.fixture(params=[True, False], ids=["preloaded", "plain"], scope="module")
def preload(request):
    return request.param


@pytest.fixture
def provider(preload):
    provider = LocalProvider(SandboxSettings(**LIMITS, preload_python=preload))
    yield provider
    provider.close()


@pytest.fixture
async def sandbox(provider):
    sandbox = await provider.create("hostile", {"run": "r"})
    yield sandbox
    await sandbox.terminate()


@pytest.mark.parametrize("name", CASES)
async def test_a_hostile_program_ends_as_it_should(name, sandbox, monkeypatch):
    monkeypatch.setenv("HEADWAY_TEST_SECRET", "s3cret")
    code, cause, rc, stdout = CASES[name]
    limits = ExecLimits(wall_s=1 if cause == "wall" else 30, output_bytes=4096)
    result = await sandbox.exec([*PYTHON, code], limits=limits)
    assert (result.cause, result.rc) == (cause, rc), result
    if stdout is not None:
        assert result.stdout == stdout, result
    again = await sandbox.exec(["sh", "-c", "echo again; ls -A /tmp /dev/shm | grep -v : | tr -d '\\n'"])
    assert again.stdout == "again\n"  # it is as good as before, and /tmp is empty


async def test_killing_everybody_spares_the_first_process(sandbox):
    result = await sandbox.exec(["sh", "-c", "kill -9 -1; kill -STOP 1; echo alive"])
    assert result.stdout in ("alive\n", "")
    assert (await sandbox.exec(["echo", "again"])).stdout == "again\n"


@pytest.mark.parametrize("program", ["snippet", "shell"])
async def test_a_command_ends_alone_while_a_long_lived_process_goes_on(sandbox, program):
    # What a command leaves behind hides behind a new session, two forks and endless forking.
    await sandbox.spawn("beside", ["sh", "-c", "while :; do date +%s%N > beat; sleep 0.02; done"])
    marker = f"975{uuid.uuid4().int % 10**9}"
    if program == "shell":
        script = f"(setsid sh -c 'while :; do sleep 0.01 & wait; done' {marker} <&- >&- 2>&- &); echo done"
        result = await sandbox.exec(["sh", "-c", script])
    else:
        code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    open('/proc/self/comm', 'w').write('x')
    while 1:  # each lives for a moment only
        if os.fork(): os._exit(0)
        time.sleep(0.001); "{marker}"
print('done')
"""
        result = await sandbox.exec([*PYTHON, code])
    assert (result.rc, result.stdout) == (0, "done\n"), result
    assert running(marker) == []
    assert (await sandbox.stats()).num_processes <= 3
    before = await sandbox.read("beat")
    while await sandbox.read("beat") in (before, b""):
        await asyncio.sleep(0.01)
    assert (await sandbox.poll("beside")).running


async def test_a_command_that_kills_everybody_takes_long_lived_processes_of_its_own_sandbox_only(
    provider, sandbox
):
    other = await provider.create("other", {"run": "r"})
    for one in (sandbox, other):
        await one.spawn("it", ["sleep", "99"])
    await sandbox.exec(["sh", "-c", "kill -9 -1"])
    while (await sandbox.poll("it")).running:
        await asyncio.sleep(0.01)
    assert (await sandbox.poll("it")).cause == "killed"
    assert (await other.poll("it")).running
    assert (await sandbox.exec(["echo", "x"])).stdout == "x\n"
    await other.terminate()


async def test_a_long_lived_balloon_is_cut_down(sandbox):
    balloon = "import os, time\nfor _ in range(4):\n  if os.fork() == 0: x = b'x' * (100 << 20); time.sleep(60)\ntime.sleep(60)"
    await sandbox.spawn("balloon", [*PYTHON, balloon])
    while (polled := await sandbox.poll("balloon")).running:
        await asyncio.sleep(0.02)
    assert (polled.rc, polled.cause) == (None, "oom")
    assert (await sandbox.exec(["echo", "x"])).stdout == "x\n"


async def test_several_long_lived_processes_run_at_once(sandbox):
    for number in range(8):
        await sandbox.spawn(str(number), ["sleep", "99"])
    assert (await sandbox.stats()).num_processes == 8
    await sandbox.terminate()


async def test_killing_the_controller_of_a_paused_sandbox_leaves_nothing(preload):
    marker = f"974{uuid.uuid4().int % 10**9}"
    script = textwrap.dedent(f"""
        import asyncio
        from headway.sandbox.local import LocalProvider
        from headway.sandbox.settings import SandboxSettings
        async def main():
            provider = LocalProvider(SandboxSettings(preload_python={preload}))
            sandbox = await provider.create("s", {{"run": "paused"}})
            await sandbox.spawn("it", ["sleep", "{marker}"])
            await sandbox.pause()
            print("paused", flush=True)
            await asyncio.sleep(99)
        asyncio.run(main())
    """)
    env = os.environ | {"PYTHONPATH": str(Path(headway.__file__).parent.parent)}
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE) as controller:
        assert controller.stdout.readline() == b"paused\n"
        assert running(marker)
        controller.kill()
    assert _gone(marker)


async def test_a_daemon_that_forked_twice_ends_with_its_command(sandbox):
    marker = f"979{uuid.uuid4().int % 10**9}"
    script = f"(setsid sh -c 'setsid sleep {marker} <&- >&- 2>&- &' &); sleep 0.1; echo done"
    result = await sandbox.exec(["sh", "-c", script])
    assert (result.rc, result.stdout) == (0, "done\n")
    assert running(marker) == []


async def test_abstract_sockets_do_not_reach_a_sibling(provider, sandbox):
    name = f"h{uuid.uuid4().hex}"
    serve = f"import socket, time; s = socket.socket(1); s.bind('\\0{name}'); s.listen(); print('up', flush=True); time.sleep(1)"
    call = f"import socket, time\ntime.sleep(0.3)\ntry: socket.socket(1).connect('\\0{name}'); print('open')\nexcept OSError as e: print(e.errno)"
    other = await provider.create("sibling", {"run": "r"})
    async with asyncio.TaskGroup() as group:
        served = group.create_task(sandbox.exec([*PYTHON, serve]))
        called = group.create_task(other.exec([*PYTHON, call]))
    assert (served.result().stdout, called.result().stdout) == ("up\n", "111\n")
    await other.terminate()


async def test_the_process_limit_counts_each_sandbox_for_itself(provider):
    hold = (
        "import os, time\nfor _ in range(9):\n  if os.fork() == 0: time.sleep(60)\nprint('held', flush=True)"
    )
    made = [await provider.create(f"p{number}", {"run": "r"}) for number in range(3)]
    async with asyncio.TaskGroup() as group:
        work = [group.create_task(sandbox.exec([*PYTHON, hold])) for sandbox in made]
    assert [task.result().stdout for task in work] == ["held\n"] * 3
    assert await provider.reap("r") == 3


async def test_a_snippet_cannot_poison_the_next(sandbox):
    poison = "import builtins, json, sys; json.loads = None; builtins.print = None; sys.path.clear()"
    assert (await sandbox.exec([*PYTHON, poison])).rc == 0
    clean = await sandbox.exec([*PYTHON, "import json; print(json.loads('[1]'), json.__name__)"])
    assert clean.stdout == "[1] json\n"


async def test_a_module_in_the_work_folder_cannot_shadow_the_library(sandbox):
    await sandbox.write("json.py", b"raise SystemExit(7)")
    assert (await sandbox.exec(["python3", "-I", "-c", "import json, colorsys"])).rc == 0


async def test_snippets_behave_as_in_an_interpreter_of_their_own(sandbox):
    await sandbox.write("script.py", b"import sys, mine\nprint(sys.argv, __name__, __file__, mine.x)\n")
    await sandbox.write("mine.py", b"x = 5")
    ran = await sandbox.exec(["python3", "script.py", "a", "b"])
    assert (ran.stdout, ran.stderr) == ("['script.py', 'a', 'b'] __main__ /work/script.py 5\n", "")
    assert (await sandbox.exec(["python3", "none.py"])).rc == 2
    bad = await sandbox.exec([*PYTHON, "def f():\n  raise ValueError('x')\nf()"])
    assert bad.rc == 1
    assert bad.stderr.splitlines()[:2] == [
        "Traceback (most recent call last):", '  File "<string>", line 3, in <module>',
    ]  # fmt: skip
    assert bad.stderr.splitlines()[-1] == "ValueError: x"
    exits = await sandbox.exec(
        [*PYTHON, "import atexit, sys; atexit.register(print, 'bye'); sys.exit('why')"]
    )
    assert (exits.rc, exits.stdout, exits.stderr) == (1, "bye\n", "why\n")
    wrong = await sandbox.exec([*PYTHON, "1 +"])
    assert (wrong.rc, wrong.stderr.splitlines()[-1]) == (1, "SyntaxError: invalid syntax")
    left = await sandbox.exec([*PYTHON, "f = open('left', 'w'); f.write('flushed')"])
    assert (left.rc, await sandbox.read("left")) == (0, b"flushed")
    echo = await sandbox.exec([*PYTHON, "import sys; print(sys.stdin.read().upper())"], stdin="aé".encode())
    assert echo.stdout == "AÉ\n"
    drawn = {(await sandbox.exec([*PYTHON, "import random; print(random.random())"])).stdout for _ in "123"}
    assert len(drawn) == 3
    threads = await sandbox.exec(
        [*PYTHON, "import threading; t = threading.Thread(target=print, args=('t',)); t.start()"]
    )
    assert threads.stdout == "t\n"
    piped = await sandbox.exec(
        [*PYTHON, "import subprocess; print(subprocess.run(['echo', 'x'], capture_output=True).stdout)"]
    )
    assert piped.stdout == "b'x\\n'\n"


def test_which_commands_a_preloaded_interpreter_takes():
    assert is_snippet(["python3", "-I", "-S", "-B", "-c", "x"], {})
    assert is_snippet(["python3", "-ISB", "-c", "x"], {})
    assert is_snippet(["python3", "a.py", "-x"], {"A": "b"})
    for other in (["python3"], ["python3", "-"], ["python3", "-m", "x"], ["python3", "-O", "-c", "x"], ["sh"], ["python3", "-c"], ["python3", "dir"]):  # fmt: skip
        assert not is_snippet(other, {})
    assert not is_snippet(["python3", "-c", "x"], {"PYTHONPATH": "x"})
    assert not is_snippet(["python3", "-c", "x"], {"PATH": "/work"})


async def test_the_verifiers_sandbox_holds_nothing_of_the_models(provider, sandbox, tmp_path):
    # The verifier runs in a fresh sandbox made from a snapshot, with its tests injected then.
    await sandbox.write("answer.py", b"def f(x): return x + 1\n")
    evil = (
        "echo 'print(1)' > tests.py; echo 1 > reward; mkdir -p bin; ln -s /bin/true bin/python3;"
        "mkdir -p .local/lib/python3.11/site-packages;"
        "echo 'raise SystemExit(0)' > .local/lib/python3.11/site-packages/usercustomize.py;"
        "echo evil > /tmp/x; setsid sleep 99 & exit 0"
    )
    assert (await sandbox.exec(["sh", "-c", evil])).rc == 0
    digest = await provider.snapshot(sandbox.id, tmp_path / "snapshot", {})
    await sandbox.terminate()
    verifier = await provider.restore("verifier", {"run": "r"}, tmp_path / "snapshot", digest)
    await verifier.write(
        "tests.py", b"import sys; sys.path.insert(0, '/work')\nfrom answer import f; print(f(1) == 3)\n"
    )
    result = await verifier.exec(["python3", "-I", "tests.py"])
    assert (result.rc, result.stdout) == (0, "False\n")
    assert (
        await verifier.exec(["sh", "-c", "ls /tmp; command -v python3"])
    ).stdout == "/opt/headway/bin/python3\n"
    await verifier.terminate()


async def test_preflight_says_what_holds(provider):
    levels = {guarantee.name: guarantee for guarantee in await provider.preflight()}
    assert {levels[name].level for name in ("disk", "files", "syscalls", "pids", "nested_namespaces")} == {
        "enforced"
    }
    assert all(guarantee.remedy for guarantee in levels.values() if guarantee.level != "enforced")


async def test_a_lost_sandbox_is_an_infrastructure_failure(provider, sandbox):
    await sandbox.write("x", b"x")
    work = asyncio.create_task(sandbox.exec(["sleep", "9"], limits=ExecLimits(wall_s=9)))
    await asyncio.sleep(0.2)
    signal.pidfd_send_signal(sandbox._cell._pid_fd, signal.SIGKILL)
    with pytest.raises(SandboxError, match="first process"):
        await work
    with pytest.raises(SandboxError):
        await sandbox.exec(["true"])


async def test_a_helper_that_died_is_started_again(provider, sandbox):
    await sandbox.exec(["true"])
    provider.close()
    other = await provider.create("after", {"run": "r"})
    assert (await other.exec(["echo", "x"])).stdout == "x\n"
    with pytest.raises(SandboxError):
        await sandbox.exec(["true"])
    await other.terminate()


def test_a_missing_compiler_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SandboxUnavailableError, match="C compiler") as caught:
        build.helper("program")
    assert "bubblewrap" in str(caught.value)


def test_a_cache_that_others_can_write_to_is_refused(monkeypatch, tmp_path):
    (tmp_path / ".cache" / "headway" / "native").mkdir(parents=True)
    (tmp_path / ".cache" / "headway" / "native").chmod(0o777)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not str(build.helper("program")).startswith(str(tmp_path / ".cache"))


CONTROLLER = """
    import asyncio, threading
    from headway.sandbox.local import LocalProvider
    from headway.sandbox.settings import SandboxSettings

    async def main():
        provider = LocalProvider(SandboxSettings(wall_s=60, max_live=60, preload_python={preload}))
        print("up", flush=True)
        async with asyncio.TaskGroup() as group:
            for number in range({count}):
                sandbox = await provider.create(f"s{{number}}", {{"run": "killed"}})
                group.create_task(sandbox.exec(["sh", "-c", "setsid sleep {marker} & sleep {marker}"]))

    threading.Thread(target=threading.Event().wait, daemon=True).start()
    asyncio.run(main())
"""


def _controller(preload, count, marker):
    env = os.environ | {"PYTHONPATH": str(Path(headway.__file__).parent.parent)}
    script = textwrap.dedent(CONTROLLER.format(preload=preload, count=count, marker=marker))
    return subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE)


def _gone(marker):
    waited = time.monotonic()
    while running(marker) and time.monotonic() - waited < 20:
        time.sleep(0.02)
    return running(marker) == []


async def test_a_killed_controller_leaves_no_process_of_fifty_sandboxes(preload):
    marker = f"978{uuid.uuid4().int % 10**9}"
    with _controller(preload, 50, marker) as controller:
        try:
            async with asyncio.timeout(60):
                while len(running(marker)) < 100:
                    await asyncio.sleep(0.05)
        finally:
            controller.kill()
        assert _gone(marker)


def test_a_controller_killed_while_sandboxes_start_leaves_nothing(preload):
    marker = f"977{uuid.uuid4().int % 10**9}"
    for number in range(10):
        with _controller(preload, 8, marker) as controller:
            controller.stdout.readline()
            time.sleep(number * 0.01)
            controller.kill()
    assert _gone(marker)
    waited = time.monotonic()
    while _orphans() and time.monotonic() - waited < 20:
        time.sleep(0.02)
    assert _orphans() == []


def _orphans():
    return [pid for pid in running("cell") if _parent(pid) == 1 and _age_s(pid) < 30 and _is_helper(pid)]


def _parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _age_s(pid):
    try:
        return time.time() - os.stat(f"/proc/{pid}").st_mtime
    except OSError:
        return 1e9


def _is_helper(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"/cell")
    except OSError:
        return False
