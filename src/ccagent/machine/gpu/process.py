"""The process in which a maker's library runs: it answers `describe` and `read`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import CcagentError
from ccagent.machine.gpu.vendor import CardDescription, Reading
from ccagent.machine.helper import serve

if TYPE_CHECKING:
    from ccagent.machine.gpu.vendor import Maker


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """To `describe`: descriptions; to `read`: reading; else the error that ended the library."""

    descriptions: list[CardDescription] | None = None
    reading: Reading | None = None
    error: str = ""


def main(descriptor: int, place: str) -> None:
    """Serve one maker, whose class is at `place` (`module:Class`), until nobody asks."""
    module, _, name = place.partition(":")
    maker: Maker = getattr(import_module(module), name)()
    try:
        maker.open()
        problem = ""
    except CcagentError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - whatever a binding does, the sample goes on
        problem = _unexpected(maker, error)

    def reply(question: bytes) -> bytes:
        return msgspec.msgpack.encode(
            Answer(error=problem) if problem else _answer(maker, question)
        )

    serve(descriptor, reply)
    if not problem:
        maker.close()


def _answer(maker: Maker, question: bytes) -> Answer:
    try:
        if question == b"describe":
            return Answer(descriptions=maker.describe())
        return Answer(reading=maker.read())
    except CcagentError as error:
        return Answer(error=str(error))
    except Exception as error:  # noqa: BLE001 - see above
        return Answer(error=_unexpected(maker, error))


def _unexpected(maker: Maker, error: Exception) -> str:
    return f"{maker.title}: {type(error).__name__}: {error}"
