# SPDX-License-Identifier: Apache-2.0
"""One exception for each status of libdtrain, with the library's own sentence as its text."""


class Error(RuntimeError):
    """A call into libdtrain failed. `status` is its name, for example DTRAIN_ERROR_NETWORK."""

    status = "DTRAIN_ERROR"


class InvalidArgumentError(Error, ValueError):
    """An array, a rank or another argument that cannot be used."""

    status = "DTRAIN_ERROR_INVALID_ARGUMENT"


class StateError(Error):
    """Before init(), after shutdown(), or in a forked process."""

    status = "DTRAIN_ERROR_STATE"


class UnsupportedError(Error):
    """A data type, operation or function that there is not."""

    status = "DTRAIN_ERROR_UNSUPPORTED"


class JobEnvironmentError(Error):
    """An environment variable, or what the launcher handed over, is bad."""

    status = "DTRAIN_ERROR_ENVIRONMENT"


class LauncherError(Error):
    """The launcher's PMI server refused, or is gone."""

    status = "DTRAIN_ERROR_LAUNCHER"


class NetworkError(Error, ConnectionError):
    """Another rank could not be reached, or its connection broke."""

    status = "DTRAIN_ERROR_NETWORK"


class JobTimeoutError(Error, TimeoutError):
    """The other ranks did not come in time."""

    status = "DTRAIN_ERROR_TIMEOUT"


class BusyError(Error):
    """Another thread is inside a call. The package takes turns, so this is other code's call."""

    status = "DTRAIN_ERROR_BUSY"


class ResourcesError(Error):
    """Out of memory, descriptors or threads."""

    status = "DTRAIN_ERROR_RESOURCES"


class InternalError(Error):
    """A fault of libdtrain's own: please report it."""

    status = "DTRAIN_ERROR_INTERNAL"


class MismatchError(Error):
    """The ranks do not ask for the same thing; the text names them."""

    status = "DTRAIN_ERROR_MISMATCH"


class DeviceError(Error):
    """A GPU, its driver or NCCL."""

    status = "DTRAIN_ERROR_DEVICE"


class LibraryError(Error, ImportError):
    """libdtrain.so was not found, or cannot be loaded."""

    status = "DTRAIN_ERROR_LIBRARY"


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
