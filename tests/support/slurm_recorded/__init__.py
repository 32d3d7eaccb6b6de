"""What a real sacct printed, in the form that the agent asks for."""

from __future__ import annotations

import calendar
import time
from pathlib import Path

from ccagent.agents.slurm.jobs import sacct
from ccagent.agents.slurm.values import split_rows

DIRECTORY = Path(__file__).parent


def recorded_rows() -> list[list[bytes]]:
    """The rows of `mid-sacct-delim.txt` with the agent's columns, and times since 1970."""
    header, _, body = (DIRECTORY / "mid-sacct-delim.txt").read_bytes().partition(b"\n")
    names = header.decode().split("\x1f")
    rows: list[list[bytes]] = []
    for row in split_rows([body], b"\x1f", len(names)):
        fields = dict(zip(names, row, strict=True))
        for name in ("Submit", "Start", "End"):
            text = fields[name].decode()
            if "T" in text:
                moment = calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
                fields[name] = str(moment).encode()
        rows.append([fields.get(name, b"") for name in sacct.FIELDS])
    return rows
