"""Hidden files over what a rollout left: whatever stands in their way is taken away first.

A policy may leave a link, a file or a pipe where a folder of hidden tests is to be, and a folder in the place
of a test. That is its doing, and no failure of the infrastructure.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway.core.protocols import Sandbox

_AT_ONCE = 200  # paths of one command

# Its arguments are paths; those of folders end in a slash and come before what they hold.
_CLEAR = """
for path; do
    case "$path" in
        */) if [ -L "${path%/}" ] || [ ! -d "$path" ]; then rm -rf -- "${path%/}"; fi ;;
        *) rm -rf -- "$path" ;;
    esac
done
"""


async def make_way(sandbox: Sandbox, files: Iterable[str]) -> None:
    """Take away what stands where files are to be put.

    Args:
        sandbox: whose work folder they go to.
        files: their paths, relative to it.

    Raises SandboxError when the infrastructure failed.
    """
    paths = [PurePosixPath(path) for path in files]
    folders = {folder for path in paths for folder in path.parents if folder.parts}
    above = sorted(folders, key=lambda folder: len(folder.parts))
    places = [*(f"./{folder}/" for folder in above), *(f"./{path}" for path in paths)]
    for at in range(0, len(places), _AT_ONCE):
        await sandbox.exec(["sh", "-c", _CLEAR, "sh", *places[at : at + _AT_ONCE]])
