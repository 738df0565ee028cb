"""One collective of the TensorFlow runtime: what it is, what must agree between ranks, and how it runs on host memory.

A Call is made when TensorFlow traces, from static dtypes and shapes, and runs whenever the traced function does: inside
an XLA custom call (`handlers`) or a numpy_function (`fallback`). No TensorFlow here.
"""

import collections
import contextlib
import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from ml_dtypes import bfloat16

from matexrun.collectives import world
from matexrun.collectives.channel import digest
from matexrun.collectives.identical import Watchdog
from matexrun.collectives.module import ELEMENT
from matexrun.collectives.plan import Bucket, plan
from matexrun.collectives.reduction import Reducer, width
from matexrun.errors import CollectiveError

executed: collections.Counter = collections.Counter()  # how often each kind of call has run in this process

_reducer, _watchdog = Reducer(), Watchdog()  # used under the lock of World.data
_MIB = 1 << 20
_BLOCK = 1 << 26  # bytes in one MPI_Bcast


@dataclasses.dataclass(frozen=True)
class Call:
    """op: "allreduce" or "broadcast".  kind: the purpose, for messages and counters.  dtypes, shapes: of its tensors.

    factor: dtype of the scalar operand that scales this rank's tensors, or None.  root: the rank that broadcasts.
    """

    op: str
    kind: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    factor: str | None = None
    root: int = 0

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Elements of each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @functools.cached_property
    def what(self) -> str:
        """The call in a few words, the same on all ranks that are in the same call."""
        origin = f" from rank {self.root}" if self.op == "broadcast" else ""
        return f"{self.op} of {len(self.dtypes)} tensors ({self.kind}){origin}"

    @functools.cached_property
    def detail(self) -> str:
        """Dtypes and shapes, one tensor a line."""
        return "\n".join(f"tensor {i}: {d} {s}" for i, (d, s) in enumerate(zip(self.dtypes, self.shapes, strict=True)))

    @functools.cached_property
    def key(self) -> int:
        """63 bits that stand for this call, the same in every process; under it the handler finds it again."""
        return digest(repr(self))

    @functools.cached_property
    def _buckets(self) -> tuple[Bucket, ...]:
        settings = world.current().settings
        tensors = [(dtype, size, width(dtype)) for dtype, size in zip(self.dtypes, self.sizes, strict=True)]
        return plan(tensors, int(settings.bucket_mb * _MIB), int(settings.chunk_mb * _MIB))

    def check(self) -> None:
        """Raise CollectiveError, at trace time, for dtypes that can't be sent, summed or scaled."""
        for number, dtype in enumerate(self.dtypes):
            if dtype not in ELEMENT:
                raise CollectiveError(f"tensor {number} of {self.what} is of {dtype}: expected numbers or bool")
            if self.op == "allreduce":
                width(dtype)
                if self.factor and dtype.startswith("int"):
                    raise CollectiveError(f"tensor {number} of {self.what} is of {dtype}: integers can't be scaled")

    def run(self, sources: Sequence[np.ndarray], results: Sequence[np.ndarray], factor: float = 1.0) -> None:
        """Communicate. sources, results: flat arrays; result i may be the memory of source i, else it overlaps none."""
        with world.current().data.collective(self.what, self.detail) as (comm, _):
            if self.op == "allreduce":
                if self.kind == "gradients":
                    _watchdog.look(comm, sources, factor)
                _reducer.allreduce(comm, self._buckets, sources, results, factor)
            else:
                for source, result in zip(sources, results, strict=True):
                    if source.ctypes.data != result.ctypes.data and comm.rank == self.root:
                        result[...] = source
                    data = result.view(np.uint8)
                    for start in range(0, data.size, _BLOCK):
                        comm.Bcast(data[start : start + _BLOCK], self.root)
        count(self.kind, results)


_recording: list | None = None


@contextlib.contextmanager
def recorded():
    """Record what the reductions of gradients give meanwhile: yields the list [(kind, copies of the results)]."""
    global _recording
    _recording = []
    try:
        yield _recording
    finally:
        _recording = None


def count(kind: str, results: Sequence[np.ndarray]) -> None:
    """Count a collective of the runtime that has run, and record its results where they are wanted."""
    executed[kind] += 1
    if _recording is not None and "gradients" in kind:
        _recording.append((kind, [result.copy() for result in results]))


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a TensorFlow dtype's name."""
    return np.dtype(bfloat16) if name == "bfloat16" else np.dtype(name)
