"""Parsers for lists of cpus and ids of the CPU topology in files of /sys."""

from __future__ import annotations

from ccagent.errors import UnparsableError

LARGEST_CPU = 65_535


def parse_cpu_list(content: bytes) -> list[int]:
    """Parse `0-3,8,10-11`: ascending, may be empty.

    A kernel of 5.15 ended the lists of topologies with NUL. Raise UnparsableError for other text,
    or for impossible cpu numbers.
    """
    cpus: list[int] = []
    text = content.removesuffix(b"\0").strip()
    for part in text.split(b",") if text else []:
        first, dash, last = part.partition(b"-")
        start, end = _parse_cpu(first), _parse_cpu(last if dash else first)
        # Ascending ranges limit the count to the valid cpu numbers, for any length of text.
        if end < start or (cpus and start <= cpus[-1]):
            raise UnparsableError(f"not an ascending list of cpus: {text[:80]!r}")
        cpus.extend(range(start, end + 1))
    return cpus


def parse_topology_id(content: bytes) -> int:
    """Parse physical_package_id, die_id or core_id; -1 if unknown. Raise UnparsableError."""
    text = content.strip()
    if not text.removeprefix(b"-").isdigit() or len(text) > 20:
        raise UnparsableError(f"not a number: {text[:80]!r}")
    return max(-1, int(text))


def _parse_cpu(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 5 or int(digits) > LARGEST_CPU:
        raise UnparsableError(f"not a cpu: {digits[:80]!r}")
    return int(digits)
