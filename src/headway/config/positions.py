"""Finds the line of every key in a TOML document, which tomllib does not tell.

The scanner runs after tomllib has accepted the text, so it assumes valid TOML and only has to know where
keys, strings, arrays and inline tables begin and end. Invariant: its keys are those of the parsed document.
"""

from __future__ import annotations

import bisect
import re
import tomllib

Path = tuple[str, ...]

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\n,]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^\s,\]}#]+(?: \d\d:[^\s,\]}#]*)?")
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\])*"'),
    re.compile(r"'[^']*'"),
)


def key_lines(text: str) -> dict[Path, int]:
    """Return the line (from 1) of every table and key; entries of arrays have their index as a part."""
    return _Scanner(text.replace("\r\n", "\n")).scan()


class _Scanner:
    """One pass over a document."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._lines: dict[Path, int] = {}
        self._array_sizes: dict[Path, int] = {}

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip(_BLANK) < len(self._text):
            if self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)
        return self._lines

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _take(self, pattern: re.Pattern[str]) -> str:
        start = self._at
        return self._text[start : self._skip(pattern)]

    def _note(self, path: Path, at: int) -> None:
        self._lines.setdefault(path, bisect.bisect_left(self._newlines, at) + 1)

    def _header(self) -> Path:
        """Read `[a.b]` or `[[a.b]]`; a part that names an array of tables means its last entry."""
        start = self._at
        brackets = 2 if self._text.startswith("[[", start) else 1
        self._at += brackets
        path: Path = ()
        for part in self._key():
            if path in self._array_sizes:
                path = (*path, str(self._array_sizes[path] - 1))
            path = (*path, part)
            self._note(path, start)
        self._at += brackets
        if brackets == 2:
            self._array_sizes[path] = self._array_sizes.get(path, 0) + 1
            path = (*path, str(self._array_sizes[path] - 1))
            self._note(path, start)
        elif path in self._array_sizes:
            path = (*path, str(self._array_sizes[path] - 1))
        return path

    def _key(self) -> list[str]:
        """Read a dotted key, up to the character after it."""
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            quoted = self._text[self._at] in "\"'"
            token = self._string() if quoted else self._take(_BARE_KEY)
            parts.append(tomllib.loads(f"key = {token}")["key"] if quoted else token)
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _pair(self, table: Path) -> None:
        start = self._at
        path = table
        for part in self._key():
            path = (*path, part)
            self._note(path, start)
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _string(self) -> str:
        return next(token for pattern in _STRINGS if (token := self._take(pattern)))

    def _value(self, path: Path) -> None:
        opening = self._text[self._at]
        if opening in "\"'":
            self._string()
        elif opening == "[":
            self._at += 1
            index = 0
            while self._text[self._skip(_BLANK)] != "]":
                self._note((*path, str(index)), self._at)
                self._value((*path, str(index)))
                index += 1
            self._at += 1
        elif opening == "{":
            self._at += 1
            while self._text[self._skip(_BLANK)] != "}":
                self._pair(path)
            self._at += 1
        else:
            self._skip(_SCALAR)
