"""Carries out a plan: sums flat arrays over the ranks, chunk by chunk, with MPI. NumPy and MPI only.

The sums are the same bits on all ranks and from run to run for one number of ranks: MPI's algorithm depends on counts
alone, and the counts on the plan.
"""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from matexrun.collectives.plan import Bucket
from matexrun.errors import CollectiveError

# dtype -> (dtype in which it is summed, its MPI datatype). Half precision is summed in float32 and rounded once.
SUMMED_AS = {
    "float16": (np.float32, MPI.FLOAT),
    "bfloat16": (np.float32, MPI.FLOAT),
    "float32": (np.float32, MPI.FLOAT),
    "float64": (np.float64, MPI.DOUBLE),
    "int32": (np.int32, MPI.INT32_T),
    "int64": (np.int64, MPI.INT64_T),
}


def width(dtype: str) -> int:
    """Bytes of an element while it is summed. Raises CollectiveError for a dtype that can't be summed."""
    if dtype not in SUMMED_AS:
        raise CollectiveError(f"sum over ranks of {dtype}: expected one of {', '.join(SUMMED_AS)}")
    return np.dtype(SUMMED_AS[dtype][0]).itemsize


class Reducer:
    """Sums arrays over a communicator; owns the memory in which small tensors are packed. Not thread-safe."""

    def __init__(self):
        self._scratch = np.empty(0, np.uint8)

    def allreduce(
        self,
        comm: MPI.Comm,
        buckets: Sequence[Bucket],
        sources: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        factor: float = 1.0,
    ) -> None:
        """results[i] = sum over ranks of factor * sources[i].

        sources, results: flat arrays; result i may be the memory of source i, else it overlaps none.
        factor: this rank's; with 0 the rank adds exact zeros, whatever its values (0 * inf would be NaN).
        """
        for bucket in buckets:
            summed_as, mpi_type = SUMMED_AS[bucket.dtype]
            parts = [(sources[p.tensor][p.start : p.stop], results[p.tensor][p.start : p.stop]) for p in bucket.pieces]
            if len(parts) == 1 and parts[0][0].dtype == summed_as:
                ((source, result),) = parts
                send = MPI.IN_PLACE
                if factor != 1.0:
                    _scaled(source, factor, result)
                elif source.ctypes.data != result.ctypes.data:
                    send = [source, bucket.size, mpi_type]
                comm.Allreduce(send, [result, bucket.size, mpi_type])
                continue
            packed = self._room(bucket.size, summed_as)
            start = 0
            for source, _ in parts:
                _scaled(source, factor, packed[start : start + source.size])
                start += source.size
            comm.Allreduce(MPI.IN_PLACE, [packed, bucket.size, mpi_type])
            start = 0
            for _, result in parts:
                result[...] = packed[start : start + result.size]
                start += result.size

    def _room(self, size: int, dtype) -> np.ndarray:
        needed = size * np.dtype(dtype).itemsize
        if self._scratch.size < needed:
            self._scratch = np.empty(needed, np.uint8)
        return self._scratch[:needed].view(dtype)


def _scaled(source: np.ndarray, factor: float, out: np.ndarray) -> None:
    if factor == 0.0:
        out.fill(0)
    elif factor == 1.0:
        out[...] = source
    elif source.dtype == out.dtype:
        np.multiply(source, source.dtype.type(factor), out=out)
    else:
        out[...] = source
        out *= out.dtype.type(factor)
