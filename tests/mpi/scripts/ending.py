"""A job with one misbehaving rank: `ending.py FOLDER RANK HOW`. The others wait for it in a barrier.

Becomes an MPI rank as `import tensorflow` would make it one, without the seconds that TensorFlow takes to load. Leaves
a child process of its own running, and files in FOLDER: `pid-K` of each rank, `now` when the misbehaviour begins.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

from matexrun.inject import lifecycle

folder, misbehaving, how = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rank = lifecycle.rank()


def save_slowly(*_):
    """Rank 0 needs two seconds to save its work when it is told to end; the others end at once, and badly."""
    if rank == 0:
        time.sleep(2)
        (folder / "saved").write_text("all of it")
    os._exit(7)


def end_well(*_):
    global told
    told = True


told = False
if how == "save":
    signal.signal(signal.SIGTERM, save_slowly)
elif how == "end-well":
    signal.signal(signal.SIGTERM, end_well)
elif how == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

(folder / f"pid-{rank}").write_text(str(os.getpid()))
lifecycle.claim()
world = lifecycle.world()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(folder)], start_new_session=True)
print(f"rank {rank} says hello", flush=True)
world.barrier()
if rank == misbehaving or misbehaving < 0:
    (folder / "now").touch()
    if how == "raise":
        raise RuntimeError("on purpose")
    elif how == "sys.exit":
        sys.exit(3)
    elif how == "os._exit":
        os._exit(3)
    elif how == "os._exit(0)":
        os._exit(0)
    elif how.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[how])
        time.sleep(60)
    elif how == "abort":
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(5)
    elif how == "leave":
        sys.exit(0)
    elif how == "late":
        time.sleep(4)
    elif how == "hang-on-exit":
        import atexit

        atexit.register(time.sleep, 60)
        raise RuntimeError("on purpose")
    else:
        while not told:
            time.sleep(0.05)
if misbehaving >= 0:
    world.barrier()
