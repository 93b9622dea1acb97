# SPDX-License-Identifier: Apache-2.0
"""Sending floating-point numbers with fewer bits."""

from . import _arrays


class _Readable(type):
    """So that help() shows a default as it is written."""

    def __repr__(cls):
        return f"Compression.{cls.__name__[1:].lower()}"


class _None(metaclass=_Readable):
    """As they are."""

    @staticmethod
    def compress(tensor):
        """What to send, and what decompress() needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor, context):
        return tensor


class _Fp16(metaclass=_Readable):
    """As float16; sums are accumulated in float32 within libdtrain."""

    @staticmethod
    def compress(tensor):
        tensor, kind = _arrays.of(tensor)
        # Not bfloat16, which is as short, and has numbers that float16 has not.
        if kind.type_name(tensor) in ("float32", "float64"):
            return kind.cast(tensor, "float16"), tensor
        return tensor, None

    @staticmethod
    def decompress(tensor, context):
        return tensor if context is None else _arrays.of(tensor)[1].cast_like(tensor, context)


class Compression:
    """Compression.none and Compression.fp16."""

    none = _None
    fp16 = _Fp16
