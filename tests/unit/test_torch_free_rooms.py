"""Only models, algorithms, generator, weights and trainer may import torch, and no room does on import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headway

ROOT = Path(headway.__file__).parent
TORCH_ROOMS = {"models", "algorithms", "generator", "weights", "trainer"}
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


def imported_packages(source: Path) -> set[str]:
    packages: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            packages.add(node.module.split(".")[0])
    return packages


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in TORCH_ROOMS])
def test_a_torch_free_room_never_names_torch(room):
    offenders = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / room).rglob("*.py"))
        if imported_packages(path) & {"torch", "peft"}
    ]
    assert offenders == []


def test_importing_every_room_loads_no_torch():
    program = "import importlib, sys\n"
    program += "".join(f"importlib.import_module('headway.{room}')\n" for room in ROOMS)
    program += "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr or "torch was imported"


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in TORCH_ROOMS])
def test_importing_all_modules_of_a_torch_free_room_loads_no_torch(room):
    program = (
        "import importlib, pkgutil, sys\n"
        f"room = importlib.import_module('headway.{room}')\n"
        "for module in pkgutil.walk_packages(room.__path__, room.__name__ + '.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr or "torch was imported"
