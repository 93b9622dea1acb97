# SPDX-License-Identifier: Apache-2.0
"""One exception for each status of libdtrain, with the library's own sentence as its text."""


class Error(RuntimeError):
    """A call into libdtrain failed. `status` is its name, for example DTRAIN_ERROR_NETWORK."""

    status = "DTRAIN_ERROR"


class CollectiveError(Error):
    """A collective failed, on every rank, or the job broke. Horovod's HorovodInternalError.

    After a MismatchError the job goes on. After any other of its kinds it does not, but may begin
    again with shutdown() and init(), as elastic.run() does.
    """


class InvalidArgumentError(Error, ValueError):
    """An array, a rank or another argument that cannot be used. No other rank is affected."""

    status = "DTRAIN_ERROR_INVALID_ARGUMENT"


class StateError(Error, ValueError):
    """Before init(), after shutdown(), or in a forked process."""

    status = "DTRAIN_ERROR_STATE"


class UnsupportedError(Error, ValueError):
    """A data type, operation or function that dtrain does not have."""

    status = "DTRAIN_ERROR_UNSUPPORTED"


class JobEnvironmentError(Error):
    """An environment variable, or what the launcher handed over, is bad."""

    status = "DTRAIN_ERROR_ENVIRONMENT"


class LauncherError(CollectiveError):
    """The launcher's PMI server refused, or is gone."""

    status = "DTRAIN_ERROR_LAUNCHER"


class NetworkError(CollectiveError, ConnectionError):
    """Another rank could not be reached, or its connection broke."""

    status = "DTRAIN_ERROR_NETWORK"


class JobTimeoutError(CollectiveError, TimeoutError):
    """The other ranks did not come in time."""

    status = "DTRAIN_ERROR_TIMEOUT"


class BusyError(Error):
    """Another thread is inside a call. The package waits its turn; a program rarely sees this."""

    status = "DTRAIN_ERROR_BUSY"


class ResourcesError(CollectiveError):
    """Out of memory, descriptors or threads."""

    status = "DTRAIN_ERROR_RESOURCES"


class InternalError(CollectiveError):
    """A fault of libdtrain's own: please report it."""

    status = "DTRAIN_ERROR_INTERNAL"


class MismatchError(CollectiveError):
    """The ranks do not ask for the same thing; the text names them."""

    status = "DTRAIN_ERROR_MISMATCH"


class DeviceError(CollectiveError):
    """A GPU, its driver or NCCL."""

    status = "DTRAIN_ERROR_DEVICE"


class LibraryError(Error, ImportError):
    """libdtrain.so was not found, or cannot be loaded."""

    status = "DTRAIN_ERROR_LIBRARY"


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed: the training is to begin again with the new ones.

    `skip_sync`: whether the ranks that remain all have the same state, because none was added.
    """

    def __init__(self, skip_sync=False):
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


# By the numbers of dtrain_status.
_BY_STATUS = {
    1: InvalidArgumentError,
    2: StateError,
    3: UnsupportedError,
    4: JobEnvironmentError,
    5: LauncherError,
    6: NetworkError,
    7: JobTimeoutError,
    8: BusyError,
    9: ResourcesError,
    10: InternalError,
    11: MismatchError,
    12: DeviceError,
}


def from_status(status, text):
    """The exception for a status other than DTRAIN_OK."""
    kind = _BY_STATUS.get(status, Error)
    return kind(text or f"{kind.status} ({status})")
