"""Parser for /proc/diskstats. See Documentation/admin-guide/iostats.rst of Linux."""

from __future__ import annotations

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT, SampleDisk


def parse_diskstats(content: bytes) -> list[SampleDisk]:
    """Parse lines `major minor name values...`. Raise UnparsableError for other lines."""
    disks: list[SampleDisk] = []
    for line in content.splitlines():
        fields = line.split()
        if not fields:
            continue
        try:
            name = fields[2].decode("utf-8", "replace")
            major, minor = int(fields[0]), int(fields[1])
            stats = list(map(int, fields[3:]))
        except (ValueError, IndexError) as error:
            raise UnparsableError(f"not a device with counters: {line[:80]!r}") from error
        numbers = (major, minor, *stats)
        if min(numbers) < 0 or max(numbers) > LARGEST_UINT:
            raise UnparsableError(f"out of range: {line[:80]!r}")
        disks.append(SampleDisk(name=name, major=major, minor=minor, stats=stats))
    return disks


def parse_used_disks(content: bytes) -> list[SampleDisk]:
    """Parse as parse_diskstats does, without devices that have only zeros, such as loop devices."""
    return [disk for disk in parse_diskstats(content) if any(disk.stats)]
