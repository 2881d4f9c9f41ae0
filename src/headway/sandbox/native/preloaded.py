"""The nest, a Python interpreter: each snippet is a fork of it, which saves the interpreter's start.

Never imported: the zygote hands its text to `python3 -I -S -B -c`, with the descriptors of a socket
for requests and of the library as arguments. `cell_nest` does not return in this process. It
returns in a child that is already inside its sandbox, with the model's uid and limits, and has a snippet to
run. No code of a model ever ran in the memory that such a child starts from.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import sys
import threading
import types
from typing import NoReturn

_PRELOADED = (
    "abc argparse array ast base64 bisect builtins collections collections.abc contextlib copy csv "
    "dataclasses datetime decimal enum fractions functools hashlib heapq inspect io itertools json "
    "linecache locale math operator os.path pathlib pprint queue random re shutil site statistics "
    "string struct subprocess tempfile textwrap threading time tokenize traceback types typing "
    "unicodedata unittest uuid warnings weakref"
)


def _stream(fd: int, name: str, old: io.TextIOWrapper) -> io.TextIOWrapper:
    """A standard stream on what `fd` is now; the zygote's own were made on /dev/null."""
    mode = "r" if fd == 0 else "w"
    raw = io.FileIO(fd, mode, closefd=False)
    raw.name = name
    kind = io.BufferedReader if fd == 0 else io.BufferedWriter
    stream = io.TextIOWrapper(
        kind(raw), encoding=old.encoding, errors=old.errors, newline="\n", line_buffering=fd == 2
    )
    stream.mode = mode  # pyright: ignore[reportAttributeAccessIssue] - as the interpreter itself does
    return stream


def _words(at: int) -> tuple[list[bytes], list[bytes]]:
    """Return argv and environment from two lists of C strings, each ended by NULL."""
    pointers = ctypes.cast(at, ctypes.POINTER(ctypes.c_char_p))
    found: tuple[list[bytes], list[bytes]] = ([], [])
    number = 0
    for words in found:
        while (word := pointers[number]) is not None:
            words.append(word)
            number += 1
        number += 1
    return found


def _run(argv: list[str]) -> int:
    """Do what `python3` with these arguments does; return the exit code if the program returns."""
    rest = argv[1:]
    flags = ""
    while rest and rest[0].startswith("-") and rest[0] != "-c":
        flags += rest.pop(0)[1:]
    sys.orig_argv = argv
    sys.dont_write_bytecode = "B" in flags
    named = argv[0] in ("python3", "/opt/headway/bin/python3")
    if named and os.path.exists("/opt/headway/pyvenv.cfg"):  # an image is a virtual environment
        sys.executable = "/opt/headway/bin/python3"
        sys.prefix = sys.exec_prefix = "/opt/headway"
    if "S" not in flags:
        import site

        site.main()
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    try:
        if rest[0] == "-c":
            sys.argv = ["-c", *rest[2:]]
            path = ""
            code = compile(rest[1] + "\n", "<string>", "exec", dont_inherit=True)
        else:
            sys.argv = rest
            script = os.path.join("/work", rest[0])
            path = os.path.dirname(os.path.realpath(script))
            main.__dict__["__file__"] = script
            try:
                with open(script, "rb") as file:
                    source = file.read()
            except OSError as error:
                print(
                    f"{argv[0]}: can't open file {script!r}: [Errno {error.errno}] {error.strerror}",
                    file=sys.stderr,
                )
                return 2
            code = compile(source, script, "exec", dont_inherit=True)
        if "I" not in flags:
            sys.path.insert(0, path)
        exec(code, main.__dict__)
    except SystemExit as ending:
        return _exit_code(ending)
    except BaseException as error:
        trace = error.__traceback__
        error = error.with_traceback(trace and trace.tb_next)  # what is printed is the error's own
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _exit_code(ending: SystemExit) -> int:
    code = ending.code
    if code is None or isinstance(code, int):
        return int(code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def _leave(code: int, before: frozenset[str]) -> NoReturn:
    """End as an interpreter does, but leave alone what was there before the snippet.

    Threads and exit functions come first; then what the snippet made is let go, so that its files are
    flushed. Tearing down all that was preloaded would copy every page of it, for nothing.
    """
    try:
        threading._shutdown()  # pyright: ignore - an interpreter waits so
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        made = [module for name, module in list(sys.modules.items()) if name not in before]
        for module in (sys.modules["__main__"], *made):
            getattr(module, "__dict__", {}).clear()
        del made
        gc.collect()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, or nobody reads
            code = code or (120 if stream is sys.stdout and not getattr(stream, "closed", True) else 0)
    os._exit(code)


def _main() -> NoReturn:
    for name in _PRELOADED.split():
        __import__(name)
    requests, source = map(int, sys.argv[1:])
    library = ctypes.PyDLL(f"/proc/self/fd/{source}")
    os.close(source)
    library.cell_words.restype = ctypes.c_void_p
    gc.collect()
    gc.freeze()
    library.cell_nest(requests)
    ctypes.pythonapi.PyOS_AfterFork_Child()
    argv, environment = _words(library.cell_words())
    given = dict(entry.split(b"=", 1) for entry in environment)
    if given != dict(os.environb):
        os.environb.clear()
        os.environb.update(given)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(fd, f"<{name}>", getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    before = frozenset(sys.modules) - {"__main__"}
    _leave(_run([os.fsdecode(word) for word in argv]), before)


if __name__ == "__main__":
    _main()
