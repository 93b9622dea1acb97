# SPDX-License-Identifier: Apache-2.0
"""Sending floating-point numbers with fewer bits."""

from __future__ import annotations

from . import _arrays

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Readable(type):
    """So that help() shows a default as it is written."""

    def __repr__(cls) -> str:
        return f"Compression.{cls.__name__[1:].lower()}"


class _None(metaclass=_Readable):
    """Values travel as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns what to send, and what decompress() needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """Returns what was received, as it was before compress()."""
        return tensor


class _Fp16(metaclass=_Readable):
    """float32 and float64 travel as float16; libdtrain adds them up in float32."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns what to send, and what decompress() needs."""
        tensor, kind = _arrays.of(tensor)
        # Not bfloat16, which is as short, and has numbers that float16 has not.
        if kind.type_name(tensor) in ("float32", "float64"):
            return kind.cast(tensor, "float16"), tensor
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """Returns what was received, with the type that it had before compress()."""
        return tensor if context is None else _arrays.of(tensor)[1].cast_like(tensor, context)


class Compression:
    """How values travel: Compression.none as they are, Compression.fp16 with 16 bits.

    A class of your own with the same two functions may be passed instead.
    """

    none = _None
    fp16 = _Fp16
