"""What an agent needs of its machine, as `ccagent doctor` asks for it."""

from __future__ import annotations

from typing import NamedTuple


class Need(NamedTuple):
    """Something that an agent can't do without, or not everything.

    subject: one of the findings of `ccagent doctor` (its README lists them); or a program that is
    looked for; or what the doctor is to call a question. purpose: what is lost without it, in half
    a sentence. is_vital: without it the agent has nothing to tell. question: a command that changes
    nothing and must succeed; the first line that it prints is shown. It is run only if the agent
    is configured.
    """

    subject: str
    purpose: str
    is_vital: bool = False
    is_program: bool = False
    question: tuple[str, ...] = ()
