"""Where a model comes from, as far as that is known: its id on the Hub and its licence. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_KNOWN = {
    "smollm2": (
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "apache-2.0",
        "out of a 4-bit GGUF file, so that its weights differ slightly from the official ones",
    ),
    "tiny": ("tiny", "", "a byte-level model of 0.4 million parameters that Headway makes"),
}
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_LICENSE = re.compile(r"^license:\s*['\"]?([A-Za-z0-9.\-]+)['\"]?\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Origin:
    """What may be said of a model without its files' paths."""

    name: str  # Hub id where there is one, else the name of its directory or file
    is_hub: bool  # the name is what was asked for, and the Hub has it
    license: str  # as the model's own card says, "" when unknown
    note: str = ""  # what else is to be said of its weights


def origin(model: str, directory: Path) -> Origin:
    """Return the origin of what `model.path` named, which `resolve` found in `directory`."""
    if model in _KNOWN and not Path(model).is_dir():
        name, license_id, note = _KNOWN[model]
        return Origin(name, False, license_id, note)
    path = Path(model).expanduser()
    if path.is_dir() or path.suffix == ".gguf":
        return Origin(path.absolute().name, False, _license(directory))
    return Origin(model, True, _license(directory))


def _license(directory: Path) -> str:
    try:
        text = (directory / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    front = _FRONT_MATTER.match(text)
    found = _LICENSE.search(front[1]) if front else None
    return found[1] if found else ""
