"""Every exception that matexrun raises on purpose, and the exit status that each one means.

    MatexrunError                1   something went wrong that no class below names
    ├── UsageError               2   the command line or a configuration file is wrong
    ├── EnvironmentError_        1   the machine lacks something (TensorFlow, MPI, a matching mpiexec)
    ├── RankFailed               *   a rank ended badly; carries that rank's own exit status
    └── ContractError            1   the run cannot give the sequential result and says so instead
        ├── PatchError           1   TensorFlow or Keras differs from what a patch expects
        ├── CollectiveError      1   ranks disagree about a collective, or one of them left
        └── InexactError         1   a loss, metric or output that slices of a batch cannot make up

Messages say what was expected, what came, and what to do about it. `exit_status` is what the process ends with.
"""


class MatexrunError(Exception):
    """Base of all; `exit_status` (int) is the status the launcher or the rank ends with."""

    exit_status = 1


class UsageError(MatexrunError):
    """The command line, an environment variable or a configuration file is wrong."""

    exit_status = 2


class EnvironmentError_(MatexrunError):
    """The machine lacks something that is needed: TensorFlow, an MPI library, the mpiexec that belongs to it."""


class RankFailed(MatexrunError):
    """A rank ended badly. `exit_status` is that rank's own (128 + signal number for a signal)."""

    def __init__(self, message: str, exit_status: int):
        super().__init__(message)
        self.exit_status = exit_status


class ContractError(MatexrunError):
    """The run cannot keep a promise of docs/contract.md, and stops instead of being silently wrong."""


class PatchError(ContractError):
    """TensorFlow or Keras does not look as a patch expects; the message names the object and the versions tried."""


class CollectiveError(ContractError):
    """The ranks disagree about a collective operation (order, type, size), or a rank left while others wait."""


class InexactError(ContractError):
    """A loss, metric or output whose value on the batch does not follow from its values on slices of the batch."""
