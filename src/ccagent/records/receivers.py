"""Presets of the programs that receive messages, and the changes to messages for them.

Each preset lists data that its program refuses. A message with such a record would be lost, or
block the queue if the program fails.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from ccagent.log import logger

if TYPE_CHECKING:
    from ccagent.records.message import Message

_ENVELOPES = ("sample", "sysinfo", "job", "cluster")
_TIMES_OF_ENDED_JOBS = ("submit_time", "start_time", "end_time")
_SUB_NODE = re.compile(rb"(?=(?:[^ \\]|\\.)*,type=node[, ])(?=(?:[^ \\]|\\.)*,stype=)")
"""Start of a line about a part of a node that is not hardware, such as a job."""


class Receiver(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that one program accepts.

    format, kinds: of its messages; a kind with a dot at the end is a prefix. precision: unit of
    times in lines; empty: the default of the message's kind. largest_body: maximum bytes of an HTTP
    request. meta: allowed keys of `meta`; empty: all. without: refused fields by the list whose
    elements have them; "": attributes.
    """

    format: Literal["sonar", "line"]
    kinds: tuple[str, ...]
    precision: Literal["", "s", "ns"] = ""
    largest_body: int | None = None
    meta: frozenset[str] = frozenset()
    without: dict[str, tuple[str, ...]] = {}
    takes_errors_alone: bool = True
    takes_empty_text: bool = True
    takes_open_jobs: bool = True
    takes_parts_of_nodes: bool = True

    def takes(self, kind: str) -> bool:
        """Return whether the program accepts messages of a kind."""
        return any(
            kind.startswith(known) if known.endswith(".") else kind == known for known in self.kinds
        )


RECEIVERS = {
    # sonalyze's insert is strict. It answers 422 to an unknown field, or to a job without one of
    # its times, and drops the whole body. It panics at an envelope without data.
    "jobanalyzer": Receiver(
        format="sonar",
        kinds=_ENVELOPES,
        largest_body=1024 * 1024,
        without={
            "": ("software",),
            "jobs": ("cgroup", "energy"),
            "slurm_jobs": ("gres_detail", "minimum_cpus_per_node"),
        },
        takes_errors_alone=False,
        takes_open_jobs=False,
    ),
    "slurm-monitor": Receiver(
        format="sonar",
        kinds=_ENVELOPES,
        meta=frozenset({"producer", "version"}),
        without={"": ("software",), "jobs": ("energy",)},
        takes_empty_text=False,
    ),
    # It keeps one value per metric and node; values of jobs would overwrite each other.
    "cc-metric-store": Receiver(
        format="line", kinds=("metrics",), precision="s", takes_parts_of_nodes=False
    ),
    "cc-backend": Receiver(format="line", kinds=("metrics", "events."), takes_parts_of_nodes=False),
}


def fit_message(message: Message, receiver: Receiver) -> Message | None:
    """Return a message without refused records; None if no record remains."""
    if not receiver.takes(message.kind):
        return None
    if message.format == "line":
        body = message.body if receiver.takes_parts_of_nodes else _drop_parts_of_nodes(message.body)
    elif message.body.startswith(b"{"):
        body = _fit_envelope(message, receiver)
    else:
        return None
    if not body:
        return None
    return message if body is message.body else msgspec.structs.replace(message, body=body)


def is_errors_alone(message: Message) -> bool:
    """Return whether a message is an envelope with errors and without data."""
    if message.format != "sonar" or not message.body.startswith(b"{"):
        return False
    return "data" not in msgspec.json.decode(message.body, type=dict[str, msgspec.Raw])


def log_errors(message: Message, sink: str) -> None:
    """Log the errors of an envelope that is not sent."""
    envelope = msgspec.json.decode(message.body)
    for error in envelope["errors"]:
        logger.error(
            "%s of %s: %s (not sent to %s, which may fail at an envelope without data)",
            message.kind, message.node, error["detail"], sink,
        )  # fmt: skip


def _drop_parts_of_nodes(lines: bytes) -> bytes:
    """Return the lines that are not about a job or a similar part of a node."""
    if b",stype=" not in lines:
        return lines
    kept = (line for line in lines.splitlines(keepends=True) if not _SUB_NODE.match(line))
    return b"".join(kept)


def _fit_envelope(message: Message, receiver: Receiver) -> bytes:
    """Return an envelope without refused fields and jobs; empty bytes if no job remains."""
    body = message.body
    chooses_jobs = message.kind == "job" and not receiver.takes_open_jobs
    if not chooses_jobs and not _may_hold_refused(body, receiver):
        return body
    envelope: dict[str, Any] = msgspec.json.decode(body)
    if receiver.meta:
        envelope["meta"] = {
            key: value for key, value in envelope["meta"].items() if key in receiver.meta
        }
    attributes = envelope.get("data", {}).get("attributes", {})
    for holder, names in receiver.without.items():
        for element in attributes.get(holder, ()) if holder else (attributes,):
            for name in names:
                element.pop(name, None)
    if not receiver.takes_empty_text:
        _drop_empty_text(envelope)
    if chooses_jobs and (jobs := attributes.get("slurm_jobs")):
        attributes["slurm_jobs"] = [
            job for job in jobs if all(job.get(name) for name in _TIMES_OF_ENDED_JOBS)
        ]
        if not attributes["slurm_jobs"]:
            return b""
    return msgspec.json.encode(envelope)


def _may_hold_refused(body: bytes, receiver: Receiver) -> bool:
    """Return whether a body may contain refused fields. Quotation marks in texts are escaped."""
    names = [name for of_holder in receiver.without.values() for name in of_holder]
    if receiver.meta:
        names += ["attrs", "format", "token"]
    if not receiver.takes_empty_text and b':""' in body:
        return True
    return any(f'"{name}":'.encode() in body for name in names)


def _drop_empty_text(value: object) -> None:
    """Delete the fields with an empty text, at any depth."""
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        for name in [name for name, held in fields.items() if held == ""]:
            del fields[name]
        for held in fields.values():
            _drop_empty_text(held)
    elif isinstance(value, list):
        for held in cast("list[object]", value):
            _drop_empty_text(held)
