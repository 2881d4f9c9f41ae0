"""What every sandbox begins with: `sandbox.image` as a folder of the cache, built once for each content.

A folder or a tar archive becomes the content of /work. A requirements file becomes a virtual environment,
whose packages pip installs; it lies in the sandbox at VENV, where python3 is. In the cache:

    <digest>/             a whole image; the digest is that of its content (of a requirements file: of its
                          text and the interpreter), and for root also names who owns the files
    <name>.draft/         one that is being built under the lock of the same name, or was left by a kill
    seen/<fingerprint>    the digest of a source whose inodes and times are as they were

A draft gets its name, by a rename, when it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.core.clock import wall_time
from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.sandbox.blobs import Held
from headway.sandbox.cache import cache_folder
from headway.sandbox.files import remove_tree
from headway.sandbox.layout import SHIM, VENV, interpreter
from headway.sandbox.tars import Allowance, extract
from headway.sandbox.trees import copy_tree, opened, walk

_SETTLED_S = 0.05  # a source that changed later may change again at the same times
_KEY = "sandbox.image"
_UNBOUNDED = 1 << 62  # the user's own archive


@dataclass(frozen=True, slots=True)
class Image:
    """A whole image in the cache."""

    kind: Literal["work", "python"]
    digest: str
    path: Path


def image_of(source: str, owner: int | None = None) -> Image | None:
    """Return the image that `sandbox.image` names, built if need be; None for "". Blocks while it is built.

    `owner` is the uid that files of /work have, None for the caller's. Raises SandboxUnavailableError for a
    source that is missing or cannot be used, with the reason.
    """
    if not source:
        return None
    path = Path(source).expanduser().absolute()
    try:
        if path.is_dir():
            return _of_files(path, owner, lambda draft: copy_tree(path, draft, owner, ours=False))
        if path.suffix == ".txt" and path.is_file():
            return _of_requirements(path)
        if path.is_file():
            return _of_files(path, owner, lambda draft: _extract(path, draft, owner))
    except SandboxUnavailableError:
        raise
    except SandboxError as error:
        raise _bad(error.rule, error.value or str(path)) from error
    except OSError as error:
        raise _bad(f"an image cannot be built: {error.strerror}", error.filename or str(path)) from error
    raise _bad(
        "an image must be a folder, a tar archive or a requirements file", str(path), "There is none here"
    )


def _bad(rule: str, value: object, remedy: str = "") -> SandboxUnavailableError:
    return SandboxUnavailableError(rule, value=value, remedy=remedy, key=_KEY)


def _cache() -> Path:
    return cache_folder("images", "or leave sandbox.image empty")


# --- files of /work


def _of_files(source: Path, owner: int | None, fill: Callable[[Path], None]) -> Image:
    cache = _cache()
    fingerprint, newest = _fingerprint(source, owner)
    mark = cache / "seen" / fingerprint
    with contextlib.suppress(FileNotFoundError):
        digest = mark.read_text()
        if (cache / digest).is_dir():
            return Image("work", digest, cache / digest)
    began = wall_time()
    with _draft(cache, mark.name) as draft:
        fill(draft)
        draft.chmod(0o700)
        content = _digest(draft)
        digest = content if owner is None else f"{content}.{owner}"
        if not (cache / digest).is_dir():
            draft.rename(cache / digest)
    if newest < began - _SETTLED_S:
        mark.parent.mkdir(mode=0o700, exist_ok=True)
        new = mark.with_suffix(f".{os.getpid()}")
        new.write_text(digest)
        new.rename(mark)
    return Image("work", digest, cache / digest)


def _fingerprint(source: Path, owner: int | None) -> tuple[str, float]:
    """Return what changes whenever the source does, and its newest change, seconds since the epoch."""
    newest = 0.0
    found = hashlib.sha256(f"{source}\0{owner}\0".encode(errors="surrogateescape"))
    if source.is_dir():
        for entry in walk(source, ours=False):
            info = entry.info
            newest = max(newest, info.st_ctime)
            about = info.st_ino, info.st_size, info.st_mode, info.st_mtime_ns, info.st_ctime_ns
            found.update(f"{entry.kind}\0{entry.name}\0{about}\0".encode(errors="surrogateescape"))
    else:
        info = source.stat()
        newest = info.st_ctime
        found.update(repr((info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)).encode())
    return found.hexdigest(), newest


def _digest(folder: Path) -> str:
    """Return the hash of all that a folder holds."""
    found = hashlib.sha256()
    for entry in walk(folder):
        info, held = entry.info, ""
        if entry.kind == "file":
            with opened(entry) as fd:
                held = Held(fd, info).name
        elif entry.kind == "again":
            held = str(entry.first)
        elif entry.kind == "link":
            held = os.readlink(entry.name, dir_fd=entry.folder)
        # Whole seconds, as archives have; of the top folder nothing.
        about = entry.kind, entry.name, info.st_mode, int(info.st_mtime), held
        about = about if entry.name else ()
        found.update(repr(about).encode(errors="surrogateescape"))
    return found.hexdigest()


def _extract(source: Path, draft: Path, owner: int | None) -> None:
    try:
        with tarfile.open(source) as tar:
            extract(tar, draft, owner, Allowance(_UNBOUNDED, _UNBOUNDED))
    except (tarfile.TarError, EOFError, ValueError) as error:
        said = str(error).splitlines()[0] if str(error) else "it ends too early"
        raise SandboxError(
            f"an image that is a file must be a tar archive: {said}", value=str(source)
        ) from error
    if owner is not None:
        os.chown(draft, owner, owner)


# --- a Python environment


def _of_requirements(source: Path) -> Image:
    text = source.read_bytes()
    for line in text.decode(errors="replace").splitlines():
        word = line.strip().partition(" ")[0]
        if word.startswith(_NESTED):
            raise _bad(
                "a requirements file of an image must name packages, not other files",
                line.strip(),
                "What they hold is not known by the file's content: write it into the one file, or serve "
                "packages from an index or with --find-links",
            )
    parts = text, sys.version.encode(), interpreter().encode(), sysconfig.get_platform().encode()
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    cache = _cache()
    if not (cache / digest).is_dir():
        with _draft(cache, digest) as draft:
            if not (cache / digest).is_dir():
                _install(source, draft)
                draft.rename(cache / digest)
    return Image("python", digest, cache / digest)


_NESTED = (".", "/", "file:", "-r", "-c", "-e", "--requirement", "--constraint", "--editable")


def _install(source: Path, draft: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = draft / "lib" / version / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    pip += ["--no-compile", "--no-warn-script-location", "--target", str(packages), "-r", str(source)]
    done = subprocess.run(pip, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
        raise _bad(
            f"pip must be able to install an image's requirements: {' / '.join(said[-3:])}",
            str(source),
            f"Try `{sys.executable} -m pip install --dry-run -r {source}`",
        )
    packages.mkdir(parents=True, exist_ok=True)
    inside = f"{VENV}/lib/{version}/site-packages"
    compiled = [sys.executable, "-m", "compileall", "-q", "-s", str(packages), "-p", inside, str(packages)]
    subprocess.run(
        compiled, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )  # old syntax may fail
    scripts = draft / "bin"
    if (packages / "bin").is_dir():
        (packages / "bin").rename(scripts)
        for script in scripts.iterdir():
            _point(script)
    scripts.mkdir(exist_ok=True)
    for name in ("python3", "python"):
        (scripts / name).unlink(missing_ok=True)
        (scripts / name).symlink_to(interpreter())
    home = os.path.dirname(interpreter())
    (draft / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    for folder, _, names in os.walk(draft):
        os.chmod(folder, 0o755)
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o755 if os.stat(path).st_mode & 0o100 else 0o644)


def _point(script: Path) -> None:
    """Let a script of a package run with the sandbox's interpreter."""
    if script.is_file() and not script.is_symlink():
        data = script.read_bytes()
        first, _, rest = data.partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            script.write_bytes(f"#!{SHIM}/python3\n".encode() + rest)


@contextlib.contextmanager
def _draft(cache: Path, name: str) -> Generator[Path]:
    """Lend an empty folder that is removed unless it was renamed; nobody else has the one of this name."""
    fd = os.open(cache / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    draft = cache / f"{name}.draft"
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        remove_tree(draft)
        draft.mkdir(mode=0o700)
        yield draft
    finally:
        remove_tree(draft)
        os.close(fd)
