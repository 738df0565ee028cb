"""The world of ranks as Python sees it: start of MPI, rank and size, collectives on NumPy arrays and objects, the end.

Host side only: no TensorFlow here. Python communicates on a communicator of its own (`control`), which the handlers
inside the TensorFlow runtime never use (they have `World.data`), so that a collective of Python and one of the runtime
can't be taken for each other. The user's own mpi4py keeps COMM_WORLD to itself.
"""

import os
import pickle
import time

import mpi4py
import numpy as np

from matexrun.collectives import watch
from matexrun.errors import CollectiveError, EnvironmentError_
from matexrun.settings import PREFIX, Settings

_BLOCK = 1 << 26  # bytes or elements in one MPI call: counts stay far below 2**31
_world = None


def current() -> "World | None":
    """The world that `init` made, or None before it."""
    return _world


def init(size: int, settings: Settings | None = None) -> "World":
    """Start MPI in this rank (or join the MPI that the script has started) and check that the world is as asked for.

    size: the ranks that the launcher was asked for.  settings: default: those in the environment; Settings' own
    defaults in a process that matexrun did not start.
    Raises EnvironmentError_ where MPI can't be loaded or offers too few thread guarantees, CollectiveError where the
    world has another size. Collective: returns when all ranks are there. A second call returns the same world.
    """
    global _world
    if _world is None:
        if settings is None:
            started = PREFIX + "JOB" in os.environ
            settings = Settings.from_env() if started else Settings(job="", size=size, seed=0)
        _world = World(_start_mpi(), size, settings)
        watch.start()
    return _world


def _start_mpi():
    """mpi4py's MPI module, initialised with MPI_THREAD_MULTIPLE, and not finalized behind our back."""
    # Only the first import of mpi4py.MPI reads these. matexrun ends MPI itself (`finish`): mpi4py's own finalize at
    # exit would wait for the other ranks, without a word, even in a rank that failed.
    mpi4py.rc.finalize = False
    mpi4py.rc.thread_level = "multiple"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise EnvironmentError_(
            f"mpi4py can't load MPI ({error}). Install an MPI library (pip install mpich, or your system's) and check "
            "with: matexrun --doctor"
        ) from error
    if MPI.Is_finalized():
        raise CollectiveError("the script has ended MPI (MPI.Finalize) before TensorFlow was imported; leave that out")
    if not MPI.Is_initialized():  # the script imported mpi4py with rc.initialize = False
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise EnvironmentError_(
            "MPI offers less than MPI_THREAD_MULTIPLE, which is needed because TensorFlow's threads and Python "
            "communicate at the same time. Leave mpi4py.rc.thread_level as it is, or use an MPI library built for it"
        )
    return MPI


class World:
    """The ranks of a job.

    rank, size: this process in the job.  local_rank, local_size: on its node.  settings: the job's.
    data: the lane of the handlers inside the TensorFlow runtime.
    Every method but `finish` raises CollectiveError where the ranks are in different collectives.
    """

    def __init__(self, MPI, size: int, settings: Settings):
        from matexrun.collectives.channel import Channel  # imports mpi4py.MPI, which must be configured before

        everyone = MPI.COMM_WORLD
        if everyone.size != size:
            raise CollectiveError(
                f"{size} ranks were asked for, but MPI says that this is rank {everyone.rank} of {everyone.size}: the "
                f"mpiexec that started it does not belong to the library that mpi4py loaded ({_library(MPI)}). Use "
                "that library's own mpiexec; matexrun --doctor shows both"
            )
        node = everyone.Split_type(MPI.COMM_TYPE_SHARED)
        self._mpi = MPI
        self._end = everyone.Dup()  # for `finish` alone, which must not be taken for a collective of another rank
        self._all_here = None  # the request of `finish`
        self._node = Channel(node, "ranks of a node", queue=False)
        self._control = Channel(everyone.Dup(), "Python", queue=False)
        self.data = Channel(everyone.Dup(), "TensorFlow runtime", queue=True)
        self.settings = settings
        self.rank, self.size = everyone.rank, everyone.size
        self.local_rank, self.local_size = node.rank, node.size

    def any(self, flag: bool) -> bool:
        """True on all ranks where at least one rank's `flag` is true."""
        with self._control.collective("any", flag=bool(flag)) as (_, one_has):
            return one_has

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        with self._control.collective("barrier"):
            pass  # entering a collective is an allreduce: nobody leaves before all have come

    def node_barrier(self) -> None:
        """Wait until all ranks of this node are here."""
        with self._node.collective("barrier of a node"):
            pass

    def broadcast_object(self, obj, root: int = 0):
        """`obj` of rank `root` (any picklable object) on all ranks."""
        packed = pickle.dumps(obj) if self.rank == root else None  # before the others are made to wait
        with self._control.collective(f"broadcast_object from rank {root}") as (comm, _):
            return pickle.loads(comm.bcast(packed, root))

    def allgather_object(self, obj) -> list:
        """The objects of all ranks, in the order of ranks."""
        packed = pickle.dumps(obj)
        with self._control.collective("allgather_object") as (comm, _):
            return [pickle.loads(item) for item in comm.allgather(packed)]

    def broadcast_arrays(self, arrays: list[np.ndarray], root: int = 0) -> None:
        """Overwrite `arrays` (C-contiguous, writeable, any numeric or bool dtype, any size) with those of `root`."""
        flats = [_flat(array) for array in arrays]
        with self._control.collective(f"broadcast of {len(arrays)} arrays", _describe(arrays)) as (comm, _):
            for flat in flats:
                data = flat.view(np.uint8)
                for start in range(0, data.size, _BLOCK):
                    comm.Bcast(data[start : start + _BLOCK], root)

    def mean_arrays(self, arrays: list[np.ndarray]) -> None:
        """Overwrite `arrays` (C-contiguous, writeable, floating) with their means over the ranks, summed in float64."""
        flats = [_flat(array) for array in arrays]
        for array in arrays:
            if array.dtype.kind in "biuc":
                raise CollectiveError(f"mean of an array of {array.dtype}: expected a floating dtype")
        with self._control.collective(f"mean of {len(arrays)} arrays", _describe(arrays)) as (comm, _):
            for flat in flats:
                for start in range(0, flat.size, _BLOCK // 8):
                    part = flat[start : start + _BLOCK // 8]
                    wide = part.astype(np.float64)
                    comm.Allreduce(self._mpi.IN_PLACE, wide)
                    part[...] = (wide / self.size).astype(flat.dtype)

    def allgather_rows(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all ranks joined along axis 0; only their numbers of rows may differ."""
        return gather_rows(self._control, array)

    def finish(self, timeout: float | None = None) -> bool:
        """Wait for all ranks to come here, without burning a core, and end MPI. Whether that was done.

        timeout: seconds to wait; without one, for ever: the launcher knows from the reports which ranks have left and
        which still wait in a collective. Where it runs out, MPI is left as it is, and another call waits on.
        """
        if self._mpi.Is_finalized():
            return True
        if self._all_here is None:
            self._all_here = self._end.Ibarrier()
        pause, until = 0.001, None if timeout is None else time.monotonic() + timeout
        while not self._all_here.Test():
            if until is not None and time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        self._mpi.Finalize()
        return True


def gather_rows(channel, array: np.ndarray) -> np.ndarray:
    """`World.allgather_rows` over any channel."""
    from mpi4py import MPI

    array = np.ascontiguousarray(array)
    if array.ndim == 0:
        raise CollectiveError("allgather of rows of a scalar: expected at least one dimension")
    detail = f"rows of {array.dtype} {array.shape[1:]}"
    with channel.collective("allgather of rows", detail) as (comm, _):
        counts = comm.allgather(array.shape[0])
        joined = np.empty((sum(counts), *array.shape[1:]), array.dtype)
        if joined.size:
            # Whole rows as the unit: counts of bytes would not fit into MPI's 32-bit counts.
            row = MPI.BYTE.Create_contiguous(joined.nbytes // joined.shape[0]).Commit()
            try:
                comm.Allgatherv([_bytes(array), array.shape[0], row], [_bytes(joined), counts, row])
            finally:
                row.Free()
    return joined


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _flat(array: np.ndarray) -> np.ndarray:
    """The array in one dimension, on the same memory."""
    if not (array.flags.c_contiguous and array.flags.writeable) or array.dtype.hasobject:
        raise CollectiveError(
            f"an array of {array.dtype} {array.shape} can't be overwritten in place: expected a C-contiguous, "
            "writeable array of numbers"
        )
    return array.reshape(-1)


def _describe(arrays: list[np.ndarray]) -> str:
    return "\n".join(f"array {i}: {array.dtype} {array.shape}" for i, array in enumerate(arrays))


def _library(MPI) -> str:
    return MPI.Get_library_version().splitlines()[0].strip("\0 ")
