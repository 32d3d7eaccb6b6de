"""Compare what ccagent says of NVIDIA cards with what nvidia-smi says, on a machine that has some.

    python -m tests.support.compare_nvidia_smi [--record FILE] [--seconds 20] [--no-load]

Lets a program compute on the first card (through the driver's own library, libcuda.so.1), waits,
and takes one sample, one description, and nvidia-smi's --query-gpu and --query-compute-apps. Prints
each field with both values and ends with status 1 if any differ by more than the field may change
between two readings. --record writes NVML's answers as a scenario for the stand-in library
(tests/support/gpu_libraries/scenario.h).
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

KB_PER_MIB = 1024


class Field(NamedTuple):
    """A field of ours, the name of nvidia-smi's, and by how much they may differ.

    factor: what one of theirs is in our unit.
    """

    ours: str
    theirs: str
    tolerance: float = 0.0
    factor: float = 1.0


DESCRIPTION = (
    Field("uuid", "uuid"),
    Field("address", "pci.bus_id"),
    Field("model", "name"),
    Field("driver", "driver_version"),
    Field("firmware", "vbios_version"),
    Field("memory", "memory.total", KB_PER_MIB, KB_PER_MIB),
    Field("power_limit", "power.limit", 1),
    Field("min_power_limit", "power.min_limit", 1),
    Field("max_power_limit", "power.max_limit", 1),
    Field("max_ce_clock", "clocks.max.sm"),
    Field("max_memory_clock", "clocks.max.memory"),
)
STATE = (
    Field("uuid", "uuid"),
    Field("fan", "fan.speed", 10),
    Field("compute_mode", "compute_mode"),
    Field("performance_state", "pstate"),
    Field("memory", "memory.used", 64 * KB_PER_MIB, KB_PER_MIB),
    Field("ce_util", "utilization.gpu", 30),
    Field("temperature", "temperature.gpu", 5),
    Field("power", "power.draw", 150),
    Field("power_limit", "power.limit", 1),
    Field("ce_clock", "clocks.current.sm", 300),
    Field("memory_clock", "clocks.current.memory", 100),
)
PROCESS = (Field("gpu_memory", "used_gpu_memory", 64 * KB_PER_MIB, KB_PER_MIB),)


class Difference(NamedTuple):
    """One comparison: agrees or not."""

    what: str
    ours: object
    theirs: str
    agrees: bool


def parse_table(text: str) -> list[dict[str, str]]:
    """Parse nvidia-smi's `--format=csv,nounits`: names without units, values as they stand."""
    rows = list(csv.reader(io.StringIO(text), skipinitialspace=True))
    names = [name.partition(" [")[0] for name in rows[0]] if rows else []
    return [dict(zip(names, row, strict=False)) for row in rows[1:] if row]


def compared(
    what: str, ours: dict[str, Any], theirs: dict[str, str], fields: tuple[Field, ...]
) -> Iterator[Difference]:
    """Compare the fields of one card or process."""
    for field in fields:
        told = theirs.get(field.theirs, "").strip()
        if told.startswith("[") or told in {"", "N/A"}:
            agrees = not ours.get(field.ours)
        elif field.ours == "performance_state":
            agrees = ours.get(field.ours, 0) == int(told.removeprefix("P")) + 2
        elif field.tolerance or _is_number(told):
            mine = float(ours.get(field.ours, 0))
            agrees = abs(mine - float(told) * field.factor) <= field.tolerance
        else:
            agrees = ours.get(field.ours, "") == told
        yield Difference(f"{what} {field.ours}", ours.get(field.ours), told, agrees)


def compare(
    sample: dict[str, Any], cards: list[dict[str, Any]], gpus: str, processes: str
) -> list[Difference]:
    """Compare a sample and descriptions with nvidia-smi's two tables."""
    found: list[Difference] = []
    table = {row["uuid"]: row for row in parse_table(gpus)}
    for fields, ours in ((DESCRIPTION, cards), (STATE, sample["system"].get("gpus", []))):
        whole = [card for card in ours if not card["uuid"].startswith("MIG-")]
        agrees = len(whole) == len(table)
        found.append(Difference("number of cards", len(whole), str(len(table)), agrees))
        for card in whole:
            what = f"card {card['index']}"
            found += compared(what, card, table.get(card["uuid"], {}), fields)
    used = {
        (process["pid"], gpu["uuid"]): gpu
        for job in sample.get("jobs", [])
        for process in job["processes"]
        for gpu in process.get("gpus", [])
    }
    for row in parse_table(processes):
        key = (int(row["pid"]), row["gpu_uuid"])
        found += compared(f"process {key[0]}", used.get(key, {}), row, PROCESS)
        found.append(Difference(f"process {key[0]} listed", key in used, "True", key in used))
    return found


def ask(query: str, names: list[str]) -> str:
    """Run nvidia-smi for a table."""
    command = ["nvidia-smi", f"--query-{query}={','.join(names)}", "--format=csv,nounits"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def asked_ccagent(agent: str) -> dict[str, Any]:
    """Run ccagent once and return the attributes."""
    command = [sys.executable, "-m", "ccagent", agent, "--once"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    attributes: dict[str, Any] = json.loads(done.stdout)["data"]["attributes"]
    return attributes


def main() -> int:
    """Compare, record, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--no-load", action="store_true")
    options = parser.parse_args()
    load = None
    if not options.no_load:
        load = subprocess.Popen(
            [sys.executable, "-m", "tests.support.cuda_load", str(options.seconds + 20)]
        )
    try:
        time.sleep(options.seconds)
        if load is not None and load.poll() is not None:
            print("the program on the card has ended: see above", file=sys.stderr)
            return 1
        names = list(dict.fromkeys(field.theirs for field in (*DESCRIPTION, *STATE)))
        sample, cards = asked_ccagent("sample"), asked_ccagent("sysinfo").get("cards", [])
        gpus = ask("gpu", names)
        processes = ask("compute-apps", ["gpu_uuid", "pid", "used_gpu_memory"])
        if options.record:
            from tests.support.record_nvml import record

            options.record.write_text(record())
    finally:
        if load is not None:
            load.kill()
            load.wait()
    differences = compare(sample, cards, gpus, processes)
    for each in differences:
        mark = "  " if each.agrees else "!!"
        print(f"{mark} {each.what:32} {each.ours!s:44} {each.theirs}")
    for job in sample.get("jobs", []):
        for process in job["processes"]:
            if "gpus" in process:
                print(f"   {process['pid']} {process['cmd']} {process['gpus']}")
    wrong = sum(not each.agrees for each in differences)
    print(f"{len(differences) - wrong} fields agree, {wrong} differ")
    return 1 if wrong else 0


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
