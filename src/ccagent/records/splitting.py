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

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from ccagent.log import logger
from ccagent.records.points import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccagent.records.message import Message

T = TypeVar("T")

_Object = dict[str, msgspec.Raw]
"""An object whose values are not decoded."""

_NAMES = (("job_id", "job_step"), ("pid", "cmd"), ("name",), ("names",), ("detail",))
"""Fields that identify a record in the log."""

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
_decode_object = msgspec.json.Decoder(_Object).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Parts(NamedTuple):
    """The bodies of the parts, and a phrase for each record that does not fit in any part."""

    bodies: list[bytes]
    lost: list[str]


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
            bodies, lost = _split_envelope(message.body, limit)
    except (msgspec.MsgspecError, RecursionError) as error:
        bodies, lost = [], [f"all of it, which can't be split: {error}"]
    if lost:
        logger.error(
            "message %s of %s: the receiver takes at most %d bytes; %s",
            message.kind, message.node, limit, _describe_lost(lost),
        )  # fmt: skip
    return _make_parts(message, bodies)


def halve_message(message: Message) -> list[Message]:
    """Return two messages with half of the records each, and ids as in `split_message`.

    The list is empty for a message with one record, or if halving is impossible.
    """
    try:
        if message.format == "line":
            lines = message.body.splitlines(keepends=True)
            bodies = [b"".join(half) for half in _halve(lines)]
        elif message.body.lstrip().startswith(b"["):
            bodies = [_join(half) for half in _halve(_decode_list(message.body))]
        else:
            bodies = _halve_envelope(message.body)
    except (msgspec.MsgspecError, RecursionError):
        return []
    return _make_parts(message, bodies)


def _make_parts(message: Message, bodies: list[bytes]) -> list[Message]:
    return [
        msgspec.structs.replace(
            message, body=body, id=f"{message.id}-{number}" if message.id else ""
        )
        for number, body in enumerate(bodies, 1)
    ]


def _split_lines(body: bytes, limit: int) -> _Parts:
    lines: list[bytes] = []
    lost: list[str] = []
    for line in body.removesuffix(b"\n").split(b"\n"):
        if len(line) < limit:
            lines.append(line + b"\n")
        else:
            lost.append(f"line {shorten(line.partition(b' ')[0].decode('utf-8', 'replace'))}")
    return _Parts([b"".join(part) for part in _group(lines, len, limit)], lost)


def _split_array(body: bytes, limit: int) -> _Parts:
    items, lost = _select_fitting(_decode_list(body), limit - 2, "element")
    # The last element of a part is not followed by a comma.
    return _Parts([_join(part) for part in _group(items, _size, limit - 1)], lost)


def _split_envelope(body: bytes, limit: int) -> _Parts:
    frame = _EnvelopeFrame.parse(body)
    if frame.data is None:
        return _spread(frame, ("errors",), frame.envelope, limit)
    if frame.type == "sample":
        return _split_sample(frame, limit)
    if frame.type == "sysinfo":
        return _shorten_envelope(frame, limit)
    if frame.type not in _SPREAD:
        kind = shorten(frame.type)
        return _Parts([], [f"all of it, since data of type {kind} can't be split"])
    return _spread(frame, _SPREAD[frame.type], frame.attributes, limit)


def _halve_envelope(body: bytes) -> list[bytes]:
    frame = _EnvelopeFrame.parse(body)
    name = _HALVED.get(frame.type, "")
    halves = _halve(_list_of(frame.attributes, name))
    # Errors are sent once.
    frames = (frame, frame.without({"errors"}))
    return [
        part.body({name: msgspec.Raw(_join(half))})
        for part, half in zip(frames, halves, strict=False)
    ]


class _EnvelopeFrame(NamedTuple):
    """An envelope, maybe without some of its lists. `data` is None for an envelope of errors."""

    envelope: _Object
    data: _Object | None
    attributes: _Object

    @classmethod
    def parse(cls, body: bytes) -> _EnvelopeFrame:
        """Return the frame of an envelope with all attributes. Raise MsgspecError."""
        envelope = _decode_object(body)
        if "data" not in envelope:
            return cls(envelope, None, {})
        data = _decode_object(envelope["data"])
        attributes = _decode_object(data["attributes"]) if "attributes" in data else {}
        return cls(envelope, data, attributes)

    @property
    def type(self) -> str:
        """The type of the data; empty without one."""
        if self.data is None or "type" not in self.data:
            return ""
        return msgspec.json.decode(self.data["type"], type=str)

    def body(self, fields: _Object) -> bytes:
        """Encode the envelope, with these fields in place of those with the same names."""
        if self.data is None:
            return _encode(self.envelope | fields)
        attributes = _encode(self.attributes | fields)
        data = _encode(self.data | {"attributes": msgspec.Raw(attributes)})
        return _encode(self.envelope | {"data": msgspec.Raw(data)})

    def without(self, names: Iterable[str]) -> _EnvelopeFrame:
        """Return the frame without some attributes."""
        kept = {name: raw for name, raw in self.attributes.items() if name not in names}
        return self._replace(attributes=kept)

    def with_system(self, system: _Object) -> _EnvelopeFrame:
        """Return the frame with a different attribute `system`."""
        changed = self.attributes | {"system": msgspec.Raw(_encode(system))}
        return self._replace(attributes=changed)

    def size(self, names: Iterable[str]) -> int:
        """Return the bytes of the envelope with these lists empty."""
        return len(self.body({name: msgspec.Raw(b"[]") for name in names}))


def _spread(frame: _EnvelopeFrame, names: tuple[str, ...], lists: _Object, limit: int) -> _Parts:
    """Spread the elements of the lists `names` over envelopes in `frame`."""
    room = limit - frame.size(names)
    lost: list[str] = []
    items: list[tuple[str, bytes]] = []
    for name in names:
        fitting, too_large = _select_fitting(_list_of(lists, name), room - 1, f"in {name}")
        lost += too_large
        items += [(name, item) for item in fitting]
    if not items:
        return _Parts([], lost or ["all of it"])
    return _Parts(_fill_envelopes((frame, frame), (room, room), names, items), lost)


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
    for part in _group(items, lambda item: len(item[1]) + 1, rooms[1], rooms[0]):
        chosen = {name: [item for of, item in part if of == name] for name in names}
        empty = {name for name in _WITHOUT_EMPTY if not chosen.get(name, True)}
        fields = {
            name: msgspec.Raw(_join(list_)) for name, list_ in chosen.items() if name not in empty
        }
        bodies.append(frames[bool(bodies)].without(empty).body(fields))
    return bodies


def _split_sample(frame: _EnvelopeFrame, limit: int) -> _Parts:
    """Spread jobs, and errors, over samples of the same node and time."""
    names = _SPREAD["sample"]
    lost: list[str] = []
    first = other = frame
    if frame.size(names) > limit // 2 and "system" in frame.attributes:
        # `system` is too large for every part. Receivers read its lists from the first part.
        system = _decode_object(frame.attributes["system"])
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
        return _Parts([], ["all of it, since the limit is smaller than a sample without jobs"])
    errors, too_large = _select_fitting(_list_of(frame.attributes, "errors"), room - 1, "error")
    lost += too_large
    pieces: list[bytes] = []
    for job in map(bytes, _list_of(frame.attributes, "jobs")):
        if len(job) < room:
            pieces.append(job)
        else:
            smaller, too_large = _split_job(job, room - 1)
            pieces += smaller
            lost += too_large
    if lost:
        text = f"the receiver takes at most {limit} bytes; {_describe_lost(lost)}"
        errors = _add_error(text, errors, frame.attributes, first_room)
    items = [("errors", error) for error in errors] + [("jobs", piece) for piece in pieces]
    return _Parts(_fill_envelopes((first, other), (first_room, room), names, items), lost)


def _split_job(job: bytes, room: int) -> _Parts:
    """Spread the processes of a job over several job records of at most `room` bytes each."""
    fields = _decode_object(job)
    processes = _list_of(fields, "processes")
    fields.pop("processes", None)
    room -= len(_encode(fields | {"processes": msgspec.Raw(b"[]")}))
    number = bytes(fields["job"]).decode("utf-8", "replace") if "job" in fields else ""
    of = f"of job {number}" if number else "of a job"
    fitting, lost = _select_fitting(processes, room, f"process {of}:")
    pieces: list[bytes] = []
    for part in _group(fitting, _size, room + 1):
        pieces.append(_encode(fields | {"processes": msgspec.Raw(_join(part))}))
        # The control group's counters and the energy belong to the whole job and are sent once.
        fields.pop("cgroup", None)
        fields.pop("energy", None)
    return _Parts(pieces, lost if pieces or lost else [f"all {of}"])


def _add_error(text: str, errors: list[bytes], lists: _Object, room: int) -> list[bytes]:
    """Return errors with one more before them, if the first part has room for it."""
    fields = {name: lists[name] for name in ("time", "cluster", "node") if name in lists}
    error = _encode(fields | {"detail": msgspec.Raw(_encode(text))})
    return [error, *errors] if len(error) < room else errors


def _shorten_envelope(frame: _EnvelopeFrame, limit: int) -> _Parts:
    """Return the envelope, without attributes if it would be too large with them."""
    lost: list[str] = []
    for name in _SYSINFO_OPTIONS:
        if name not in frame.attributes:
            continue
        lost.append(name)
        frame = frame.without({name})
        body = frame.body({})
        if len(body) <= limit:
            return _Parts([body], lost)
    return _Parts([], ["all of it"])


def _list_of(fields: _Object, name: str) -> list[msgspec.Raw]:
    """Return the elements of a list in an object; none without the list."""
    return _decode_list(fields[name]) if name in fields else []


def _join(items: Iterable[bytes | msgspec.Raw]) -> bytes:
    """Return a JSON array of encoded elements."""
    return b"[" + b",".join(items) + b"]"


def _size(item: bytes) -> int:
    """Return the bytes of an element and a comma."""
    return len(item) + 1


def _halve(items: list[T]) -> list[list[T]]:
    """Return the two halves of a list; none for fewer than two items."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else []


def _group(
    items: Iterable[T], size: Callable[[T], int], room: int, first_room: int | None = None
) -> Iterator[list[T]]:
    """Yield the items in parts of at most `room` bytes, in their order.

    first_room: the same for the first part. This part is then yielded even if it is empty. No item
    may be larger than `room`.
    """
    part: list[T] = []
    left = room if first_room is None else first_room
    is_needed = first_room is not None
    for item in items:
        if size(item) > left:
            yield part
            part, left, is_needed = [], room, True
        part.append(item)
        left -= size(item)
    if part or is_needed:
        yield part


def _describe_lost(lost: list[str]) -> str:
    """Return a phrase for the log about omitted records."""
    if len(lost) == 1:
        return f"left out: {lost[0]}"
    return f"{len(lost)} records are left out, the first: {lost[0]}"


def _select_fitting(
    items: list[msgspec.Raw], room: int, what: str
) -> tuple[list[bytes], list[str]]:
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
        fields = _decode_object(item)
        for keys in _NAMES:
            if keys[0] in fields:
                values = (bytes(fields[key]) for key in keys if key in fields)
                return " ".join(shorten(value.decode("utf-8", "replace")) for value in values)
    return shorten(item.decode("utf-8", "replace"))
