"""The guard: `python -m matexrun.launch.guard LAUNCHER_PID -- mpiexec…`, a process between the launcher and mpiexec.

It exists for one case: the launcher is killed by SIGKILL and can clear up nothing. mpiexec then dies and kills the
workers, and what the scripts have started would live on as children of init. All of these become children of the guard
instead, which the kernel tells of the launcher's death, and which ends them. Otherwise it only runs mpiexec and ends as
mpiexec does.
"""

import os
import signal
import subprocess
import sys

from matexrun.launch import processes


def main() -> int:
    """Run mpiexec. Returns its exit status, or ends by the signal that it ended by."""
    launcher, command = int(sys.argv[1]), sys.argv[3:]
    processes.adopt_orphans()
    awaited = {signal.SIGHUP, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored, and never awaited
    processes.signal_when_parent_dies(signal.SIGHUP)

    def bind_to_guard() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        processes.signal_when_parent_dies(signal.SIGKILL)

    try:
        mpiexec = subprocess.Popen(command, preexec_fn=bind_to_guard).pid
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    while os.getppid() == launcher:
        signal.sigwait(awaited)
        code = processes.reap().get(mpiexec)
        if code is not None:
            if code < 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                os.kill(os.getpid(), -code)
            return code
    processes.end(lambda: processes.descendants(os.getpid()))
    return 1


if __name__ == "__main__":
    sys.exit(main())
