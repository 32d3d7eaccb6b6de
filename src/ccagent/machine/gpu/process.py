"""The process in which a maker's library runs: it answers `describe` and `read`.

`read SECONDS NAME...` asks for details as well, which may take so long.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import CcagentError
from ccagent.machine.gpu.limited_calls import LimitedCalls
from ccagent.machine.gpu.vendor import CardDescription, CardDetails, Reading
from ccagent.machine.helper import serve

if TYPE_CHECKING:
    from ccagent.machine.gpu.vendor import Maker


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """To `describe`: descriptions; to `read`: reading; else the error that ended the library.

    problem: why there are no details, although they were asked for.
    """

    descriptions: list[CardDescription] | None = None
    reading: Reading | None = None
    details: list[CardDetails] = []
    problem: str = ""
    error: str = ""


def main(descriptor: int, place: str) -> None:
    """Serve one maker, whose class is at `place` (`module:Class`), until nobody asks."""
    module, _, name = place.partition(":")
    maker: Maker = getattr(import_module(module), name)()
    calls = LimitedCalls()
    try:
        maker.open()
        problem = ""
    except CcagentError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - whatever a binding does, the sample goes on
        problem = _unexpected(maker, error)

    def reply(question: bytes) -> bytes:
        return msgspec.msgpack.encode(
            Answer(error=problem) if problem else _answer(maker, question, calls)
        )

    serve(descriptor, reply)
    if not problem:
        maker.close()


def _answer(maker: Maker, question: bytes, calls: LimitedCalls) -> Answer:
    try:
        if question == b"describe":
            return Answer(descriptions=maker.describe())
        reading = maker.read()
        _, *words = question.decode("ascii").split()
        if not words:
            return Answer(reading=reading)
        return _detailed(maker, reading, words, calls)
    except CcagentError as error:
        return Answer(error=str(error))
    except Exception as error:  # noqa: BLE001 - see above
        return Answer(error=_unexpected(maker, error))


def _detailed(maker: Maker, reading: Reading, words: list[str], calls: LimitedCalls) -> Answer:
    """Return an answer with details; what goes wrong with them costs nothing else."""
    seconds, *names = words
    wanted = frozenset(names)
    try:
        details = calls.run(lambda: maker.read_details(wanted, calls), float(seconds))
        return Answer(reading=reading, details=details or [])
    except CcagentError:
        raise
    except Exception as error:  # noqa: BLE001 - see above
        return Answer(reading=reading, problem=_unexpected(maker, error))


def _unexpected(maker: Maker, error: Exception) -> str:
    return f"{maker.title}: {type(error).__name__}: {error}"
