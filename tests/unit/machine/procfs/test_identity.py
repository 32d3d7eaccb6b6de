"""Which capabilities a process lacks, by its status."""

from __future__ import annotations

import pytest

from ccagent.machine.procfs.identity import describe_lack
from tests.support.doctor_site import ALL, NONE, PTRACE, status

NEEDED = ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")


@pytest.mark.parametrize(
    ("uid", "capabilities", "text"),
    [
        (0, f"{int(ALL, 16) & ~(1 << 19):016x}", "this process of root lacks CAP_SYS_PTRACE"),
        (0, NONE, "this process of root lacks CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"),
        (990, PTRACE, "this process lacks CAP_DAC_READ_SEARCH"),
        (990, f"{1 << 1:016x}", "this process lacks CAP_SYS_PTRACE"),  # CAP_DAC_OVERRIDE reads too
    ],
)
def test_what_is_missing_is_named(uid: int, capabilities: str, text: str) -> None:
    assert describe_lack(status(uid, capabilities).encode(), *NEEDED) == text


def test_a_process_that_lacks_nothing_is_not_sent_after_capabilities() -> None:
    found = describe_lack(status(0, ALL).encode(), *NEEDED)
    assert found.startswith("this process has CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH: a user")


@pytest.mark.parametrize("content", [b"", b"CapEff: x\n"])
def test_without_a_status_the_need_is_named(content: bytes) -> None:
    assert describe_lack(content, *NEEDED) == "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH needed"
