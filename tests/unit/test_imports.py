"""Imports go one way: cli -> launch -> settings -> errors, and inject -> collectives -> ranks -> settings -> errors."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "matexrun"

# What the files of each part may import of matexrun, by first component; and what of others they must not.
ALLOWED = {
    "errors": set(),
    "settings": {"errors"},
    "reports": {"settings"},
    "ranks": {"settings", "errors"},
    "launch": {"launch", "ranks", "reports", "settings", "errors"},
    "cli": {"launch", "settings", "errors"},
    "__main__": {"cli"},
    "collectives": {"collectives", "ranks", "reports", "settings", "errors"},
    "inject": {"inject", "collectives", "ranks", "reports", "settings", "errors"},
}
LAUNCHER_SIDE = {"errors", "settings", "reports", "ranks", "launch", "cli", "__main__"}
RANK_SIDE_ONLY = {"tensorflow", "keras", "tf_keras", "mpi4py", "numpy"}


def imports(file):
    """Dotted names that a file imports, each as `module.name` where it could be a module."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(file):
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if part_of(file) != "__init__"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_part_may(file):
    part = part_of(file)
    for name in imports(file):
        first, _, rest = name.partition(".")
        if first == "matexrun":
            other = rest.partition(".")[0]
            assert other in ALLOWED[part] or other.startswith("__") or not other, f"{part} must not import {name}"
        elif part in LAUNCHER_SIDE:
            assert first not in RANK_SIDE_ONLY, f"{part} must not import {name}"


def test_every_file_is_looked_at():
    assert {part_of(file) for file in FILES} == set(ALLOWED)


def test_the_launcher_process_loads_neither_tensorflow_nor_mpi():
    modules = [
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
        for file in FILES
        if part_of(file) in LAUNCHER_SIDE - {"__main__"}
    ]
    code = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
loaded = {{name.partition(".")[0] for name in sys.modules}} & {RANK_SIDE_ONLY!r}
rank_side = [name for name in sys.modules if name.startswith(("matexrun.inject", "matexrun.collectives"))]
sys.exit(f"loaded {{loaded}} {{rank_side}}" if loaded or rank_side else 0)
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=PACKAGE.parent
    )
    assert answer.returncode == 0, answer.stderr
