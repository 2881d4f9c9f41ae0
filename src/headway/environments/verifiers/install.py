"""Installs a package of verifiers with pip into a virtual environment of its own.

The package decides the major version of verifiers: one with a `load_environment` needs 0.1.14 to 0.3.x, which
its own requirements seldom say, any other 0.4.x. So the package alone is installed first, looked at, and then
what it requires. Waits for pip, whose words are shown when it fails; nothing is left behind then.
"""

from __future__ import annotations

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
from headway.environments.verifiers.places import Installed, folder, normal, record

V0 = "verifiers>=0.1.14,<0.4"
V1 = "verifiers>=0.4,<0.5"
_LOCK_HEAD = "# headway env install "
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
        _run([sys.executable, "-m", "venv", str(where)], "make a virtual environment")
        one = _installed(where, source, locked, extra, say)
        record(one)
    except BaseException:
        shutil.rmtree(where, ignore_errors=True)
        raise
    return one


def lock_text(one: Installed) -> str:
    """Return a package's file of exact versions."""
    words = f"{_LOCK_HEAD}{one.name}@{one.version} (Python {one.python})"
    return "\n".join([words, *one.lock]) + "\n"


def read_lock(path: Path) -> list[str]:
    """Return the requirements of a file of exact versions.

    Raises EnvironmentSetupError for a line that is none.
    """
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise EnvironmentSetupError(
            f"the lock file must be readable: {error}",
            value=str(path),
            remedy="Name a file that `headway env install --lock FILE` wrote",
        ) from error
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for line in found:
        if not re.fullmatch(r"[A-Za-z0-9._-]+==\S+", line):
            raise EnvironmentSetupError(
                "each line of a lock file must be NAME==VERSION",
                value=line,
                remedy="Take the file that `headway env install NAME --lock FILE` writes",
            )
    return found


def _installed(where: Path, source: str, locked: Path | None, extra: Sequence[str], say: Say) -> Installed:
    python = where / "bin" / "python"
    path = Path(source).expanduser()
    is_path = source.startswith((".", "/", "~")) or path.exists()
    wanted = str(path.resolve()) if is_path else re.sub(r"@=*", "==", source, count=1)
    pins = [] if locked is None else read_lock(locked)
    if pins and not is_path:  # the package itself is in it
        wanted = next(
            (pin for pin in pins if normal(pin.partition("==")[0]) == normal(_name_of(wanted))), wanted
        )
    before = _versions(python)
    say(f"installing {wanted}")
    _pip(python, ["--no-deps", wanted], wanted)
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
        rest = [pin for pin in pins if normal(pin.partition("==")[0]) != normal(name)]
        say(f"installing the {len(rest)} packages of {locked}")
        _pip(python, ["--no-deps", *rest], str(locked))
    else:
        needs = V0 if _is_v0(module_files) else V1
        say(f"installing what it requires, with {needs}")
        _pip(python, [wanted if is_path else f"{name}=={version}", needs, *extra], wanted)
    versions = _versions(python)
    own = f"{normal(name)}=={version}"
    others = {normal(each): at for each, at in versions.items() if normal(each) not in ("pip", normal(name))}
    lock = (own, *(f"{each}=={others[each]}" for each in sorted(others)))
    return Installed(
        normal(name),
        version,
        versions.get("verifiers", ""),
        ".".join(map(str, sys.version_info[:3])),
        url or own,
        str(where),
        lock,
    )


def _name_of(requirement: str) -> str:
    return re.split(r"[\[=<>!~ ;]", requirement, maxsplit=1)[0]


def _is_v0(files: Sequence[str]) -> bool:
    return any(
        "def load_environment" in Path(file).read_text(encoding="utf-8", errors="replace") for file in files
    )


def _files(python: Path, name: str) -> tuple[list[str], str]:
    files, url = json.loads(_run([str(python), "-c", _FILES, name], "look at the package"))
    return files, url


def _versions(python: Path) -> dict[str, str]:
    found: dict[str, Any] = json.loads(_run([str(python), "-c", _LIST], "list packages"))
    return {name: version for name, version in found.items() if name not in ("pip", "setuptools")}


def _pip(python: Path, words: Sequence[str], what: str) -> None:
    options = ["-q", "--no-input", "--disable-pip-version-check"]
    _run([str(python), "-m", "pip", "install", *options, *words], f"install {what}")


def _run(argv: list[str], what: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if "WARNING" not in line]
        raise EnvironmentSetupError(
            f"it must be possible to {what}: {' / '.join(lines[-6:]) or 'no reason was given'}",
            remedy="Look at the name and version, and that pip reaches its index",
        )
    return done.stdout
