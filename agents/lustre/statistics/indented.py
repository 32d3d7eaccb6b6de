"""Parser for indented text of lnetctl, a small subset of YAML.

net:
    - net type: tcp
      local NI(s):
        - nid: 172.16.0.24@tcp
          statistics:
              send_count: 464970
"""

from __future__ import annotations

from collections import defaultdict


class Block:
    """A block: keys with a word, and keys with one nested block, or one per item."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.blocks: defaultdict[str, list[Block]] = defaultdict(list)
        self._last = ""

    def add(self, key: str, value: str) -> None:
        """Parse a line. Deeper indented next lines belong to its key."""
        self._last = key
        if value:
            self.fields[key] = value

    def open(self) -> Block:
        """Start a block below the key of the last line."""
        block = Block()
        self.blocks[self._last].append(block)
        return block


def parse_indented(content: bytes) -> Block:
    """Return the outermost block. Skip lines without a colon. Never raises."""
    root = Block()
    opened = [(0, root)]
    for line in content.decode("utf-8", "backslashreplace").split("\n"):
        rest = line.lstrip(" ")
        is_item = rest.startswith("- ")
        if is_item:
            rest = rest[2:].lstrip(" ")
        column = len(line) - len(rest)
        key, colon, value = rest.partition(":")
        if not colon:
            continue
        # An item closes the previous item, whose keys are in the same column.
        while opened[-1][0] > column or (is_item and opened[-1][0] == column):
            opened.pop()
        if opened[-1][0] < column:
            opened.append((column, opened[-1][1].open()))
        opened[-1][1].add(key.strip(), value.strip())
    return root
