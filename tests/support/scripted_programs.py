"""A node whose programs print what the test says."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from ccagent.errors import NotHereError
from tests.support.tree import TreeNode

_LIMIT = 30.0


class ProgramNode(TreeNode):
    """A node without real programs.

    programs: output by program, or by program and the arguments behind it. commands, inputs: what
    was run, in its order. is_slow: programs end only after `let_end`.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.programs: dict[str, str] = {}
        self.commands: list[tuple[str, ...]] = []
        self.inputs: list[bytes] = []
        self.is_slow = False
        self._may_end = threading.Event()

    def run(
        self,
        command: Sequence[str],
        *,
        time_limit: float,
        output_limit: int,
        stop: int | None = None,
        standard_input: bytes = b"",
    ) -> bytes:
        if self.is_slow:
            self._may_end.wait(_LIMIT)
        for words in range(len(command), 0, -1):
            output = self.programs.get(" ".join(command[:words]))
            if output is not None:
                self.commands.append(tuple(command))
                self.inputs.append(standard_input)
                return output.encode()
        raise NotHereError(f"{command[0]}: no such program")

    def let_end(self) -> None:
        """Have programs that run end."""
        self._may_end.set()
