"""`matexrun --doctor`: is everything there that a run needs, and if not, what to do?

TensorFlow, Keras and MPI are asked in subprocesses of the interpreter that would run the ranks; the last question is a
real allreduce of two ranks.
"""

import dataclasses
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from packaging.version import InvalidVersion, Version

import matexrun
from matexrun.errors import EnvironmentError_, UsageError
from matexrun.launch import checks, flavours, machine, mpi

OLDEST_PYTHON = (3, 10)
OLDEST_TENSORFLOW = Version("2.18")  # its wheel is the first with the XLA FFI API in a form that we can use

_COLOURS = {"ok": "green", "note": "yellow", "wrong": "red"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """state: "ok", "note" (a run works, with less) or "wrong".  advice: what to do, where something is to be done."""

    state: str
    subject: str
    what: str
    advice: str = ""

    def __str__(self) -> str:
        state = click.style(f"{self.state:<6}", fg=_COLOURS[self.state])
        return f"{state} {self.subject:<12} {self.what}" + (f": {self.advice}" if self.advice else "")


def examine() -> int:
    """Print a line per finding as it is made. The exit status: 1 where something is wrong, else 0."""
    status = 0
    for finding in _findings():
        click.echo(str(finding))
        status = 1 if finding.state == "wrong" else status
    return status


def _findings() -> Iterator[Finding]:
    yield _python()
    yield Finding("ok", "matexrun", f"{matexrun.__version__} ({Path(matexrun.__file__).parent})")
    yield _machine()
    wheels = _wheels()
    yield _tensorflow_wheel(wheels)
    if wheels:
        yield from _tensorflow_at_work()
        yield _ffi()
    yield _keras_backend()
    try:
        library = mpi.find_library(sys.executable)
    except EnvironmentError_ as error:
        yield Finding("wrong", "MPI", str(error))
        return
    yield Finding("ok", "mpi4py", f"{library.mpi4py} loads {library}")
    try:
        found = mpi.find(sys.executable)
    except EnvironmentError_ as error:
        yield Finding("wrong", "mpiexec", str(error))
        return
    yield Finding("ok", "mpiexec", f"{found.mpiexec} belongs to it")
    yield _allreduce(found)


def _python() -> Finding:
    what = f"{sys.version.split()[0]} ({sys.executable})"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("wrong", "Python", what, f"use {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    return Finding("ok", "Python", what)


def _machine() -> Finding:
    node = machine.this_node()
    gpus = f"GPUs {', '.join(node.gpus)}" if node.gpus else "no visible GPU"
    return Finding("ok", "machine", f"{node.name}: {len(node.cores)} usable cores, {gpus}")


def _wheels() -> dict[str, str]:
    """The installed distributions that bring the package `tensorflow`, with their versions."""
    names = set(importlib.metadata.packages_distributions().get("tensorflow", ()))
    return {name: importlib.metadata.version(name) for name in sorted(names)}


def _tensorflow_wheel(wheels: dict[str, str]) -> Finding:
    what = ", ".join(f"{name} {version}" for name, version in wheels.items())
    install = f"`{sys.executable} -m pip install 'tensorflow>={OLDEST_TENSORFLOW}'`"
    if not wheels:
        return Finding("wrong", "TensorFlow", "not installed", f"{install} (or tensorflow-cpu)")
    if len(wheels) > 1:
        return Finding("wrong", "TensorFlow", f"{what} overwrite each other", f"uninstall all of them, then {install}")
    try:
        if Version(next(iter(wheels.values()))) < OLDEST_TENSORFLOW:
            return Finding("wrong", "TensorFlow", f"{what} is older than {OLDEST_TENSORFLOW}", install)
    except InvalidVersion:
        return Finding("note", "TensorFlow", what, f"cannot tell whether this is at least {OLDEST_TENSORFLOW}")
    return Finding("ok", "TensorFlow", what)


_TENSORFLOW = """
import json
import tensorflow as tf
build = tf.sysconfig.get_build_info()
print("\\n" + json.dumps({
    "version": tf.__version__, "cuda": bool(build.get("is_cuda_build")), "keras": tf.keras.__version__,
    "gpus": len(tf.config.list_physical_devices("GPU")),
}))
"""


def _tensorflow_at_work() -> Iterator[Finding]:
    """Does `import tensorflow` work, and with which Keras?"""
    answer = _ask(_TENSORFLOW)
    if answer.returncode != 0:
        yield Finding("wrong", "TensorFlow", f"cannot be imported: {_last_line(answer.stderr)}", "reinstall it")
        return
    facts = json.loads(answer.stdout.splitlines()[-1])
    kind = f"built with CUDA, sees {facts['gpus']} GPUs" if facts["cuda"] else "built for CPUs"
    if not facts["gpus"] and machine.visible_gpus(os.environ):
        advice = "`pip install 'tensorflow[and-cuda]'`, or set CUDA_VISIBLE_DEVICES= (empty) to train on CPUs"
        yield Finding("wrong", "TensorFlow", f"{kind}, but this machine has GPUs", advice)
    else:
        yield Finding("ok", "TensorFlow", f"imports; {kind}")
    yield Finding("ok", "Keras", f"{facts['keras']}{' (legacy)' if facts['keras'].startswith('2.') else ''}")


def _ffi() -> Finding:
    answer = _ask("from matexrun.collectives import ffi\nprint('\\n' + ffi.describe())")
    if answer.returncode == 0:
        return Finding("ok", "XLA FFI", answer.stdout.splitlines()[-1])
    advice = "gradients go through tf.numpy_function, and jit_compile is switched off"
    return Finding("note", "XLA FFI", f"not usable: {_last_line(answer.stderr)}", advice)


def _keras_backend() -> Finding:
    try:
        checks.check_keras_backend(None, "", os.environ)
    except UsageError as error:
        return Finding("wrong", "Keras", str(error))
    return Finding("ok", "Keras", "its backend is TensorFlow")


_ALLREDUCE = """
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)
if MPI.COMM_WORLD.rank == 0:
    print(f"ranks={MPI.COMM_WORLD.size} sum={total}", flush=True)
"""


def _allreduce(found: flavours.MPI) -> Finding:
    """Start two ranks as a run would, and let them add 1 and 2."""
    argv = [*flavours.arguments(found, 2), sys.executable, "-c", _ALLREDUCE]
    environment = {**os.environ, **flavours.environment(found)}
    process = subprocess.Popen(
        argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.terminate()  # not kill: mpiexec needs the time to end the ranks
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
        return Finding("wrong", "allreduce", "2 ranks did not end within 60 s", "check the host name and the firewall")
    if re.findall(r"ranks=(\d+) sum=(\d+)", output) == [("2", "3")] and process.returncode == 0:
        return Finding("ok", "allreduce", "of 2 ranks gives the right sum")
    said = _last_line(output) or "nothing"
    advice = f"see what this says: {found.mpiexec} -n 2 {sys.executable} -m mpi4py.bench helloworld"
    return Finding("wrong", "allreduce", f"of 2 ranks ended with status {process.returncode} and said {said!r}", advice)


def _ask(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code as a rank's interpreter would, without TensorFlow's chatter."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment
        )
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(error.cmd, 1, "", "no answer within 300 s")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
