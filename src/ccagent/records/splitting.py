"""Splitting of a message that is larger than its receiver takes.

Lines and arrays are split between lines and elements. How an envelope is split follows from what
its receivers do with several envelopes of one node and one time:

- `sample`: sonalyze joins processes by host, pid and command, and slurm-monitor stores them by job,
  epoch and pid, whichever envelope they came in. So jobs are spread over the parts, and a large job
  is spread by its processes. `system` is repeated: both receivers find the same time again and keep
  one copy of CPUs, cards and disks, and sonalyze counts the cores of a process from it.
- `job`: both receivers keep one record for each job, step and time. Jobs are spread over the parts.
- `cluster`: partitions and states of nodes are stored one by one and are spread over the parts.
  Only the list of all names that slurm-monitor keeps for a time is then that of the last part.
- `sysinfo`: of two with one time only one counts. There is one part, without the drawings and lists
  that do not fit.

A message that its receiver refuses for one of its records is halved, so that the others pass. Its
size is no matter then, and nothing of it is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.log import logger
from ccagent.records.line_protocol.encoding import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.records.message import Message

_Object = dict[str, msgspec.Raw]

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
"""Lists that are left out when they are empty; receivers want the others even so."""

_NAMES = (("job_id", "job_step"), ("pid", "cmd"), ("name",), ("names",), ("detail",))
"""Fields that a record is called by in the log."""

_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(_Object).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _SplitBodies(NamedTuple):
    """The bodies of the parts, and what fits in none of them, a phrase each."""

    bodies: list[bytes]
    lost: list[str]


def split_message(message: Message, limit: int) -> list[Message]:
    """Return parts of a message with bodies of at most `limit` bytes each.

    A message that fits is its only part. Equal messages have equal parts, whose ids are the
    message's followed by `-1`, `-2` and so on, so that receivers recognise a repetition. Records
    that fit in no part are logged and left out. The list is empty if nothing fits.
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
    return [
        msgspec.structs.replace(
            message, body=body, id=f"{message.id}-{number}" if message.id else ""
        )
        for number, body in enumerate(bodies, 1)
    ]


def halve_message(message: Message) -> list[Message]:
    """Return two messages with half of the records each, with ids as in `split_message`.

    The list is empty for a message with one record, and for one that can't be halved.
    """
    try:
        if message.format == "line":
            lines = message.body.splitlines(keepends=True)
            bodies = [b"".join(half) for half in _halve(lines)]
        elif message.body.lstrip().startswith(b"["):
            items = [*map(bytes, _decode_list(message.body))]
            bodies = [b"[" + b",".join(half) + b"]" for half in _halve(items)]
        else:
            bodies = _halve_envelope(message.body)
    except (msgspec.MsgspecError, RecursionError):
        return []
    return [
        msgspec.structs.replace(
            message, body=body, id=f"{message.id}-{number}" if message.id else ""
        )
        for number, body in enumerate(bodies, 1)
    ]


def _halve(items: list[bytes]) -> list[list[bytes]]:
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else []


def _halve_envelope(body: bytes) -> list[bytes]:
    envelope = _decode_object(body)
    if "data" not in envelope:
        return []
    data = _decode_object(envelope["data"])
    attributes = _decode_object(data["attributes"]) if "attributes" in data else {}
    name = _HALVED.get(msgspec.json.decode(data["type"], type=str) if "type" in data else "")
    if name is None or name not in attributes:
        return []
    frame = _EnvelopeFrame(envelope, data, attributes)
    items = [*map(bytes, _decode_list(attributes[name]))]
    # Errors are sent once.
    frames = (frame, frame.without({"errors"}))
    return [
        frame.body({name: msgspec.Raw(b"[" + b",".join(half) + b"]")})
        for frame, half in zip(frames, _halve(items), strict=False)
    ]


def _describe_lost(lost: list[str]) -> str:
    if len(lost) == 1:
        return f"left out: {lost[0]}"
    return f"{len(lost)} records are left out, the first: {lost[0]}"


def _pack(sizes: Iterable[int], first_room: int, room: int) -> list[int]:
    """Return how many of the items go into each part, in their order.

    first_room, room: bytes for items in the first part and in the others; no item is larger than
    `room`.
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


def _split_lines(body: bytes, limit: int) -> _SplitBodies:
    lines: list[bytes] = []
    lost: list[str] = []
    for line in body.removesuffix(b"\n").split(b"\n"):
        if len(line) < limit:
            lines.append(line + b"\n")
        else:
            lost.append(f"line {shorten(line.partition(b' ')[0].decode('utf-8', 'replace'))}")
    return _SplitBodies([b"".join(part) for part in _group(lines, limit, 0)], lost)


def _split_array(body: bytes, limit: int) -> _SplitBodies:
    items, lost = _select_fitting(_decode_list(body), limit - 2, "element")
    # The last element of a part has no comma behind it.
    return _SplitBodies(
        [b"[" + b",".join(part) + b"]" for part in _group(items, limit - 1, 1)], lost
    )


def _group(items: list[bytes], room: int, separator: int) -> Iterable[list[bytes]]:
    begin = 0
    for count in _pack((len(item) + separator for item in items), room, room):
        if count:
            yield items[begin : begin + count]
        begin += count


def _select_fitting(
    items: list[msgspec.Raw], room: int, what: str
) -> tuple[list[bytes], list[str]]:
    """Return the items of at most `room` bytes, and phrases for the others."""
    fitting: list[bytes] = []
    lost: list[str] = []
    for item in map(bytes, items):
        if len(item) <= room:
            fitting.append(item)
        else:
            lost.append(f"{what} {_name_record(item)}")
    return fitting, lost


def _name_record(item: bytes) -> str:
    """Return what a record is called, as its own fields say, else how it begins."""
    if item.startswith(b"{"):
        fields = _decode_object(item)
        for keys in _NAMES:
            if keys[0] in fields:
                values = (bytes(fields[key]) for key in keys if key in fields)
                return " ".join(shorten(value.decode("utf-8", "replace")) for value in values)
    return shorten(item.decode("utf-8", "replace"))


def _split_envelope(body: bytes, limit: int) -> _SplitBodies:
    envelope = _decode_object(body)
    if "data" not in envelope:
        return _spread(_EnvelopeFrame(envelope, None, {}), ("errors",), envelope, limit, [])
    data = _decode_object(envelope["data"])
    attributes = _decode_object(data["attributes"]) if "attributes" in data else {}
    kind = msgspec.json.decode(data["type"], type=str) if "type" in data else ""
    frame = _EnvelopeFrame(envelope, data, attributes)
    if kind == "sample":
        return _split_sample(frame, limit)
    if kind == "sysinfo":
        return _shorten_envelope(frame, attributes, limit)
    if kind not in _SPREAD:
        return _SplitBodies([], [f"all of it, since data of type {shorten(kind)} can't be split"])
    return _spread(frame, _SPREAD[kind], attributes, limit, [])


class _EnvelopeFrame:
    """An envelope around some of its lists. `data` is None for one that has only errors."""

    def __init__(self, envelope: _Object, data: _Object | None, attributes: _Object) -> None:
        self._envelope = envelope
        self._data = data
        self._attributes = attributes

    def body(self, fields: _Object) -> bytes:
        """Encode the envelope with these fields instead of its own of the same names."""
        if self._data is None:
            return _encode(self._envelope | fields)
        attributes = _encode(self._attributes | fields)
        data = _encode(self._data | {"attributes": msgspec.Raw(attributes)})
        return _encode(self._envelope | {"data": msgspec.Raw(data)})

    def without(self, names: Iterable[str]) -> _EnvelopeFrame:
        """Return the frame without some attributes."""
        kept = {name: raw for name, raw in self._attributes.items() if name not in names}
        return _EnvelopeFrame(self._envelope, self._data, kept)

    def with_system(self, system: _Object) -> _EnvelopeFrame:
        """Return the frame with another attribute `system`."""
        changed = self._attributes | {"system": msgspec.Raw(_encode(system))}
        return _EnvelopeFrame(self._envelope, self._data, changed)

    def size(self, names: Iterable[str]) -> int:
        """Return the bytes of the envelope with these lists empty."""
        return len(self.body({name: msgspec.Raw(b"[]") for name in names}))

    @property
    def attributes(self) -> _Object:
        """The attributes of its data."""
        return self._attributes


def _spread(
    frame: _EnvelopeFrame, names: tuple[str, ...], lists: _Object, limit: int, lost: list[str]
) -> _SplitBodies:
    """Spread the elements of the lists `names` over envelopes in `frame`."""
    room = limit - frame.size(names)
    items: list[tuple[str, bytes]] = []
    for name in names:
        elements = _decode_list(lists[name]) if name in lists else []
        fitting, too_large = _select_fitting(elements, room - 1, f"in {name}")
        lost += too_large
        items += [(name, item) for item in fitting]
    if not items:
        return _SplitBodies([], lost or ["all of it"])
    return _SplitBodies(_fill_envelopes((frame, frame), (room, room), names, items), lost)


def _fill_envelopes(
    frames: tuple[_EnvelopeFrame, _EnvelopeFrame],
    rooms: tuple[int, int],
    names: tuple[str, ...],
    items: list[tuple[str, bytes]],
) -> list[bytes]:
    """Put items into envelopes, each into its list, in their order.

    frames, rooms: of the first part and of the others.
    """
    bodies: list[bytes] = []
    begin = 0
    for count in _pack((len(item) + 1 for _, item in items), *rooms):
        part = items[begin : begin + count]
        begin += count
        fields: _Object = {}
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


def _split_sample(frame: _EnvelopeFrame, limit: int) -> _SplitBodies:
    """Spread jobs, and errors, over samples of the same node and time."""
    names = _SPREAD["sample"]
    lists = frame.attributes
    lost: list[str] = []
    first = other = frame
    if frame.size(names) > limit // 2 and "system" in frame.attributes:
        # Too large to be repeated; receivers take the lists from the first part.
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
        return _SplitBodies(
            [], ["all of it, since the limit is smaller than a sample without jobs"]
        )
    errors = _decode_list(lists["errors"]) if "errors" in lists else []
    jobs = _decode_list(lists["jobs"]) if "jobs" in lists else []
    fitting, too_large = _select_fitting(errors, room - 1, "error")
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
        text = f"the receiver takes at most {limit} bytes; {_describe_lost(lost)}"
        fitting = _add_error(text, fitting, lists, first_room)
    items = [("errors", error) for error in fitting] + [("jobs", piece) for piece in pieces]
    return _SplitBodies(_fill_envelopes((first, other), (first_room, room), names, items), lost)


def _split_job(job: bytes, room: int) -> tuple[list[bytes], list[str]]:
    """Spread the processes of a job over several records of it, of at most `room` bytes each."""
    fields = _decode_object(job)
    processes = _decode_list(fields.pop("processes")) if "processes" in fields else []
    empty = msgspec.Raw(b"[]")
    frame = len(_encode(fields | {"processes": empty}))
    of = (
        f"of job {bytes(fields['job']).decode('utf-8', 'replace')}"
        if "job" in fields
        else "of a job"
    )
    fitting, lost = _select_fitting(processes, room - frame, f"process {of}:")
    pieces: list[bytes] = []
    for part in _group(fitting, room - frame + 1, 1):
        processes_raw = msgspec.Raw(b"[" + b",".join(part) + b"]")
        pieces.append(_encode(fields | {"processes": processes_raw}))
        # The control group's figures are those of the whole job: they are sent once.
        fields.pop("cgroup", None)
    return pieces, lost if pieces or lost else [f"all {of}"]


def _add_error(text: str, errors: list[bytes], lists: _Object, room: int) -> list[bytes]:
    """Put an error before the others, if there is room for it in the first part."""
    fields = {name: lists[name] for name in ("time", "cluster", "node") if name in lists}
    error = _encode(fields | {"detail": msgspec.Raw(_encode(text))})
    return [error, *errors] if len(error) < room else errors


def _shorten_envelope(frame: _EnvelopeFrame, attributes: _Object, limit: int) -> _SplitBodies:
    """Leave out attributes until the envelope fits."""
    lost: list[str] = []
    for name in _SYSINFO_OPTIONS:
        if name not in attributes:
            continue
        lost.append(name)
        frame = frame.without({name})
        body = frame.body({})
        if len(body) <= limit:
            return _SplitBodies([body], lost)
    return _SplitBodies([], ["all of it"])
