"""Parser for client statistics of BeeGFS: beegfs-ctl --clientstats, beegfs stats client --retro.

A line has a name and pairs of number and operation: `Sum:   56624 [sum]  10 [close]`. With an
interval of 0 the numbers are those since the servers started.
"""

from __future__ import annotations

import math
import re

from ccagent.errors import UnparsableError

META_OPERATIONS = (
    "sum", "ack", "close", "entInf", "fndOwn", "mkdir", "create", "rddir", "refrEnt", "mdsInf",
    "rmdir", "rmLnk", "mvDirIns", "mvFiIns", "open", "ren", "sChDrct", "sAttr", "sDirPat", "stat",
    "statfs", "trunc", "symlnk", "unlnk", "lookLI", "statLI", "revalLI", "openLI", "createLI",
    "hardlnk", "flckAp", "flckEn", "flckRg", "dirparent", "listXA", "getXA", "rmXA", "setXA",
    "mirror",
)  # fmt: skip
STORAGE_OPERATIONS = (
    "sum", "ack", "sChDrct", "getFSize", "sAttr", "statfs", "trunc", "close", "fsync", "ops-rd",
    "B-rd", "ops-wr", "B-wr", "gendbg", "hrtbeat", "remNode", "storInf", "unlnk",
)  # fmt: skip

_PAIR = re.compile(r"(\S+)\s+\[([^\]\s]{1,40})\]")
_NUMBER = re.compile(r"[0-9]{1,25}(?:\.[0-9]{1,10})?(?:[eE]\+?[0-9]{1,2})?", re.ASCII)
_BYTES = re.compile(r"(|Ki|Mi|Gi|Ti)B-(rd|wr)")
_FACTORS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_SUMS = ("Sum", "Summary")
_LARGEST = 1 << 70


def parse_client_stats(content: bytes, client: str = "") -> dict[str, int]:
    """Return counters by operation, of `client` or summed over all clients if it is empty.

    Byte counters are `B-rd` and `B-wr`; the rounded counters of `beegfs stats` (`rd`, `wr`) are
    skipped. A client without requests has no line; the result is empty. Raise UnparsableError for
    any other output.
    """
    text = content.decode("utf-8", "replace")
    is_any = False
    # The last line of an interrupted program is incomplete.
    for line in text.split("\n")[:-1]:
        stripped = line.strip()
        is_any = is_any or stripped.startswith(("======", "-------"))
        name, _, rest = stripped.partition(" ")
        if name.rstrip(":") not in ((client,) if client else _SUMS):
            continue
        counters = _parse_pairs(rest)
        if counters:
            return counters
        raise UnparsableError(f"no pairs of number and operation: {stripped[:80]!r}")
    if not is_any:
        raise UnparsableError(f"no client statistics: {text[:80]!r}")
    return {}


def _parse_pairs(text: str) -> dict[str, int]:
    counters: dict[str, int] = {}
    for number, operation in _PAIR.findall(text):
        found = _BYTES.fullmatch(operation)
        if operation in {"rd", "wr"} or operation.endswith("/s"):
            continue
        if _NUMBER.fullmatch(number) is None:
            raise UnparsableError(f"{operation[:40]}: not a number: {number[:40]!r}")
        exact = int(number) if number.isdecimal() else float(number)
        value = exact * _FACTORS[found[1]] if found else exact
        if not math.isfinite(value) or value > _LARGEST:
            raise UnparsableError(f"{operation[:40]}: out of range: {number[:40]}")
        counters[f"B-{found[2]}" if found else operation] = int(value)
    return counters
