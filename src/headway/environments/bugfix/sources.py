"""Packages as they are published: the files of a source distribution, or of a folder, and where its code is.

`fetch` asks pip, which on the way may run code of the package's build system, on the host and as you. What is
kept is named by its hash, so that a task means the same bytes everywhere.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headway.core.errors import EnvironmentSetupError

_MAX_FILE_BYTES = 1 << 20
_MAX_FILES = 900
_LEFT_OUT = {"docs", "doc", "benchmark", "benchmarks", "changelog.d", ".github", ".git", "examples"}
_NAME = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*?)(==(?P<version>[A-Za-z0-9.!+_-]+))?$")

_SAYS_VERSION = ("pyproject.toml", "__init__.py")
_VERSION = re.compile(r'^(?:__version__|version)\s*=\s*"([^"]+)"', re.MULTILINE)

Tree = dict[str, bytes]  # path below the package's folder, with /, -> content


@dataclass(frozen=True, slots=True)
class Package:
    """One version of a package."""

    name: str
    version: str
    digest: str  # sha256 of the archive, or of a folder's files
    place: str  # of the archive or folder, relative to the tasks' folder
    tree: Tree

    @property
    def key(self) -> str:
        """Name and version."""
        return f"{self.name}-{self.version}"

    @property
    def roots(self) -> tuple[str, ...]:
        """Folders that its code is imported from; "" is the package's own."""
        below = any(path.startswith("src/") and path.endswith(".py") for path in self.tree)
        return ("src", "") if below else ("",)

    @property
    def sources(self) -> list[str]:
        """Files of its code, in order, tests left out."""
        prefix = "src/" if "src" in self.roots else ""
        return [path for path in sorted(self.tree) if path.startswith(prefix) and is_code(path, prefix)]

    @property
    def tests(self) -> list[str]:
        """Files that hold tests, in order."""
        return [path for path in sorted(self.tree) if is_test_file(path)]


def is_test(path: str) -> bool:
    """Say whether a file belongs to tests, or to how they are run; no edit of it counts."""
    parts = PurePosixPath(path).parts
    beside = {"conftest.py", "setup.py", "sitecustomize.py", "usercustomize.py", "noxfile.py", "pytest.py"}
    return (
        any(part in ("tests", "test", "testing") for part in parts[:-1])
        or parts[-1] in beside
        or parts[-1].startswith("test_")
        or parts[-1].endswith("_test.py")
    )


def is_test_file(path: str) -> bool:
    """Say whether a file holds tests."""
    name = PurePosixPath(path).name
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def is_code(path: str, prefix: str = "") -> bool:
    """Say whether a file is code of the package itself; `prefix` is the folder that it is imported from."""
    parts = PurePosixPath(path[len(prefix) :]).parts
    return path.endswith(".py") and not is_test(path) and parts[0] not in _LEFT_OUT | {"tools", "release.py"}


def digest_of(path: Path) -> str:
    """Return the sha256 of an archive, or of the names and contents of a folder's files."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    found = hashlib.sha256()
    for name, data in sorted(read_tree(path).items()):
        found.update(f"{name}\0{len(data)}\0".encode() + data)
    return found.hexdigest()


def read_tree(path: Path) -> Tree:
    """Return the files of a folder or of a source archive, whose top folder is left out.

    Docs, files over 1 MiB and links are not among them. Raises EnvironmentSetupError for what is neither, and
    for too many files.
    """
    if path.is_dir():
        pairs = [(file.relative_to(path).as_posix(), file.read_bytes()) for file in _files(path)]
    else:
        pairs = _archived(path)
    tree = {name: data for name, data in pairs if _wanted(name) and len(data) <= _MAX_FILE_BYTES}
    if len(tree) > _MAX_FILES:
        rule = f"a package for bugfix tasks may have {_MAX_FILES} files, without its docs"
        raise EnvironmentSetupError(rule, value=len(tree), remedy="Choose a smaller package")
    return tree


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _archived(path: Path) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    try:
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                _, _, name = member.name.partition("/")
                file = archive.extractfile(member) if member.isfile() and name else None
                if file is not None and member.size <= _MAX_FILE_BYTES:
                    found.append((name, file.read()))
    except (OSError, tarfile.TarError) as error:
        rule = f"a package's sources must be a folder or a tar archive: {error}"
        raise EnvironmentSetupError(
            rule, value=str(path), remedy="Remove it, so that it is fetched again, or name another folder"
        ) from error
    return found


def _wanted(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return (
        ".." not in parts
        and not name.startswith("/")
        and parts[0] not in _LEFT_OUT
        and "__pycache__" not in parts
        and not any(part.endswith(".egg-info") for part in parts)
        and not name.endswith((".pyc", ".so", ".png", ".svg", ".gz", ".zip", ".whl"))
    )


def pack(tree: Mapping[str, bytes]) -> bytes:
    """Return a tar archive of files, the same for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        folders = {str(parent) for name in tree for parent in PurePosixPath(name).parents}
        for folder in sorted(folders - {"."}):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        for name in sorted(tree):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(tree[name]), 0o644
            archive.addfile(member, io.BytesIO(tree[name]))
    return buffer.getvalue()


# --- from an index, or from here


def obtain(wanted: str, out: Path, digest: str = "") -> Package:
    """Return a package by name (`toolz`, `toolz==1.2.0`) or by the path of a folder.

    What is fetched is kept in `out`/sources. Raises EnvironmentSetupError when pip cannot, and when the
    sources have another hash than `digest`.
    """
    folder = Path(wanted)
    found = _local(folder, out) if folder.is_dir() else _fetched(wanted, out)
    if digest and found.digest != digest:
        rule = "a package's sources must have the hash that its tasks were made from"
        raise EnvironmentSetupError(rule, value=f"{found.key}: {found.digest}", remedy=f"It was {digest}")
    return found


def load(place: str, folder: Path, digest: str) -> Tree:
    """Return the files of a package that tasks name, relative to the tasks' folder.

    Raises EnvironmentSetupError when they are not there, or have another hash than when the tasks were made.
    """
    path = folder / place
    if not path.exists():
        rule = "the sources that a file of tasks names must be there"
        raise EnvironmentSetupError(rule, value=str(path), remedy="Make the tasks again (docs/bugfix.md)")
    if digest_of(path) != digest:
        rule = "a package's sources must have the hash that its tasks were made from"
        raise EnvironmentSetupError(rule, value=str(path), remedy=f"It was {digest}")
    return read_tree(path)


def _local(folder: Path, out: Path) -> Package:
    tree = read_tree(folder)
    texts = [tree[path].decode(errors="replace") for path in sorted(tree) if path.endswith(_SAYS_VERSION)]
    found = [match[1] for text in texts if (match := _VERSION.search(text))]
    place = Path(os.path.relpath(folder.resolve(), out.resolve())).as_posix()
    return Package(folder.resolve().name, found[0] if found else "0", digest_of(folder), place, tree)


def _fetched(wanted: str, out: Path) -> Package:
    match = _NAME.match(wanted)
    if match is None:
        rule = "a package is NAME, NAME==VERSION or a folder"
        raise EnvironmentSetupError(rule, value=wanted, remedy="Write toolz, toolz==1.2.0 or ./toolz")
    name, version = match["name"], match["version"]
    sources = out / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    path = _here(sources, name, version) if version else None
    if path is None:
        before = set(sources.iterdir())
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-input",
        ]
        pip += ["--no-deps", "--no-binary", ":all:", "--dest", str(sources), wanted]
        done = subprocess.run(pip, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        path = _here(sources, name, version, set(sources.iterdir()) - before)
        if path is None:
            said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
            rule = f"pip must be able to fetch a package's sources: {' / '.join(said[-2:])}"
            raise EnvironmentSetupError(rule, value=wanted, remedy="Name a package that has an sdist")
    version = path.name.removesuffix(".tar.gz").rpartition("-")[2]
    return Package(name.lower(), version, digest_of(path), f"sources/{path.name}", read_tree(path))


def _here(sources: Path, name: str, version: str | None, among: Iterable[Path] = ()) -> Path | None:
    """Return the archive of a package that is there already."""
    plain = re.sub(r"[-_.]+", "_", name).lower()
    for path in sorted(among or sources.glob("*.tar.gz")):
        of, _, number = path.name.removesuffix(".tar.gz").rpartition("-")
        if re.sub(r"[-_.]+", "_", of).lower() == plain and version in (None, number):
            return path
    return None
