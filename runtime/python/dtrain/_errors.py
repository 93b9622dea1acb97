# SPDX-License-Identifier: Apache-2.0
"""One exception for each status of libdtrain, with the library's own sentence as its text."""

from __future__ import annotations


class Error(RuntimeError):
    """A call into libdtrain failed. `status` is the library's name for it, such as DTRAIN_ERROR_NETWORK."""

    status = "DTRAIN_ERROR"


class CollectiveError(Error):
    """A collective failed on every rank, or the job broke. Horovod's name for it is HorovodInternalError.

    After a MismatchError the job continues. After any other kind it does not, but may begin again
    with shutdown() and init(), as elastic.run() does.
    """


class InvalidArgumentError(Error, ValueError):
    """An array, a rank or another argument cannot be used. No other rank is affected."""

    status = "DTRAIN_ERROR_INVALID_ARGUMENT"


class StateError(Error, ValueError):
    """The call is not possible now: before init(), after shutdown(), or in a forked process."""

    status = "DTRAIN_ERROR_STATE"


class UnsupportedError(Error, ValueError):
    """dtrain does not have this data type, operation or function."""

    status = "DTRAIN_ERROR_UNSUPPORTED"


class JobEnvironmentError(Error):
    """An environment variable, or what the launcher passed on, is invalid; or the dtrain program is missing."""

    status = "DTRAIN_ERROR_ENVIRONMENT"


class LauncherError(CollectiveError):
    """The launcher's PMI server has refused a request, or is gone."""

    status = "DTRAIN_ERROR_LAUNCHER"


class NetworkError(CollectiveError, ConnectionError):
    """Another rank cannot be reached, or its connection broke."""

    status = "DTRAIN_ERROR_NETWORK"


class JobTimeoutError(CollectiveError, TimeoutError):
    """Other ranks did not call init(), shutdown() or the collective in time."""

    status = "DTRAIN_ERROR_TIMEOUT"


class BusyError(Error):
    """Another thread is inside a call. The package waits for its turn, so programs rarely see this."""

    status = "DTRAIN_ERROR_BUSY"


class ResourcesError(CollectiveError):
    """Memory, descriptors or threads have run out."""

    status = "DTRAIN_ERROR_RESOURCES"


class InternalError(CollectiveError):
    """libdtrain has a bug: please report it."""

    status = "DTRAIN_ERROR_INTERNAL"


class MismatchError(CollectiveError):
    """The ranks' calls differ; the text names the ranks and what each passed."""

    status = "DTRAIN_ERROR_MISMATCH"


class DeviceError(CollectiveError):
    """A GPU, its driver or NCCL failed."""

    status = "DTRAIN_ERROR_DEVICE"


class LibraryError(Error, ImportError):
    """libdtrain.so is missing or cannot be loaded."""

    status = "DTRAIN_ERROR_LIBRARY"


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed: the training has to begin again with the new ones.

    `skip_sync`: whether all remaining ranks have the same state, because none was added.
    """

    def __init__(self, skip_sync: bool = False) -> None:
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
