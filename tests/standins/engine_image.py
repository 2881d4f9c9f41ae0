"""A container image made of this machine's own programs, for engines that reach no registry.

Python's standard library, a shell, the usual small tools, and the libraries that these name (`ldd`), as a
tar archive that `podman import` and `docker import` read; about 80 MB. Whatever else belongs into an image
can be put in by `extra`: names in the archive and their content.

Run as `engine_image.py > image.tar`.
"""

import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

TOOLS = """
sh cat chmod cmp cp dd echo env false find git grep head id kill ln ls mkdir mkfifo mv nproc patch printf ps
pwd readlink rm rmdir sed seq setsid sleep sort stat tail tar test touch tr true truncate uname wc which yes
"""
_LEFT_OUT = {
    "test", "site-packages", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "__pycache__",
}  # fmt: skip


def libraries(files):
    """Return every library that some programs and libraries need, by the names the linker looks for."""
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    words = (word for line in said.splitlines() if not line.endswith(":") for word in line.split())
    return sorted({word for word in words if word.startswith("/") and os.path.exists(word)})


def write(out, extra=()):
    """Write the archive to an open file."""
    python = os.path.realpath(sys.executable)
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    modules = [
        path
        for path in library.rglob("*")
        if not {*path.relative_to(library).parts} & _LEFT_OUT
        and path.is_file()
        and not path.relative_to(library).parts[0].startswith("config-")
    ]
    tools = {
        name: os.path.realpath(found)
        for name in TOOLS.split()
        if (found := shutil.which(name, path="/usr/bin:/bin"))
    }
    with tarfile.open(fileobj=out, mode="w|", dereference=True) as tar:
        for name in ("tmp", "work", "proc", "sys", "dev", "etc", "root"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        tar.add(python, "usr/local/bin/python3")
        for path in modules:
            tar.add(path, f"usr/local/lib/{library.name}/{path.relative_to(library)}")
        for name, path in tools.items():
            tar.add(path, f"bin/{name}")
        needed = [python, *tools.values(), *(str(path) for path in modules if path.suffix == ".so")]
        for path in libraries(needed):
            tar.add(path, path.lstrip("/"))
        for name, data in extra:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    write(sys.stdout.buffer)
