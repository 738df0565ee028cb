"""The target of all custom calls: from the addresses that XLA hands over to `Call.run`.

Runs on TensorFlow's threads. It touches only the memory of its operands and results, and only while it runs.
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from matexrun.collectives import ffi
from matexrun.collectives.calls import Call, numpy_dtype
from matexrun.errors import CollectiveError

TARGET = "matexrun_collective"

_calls: dict[int, Call] = {}  # by key, which the compiled module carries as its attribute


def install() -> None:
    """Register the target (once in a process). Raises EnvironmentError_ where this TensorFlow has no known FFI API."""
    if not _installed:
        ffi.register(TARGET, _execute)
        _installed.append(True)


_installed: list[bool] = []


def remember(call: Call) -> None:
    """Let custom calls that carry `call.key` find `call`."""
    _calls[call.key] = call


def _execute(key: int, operands: Sequence[int], results: Sequence[int]) -> None:
    """Operands: the tensors, then the factor if the call has one, then the token; results: the tensors, the token."""
    call = _calls.get(key)
    if call is None:
        raise CollectiveError(
            "a saved or cached graph of another process contains matexrun's collectives; save models without them"
        )
    factor = 1.0
    if call.factor:
        factor = float(_array(operands[len(call.sizes)], 1, numpy_dtype(call.factor))[0])
    dtypes = [numpy_dtype(dtype) for dtype in call.dtypes]
    call.run(
        [_array(*buffer) for buffer in zip(operands, call.sizes, dtypes, strict=False)],
        [_array(*buffer) for buffer in zip(results, call.sizes, dtypes, strict=False)],
        factor,
    )


def _array(address: int | None, size: int, dtype: np.dtype) -> np.ndarray:
    if not size:  # XLA may give an empty buffer no address
        return np.empty(0, dtype)
    return np.frombuffer((ctypes.c_char * (size * dtype.itemsize)).from_address(address), dtype)
