"""Controls `hsmp.*`: power and clocks of AMD's sockets, through the driver amd_hsmp.

Source: Documentation/arch/x86/amd_hsmp.rst, arch/x86/include/uapi/asm/amd_hsmp.h of Linux. The
driver answers an ioctl on /dev/hsmp. The ioctl bypasses Node, because a file of a recorded machine
can't answer it.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.controls.control import Control, ControlClass, Feature, Kind, Limits, real_text
from ccagent.controls.topology import list_cpus, read_id
from ccagent.errors import UnparsableError, raise_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ccagent.machine.node import Node

    Call = Callable[[int, int, int | None], int]
    """Function of socket, message and argument. It returns the first word of the answer."""

_DEVICE = "dev/hsmp"
_MESSAGE = struct.Struct("=IHH8IHxx")
_COMMAND = 3 << 30 | _MESSAGE.size << 16 | 0xF8 << 8
"""_IOWR(0xF8, 0, struct hsmp_message)."""
_MILLI = 1000
_SOCKET = "physical_package_id"


class _Value(NamedTuple):
    name: str
    message: int
    kind: Kind
    unit: str
    description: str


_VALUES = (
    _Value("smu_fw_ver", 2, "integer", "", "Version of the SMU's firmware"),
    _Value("proto_ver", 3, "integer", "", "Version of the protocol"),
    _Value("pkg_power", 4, "real", "W", "Power of the socket"),
    _Value("pkg_power_limit_cur", 6, "real", "W", "Power limit of the socket"),
    _Value("pkg_power_limit_max", 7, "real", "W", "Highest power limit of the socket"),
    _Value("pkg_prochot", 11, "boolean", "", "Throttled for heat"),
    _Value("pkg_cclk_thrtl_limit", 16, "integer", "MHz", "Limit of the cores' clock"),
    _Value("pkg_c0", 17, "integer", "%", "Residency in C0"),
)
_SET_LIMIT, _LIMIT, _HIGHEST = 5, 6, 7


class HsmpFeature(Feature):
    """A value of each socket."""

    tolerance = 0.02

    def __init__(self, value: _Value, sockets: Sequence[str], call: Call) -> None:
        self._value = value
        self.devices = sockets
        self._call = call
        self.control = Control(
            "hsmp", value.name, "socket", value.kind, value.description, value.unit,
            is_writable=value.message == _LIMIT,
        )  # fmt: skip

    def read(self, device: str) -> str:
        """Return the SMU's value. Raise CcagentError if the SMU does not answer."""
        answer = self._call(int(device), self._value.message, None)
        return real_text(answer / _MILLI) if self._value.kind == "real" else str(answer)

    def write(self, device: str, text: str) -> None:
        """Set the power limit. Raise CcagentError."""
        self._call(int(device), _SET_LIMIT, round(float(text) * _MILLI))

    def limits(self, device: str) -> Limits:
        """Return the maximum limit. Raise CcagentError."""
        return Limits(1 / _MILLI, self._call(int(device), _HIGHEST, None) / _MILLI)


class Hsmp(ControlClass):
    """Power limit and state of AMD's sockets."""

    category = "hsmp"
    needs: ClassVar[str] = "the driver amd_hsmp (/dev/hsmp): modprobe amd_hsmp"
    settable: ClassVar[Mapping[str, Kind]] = {
        f"hsmp.{value.name}": value.kind for value in _VALUES if value.message == _LIMIT
    }

    def __init__(self, call: Call | None = None) -> None:
        self._call = call

    def find_features(self, node: Node) -> Iterator[Feature]:
        """Return the features that the SMU supports."""
        if not node.exists(_DEVICE):
            return
        call = self._call
        if call is None:
            if not node.is_live:
                return
            call = send_message
        sockets = [str(n) for n in sorted({read_id(node, n, _SOCKET) for n in list_cpus(node)})]
        for value in _VALUES:
            yield HsmpFeature(value, sockets, call)


def send_message(socket: int, message: int, argument: int | None) -> int:
    """Send a message to a socket's SMU. Return the first word. Raise CcagentError."""
    arguments = [argument or 0, *[0] * 7]
    size = 0 if message == _SET_LIMIT else 1
    count = 0 if argument is None else 1
    buffer = bytearray(_MESSAGE.pack(message, count, size, *arguments, socket))
    try:
        descriptor = os.open(f"/{_DEVICE}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, _COMMAND, buffer)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise_for(_DEVICE, error)
    if len(buffer) != _MESSAGE.size:
        raise UnparsableError(f"/{_DEVICE}: {len(buffer)} bytes")
    return int(_MESSAGE.unpack(buffer)[3])
