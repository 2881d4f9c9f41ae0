"""Which bugs are judged, and in which order: the seed decides, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headway.environments.bugfix.mutations import UnusableSourceError, functions, mutations, parse
from headway.environments.bugfix.rows import Bug, Row

if TYPE_CHECKING:
    from headway.environments.bugfix.prove import Prepared
    from headway.environments.bugfix.sources import Package

_MAX_LINES = 60  # of a function that gets a bug


def candidates(package: Package, prepared: Prepared, seed: int) -> Iterator[tuple[Bug, ...]]:
    """Yield bugs to be judged, one of them at a time, in an order that the seed decides; each once."""
    rng = random.Random(f"bugfix/{package.digest}/{seed}")
    by_kind = _bugs(package, prepared)
    while by_kind:
        kind = rng.choice(sorted(by_kind))
        places = by_kind[kind]
        place = rng.choice(sorted(places))
        bug = places[place].pop(rng.randrange(len(places[place])))
        if not places[place]:
            del places[place]
        if not places:
            del by_kind[kind]
        yield (bug,)


def combined(rows: Sequence[Row], package: Package, seed: int) -> Iterator[tuple[Bug, ...]]:
    """Yield two or three proven bugs of different functions of a file, in an order that the seed decides."""
    rng = random.Random(f"bugfix/{package.digest}/{seed}/several")
    by_file: dict[str, list[Bug]] = {}
    for row in rows:
        by_file.setdefault(row.bugs[0].path, []).append(row.bugs[0])
    files = [path for path, bugs in sorted(by_file.items()) if len({bug.function for bug in bugs}) > 1]
    seen: set[tuple[Bug, ...]] = set()
    for _ in range(100 * len(rows) if files else 0):
        bugs = rng.sample(by_file[rng.choice(files)], 2)
        third = rng.choice(by_file[bugs[0].path])
        bugs += [third] if rng.random() < 0.3 else []
        found = tuple(sorted(bugs, key=lambda bug: bug.start))
        if len({bug.function for bug in found}) == len(found) and found not in seen:
            seen.add(found)
            yield found


def _bugs(package: Package, prepared: Prepared) -> dict[str, dict[tuple[str, str], list[Bug]]]:
    """Return by kind, then by file and function, the bugs of functions that some test calls."""
    called = {place for calls in prepared.calls.values() for place in calls}
    found: dict[str, dict[tuple[str, str], list[Bug]]] = {}
    for path in package.sources:
        data = package.tree[path]
        try:
            short = {one.name for one in functions(parse(data)) if one.last - one.first < _MAX_LINES}
            all_of_file = mutations(data) if any(path == file for file, _ in called) else []
        except UnusableSourceError:
            continue
        for one in all_of_file:
            if (path, one.function) in called and one.function in short:
                bug = Bug(path, one.operator, one.start, one.end, one.text, one.line, one.function)
                found.setdefault(one.operator, {}).setdefault((path, one.function), []).append(bug)
    return found
