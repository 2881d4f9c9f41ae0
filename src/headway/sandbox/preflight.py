"""What this machine can promise, and why not when it cannot."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from headway.core.errors import SandboxUnavailableError
from headway.core.protocols import Guarantee

_SWITCHES = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("user/max_user_namespaces", "0", "15000"),
)


def read_sysctl(name: str) -> str | None:
    """Return a kernel setting such as `user/max_user_namespaces`, None where it does not exist."""
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def unavailable(said: str, sysctl: Callable[[str], str | None] = read_sysctl) -> SandboxUnavailableError:
    """Turn what bubblewrap said into an error that names the kernel setting to change."""
    for name, blocking, wanted in _SWITCHES:
        if sysctl(name) == blocking:
            key = name.replace("/", ".")
            return SandboxUnavailableError(
                f"the sandbox needs user namespaces, and the kernel setting {key} is {blocking}: {said}",
                remedy=f"Run `sudo sysctl -w {key}={wanted}` (and put it into /etc/sysctl.d to keep it)",
            )
    return SandboxUnavailableError(
        f"the sandbox needs Linux namespaces (user, pid, mount, network), and could not make them: {said}",
        remedy="In a container, allow them (`docker run --security-opt seccomp=unconfined "
        "--security-opt apparmor=unconfined --security-opt systempaths=unconfined`), or run on the host",
    )


def guarantees(*, pids: bool, copied: bool | None = None) -> list[Guarantee]:
    """Return what bubblewrap and resource limits give.

    Args:
        pids: whether the process limit holds.
        copied: whether each sandbox holds a copy of the image; None without one.
    """
    remedy = "each sandbox holds a copy, which counts as its own files; the local provider shares one"
    image = [Guarantee("image", "best-effort", remedy) if copied else Guarantee("image", "enforced")]
    cgroups = (
        "a memory limit for the whole sandbox needs a delegated cgroup v2, which this provider does not use"
    )
    return [
        Guarantee("network", "enforced"),
        Guarantee("served", "enforced"),
        Guarantee("host_files", "enforced"),
        Guarantee("environment", "enforced"),
        Guarantee("wall", "enforced"),
        Guarantee("output", "enforced"),
        Guarantee("nested_namespaces", "enforced"),
        Guarantee("file_size", "enforced"),
        Guarantee("snapshot", "enforced"),
        Guarantee(
            "usage",
            "best-effort",
            "what a command used is not told; files, disk and the processes that run are. "
            'sandbox.provider = "local" tells it',
        ),
        Guarantee("memory", "best-effort", f"the limit holds for each process; {cgroups}"),
        Guarantee("cpu", "best-effort", "the limit holds for each process; the wall limit bounds the sum"),
        Guarantee("disk", "best-effort", "/tmp has a size; the work folder is looked at ten times a second"),
        Guarantee(
            "first_process",
            "best-effort",
            "bubblewrap's own process in a sandbox has the model's uid: a program can write to it, and forge "
            'how its own command ended, no more; sandbox.provider = "local" closes it',
        ),
        Guarantee("pids", "enforced")
        if pids
        else Guarantee(
            "pids", "absent", "Install util-linux (unshare, setpriv, mount), or run as an ordinary user"
        ),
        *([] if copied is None else image),
    ]


def local_guarantees(
    *, pids: bool, cgroups: Collection[str] = (), image: bool | None = None
) -> list[Guarantee]:
    """Return what the local provider's helper gives.

    Args:
        pids: whether the process limit of the user namespace holds.
        cgroups: which controllers serve.
        image: whether all sandboxes share the image; None without one.
    """
    shared = [] if image is None else [_SHARED if image else _COPIED]
    enforced = (
        "network", "served", "host_files", "environment", "wall", "output", "nested_namespaces", "file_size",
        "disk", "files", "first_process", "syscalls", "snapshot", "pause", "usage",
    )  # fmt: skip
    delegate = (
        "run as root, or where a cgroup v2 is delegated with its memory controller "
        "(`systemd-run --user --scope -p Delegate=yes`)"
    )
    return [
        *(Guarantee(name, "enforced") for name in enforced),
        Guarantee("memory", "enforced")
        if "memory" in cgroups
        else Guarantee(
            "memory",
            "best-effort",
            "the limit holds for each process (RLIMIT_AS), and for all together ten times a second "
            f"(a watchdog); a hard one for all needs a cgroup: {delegate}",
        ),
        Guarantee(
            "cpu",
            "best-effort",
            "the limit holds for each process; the wall limit bounds the sum; "
            + (
                "cores are shared by weight" if "cpu" in cgroups else "nothing shares cores between sandboxes"
            ),
        ),
        Guarantee("pids", "enforced")
        if pids or "pids" in cgroups
        else Guarantee("pids", "absent", "Run as an ordinary user, or as root with CAP_SYS_ADMIN"),
        *shared,
    ]


_SHARED = Guarantee("image", "enforced")
_COPIED = Guarantee(
    "image",
    "best-effort",
    "each sandbox holds a copy, which counts as its own files; sharing one needs overlayfs over a tmpfs with "
    "user attributes (Linux 6.6)",
)
