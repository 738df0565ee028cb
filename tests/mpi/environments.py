"""The Pythons under test: mpi4py loads one MPI library per environment, so each MPI has an environment of its own."""

import os
import sys

import pytest

OPENMPI = os.environ.get("MATEXRUN_TEST_OPENMPI_PYTHON")
PYTHONS = [sys.executable, OPENMPI or "openmpi"]


def name(python: str) -> str:
    """Of the environment, for the names of tests."""
    return "own" if python == sys.executable else "openmpi"


def existing(python: str) -> str:
    """The path of a Python of PYTHONS; fails or, outside of continuous integration, skips the test that has none."""
    if python == "openmpi":
        message = "MATEXRUN_TEST_OPENMPI_PYTHON is not set: `make test` makes an environment with Open MPI and sets it"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return python
