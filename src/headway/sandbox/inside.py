"""What Headway runs inside a machine that it reaches only by commands: a container, a machine of a service.

The text of this module goes to `python3 -c` there, with a verb and JSON; so it stands alone, with nothing but
the standard library, of Python 3.8 or later. The host imports `pack` and `unpack` from it.

    hold    the machine's first process: waits, and reaps what its children leave behind.
    prepare make the work folder (root only).
    run     one command: tells READY, waits for a line on stdin, runs, and kills whatever is left.
    sweep   kill everything, empty the temporary folders, tell how often limits were met.
    relay   pass connections on to the host (relay.py, whose text comes along), as the machine's own user.
    read, write, pack, unpack: files below the work folder.

All but `hold`, `prepare` and the upper half of `run` happen as the user that the model's programs have. No
link is followed: paths are opened one component at a time. `pack` writes a folder as a stream of records, in
the order of a walk, with the holes of files left out; `unpack` believes nothing of such a stream: names are
single components, and bytes and entries are counted against limits. Modes without set-uid and set-gid and
times are kept, and which names are one file; owners are not, sockets and devices are left out.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import stat
import struct
import sys
import time
from typing import Any, BinaryIO, Tuple  # noqa: UP035 - of Python 3.8

READY = b"headway-sandbox-ready\n"
OVER_BYTES, OVER_FILES = 241, 242  # exit codes of `run`
REFUSED = 3  # exit code of file verbs; the reason is on stderr
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT_MODE = 0o1777
_PIECE = 1 << 18
_HEAD = struct.Struct(">cI")
_CHUNK = struct.Struct(">QI")
Place = Tuple[Any, ...]  # noqa: UP006 - of something in a tree: that of its folder, () for the root, and its name


class RefusedError(Exception):
    """A file that cannot be had, or a stream that cannot be believed."""


# --- streams


def pack(folder: int, out: BinaryIO) -> None:
    """Write what is below an open folder; what its owner cannot read is made readable for the moment."""
    here = os.open(".", _FOLDER, dir_fd=folder)
    path: list[tuple[str, int, list[str]]] = []  # (a folder's name, its mode, folders left in its parent)
    known: dict[int, int] = {}  # number of the file by inode, of those with several names
    try:
        left = _pack_entries(here, out, known)
        while left or path:
            if left:
                name = left.pop()
                info = os.stat(name, dir_fd=here, follow_symlinks=False)
                if info.st_mode & 0o500 != 0o500:
                    os.chmod(name, stat.S_IMODE(info.st_mode) | 0o500, dir_fd=here)
                _record(out, b"D", name, info)
                path.append((name, info.st_mode, left))
                here = _move(here, name)
                left = _pack_entries(here, out, known)
            else:
                name, mode, left = path.pop()
                here = _move(here, "..")
                if mode & 0o500 != 0o500:
                    os.chmod(name, stat.S_IMODE(mode), dir_fd=here)
                out.write(_HEAD.pack(b"U", 0))
        out.write(_HEAD.pack(b"E", 0))
        out.flush()
    finally:
        os.close(here)


def _move(fd: int, name: str) -> int:
    there = os.open(name, _FOLDER, dir_fd=fd)
    os.close(fd)
    return there


def _record(out: BinaryIO, kind: bytes, name: str, info: os.stat_result, to: str = "") -> None:
    mode = stat.S_IMODE(info.st_mode) & _KEPT_MODE
    again = stat.S_ISREG(info.st_mode) and info.st_nlink > 1
    facts = json.dumps([name, mode, info.st_mtime_ns, info.st_size, to, again]).encode()
    out.write(_HEAD.pack(kind, len(facts)) + facts)


def _pack_entries(here: int, out: BinaryIO, known: dict[int, int]) -> list[str]:
    """Write everything in a folder but folders; return those."""
    folders: list[str] = []
    for name in sorted(os.listdir(here)):
        info = os.stat(name, dir_fd=here, follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            folders.append(name)
        elif stat.S_ISLNK(info.st_mode):
            _record(out, b"L", name, info, os.readlink(name, dir_fd=here))
        elif stat.S_ISFIFO(info.st_mode):
            _record(out, b"P", name, info)
        elif stat.S_ISREG(info.st_mode) and info.st_ino in known:
            _record(out, b"H", name, info, str(known[info.st_ino]))
        elif stat.S_ISREG(info.st_mode):
            if info.st_nlink > 1:
                known[info.st_ino] = len(known)
            _pack_file(here, name, info, out)
    return folders


def _pack_file(here: int, name: str, info: os.stat_result, out: BinaryIO) -> None:
    closed = not info.st_mode & 0o400
    if closed:
        os.chmod(name, stat.S_IMODE(info.st_mode) | 0o400, dir_fd=here)
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    try:
        _record(out, b"F", name, info)
        at = 0
        while at < info.st_size:
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
                at = min(os.lseek(fd, start, os.SEEK_HOLE), info.st_size)
            except OSError:  # only a hole is left
                break
            while start < at:
                piece = os.pread(fd, min(_PIECE, at - start), start)
                if not piece:
                    break
                out.write(_CHUNK.pack(start, len(piece)) + piece)
                start += len(piece)
        out.write(_CHUNK.pack(0, 0))
    finally:
        os.close(fd)
        if closed:
            os.chmod(name, stat.S_IMODE(info.st_mode), dir_fd=here)


def unpack(source: BinaryIO, folder: int, max_bytes: int, max_entries: int) -> None:
    """Make below an open, empty folder what `pack` wrote. Raises RefusedError or OSError."""
    here = os.open(".", _FOLDER, dir_fd=folder)
    path: list[tuple[int, int]] = []  # (mode, time) of the folders that are open
    place: Place = ()
    several: list[Place] = []  # places of the files with several names
    num_bytes = num_entries = 0
    try:
        while True:
            kind, size = _HEAD.unpack(_exactly(source, _HEAD.size))
            if kind == b"E":
                if path:
                    raise RefusedError("the stream ends within a folder")
                return
            if kind == b"U":
                if not path:
                    raise RefusedError("the stream leads out of its folder")
                done, here, place = here, os.open("..", _FOLDER, dir_fd=here), place[0]
                _finish(done, *path.pop())
                os.close(done)
                continue
            num_entries += 1
            if num_entries > max_entries or size > 1 << 16:
                raise RefusedError("more files than allowed")
            name, mode, mtime, length, to, again = _facts(_exactly(source, size))
            if kind == b"D":
                os.mkdir(name, 0o700, dir_fd=here)
                here, place = _move(here, name), (place, name)
                path.append((mode, mtime))
            elif kind == b"L":
                os.symlink(to, name, dir_fd=here)
                os.utime(name, ns=(mtime, mtime), dir_fd=here, follow_symlinks=False)
            elif kind == b"P":
                os.mkfifo(name, 0o600, dir_fd=here)
                os.chmod(name, mode, dir_fd=here)
                os.utime(name, ns=(mtime, mtime), dir_fd=here)
            elif kind == b"F":
                num_bytes += _unpack_file(source, here, (name, mode, mtime, length), max_bytes - num_bytes)
                if again:
                    several.append((place, name))
            elif kind == b"H":
                if not to.isdigit() or int(to) >= len(several):
                    raise RefusedError("a second name of no file")
                link_again(folder, several[int(to)], here, name)
            else:
                raise RefusedError("an unknown record")
    finally:
        os.close(here)


def _facts(data: bytes) -> tuple[str, int, int, int, str, bool]:
    name, mode, mtime, length, to, again = json.loads(data)
    if not (isinstance(name, str) and isinstance(to, str)) or "/" in name or name in ("", ".", ".."):
        raise RefusedError("a name must be one component")
    return name, int(mode) & _KEPT_MODE, int(mtime), int(length), to, again is True


def link_again(root: int, place: Place, folder: int, name: str) -> None:
    """Give a file below the open folder `root` another name, in the open folder `folder`.

    Folders on the way that are closed to their owner are opened for it, and closed again.
    """
    names: list[str] = []
    while place:
        names.append(place[1])
        place = place[0]
    passed: list[tuple[str, int]] = []  # (a folder's name, its mode)
    here = os.open(".", _FOLDER, dir_fd=root)
    try:
        for below in reversed(names[1:]):
            mode = stat.S_IMODE(os.stat(below, dir_fd=here, follow_symlinks=False).st_mode)
            if mode & 0o500 != 0o500:
                os.chmod(below, mode | 0o500, dir_fd=here)
            passed.append((below, mode))
            here = _move(here, below)
        os.link(names[0], name, src_dir_fd=here, dst_dir_fd=folder, follow_symlinks=False)
        while any(mode & 0o500 != 0o500 for _, mode in passed):
            below, mode = passed.pop()
            here = _move(here, "..")
            if mode & 0o500 != 0o500:
                os.chmod(below, mode, dir_fd=here)
    finally:
        os.close(here)


def _unpack_file(source: BinaryIO, here: int, facts: tuple[str, int, int, int], room: int) -> int:
    name, mode, mtime, length = facts
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=here)
    written = 0
    try:
        os.ftruncate(fd, length)
        while True:
            start, size = _CHUNK.unpack(_exactly(source, _CHUNK.size))
            if not size:
                break
            written += size
            if written > room or size > _PIECE or start + size > length:
                raise RefusedError("more bytes than allowed")
            view = memoryview(_exactly(source, size))
            while view:
                count = os.pwrite(fd, view, start)
                view, start = view[count:], start + count
        _finish(fd, mode, mtime)
    finally:
        os.close(fd)
    return written


def _finish(fd: int, mode: int, mtime: int) -> None:
    os.utime(fd, ns=(mtime, mtime))
    os.fchmod(fd, mode)


def _exactly(source: BinaryIO, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.read(size - len(data))
        if not more:
            raise RefusedError("the stream ends too early")
        data += more
    return data


# --- single files


def _keep_open(work: str) -> None:
    """See to it that the owner of the work folder may look into it, whatever a program did to its mode."""
    mode = stat.S_IMODE(os.lstat(work).st_mode)
    if mode & 0o500 != 0o500:
        os.chmod(work, mode | 0o700)


def _parent(work: str, parts: list[str], *, make: bool) -> int:
    at = os.open(work, _FOLDER)
    for part in parts[:-1]:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=at)
        at = _move(at, part)
    return at


def _regular(folder: int, name: str, flags: int) -> int:
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise RefusedError("only regular files pass between sandbox and host")
    return fd


def _read(work: str, parts: list[str], max_bytes: int) -> None:
    fd = _regular(_parent(work, parts, make=False), parts[-1], os.O_RDONLY)
    while max_bytes > 0:
        piece = os.read(fd, min(_PIECE, max_bytes))
        if not piece:
            break
        max_bytes -= len(piece)
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _write(work: str, parts: list[str]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(_regular(_parent(work, parts, make=True), parts[-1], flags), "wb") as file:
        while True:
            piece = sys.stdin.buffer.read(_PIECE)
            if not piece:
                break
            file.write(piece)


# --- processes


def _drop(uid: int) -> None:
    """Become the model's user, for good; a process that is nobody special stays what it is."""
    if os.geteuid() == 0 and uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)


def _kill_all(uid: int, outside: str) -> bool:
    """Kill every process of this user but the first and this one; say whether none is left.

    Never in the pid namespace of the controller, where it would end all that the user has.
    """
    if os.readlink("/proc/self/ns/pid") == outside:
        raise RefusedError("the sandbox has no pid namespace of its own")
    for _ in range(50):
        if os.geteuid() == 0 and uid:  # from below, so that nothing of root's is hit
            pid = os.fork()
            if pid == 0:
                try:
                    _drop(uid)
                    os.kill(-1, signal.SIGKILL)
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(-1, signal.SIGKILL)
        if not _alive(uid or os.geteuid()):
            return True
        time.sleep(0.01)
    return False


def _alive(uid: int) -> list[str]:
    """Return the processes of a user that have not ended, but the first and this one.

    What has ended may stay for whoever should reap it; a signal to it would still succeed.
    """
    found: list[str] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if name in ("1", str(os.getpid())):
            continue
        with contextlib.suppress(OSError, KeyError), open(f"/proc/{name}/status") as lines:
            facts = dict(line.split(":", 1) for line in lines if ":" in line)
            if facts["State"].split()[0] not in "ZX" and facts["Uid"].split()[0] == str(uid):
                found.append(name)
    return found


def _hold() -> None:
    """Reap until the machine is taken away."""
    signals = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # so that none comes between two waits
    while signal.sigwait(signals) == signal.SIGCHLD:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(0)


def _run(job: dict[str, Any]) -> int:
    """Run one command to its end; return an exit code, 128 + n for signal n."""
    if os.readlink("/proc/self/ns/pid") == job["outside"]:
        raise RefusedError("the sandbox has no pid namespace of its own")
    if job["uid"]:  # a container engine sets it itself
        import ctypes

        if ctypes.CDLL(None).prctl(38, 1, 0, 0, 0):  # no new privileges, for whatever this becomes
            raise OSError("no_new_privs could not be set")
    os.write(1, READY)
    word = b""
    while not word.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            return 125
        word += more
    first = os.fork()
    if first == 0:
        _begin(job)
    code = None
    looked = False
    while code is None:
        pid, status = os.waitpid(first, 0 if not job["work_bytes"] else os.WNOHANG)
        if pid:
            code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if job["work_bytes"]:
            code = _over(job) or code
            if code is None:
                time.sleep(0.02 if looked else 0.002)
                looked = True
    _kill_all(job["uid"], job["outside"])
    return code


def _begin(job: dict[str, Any]) -> None:
    """Become the command; never returns."""
    import resource

    code, what = 125, "start"
    try:
        os.setsid()
        _drop(job["uid"])
        _keep_open(job["work"])
        for name, (soft, hard) in job["limits"].items():
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(getattr(resource, "RLIMIT_" + name), (soft, hard))
        for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(signum, signal.SIG_DFL)
        code, what = 126, job["cwd"]
        os.chdir(f"{job['work']}/{job['cwd']}")
        code, what = 127, job["argv"][0]
        os.execvpe(job["argv"][0], job["argv"], job["env"])
    except OSError as error:
        os.write(2, f"{what}: {error.strerror}\n".encode())
        os._exit(code)
    finally:
        os._exit(127)


def _over(job: dict[str, Any]) -> int:
    """Return the exit code for a work folder that is too large, 0 for one that is not."""
    num_bytes, num_files = _sizes(job["work"], job["work_bytes"], job["max_files"])
    if num_bytes > job["work_bytes"] or num_files > job["max_files"]:
        return OVER_BYTES if num_bytes > job["work_bytes"] else OVER_FILES
    return 0


def _sizes(work: str, max_bytes: float = math.inf, max_files: float = math.inf) -> tuple[int, int]:
    """Return bytes and number of what is in a folder, counted until one is beyond its limit."""
    num_bytes = num_files = 0
    folders = [work]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue
        for entry in entries:
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                num_bytes += info.st_blocks * 512
                num_files += 1
                if stat.S_ISDIR(info.st_mode):
                    folders.append(entry.path)
        if num_bytes > max_bytes or num_files > max_files:
            break
    return num_bytes, num_files


def _empty(root: str) -> None:
    """Remove what is below a folder, however deep, as far as this user may."""
    with contextlib.suppress(OSError):
        here = os.open(root, _FOLDER)
        path: list[tuple[str, list[str]]] = []
        left = _unlink(here)
        while left or path:
            if left:
                name = left.pop()
                with contextlib.suppress(OSError):
                    os.chmod(name, 0o700, dir_fd=here)
                    here = _move(here, name)
                    path.append((name, left))
                    left = _unlink(here)
            else:
                name, left = path.pop()
                here = _move(here, "..")
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=here)
        os.close(here)


def _unlink(here: int) -> list[str]:
    folders: list[str] = []
    for name in os.listdir(here):
        if stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
            folders.append(name)
        else:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=here)
    return folders


_GROUP = "/sys/fs/cgroup"
_TOLD = (  # of version 2, and of version 1
    ("memory.events", "oom_kill", "oom"),
    ("memory/memory.oom_control", "oom_kill", "oom"),
    ("pids.events", "max", "pids"),
    ("pids/pids.events", "max", "pids"),
    ("cpu.stat", "usage_usec", "cpu_us"),
)


def _events() -> dict[str, int]:
    """Return how often the machine's limits were met and what it used, as far as its control group tells."""
    found: dict[str, int] = {}
    for file, key, name in _TOLD:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"{_GROUP}/{file}") as lines:
            for line in lines:
                if line.split()[0] == key:
                    found[name] = int(line.split()[1])
    for nanoseconds in _number("cpu_us", "cpuacct/cpuacct.usage").values():
        found["cpu_us"] = nanoseconds // 1000
    return found | _number("peak", "memory.peak", "memory/memory.max_usage_in_bytes")


def _number(name: str, *files: str) -> dict[str, int]:
    """Return what the first of these files that is there tells."""
    for file in files:
        with contextlib.suppress(OSError, ValueError), open(f"{_GROUP}/{file}") as text:
            return {name: int(text.read())}
    return {}


def _stats(job: dict[str, Any]) -> None:
    """Say what the machine holds now."""
    num_bytes, num_files = _sizes(job["work"])
    ours = _words("self")[:-2]
    pids = filter(str.isdigit, os.listdir("/proc"))
    processes = [name for name in pids if name != "1" and _words(name)[:-2] != ours]
    found = {"disk_bytes": num_bytes, "num_files": num_files, "num_processes": len(processes)}
    found.update(_number("memory_bytes", "memory.current", "memory/memory.usage_in_bytes"))
    print(json.dumps(found | _events()))


def _end_runs(outside: str) -> None:
    """Kill `run`s whose client was let go, so that none starts anything any more."""
    if os.readlink("/proc/self/ns/pid") == outside:
        raise RefusedError("the sandbox has no pid namespace of its own")
    ours = _words("self")[:-2]
    for _ in range(500):
        runs = [
            name for name in filter(str.isdigit, os.listdir("/proc")) if _words(name)[:-1] == [*ours, b"run"]
        ]
        if not runs:
            return
        for name in runs:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(name), signal.SIGKILL)
        time.sleep(0.002)


def _words(name: str) -> list[bytes]:
    try:
        with open(f"/proc/{name}/cmdline", "rb") as file:
            return file.read().split(b"\0")[:-1]
    except OSError:
        return []


def _sweep(job: dict[str, Any]) -> int:
    _end_runs(job["outside"])
    gone = _kill_all(job["uid"], job["outside"])
    for folder in job["temporary"]:
        _empty(folder)
    events = _events()
    with contextlib.suppress(OSError):
        room = os.statvfs(job["work"])
        events["full"] = int(room.f_files > 0 and room.f_ffree == 0)  # no file can be made any more
    print(json.dumps({"gone": gone, "events": events}))
    return 0


def _relay(job: dict[str, Any]) -> int:
    space: dict[str, Any] = {"__name__": "relay"}
    exec(compile(job["text"], "relay", "exec"), space)
    space["relay"](job["port"], job["most"])
    return 0


def _prepare(job: dict[str, Any]) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(job["work"], 0o700)
    if os.geteuid() == 0 and job["uid"]:
        os.chown(job["work"], job["uid"], job["uid"])
    return 0


def main(verb: str, text: str) -> int:
    """Do one thing; return the exit code."""
    if verb == "hold":
        _hold()
    job: dict[str, Any] = json.loads(text)
    try:
        if verb in ("run", "prepare", "sweep", "relay"):
            return {"run": _run, "prepare": _prepare, "sweep": _sweep, "relay": _relay}[verb](job)
        _drop(job["uid"])
        os.umask(0o022)
        _keep_open(job["work"])
        if verb == "read":
            _read(job["work"], job["parts"], job["max_bytes"])
        elif verb == "write":
            _write(job["work"], job["parts"])
        elif verb == "stats":
            _stats(job)
        elif verb == "pack":
            pack(os.open(job["work"], _FOLDER), sys.stdout.buffer)
        else:
            _empty(job["work"])
            unpack(sys.stdin.buffer, os.open(job["work"], _FOLDER), job["max_bytes"], job["max_entries"])
    except (OSError, RefusedError) as error:
        sys.stderr.write(f"{getattr(error, 'strerror', None) or error}\n")
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
