"""Where the output of the ranks goes: rank 0's to the launcher's own stdout and stderr, the others' to log files.

Rank 0 does not print through mpiexec: its worker asks the launcher, over a socket in the job's private folder, for its
two file descriptors. The script then sees the terminal, file or pipe of the user, as `python train.py` does; not a line
is lost when mpiexec is killed, and mpiexec's own messages stay apart from it.
"""

import os
import select
import socket
import stat

from matexrun.errors import EnvironmentError_

_SOCKET = "output"


class Lender:
    """The launcher's side: gives its stdout and stderr to whoever connects, which only this user can."""

    def __init__(self, job_dir: str):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _Folder(job_dir) as folder:
            self._socket.bind(folder.address(_SOCKET))
        self._socket.listen(16)

    def wait(self, seconds: float) -> None:
        """Serve the workers that ask within that time."""
        if select.select([self._socket], [], [], seconds)[0]:
            worker, _ = self._socket.accept()
            with worker:
                try:
                    socket.send_fds(worker, [b"."], [1, 2])
                except OSError:  # a worker that died while it asked
                    pass

    def close(self) -> None:
        self._socket.close()


def borrow(job_dir: str) -> tuple[int, int]:
    """The worker's side: the launcher's stdout and stderr. Raises EnvironmentError_ where it cannot be reached."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as launcher:
            with _Folder(job_dir) as folder:
                launcher.connect(folder.address(_SOCKET))
            _, fds, _, _ = socket.recv_fds(launcher, 1, 2)
        stdout, stderr = fds
        return stdout, stderr
    except (OSError, ValueError) as error:
        raise EnvironmentError_(f"cannot reach the launcher through {job_dir}: {error}") from None


class _Folder:
    """An open folder, through which sockets in it have short names: full paths may exceed the 107 bytes allowed."""

    def __init__(self, path: str):
        self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def address(self, name: str) -> str:
        return f"/proc/self/fd/{self._fd}/{name}"

    def __enter__(self) -> "_Folder":
        return self

    def __exit__(self, *_) -> None:
        os.close(self._fd)


def log_path(log_dir: str, rank: int) -> str:
    """The file that holds the output of a rank other than 0."""
    return os.path.join(log_dir, f"rank-{rank}.log")


def open_log(log_dir: str, rank: int) -> int:
    """An empty log file, open for writing: mode 0600 in a folder of mode 0700, where this creates them.

    Follows no link, neither as the folder nor as the file, and writes to no file of another user, so that nobody can
    have output written elsewhere. Raises EnvironmentError_ where that makes it impossible.
    """
    path = log_path(log_dir, rank)
    mask = os.umask(0o077)  # so that parent folders, too, are private
    try:
        os.makedirs(log_dir, mode=0o700, exist_ok=True)
        folder = os.open(log_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        advice = "is a link or no folder" if os.path.islink(log_dir) else f"cannot be used ({error.strerror})"
        raise EnvironmentError_(
            f"{log_dir} {advice}: expected a folder for log files, give one with --log-dir"
        ) from None
    finally:
        os.umask(mask)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(os.path.basename(path), flags, 0o600, dir_fd=folder)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            os.close(fd)
            raise EnvironmentError_(f"{path} is not a file of this user: remove it, or give another --log-dir")
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, 0)
        os.set_blocking(fd, True)
        return fd
    except OSError as error:
        reason = "is a link" if os.path.islink(path) else f"cannot be written ({error.strerror})"
        raise EnvironmentError_(f"{path} {reason}: remove it, or give another --log-dir") from None
    finally:
        os.close(folder)


def tail(path: str, lines: int = 20) -> str:
    """The last lines of a file that may still be written; empty where there is none."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
