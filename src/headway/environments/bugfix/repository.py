"""A repository in a sandbox: the tools with which a policy works on it, and what it changed.

What was changed is taken from the files' contents, whatever changed them. Only code counts: tests, how they
are run, and files outside the folders of code are as they were when the verifier looks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import EnvironmentFault
from headway.core.protocols import ExecLimits
from headway.environments.bugfix.sources import Tree, is_code, is_test
from headway.environments.tools import FunctionTool, ToolRefusal

if TYPE_CHECKING:
    from headway.core.protocols import ExecResult, Sandbox
    from headway.environments.bugfix.testing import Layout

_MAX_LINES = 200  # that read_file returns
_MAX_MATCHES = 50
_MAX_CHANGED_BYTES = 1 << 20

# Replaces a text that occurs once. Reads {"path", "old", "new"}; says what is wrong on stderr.
_EDIT = """
import json, sys
job = json.load(sys.stdin)
try:
    with open(job["path"], encoding="utf-8", newline="") as file: text = file.read()
except (OSError, UnicodeError) as error: sys.exit(f"{job['path']}: {error}")
count = text.count(job["old"])
if not job["old"] or count != 1: sys.exit(f"old must occur once in {job['path']}, it occurs {count} times")
text = text.replace(job["old"], job["new"])
with open(job["path"], "w", encoding="utf-8", newline="") as file: file.write(text)
"""

# Says which Python files are not as known, and which are gone. Reads {path: hash}. What is no regular file,
# is too long, cannot be read or has a name that is no text is gone: whoever works here may leave anything.
_CHANGED = """
import hashlib, json, os, stat, sys
known, left, changed, hashes = json.load(sys.stdin), int(sys.argv[1]), {}, {}
for folder, folders, names in os.walk("."):
    folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
    for name in names:
        path = os.path.normpath(os.path.join(folder, name))
        if not name.endswith(".py"): continue
        try:
            path.encode()
            about = os.lstat(path)
            if not stat.S_ISREG(about.st_mode) or about.st_size > 1 << 24: continue
            with open(path, "rb") as file: data = file.read()
        except (OSError, UnicodeError): continue
        hashes[path] = hashlib.sha256(data).hexdigest()
        if known is not None and known.get(path) != hashes[path] and len(data) <= left:
            try: changed[path] = data.decode("utf-8")
            except UnicodeError: continue
            left -= len(data)
print(json.dumps({"changed": changed, "hashes": hashes} if known is None else
                 {"changed": changed, "gone": [path for path in known if path not in hashes]}))
"""


def tools(sandbox: Sandbox, layout: Layout, command_s: float) -> list[FunctionTool]:
    """Return the tools of one rollout; `command_s` bounds each command that the policy runs."""
    cwd = "" if layout.root == "." else layout.root
    limits = ExecLimits(command_s, 1 << 20)

    async def asked(*argv: str, stdin: bytes = b"") -> ExecResult:
        return await sandbox.exec(list(argv), stdin=stdin, cwd=cwd, limits=limits)

    async def list_files(folder: str = ".") -> str:
        """List the files below a folder of the repository.

        Args:
            folder: relative to the repository.
        """
        done = await asked(
            "find", _inside(folder), "-type", "f", "-not", "-path", "*/.*", "-not", "-name", "*.pyc"
        )
        return "\n".join(sorted(line.removeprefix("./") for line in _stdout(done).splitlines()))

    async def read_file(path: str, first: int = 1, last: int = _MAX_LINES) -> str:
        """Read lines of a file, with their numbers.

        Args:
            path: relative to the repository.
            first: first line, from 1.
            last: last line.
        """
        lines = _stdout(await asked("cat", "--", _inside(path))).removesuffix("\n").split("\n")
        last = min(last, first + _MAX_LINES - 1, len(lines))
        shown = [f"{number}: {lines[number - 1]}" for number in range(max(1, first), last + 1)]
        return "\n".join([*shown, *([f"({len(lines)} lines)"] if last < len(lines) else [])])

    async def search(pattern: str, folder: str = ".") -> str:
        """Search files for lines that match a regular expression.

        Args:
            pattern: an extended regular expression.
            folder: a folder or file, relative to the repository.
        """
        done = await asked("grep", "-rnIE", "--include=*.py", "-e", pattern, "--", _inside(folder))
        if done.rc == 1:
            return "Nothing matches."
        lines = _stdout(done).splitlines()
        more = [f"({len(lines) - _MAX_MATCHES} more)"] if len(lines) > _MAX_MATCHES else []
        return "\n".join([*(line.removeprefix("./")[:300] for line in lines[:_MAX_MATCHES]), *more])

    async def edit_file(path: str, old: str, new: str) -> str:
        """Replace a text of a file by another one.

        Args:
            path: relative to the repository.
            old: what stands there now, exactly; it must occur once.
            new: what is to stand there.
        """
        job = {"path": _inside(path), "old": old, "new": new}
        _stdout(await asked(layout.python, "-I", "-S", "-c", _EDIT, stdin=json.dumps(job).encode()))
        return "Done."

    async def run(command: str) -> str:
        """Run a shell command in the repository, such as its tests; return its output and exit code.

        Args:
            command: for sh.
        """
        path = {"PYTHONPATH": ":".join(root or "." for root in layout.roots), "PYTHONDONTWRITEBYTECODE": "1"}
        if "\0" in command:
            raise ToolRefusal("a command has no NUL")
        done = await sandbox.exec(["sh", "-c", command], cwd=cwd, env=path, limits=limits)
        ended = f"exit code {done.rc}" if done.rc is not None else f"ended by {done.cause}"
        return f"{done.stdout}{done.stderr}\n[{ended}]".lstrip("\n")

    functions: list[Callable[..., Any]] = [list_files, read_file, search, edit_file, run]
    return [FunctionTool(function, timeout_s=command_s + 30.0) for function in functions]


def _inside(path: str) -> str:
    """Return a path of the repository; it is the policy's mistake to name another one."""
    if not path or path.startswith("/") or ".." in PurePosixPath(path).parts or "\0" in path:
        raise ToolRefusal(f"a path must be relative to the repository, not {path[:80]!r}")
    return str(PurePosixPath(path)) if not path.startswith("-") else f"./{path}"


def _stdout(done: ExecResult) -> str:
    if done.rc != 0:
        raise ToolRefusal((done.stderr.strip() or done.cause)[-500:])
    return done.stdout


# --- what was changed


def hashes(tree: Tree) -> dict[str, str]:
    """Return the hash of each Python file."""
    return {path: hashlib.sha256(data).hexdigest() for path, data in tree.items() if path.endswith(".py")}


async def hashes_there(sandbox: Sandbox, layout: Layout) -> dict[str, str]:
    """Return the hash of each Python file of the repository as it lies in the sandbox."""
    return cast("dict[str, str]", (await _asked(sandbox, layout, None))["hashes"])


async def changed(sandbox: Sandbox, layout: Layout, known: Mapping[str, str]) -> dict[str, str | None]:
    """Return the files of code whose content is not as known: their text, None for one that is gone."""
    answer = await _asked(sandbox, layout, known)
    found: dict[str, str | None] = dict.fromkeys(answer["gone"])
    found |= answer["changed"]
    folders = {str(PurePosixPath(path).parent) for path in known if is_code(path) and not is_test(path)}
    return {
        path: text
        for path, text in sorted(found.items())
        if not is_test(path)
        and is_code(path)
        and (path in known or str(PurePosixPath(path).parent) in folders)
    }


async def _asked(sandbox: Sandbox, layout: Layout, known: Mapping[str, str] | None) -> dict[str, Any]:
    done = await sandbox.exec(
        [layout.python, "-I", "-S", "-c", _CHANGED, str(_MAX_CHANGED_BYTES)],
        stdin=json.dumps(known).encode(),
        cwd="" if layout.root == "." else layout.root,
        limits=ExecLimits(60.0, 64 << 20),
    )
    try:
        return cast("dict[str, Any]", json.loads(done.stdout))
    except ValueError:
        said = done.stderr.strip()[-300:] or done.cause
        raise EnvironmentFault(f"what a rollout changed could not be read: {said}") from None
