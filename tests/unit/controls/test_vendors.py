"""Controls behind drivers that no test machine has: NVML by a scripted binding, HSMP by a call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from ccagent.controls.cards import NvmlControls, NvmlLibrary, find_card
from ccagent.controls.nvml_process import Answer, Cards, Question
from ccagent.controls.processors import Hsmp, bits_of
from ccagent.controls.service import ControlService
from ccagent.controls.settings import ControlSetup, ControlsSettings
from ccagent.errors import ControlError
from ccagent.machine.cpus import CpuIdentity, identify
from tests.support.control_machines import AMD, GRACE, INTEL, MachineNode, Site, add_cpus, allow

if TYPE_CHECKING:
    from pathlib import Path


NONE = frozenset[str]()


class NvmlError(Exception):
    """What the binding raises."""


class Binding:
    """As much of pynvml as one card needs; the rest it does not support."""

    NVMLError = NvmlError

    def __init__(self) -> None:
        self.limit, self.clocks, self.ecc = 400_000, [1593, 1410], 1
        self.has_ecc = True

    def __getattr__(self, name: str) -> Any:
        raise NvmlError(f"Not Supported: {name}")

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"card{index}"

    def nvmlDeviceGetPciInfo(self, _: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=b"00000000:0E:00.0")

    def nvmlDeviceGetPowerManagementLimit(self, _: str) -> int:  # noqa: N802
        return self.limit

    def nvmlDeviceSetPowerManagementLimit(self, _: str, milliwatts: int) -> None:  # noqa: N802
        self.limit = milliwatts

    def nvmlDeviceGetPowerManagementLimitConstraints(self, _: str) -> list[int]:  # noqa: N802
        return [100_000, 400_000]

    def nvmlDeviceGetPowerUsage(self, _: str) -> int:  # noqa: N802
        return 61_250

    def nvmlDeviceGetApplicationsClock(self, _: str, clock: int) -> int:  # noqa: N802
        return self.clocks[0 if clock == 2 else 1]

    def nvmlDeviceGetSupportedGraphicsClocks(self, _: str, memory: int) -> list[int]:  # noqa: N802
        return [memory - 183, 1395, 210]

    def nvmlDeviceGetSupportedMemoryClocks(self, _: str) -> list[int]:  # noqa: N802
        return [1593]

    def nvmlDeviceSetApplicationsClocks(self, _: str, memory: int, graphics: int) -> None:  # noqa: N802
        self.clocks = [memory, graphics]

    def nvmlDeviceGetEccMode(self, _: str) -> list[int]:  # noqa: N802
        if not self.has_ecc:
            raise NvmlError("Not Supported")
        return [1, self.ecc]

    def nvmlDeviceSetEccMode(self, _: str, mode: int) -> None:  # noqa: N802
        self.ecc = mode


class ScriptedLibrary(NvmlLibrary):
    """The library without a process."""

    def __init__(self, binding: Binding) -> None:
        self._cards = Cards(binding)

    def ask(self, question: Question, seconds: float = 0.0) -> Answer:
        found = self._cards.answer(question)
        if found.error:
            raise ControlError(f"NVML: {found.error}")
        return found


def nvidia(root: Path, binding: Binding) -> Site:
    rules = allow(
        nvml__power_limit_cur={"min": 50, "max": 350},
        nvml__gfx_clock_app_target={"min": 200, "max": 1500},
        nvml__ecc_enabled_pend={},
    )
    return Site(MachineNode(root), rules, classes=[NvmlControls(ScriptedLibrary(binding))])


def test_cards_of_nvidia_are_set_and_put_back(tmp_path: Path) -> None:
    binding = Binding()
    site = nvidia(tmp_path, binding)

    def ask(name: str, value: str | None = None) -> tuple[str, str]:
        return site.ask(name, value, kind="nvidia_gpu", number="0:e:0.0")

    assert ask("nvml.power_usage") == ("INFO", "61.250000")
    assert ask("nvml.power_limit_cur", "250")[0] == "INFO"
    assert ask("nvml.gfx_clock_app_target", "1395")[0] == "INFO"
    assert ask("nvml.ecc_enabled_pend", "0")[0] == "INFO"
    assert (binding.limit, binding.clocks, binding.ecc) == (250_000, [1593, 1395], 0)
    assert "none of 1410, 1395, 210" in ask("nvml.gfx_clock_app_target", "1400")[1]
    assert "below 100" in ask("nvml.power_limit_cur", "60")[1]
    assert site.ask("restore", "")[0] == "INFO"
    assert (binding.limit, binding.clocks, binding.ecc) == (400_000, [1593, 1410], 1)


def test_what_a_card_does_not_support_is_not_listed(tmp_path: Path) -> None:
    binding = Binding()
    binding.has_ecc = False
    names = nvidia(tmp_path, binding).names()
    assert "nvml.power_limit_cur" in names
    assert not {name for name in names if "ecc" in name or "energy" in name}


def test_a_machine_without_the_driver_starts_no_process(tmp_path: Path) -> None:
    assert list(NvmlControls().find_features(MachineNode(tmp_path))) == []


class EmptyHelper:
    """A process whose answers have no cards."""

    is_asked = False

    def ask(self, question: bytes) -> None: ...

    def answer(self, _seconds: float) -> bytes:
        return msgspec.msgpack.encode(Answer())


class CountingNode(MachineNode):
    """A machine with NVIDIA's driver that counts the processes for its library."""

    helpers = 0

    def helper(self, *_: object, **__: object) -> Any:
        self.helpers += 1
        return EmptyHelper()


def test_a_reload_starts_no_second_process_for_nvml(tmp_path: Path) -> None:
    node = CountingNode(tmp_path)
    (tmp_path / "proc/driver/nvidia/gpus").mkdir(parents=True)
    setup = ControlSetup("test", ControlsSettings(), {})
    service = ControlService(lambda: setup, node)
    service._list_machine()
    service._list_machine()
    service._loop.close()
    assert node.helpers == 1


def test_hsmp_speaks_to_each_socket(tmp_path: Path) -> None:
    limits = {0: 400_000, 1: 400_000}

    def call(socket: int, message: int, argument: int | None) -> int:
        if message == 5:
            assert argument is not None
            limits[socket] = argument
        return {4: 123_000, 6: limits[socket], 7: 500_000}.get(message, 0)

    node = MachineNode(tmp_path)
    add_cpus(node, 4, sockets=2)
    node.put("dev/hsmp", "")
    rules = allow(hsmp__pkg_power_limit_cur={"min": 100, "max": 600})
    site = Site(node, rules, classes=[Hsmp(call)])
    assert site.ask("hsmp.pkg_power", kind="socket", number="1") == ("INFO", "123.000000")
    assert site.ask("hsmp.pkg_power_limit_cur", "300", kind="socket", number="1")[0] == "INFO"
    assert limits == {0: 400_000, 1: 300_000}
    refused = site.ask("hsmp.pkg_power_limit_cur", "550", kind="socket")
    assert "above 500" in refused[1]
    site.ask("restore", "")
    assert limits == {0: 400_000, 1: 400_000}


@pytest.mark.parametrize(
    ("text", "processor", "names"),
    [
        (INTEL, CpuIdentity("GenuineIntel", 6, 143), {"l2_hwpf", "l1_dcu", "turbo"}),
        (AMD, CpuIdentity("AuthenticAMD", 25, 17), {"l1_stream", "up_down", "turbo_mode"}),
        # The cores of MI300A.
        (AMD.replace("17", "144"), CpuIdentity("AuthenticAMD", 25, 144), {"l2_stream"}),
        (AMD.replace("17", "1"), CpuIdentity("AuthenticAMD", 25, 1), {"turbo_mode"}),
        (INTEL.replace("143", "28"), CpuIdentity("GenuineIntel", 6, 28), NONE),
        (GRACE, None, NONE),
        ("", None, NONE),
        ("vendor_id : GenuineIntel\ncpu family : x\nmodel : y\n", None, NONE),
    ],
)
def test_registers_are_known_by_processor(
    text: str, processor: CpuIdentity | None, names: frozenset[str]
) -> None:
    found = identify(text.encode())
    assert found == processor
    assert {bit.name for bit in bits_of(found)} >= names
    assert bool(bits_of(found)) == bool(names)


@pytest.mark.parametrize(
    ("number", "found"),
    [
        ("0", "00000000:0E:00.0"), ("1", "0000:C1:00.0"), ("2", None),
        ("e:0.0", "00000000:0E:00.0"),
        ("0:e:0.0", "00000000:0E:00.0"), ("00000000:0e:00.0", "00000000:0E:00.0"),
        ("c1:00.0", "0000:C1:00.0"), ("../0", None), ("", None),
    ],
)  # fmt: skip
def test_cards_are_found_by_index_or_address(number: str, found: str | None) -> None:
    assert find_card(number, ["00000000:0E:00.0", "0000:C1:00.0"]) == found
