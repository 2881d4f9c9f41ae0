"""Installs a package of verifiers with pip into a virtual environment of its own.

The package decides the major version of verifiers: one with a `load_environment` needs 0.1.14 to 0.3.x, which
its own requirements seldom say, any other 0.4.x. So the package alone is installed first, looked at, and then
what it requires. Waits for pip, whose words are shown when it fails; nothing is left behind then. What pip
fetched is known by its hash; where each line of a lock file has one, nothing else is installed.
"""

from __future__ import annotations

import importlib.util
import json
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headway.core.errors import EnvironmentSetupError
from headway.environments.verifiers.lock import has_hash, name_of, read_lock, without_hash
from headway.environments.verifiers.places import Installed, folder, normal, record

V0 = "verifiers>=0.1.14,<0.4"
V1 = "verifiers>=0.4,<0.5"
_LIST = """
import importlib.metadata as m, json
print(json.dumps({d.name: d.version for d in m.distributions()}))
"""
_FILES = """
import importlib.metadata as m, json, sys
files = m.files(sys.argv[1]) or []
direct = json.loads(m.distribution(sys.argv[1]).read_text("direct_url.json") or "{}")
print(json.dumps([[str(f.locate()) for f in files if f.suffix == ".py"], direct.get("url", "")]))
"""
Say = Callable[[str], None]


def install(
    source: str, *, locked: Path | None = None, extra: Sequence[str] = (), say: Say = print
) -> Installed:
    """Install a package anew; one of its name that is there is replaced.

    Args:
        source: a name, NAME@version, or the path of a folder or wheel.
        locked: a file of exact versions, which are installed and nothing else.
        extra: further requirements.
        say: told what goes on.

    Raises EnvironmentSetupError with pip's last words.
    """
    where = folder() / "venvs" / f"{secrets.token_hex(6)}"
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        say(f"making a virtual environment in {where}")
        one = _installed(where, source, locked, extra, say)
        record(one)
    except BaseException:
        shutil.rmtree(where, ignore_errors=True)
        raise
    return one


def _installed(where: Path, source: str, locked: Path | None, extra: Sequence[str], say: Say) -> Installed:
    python = where / "bin" / "python"
    pip = _Pip(where)
    path = Path(source).expanduser()
    is_path = source.startswith((".", "/", "~")) or path.exists()
    wanted = str(path.resolve()) if is_path else re.sub(r"@=*", "==", source, count=1)
    pins = [] if locked is None else read_lock(locked)
    asked_for = normal(re.split(r"[\[=<>!~ ;]", wanted, maxsplit=1)[0])
    pin = next((pin for pin in pins if not is_path and name_of(pin) == asked_for), wanted)
    before = _versions(python)
    say(f"installing {without_hash(pin)}")
    pip.install([pin], wanted)
    new = {name: version for name, version in _versions(python).items() if name not in before}
    if len(new) != 1:
        raise EnvironmentSetupError(
            "one package must be installed by a name or path",
            value=source,
            remedy="Give one package; others that it needs go into --with",
        )
    [(name, version)] = new.items()
    module_files, url = _files(python, name)
    if pins:
        rest = [pin for pin in pins if name_of(pin) != normal(name)]
        bare = [pin for pin in rest if not has_hash(pin)]
        how = "each by its hash" if not bare else f"no hash is checked, for {len(bare)} have none"
        say(f"installing the {len(rest)} packages of {locked}; {how}")
        pip.install(rest, str(locked))
    else:
        needs = V0 if _is_v0(module_files) else V1
        say(f"installing what it requires, with {needs}")
        pip.install([wanted if is_path else f"{name}=={version}", needs, *extra], wanted, all_needed=True)
    versions = _versions(python)
    others = sorted(
        (normal(each), at) for each, at in versions.items() if each != name and before.get(each) != at
    )
    lock = [f"{each}=={at}{pip.hashes.get(each, '')}" for each, at in [(normal(name), version), *others]]
    return Installed(
        normal(name),
        version,
        versions.get("verifiers", ""),
        ".".join(map(str, sys.version_info[:3])),
        url or f"{normal(name)}=={version}",
        str(where),
        tuple(lock),
    )


class _Pip:
    """pip for one virtual environment, and the hashes of what it installed there, by name.

    It is Headway's own pip where there is one: the virtual environment needs none then.
    """

    def __init__(self, where: Path) -> None:
        self.hashes: dict[str, str] = {}
        self._requirements = where / "headway-requirements.txt"
        python = str(where / "bin" / "python")
        if importlib.util.find_spec("pip") is not None:
            _run([sys.executable, "-m", "venv", "--without-pip", str(where)], "make a virtual environment")
            self._command = [sys.executable, "-m", "pip", "--python", python]
        else:
            _run([sys.executable, "-m", "venv", str(where)], "make a virtual environment")
            self._command = [python, "-m", "pip"]

    def install(self, requirements: Sequence[str], what: str, *, all_needed: bool = False) -> None:
        """Install requirements, by their hashes where all have one; with what they need if `all_needed`."""
        words = [without_hash(each) for each in requirements]
        if requirements and all(has_hash(each) for each in requirements):  # pip takes them from files only
            self._requirements.write_text("\n".join(requirements) + "\n", encoding="utf-8")
            words = ["--require-hashes", "-r", str(self._requirements)]
        options = ["-q", "--no-input", "--disable-pip-version-check", "--no-compile", "--report", "-"]
        if not all_needed:
            options.append("--no-deps")
        told = _run([*self._command, "install", *options, *words], f"install {what}")
        self.hashes |= _hashes(json.loads(told))


def _hashes(report: dict[str, Any]) -> dict[str, str]:
    """Return the options --hash of the files that pip reports, by name."""
    found: dict[str, str] = {}
    for each in report["install"]:
        archive = each["download_info"].get("archive_info", {})
        old = str(archive.get("hash", "")).partition("sha256=")[2]  # as pip wrote it before 23.0
        if digest := archive.get("hashes", {}).get("sha256", old):
            found[normal(each["metadata"]["name"])] = f" --hash=sha256:{digest}"
    return found


def _is_v0(files: Sequence[str]) -> bool:
    return any(
        "def load_environment" in Path(file).read_text(encoding="utf-8", errors="replace") for file in files
    )


def _files(python: Path, name: str) -> tuple[list[str], str]:
    files, url = json.loads(_run([str(python), "-c", _FILES, name], "look at the package"))
    return files, url


def _versions(python: Path) -> dict[str, str]:
    found: dict[str, Any] = json.loads(_run([str(python), "-c", _LIST], "list packages"))
    return found


def _run(argv: list[str], what: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).splitlines()
        if last := re.search(r"Retry\(total=0,.* connection broken by '(.*)': ", done.stderr):
            why = re.sub(r"<[^>]*>[:,] ", "", last[1])  # objects of its own
            raise EnvironmentSetupError(
                f"pip must reach its index to {what}: {why[:300]}",
                remedy="Mend the network or pip's settings (`pip config list`), then try again",
            )
        lines = [line for line in lines if "WARNING" not in line]
        raise EnvironmentSetupError(
            f"it must be possible to {what}: {' / '.join(lines[-6:]) or 'no reason was given'}",
            remedy="Look at the name and version, and that pip reaches its index",
        )
    return done.stdout
