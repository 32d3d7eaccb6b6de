"""Stand-ins for the makers' libraries, compiled here, for the makers' own Python bindings.

    with_cards(node's root, "nvidia", ["0000:0e:00.0"])
    libraries.play(SCENARIO)

What they answer is a scenario: see scenario.h.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
_OPTIONS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


def compile_libraries(directory: Path) -> None:
    """Compile both libraries into a directory."""
    for source, name, extra in (
        ("nvml.c", "libnvidia-ml.so.1", ""),
        ("amdsmi.c", "libamd_smi.so", _unsupported((HERE / "amdsmi.c").read_text())),
    ):
        generated = directory / f"{source}.unsupported.c"
        generated.write_text(extra)
        command = ["cc", *_OPTIONS, "-o", str(directory / name), str(HERE / source), str(generated)]
        subprocess.run(command, check=True)


def _unsupported(source: str) -> str:
    """Return C for all functions that the bindings of AMD SMI name and `source` doesn't have."""
    spec = importlib.util.find_spec("amdsmi")
    assert spec is not None, "the package amdsmi is missing"
    assert spec.origin is not None
    bindings = (Path(spec.origin).parent / "amdsmi_wrapper.py").read_text()
    names = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", bindings))
    own = set(re.findall(r"^int (\w+)\(", source, re.MULTILINE))
    return "".join(f"int {name}(void) {{ return 2; }}\n" for name in sorted(names - own))


class Libraries:
    """The compiled libraries in `directory`, which play the scenario in `scenario`."""

    def __init__(self, directory: Path, scenario: Path) -> None:
        self.directory = directory
        self.scenario = scenario

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs that is to load them."""
        return {"LD_LIBRARY_PATH": str(self.directory), "GPU_SCENARIO": str(self.scenario)}

    def play(self, *scenarios: str) -> None:
        """Answer like this from now on; of lines for the same, the last counts.

        Surrogates stand for bytes that are no UTF-8.
        """
        lines: dict[str, str] = {}
        for line in "\n".join(scenarios).splitlines():
            key, equals, _ = line.partition(" = ")
            if equals:
                lines[key] = line
        new = self.scenario.with_suffix(".new")
        new.write_text("\n".join(lines.values()) + "\n", "utf-8", "surrogateescape")
        new.replace(self.scenario)


def with_cards(root: Path, driver: str, addresses: list[str]) -> None:
    """Have sysfs below `root` list just these addresses as bound to a driver."""
    directory = root / "sys/bus/pci/drivers" / driver
    directory.mkdir(parents=True, exist_ok=True)
    for entry in directory.iterdir():
        entry.unlink()
    for address in addresses:
        (directory / address).touch()
