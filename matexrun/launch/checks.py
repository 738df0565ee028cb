"""Is this something that can be run at all? Every question is asked before anything starts.

Reads the script and Keras's configuration; imports nothing of the user's. Each problem is a UsageError of one line.
"""

import importlib.machinery
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from matexrun.errors import UsageError
from matexrun.launch.command import Target
from matexrun.launch.scan import Scan, scan


def check(target: Target, env: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError where the target cannot run, or not under matexrun."""
    file = find_module(target.name) if target.is_module else find_script(target.name)
    found = read(file) if file is not None else Scan()
    if found.findings:
        first = found.findings[0]
        raise UsageError(f"{file} line {first.line}: {first.what}: {first.advice}")
    check_keras_backend(found.keras_backend, f"{file} sets", env)


def find_script(name: str) -> Path:
    """The script's file. Raises UsageError where it is none, with what was probably meant."""
    path = Path(name)
    if re.fullmatch(r"python[0-9.]*", path.name):
        raise UsageError(f"leave out `{name}`: matexrun starts Python itself, as in `matexrun train.py`")
    if name.startswith("-"):
        raise UsageError(
            f"{name}: expected a script; options of Python go into its own variables, except -I, -S and -E, which keep "
            f"matexrun out of the ranks"
        )
    if path.is_dir():
        raise UsageError(f"{name} is a directory: expected a Python script")
    if not path.exists():
        with_suffix = path.with_name(path.name + ".py")
        hint = f": did you mean {with_suffix}?" if with_suffix.is_file() else ""
        raise UsageError(f"{name}: no such script{hint}")
    if not path.is_file():
        raise UsageError(f"{name}: expected a Python script in a regular file, which every rank can read")
    return path


def find_module(name: str) -> Path | None:
    """The source of what `python -m name` would run, None where there is none to read (a compiled module).

    Unlike importlib.util.find_spec, it runs no parent package. Raises UsageError where there is no such module.
    """
    if name.endswith(".py"):
        raise UsageError(f"-m {name}: expected a module's name: leave out -m for a script, or .py for a module")
    searched = None
    for module in accumulate(name.split("."), "{}.{}".format):
        spec = _find_spec(module, searched)
        if spec is None:
            raise UsageError(f"-m {name}: no module named {module} here or in {sys.executable}")
        searched = spec.submodule_search_locations
        if searched is None and module != name:
            raise UsageError(f"-m {name}: {module} is a module, not a package")
    if searched is not None:
        spec = _find_spec(f"{name}.__main__", searched)
        if spec is None:
            raise UsageError(f"-m {name}: a package without __main__.py cannot be run")
    is_source = spec.origin and spec.origin.endswith(".py") and spec.has_location
    return Path(spec.origin) if is_source else None


def _find_spec(module: str, searched: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    """What the import system would find, with the current folder first for a top-level name as `python -m` has it."""
    here = None
    if searched is None and not os.environ.get("PYTHONSAFEPATH"):
        here = importlib.machinery.PathFinder.find_spec(module, [os.getcwd()])
        if here is not None and here.loader is not None:
            return here
    elsewhere = (finder.find_spec(module, searched) for finder in sys.meta_path)
    return next((spec for spec in elsewhere if spec is not None), here)  # a mere folder here comes last


def read(file: Path) -> Scan:
    """What the source says. Archives (`python app.pyz`) and compiled files pass unread."""
    try:
        source = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    if source.startswith(b"PK") or file.suffix == ".pyc":
        return Scan()
    try:
        return scan(source, str(file))
    except SyntaxError as error:
        raise UsageError(f"{file} line {error.lineno}: not Python {_version()}: {error.msg}") from None
    except ValueError as error:
        raise UsageError(f"{file}: not a Python script: {error}") from None


def _version() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def check_keras_backend(script: str | None, script_origin: str, env: Mapping[str, str]) -> None:
    """Raise UsageError where Keras would not use TensorFlow. The script's own choice wins over KERAS_BACKEND, which
    wins over keras.json."""
    if script:
        backend, origin = script, script_origin
    elif env.get("KERAS_BACKEND"):
        backend, origin = env["KERAS_BACKEND"], "KERAS_BACKEND sets"
    else:
        file = _keras_home(env) / "keras.json"
        try:
            backend, origin = json.loads(file.read_text()).get("backend"), f"{file} sets"
        except (OSError, ValueError, AttributeError):  # Keras itself ignores a file that it cannot read
            return
    if backend and backend != "tensorflow":
        raise UsageError(
            f"{origin} Keras's backend to {backend}: matexrun trains with TensorFlow only: set KERAS_BACKEND=tensorflow"
        )


def _keras_home(env: Mapping[str, str]) -> Path:
    """Where Keras looks for keras.json, by Keras's own rule."""
    if "KERAS_HOME" in env:
        return Path(env["KERAS_HOME"]).expanduser()
    home = Path.home()
    return (home if os.access(home, os.W_OK) else Path("/tmp")) / ".keras"
