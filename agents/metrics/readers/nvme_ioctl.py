"""Reading of the SMART log of an NVMe controller with NVME_IOCTL_ADMIN_CMD.

Source: include/uapi/linux/nvme_ioctl.h of Linux.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING

from ccagent.agents.metrics.readers.nvme_smart import LOG_SIZE
from ccagent.errors import ProgramError

if TYPE_CHECKING:
    from ccagent.machine.node import Node

# struct nvme_admin_cmd: opcode, flags, reserved, nsid, cdw2, cdw3, metadata, addr, metadata_len,
# data_len, cdw10 to cdw15, timeout_ms, result.
_COMMAND = struct.Struct("=BBHIIIQQIIIIIIIIII")
_ADMIN_COMMAND = 0xC000_0000 | _COMMAND.size << 16 | ord("N") << 8 | 0x41
_GET_LOG_PAGE = 0x02
_SMART_LOG = 0x02
_ALL_NAMESPACES = 0xFFFF_FFFF


def smart_command(address: int, milliseconds: int) -> bytes:
    """Return the admin command that writes the SMART log of a controller to `address`."""
    words = LOG_SIZE // 4 - 1
    return _COMMAND.pack(
        _GET_LOG_PAGE, 0, 0, _ALL_NAMESPACES, 0, 0, 0, address, 0, LOG_SIZE,
        words << 16 | _SMART_LOG, 0, 0, 0, 0, 0, milliseconds, 0,
    )  # fmt: skip


def read_smart_log(node: Node, controller: str, seconds: float) -> bytes:
    """Return the log of a controller such as `nvme0`.

    Needs root, or CAP_SYS_ADMIN and read permission of /dev/nvmeN. Raise CcagentError.
    """
    import fcntl
    import os

    from ccagent.machine.file_errors import raise_for

    path = f"dev/{controller}"
    descriptor = node.open(path)
    try:
        log = array("B", bytes(LOG_SIZE))
        command = bytearray(smart_command(log.buffer_info()[0], int(seconds * 1000)))
        try:
            status = fcntl.ioctl(descriptor, _ADMIN_COMMAND, command)
        except OSError as error:
            raise_for(path, error)
        if status:
            raise ProgramError(f"/{path}: Get Log Page failed with NVMe status {status:#x}")
        return log.tobytes()
    finally:
        os.close(descriptor)
