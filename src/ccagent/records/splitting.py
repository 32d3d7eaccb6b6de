"""Splitting of messages that are larger than the receiver's limit, and halving of refused ones.

Lines and arrays are split between lines and elements, envelopes so that receivers merge the parts
of one node and time:

- `sample`: sonalyze joins processes by host, pid and command, and slurm-monitor stores them by job,
  epoch and pid, independent of the envelope. Therefore jobs are spread over the parts, and the
  processes of a large job, too. `system` is in each part: both receivers recognise the same time
  and keep one copy of CPUs, cards and disks. sonalyze also derives core counts from it.
- `job`: both receivers keep one record for each job, step and time. Jobs are spread over the parts.
- `cluster`: partitions and states of nodes are stored separately and are spread over the parts.
  slurm-monitor's list of all names at a time is then incomplete: it is the list of the last part.
- `sysinfo`: receivers keep only one envelope per time. There is one part, without the drawings and
  lists that do not fit.

If a receiver refuses a message because of one record, the message is halved until the other records
are taken. Halving ignores sizes and omits no record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.log import logger
from ccagent.records.line_protocol.encoding import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.records.message import Message


JsonObject = dict[str, msgspec.Raw]
"""An object whose values are not decoded."""

_NAMES = (("job_id", "job_step"), ("pid", "cmd"), ("name",), ("names",), ("detail",))
"""Fields that identify a record in the log."""

decode_object = msgspec.json.Decoder(JsonObject).decode
decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class SplitBodies(NamedTuple):
    """The bodies of the parts, and a phrase for each record that does not fit in any part."""

    bodies: list[bytes]
    lost: list[str]


def halve(items: list[bytes]) -> list[list[bytes]]:
    """Return the two halves of a list; none for fewer than two items."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else []


def describe_lost(lost: list[str]) -> str:
    """Return a phrase for the log about omitted records."""
    if len(lost) == 1:
        return f"left out: {lost[0]}"
    return f"{len(lost)} records are left out, the first: {lost[0]}"


def pack(sizes: Iterable[int], first_room: int, room: int) -> list[int]:
    """Return the number of items in each part, in their order.

    first_room, room: bytes for items in the first part and in each other part. No item may be
    larger than `room`.
    """
    counts = [0]
    left = first_room
    for size in sizes:
        if size > left:
            counts.append(0)
            left = room
        counts[-1] += 1
        left -= size
    return counts


def group(items: list[bytes], room: int, separator: int) -> Iterable[list[bytes]]:
    """Return the items in parts of at most `room` bytes. separator: bytes after each item."""
    begin = 0
    for count in pack((len(item) + separator for item in items), room, room):
        if count:
            yield items[begin : begin + count]
        begin += count


def select_fitting(items: list[msgspec.Raw], room: int, what: str) -> tuple[list[bytes], list[str]]:
    """Return the items of at most `room` bytes, and phrases for larger items."""
    fitting: list[bytes] = []
    lost: list[str] = []
    for item in map(bytes, items):
        if len(item) <= room:
            fitting.append(item)
        else:
            lost.append(f"{what} {_name_record(item)}")
    return fitting, lost


def _name_record(item: bytes) -> str:
    """Return the name of a record from its fields, else its first bytes."""
    if item.startswith(b"{"):
        fields = decode_object(item)
        for keys in _NAMES:
            if keys[0] in fields:
                values = (bytes(fields[key]) for key in keys if key in fields)
                return " ".join(shorten(value.decode("utf-8", "replace")) for value in values)
    return shorten(item.decode("utf-8", "replace"))


_SPREAD: dict[str, tuple[str, ...]] = {
    "sample": ("errors", "jobs"),
    "job": ("slurm_jobs",),
    "cluster": ("partitions", "nodes"),
}
"""Attributes whose elements are spread over the parts, by the type of the data."""

_HALVED = {"sample": "jobs", "job": "slurm_jobs"}
"""Attribute whose elements are halved, by the type of the data."""

_SYSTEM_LISTS = ("disks", "cpus", "gpus")
_SYSINFO_OPTIONS = ("topo_svg", "topo_text", "software", "distances", "cards")
_WITHOUT_EMPTY = frozenset({"errors", "jobs"})
"""Lists that are omitted if empty. Receivers need all other lists, also empty ones."""

_encode = msgspec.json.Encoder().encode


def halve_envelope(body: bytes) -> list[bytes]:
    """Return two envelopes with half of the records each; none if halving is impossible."""
    envelope = decode_object(body)
    if "data" not in envelope:
        return []
    data = decode_object(envelope["data"])
    attributes = decode_object(data["attributes"]) if "attributes" in data else {}
    name = _HALVED.get(msgspec.json.decode(data["type"], type=str) if "type" in data else "")
    if name is None or name not in attributes:
        return []
    frame = _EnvelopeFrame(envelope, data, attributes)
    items = [*map(bytes, decode_list(attributes[name]))]
    # Errors are sent once.
    frames = (frame, frame.without({"errors"}))
    return [
        frame.body({name: msgspec.Raw(b"[" + b",".join(half) + b"]")})
        for frame, half in zip(frames, halve(items), strict=False)
    ]


def split_envelope(body: bytes, limit: int) -> SplitBodies:
    """Return envelopes of at most `limit` bytes. Raise MsgspecError or RecursionError."""
    envelope = decode_object(body)
    if "data" not in envelope:
        return _spread(_EnvelopeFrame(envelope, None, {}), ("errors",), envelope, limit, [])
    data = decode_object(envelope["data"])
    attributes = decode_object(data["attributes"]) if "attributes" in data else {}
    kind = msgspec.json.decode(data["type"], type=str) if "type" in data else ""
    frame = _EnvelopeFrame(envelope, data, attributes)
    if kind == "sample":
        return _split_sample(frame, limit)
    if kind == "sysinfo":
        return _shorten_envelope(frame, attributes, limit)
    if kind not in _SPREAD:
        return SplitBodies([], [f"all of it, since data of type {shorten(kind)} can't be split"])
    return _spread(frame, _SPREAD[kind], attributes, limit, [])


class _EnvelopeFrame:
    """An envelope without some of its lists. `data` is None for an envelope of errors."""

    def __init__(
        self, envelope: JsonObject, data: JsonObject | None, attributes: JsonObject
    ) -> None:
        self._envelope = envelope
        self._data = data
        self._attributes = attributes

    def body(self, fields: JsonObject) -> bytes:
        """Encode the envelope, with these fields in place of those with the same names."""
        if self._data is None:
            return _encode(self._envelope | fields)
        attributes = _encode(self._attributes | fields)
        data = _encode(self._data | {"attributes": msgspec.Raw(attributes)})
        return _encode(self._envelope | {"data": msgspec.Raw(data)})

    def without(self, names: Iterable[str]) -> _EnvelopeFrame:
        """Return the frame without some attributes."""
        kept = {name: raw for name, raw in self._attributes.items() if name not in names}
        return _EnvelopeFrame(self._envelope, self._data, kept)

    def with_system(self, system: JsonObject) -> _EnvelopeFrame:
        """Return the frame with a different attribute `system`."""
        changed = self._attributes | {"system": msgspec.Raw(_encode(system))}
        return _EnvelopeFrame(self._envelope, self._data, changed)

    def size(self, names: Iterable[str]) -> int:
        """Return the bytes of the envelope with these lists empty."""
        return len(self.body({name: msgspec.Raw(b"[]") for name in names}))

    @property
    def attributes(self) -> JsonObject:
        """The attributes of the envelope's data."""
        return self._attributes


def _spread(
    frame: _EnvelopeFrame, names: tuple[str, ...], lists: JsonObject, limit: int, lost: list[str]
) -> SplitBodies:
    """Spread the elements of the lists `names` over envelopes in `frame`."""
    room = limit - frame.size(names)
    items: list[tuple[str, bytes]] = []
    for name in names:
        elements = decode_list(lists[name]) if name in lists else []
        fitting, too_large = select_fitting(elements, room - 1, f"in {name}")
        lost += too_large
        items += [(name, item) for item in fitting]
    if not items:
        return SplitBodies([], lost or ["all of it"])
    return SplitBodies(_fill_envelopes((frame, frame), (room, room), names, items), lost)


def _fill_envelopes(
    frames: tuple[_EnvelopeFrame, _EnvelopeFrame],
    rooms: tuple[int, int],
    names: tuple[str, ...],
    items: list[tuple[str, bytes]],
) -> list[bytes]:
    """Put items into envelopes in their order, each into the list of its name.

    frames, rooms: of the first part and of the others.
    """
    bodies: list[bytes] = []
    begin = 0
    for count in pack((len(item) + 1 for _, item in items), *rooms):
        part = items[begin : begin + count]
        begin += count
        fields: JsonObject = {}
        empty: set[str] = set()
        for name in names:
            chosen = [item for of, item in part if of == name]
            if chosen or name not in _WITHOUT_EMPTY:
                fields[name] = msgspec.Raw(b"[" + b",".join(chosen) + b"]")
            else:
                empty.add(name)
        frame = frames[1] if bodies else frames[0]
        bodies.append(frame.without(empty).body(fields))
    return bodies


def _split_sample(frame: _EnvelopeFrame, limit: int) -> SplitBodies:
    """Spread jobs, and errors, over samples of the same node and time."""
    names = _SPREAD["sample"]
    lists = frame.attributes
    lost: list[str] = []
    first = other = frame
    if frame.size(names) > limit // 2 and "system" in frame.attributes:
        # `system` is too large for every part. Receivers read its lists from the first part.
        system = decode_object(frame.attributes["system"])
        for name in _SYSTEM_LISTS:
            if first.size(names) <= limit:
                break
            if system.pop(name, None) is not None:
                lost.append(f"{name} of the system")
                first = first.with_system(system)
        lean = {name: raw for name, raw in system.items() if name not in _SYSTEM_LISTS}
        other = frame.with_system(lean)
    first_room = limit - first.size(names)
    room = limit - other.size(names)
    if first_room < 0:
        return SplitBodies([], ["all of it, since the limit is smaller than a sample without jobs"])
    errors = decode_list(lists["errors"]) if "errors" in lists else []
    jobs = decode_list(lists["jobs"]) if "jobs" in lists else []
    fitting, too_large = select_fitting(errors, room - 1, "error")
    lost += too_large
    pieces: list[bytes] = []
    for job in map(bytes, jobs):
        if len(job) < room:
            pieces.append(job)
        else:
            smaller, too_large = _split_job(job, room - 1)
            pieces += smaller
            lost += too_large
    if lost:
        text = f"the receiver takes at most {limit} bytes; {describe_lost(lost)}"
        fitting = _add_error(text, fitting, lists, first_room)
    items = [("errors", error) for error in fitting] + [("jobs", piece) for piece in pieces]
    return SplitBodies(_fill_envelopes((first, other), (first_room, room), names, items), lost)


def _split_job(job: bytes, room: int) -> tuple[list[bytes], list[str]]:
    """Spread the processes of a job over several job records of at most `room` bytes each."""
    fields = decode_object(job)
    processes = decode_list(fields.pop("processes")) if "processes" in fields else []
    empty = msgspec.Raw(b"[]")
    frame = len(_encode(fields | {"processes": empty}))
    of = (
        f"of job {bytes(fields['job']).decode('utf-8', 'replace')}"
        if "job" in fields
        else "of a job"
    )
    fitting, lost = select_fitting(processes, room - frame, f"process {of}:")
    pieces: list[bytes] = []
    for part in group(fitting, room - frame + 1, 1):
        processes_raw = msgspec.Raw(b"[" + b",".join(part) + b"]")
        pieces.append(_encode(fields | {"processes": processes_raw}))
        # The control group's counters and the energy belong to the whole job and are sent once.
        fields.pop("cgroup", None)
        fields.pop("energy", None)
    return pieces, lost if pieces or lost else [f"all {of}"]


def _add_error(text: str, errors: list[bytes], lists: JsonObject, room: int) -> list[bytes]:
    """Return errors with one more before them, if the first part has room for it."""
    fields = {name: lists[name] for name in ("time", "cluster", "node") if name in lists}
    error = _encode(fields | {"detail": msgspec.Raw(_encode(text))})
    return [error, *errors] if len(error) < room else errors


def _shorten_envelope(frame: _EnvelopeFrame, attributes: JsonObject, limit: int) -> SplitBodies:
    """Return the envelope, without attributes if it would be too large with them."""
    lost: list[str] = []
    for name in _SYSINFO_OPTIONS:
        if name not in attributes:
            continue
        lost.append(name)
        frame = frame.without({name})
        body = frame.body({})
        if len(body) <= limit:
            return SplitBodies([body], lost)
    return SplitBodies([], ["all of it"])


def split_message(message: Message, limit: int) -> list[Message]:
    """Return parts of a message with bodies of at most `limit` bytes each.

    A message that fits is its only part. Equal messages have equal parts. The ids of parts are the
    message's id with `-1`, `-2` and so on; receivers use them to recognise a repetition. Records
    that fit in no part are logged and omitted. The list is empty if no record fits.
    """
    if len(message.body) <= limit:
        return [message]
    try:
        if message.format == "line":
            bodies, lost = _split_lines(message.body, limit)
        elif message.body.lstrip().startswith(b"["):
            bodies, lost = _split_array(message.body, limit)
        else:
            bodies, lost = split_envelope(message.body, limit)
    except (msgspec.MsgspecError, RecursionError) as error:
        bodies, lost = [], [f"all of it, which can't be split: {error}"]
    if lost:
        logger.error(
            "message %s of %s: the receiver takes at most %d bytes; %s",
            message.kind, message.node, limit, describe_lost(lost),
        )  # fmt: skip
    return _make_parts(message, bodies)


def halve_message(message: Message) -> list[Message]:
    """Return two messages with half of the records each, and ids as in `split_message`.

    The list is empty for a message with one record, or if halving is impossible.
    """
    try:
        if message.format == "line":
            lines = message.body.splitlines(keepends=True)
            bodies = [b"".join(half) for half in halve(lines)]
        elif message.body.lstrip().startswith(b"["):
            items = [*map(bytes, decode_list(message.body))]
            bodies = [b"[" + b",".join(half) + b"]" for half in halve(items)]
        else:
            bodies = halve_envelope(message.body)
    except (msgspec.MsgspecError, RecursionError):
        return []
    return _make_parts(message, bodies)


def _split_lines(body: bytes, limit: int) -> SplitBodies:
    lines: list[bytes] = []
    lost: list[str] = []
    for line in body.removesuffix(b"\n").split(b"\n"):
        if len(line) < limit:
            lines.append(line + b"\n")
        else:
            lost.append(f"line {shorten(line.partition(b' ')[0].decode('utf-8', 'replace'))}")
    return SplitBodies([b"".join(part) for part in group(lines, limit, 0)], lost)


def _split_array(body: bytes, limit: int) -> SplitBodies:
    items, lost = select_fitting(decode_list(body), limit - 2, "element")
    # The last element of a part is not followed by a comma.
    return SplitBodies([b"[" + b",".join(part) + b"]" for part in group(items, limit - 1, 1)], lost)


def _make_parts(message: Message, bodies: list[bytes]) -> list[Message]:
    return [
        msgspec.structs.replace(
            message, body=body, id=f"{message.id}-{number}" if message.id else ""
        )
        for number, body in enumerate(bodies, 1)
    ]
