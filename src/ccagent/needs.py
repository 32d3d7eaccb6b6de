"""What an agent needs of its machine, as `ccagent doctor` asks for it."""

from __future__ import annotations

from typing import NamedTuple


class Need(NamedTuple):
    """Something that an agent can't do without, or not everything.

    subject: what `ccagent doctor` calls it: one of its own findings (its README lists them), or a
    new one if `program` or `question` is given. purpose: what is lost without it, in half a
    sentence. is_vital: without it the agent has nothing to tell.
    program: is looked for. question: a command that changes nothing and must succeed; the first
    line that it prints is shown. It is run only if the agent is configured.
    """

    subject: str
    purpose: str
    is_vital: bool = False
    program: str = ""
    question: tuple[str, ...] = ()
