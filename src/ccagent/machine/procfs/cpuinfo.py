"""Parser for /proc/cpuinfo."""

from __future__ import annotations


def parse_cpuinfo(content: bytes) -> list[dict[str, str]]:
    """Return the lines `name : value` of each block.

    A block ends with an empty line, or at a second `processor` (old arm64).
    """
    blocks: list[dict[str, str]] = []
    block: dict[str, str] = {}
    for line in content.decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        name = name.strip()
        if block and (not line.strip() or (name == "processor" and name in block)):
            blocks.append(block)
            block = {}
        if colon:
            block.setdefault(name, value.strip())
    return [*blocks, block] if block else blocks
