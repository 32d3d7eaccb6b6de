"""Parsers for lists of trackable resources, `cpu=4,mem=400M,node=2,gres/gpu:a100=2,gres/gpu=2`.

Also for the generic resources of a node, `gpu:a100:2(IDX:0,3),shard:4`.
"""

from __future__ import annotations

import re

from ccagent.agents.slurm import values

_MOST_DIGITS = 19
_NODE_GPUS = re.compile(r"(?:^|,)gpu(?::(?:\(null\)|[^:,()]+))?:([0-9]+)", re.ASCII)
"""Until Slurm 25.11, GPUs without a type have the type `(null)` in GresUsed: `gpu:(null):2`."""


def gres_detail(tres: str) -> list[str]:
    """Return the generic resources of a TRES list: `gpu:a100:1` of `cpu=1,gres/gpu:a100=1`.

    Slurm repeats typed resources without type: `gres/gpu=1` is omitted if the types of `gpu`
    account for all of it.
    """
    counts = _count_gres(tres)
    typed: dict[str, int] = {}
    for name, count in counts.items():
        base, colon, _ = name.partition(":")
        if colon:
            typed[base] = typed.get(base, 0) + count
    return [
        f"{name}:{rest}"
        for name, count in counts.items()
        if (rest := count - (0 if ":" in name else typed.get(name, 0))) > 0
    ]


def count_gpus(tres: str) -> int:
    """Return the number of GPUs in a TRES list."""
    counts = _count_gres(tres)
    typed = sum(count for name, count in counts.items() if name.startswith("gpu:"))
    return max(counts.get("gpu", 0), typed)


def count_node_gpus(gres: str) -> int:
    """Return the number of GPUs in the fields Gres and GresUsed of sinfo."""
    return sum(map(int, _NODE_GPUS.findall(gres)))


def has_gpu_share(tres: str) -> bool:
    """Return whether a TRES list has shares of GPUs: `gres/shard` or `gres/mps`."""
    return any(name.partition(":")[0] in {"shard", "mps"} for name in _count_gres(tres))


def count(tres: str, name: str) -> int:
    """Return the number of `name` in a TRES list, 0 without one: `cpu` of `cpu=4,node=2`."""
    text = _value(tres, name)
    return int(text) if text.isdecimal() and len(text) < _MOST_DIGITS else 0


def total_memory(tres: str) -> int:
    """Return the KB of memory in a TRES list: `mem=400M`."""
    try:
        return values.memory_per_node(_value(tres, "mem"), 1, 1)
    except ValueError:
        return 0


def memory_per_node(tres: str) -> int:
    """Return the KB of memory per node of a TRES list: half of 400M for `mem=400M,node=2`."""
    return total_memory(tres) // max(1, count(tres, "node"))


def _value(tres: str, name: str) -> str:
    for one in tres.split(","):
        key, _, value = one.partition("=")
        if key == name:
            return value
    return ""


def _count_gres(tres: str) -> dict[str, int]:
    """Return the generic resources of a TRES list by name, `gpu` and `gpu:a100`."""
    counts: dict[str, int] = {}
    for one in tres.split(","):
        name, equals, number = one.partition("=")
        if equals and name.startswith("gres/"):
            is_number = number.isdecimal() and len(number) < _MOST_DIGITS
            counts[name.removeprefix("gres/")] = int(number) if is_number else 0
    return counts
