"""What `pip install` installs: everything in the package, and the defaults."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_the_wheel_has_every_file(tmp_path):
    """setup.cfg lists packages one by one, so a new folder is easily forgotten."""
    source = tmp_path / "source"
    for name in ("matexrun", "configs"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    expected = {str(path.relative_to(source)) for path in (source / "matexrun").rglob("*") if path.is_file()}
    expected |= {f"matexrun/configs/{path.name}" for path in (source / "configs").iterdir()}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, timeout=150)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if name.startswith("matexrun/")} == expected
    assert {"matexrun/inject/bootstrap/sitecustomize.py", "matexrun/configs/default.yaml"} <= names
