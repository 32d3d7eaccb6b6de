"""Process of a vendor's library. It answers the questions `describe` and `read`.

`read SECONDS NAME...` also requests details, within this time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import CcagentError
from ccagent.machine.gpu.limited_calls import LimitedCalls
from ccagent.machine.gpu.vendor import CardDescription, CardDetails, VendorReading
from ccagent.machine.helper import serve

if TYPE_CHECKING:
    from ccagent.machine.gpu.vendor import GpuVendor


class GpuAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer: descriptions for `describe`, a reading for `read`, or the library's error.

    problem: the reason why requested details are missing.
    """

    descriptions: list[CardDescription] | None = None
    reading: VendorReading | None = None
    details: list[CardDetails] = []
    problem: str = ""
    error: str = ""


def main(descriptor: int, place: str) -> None:
    """Serve the vendor class at `place` (`module:Class`) until the client closes the socket."""
    module, _, name = place.partition(":")
    vendor: GpuVendor = getattr(import_module(module), name)()
    calls = LimitedCalls()
    try:
        vendor.open()
        problem = ""
    except CcagentError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - whatever a binding does, the sample goes on
        problem = _describe_error(vendor, error)

    def reply(question: bytes) -> bytes:
        return msgspec.msgpack.encode(
            GpuAnswer(error=problem) if problem else _answer(vendor, question, calls)
        )

    serve(descriptor, reply)
    if not problem:
        vendor.close()


def _answer(vendor: GpuVendor, question: bytes, calls: LimitedCalls) -> GpuAnswer:
    try:
        if question == b"describe":
            return GpuAnswer(descriptions=vendor.describe())
        reading = vendor.read()
        _, *words = question.decode("ascii").split()
        if not words:
            return GpuAnswer(reading=reading)
        return _answer_with_details(vendor, reading, words, calls)
    except CcagentError as error:
        return GpuAnswer(error=str(error))
    except Exception as error:  # noqa: BLE001 - see above
        return GpuAnswer(error=_describe_error(vendor, error))


def _answer_with_details(
    vendor: GpuVendor, reading: VendorReading, words: list[str], calls: LimitedCalls
) -> GpuAnswer:
    """Return an answer with details. An error in the details does not affect the rest."""
    seconds, *names = words
    wanted = frozenset(names)
    try:
        details = calls.run(lambda: vendor.read_details(wanted, calls), float(seconds))
        return GpuAnswer(reading=reading, details=details or [])
    except CcagentError:
        raise
    except Exception as error:  # noqa: BLE001 - see above
        return GpuAnswer(reading=reading, problem=_describe_error(vendor, error))


def _describe_error(vendor: GpuVendor, error: Exception) -> str:
    return f"{vendor.title}: {type(error).__name__}: {error}"
