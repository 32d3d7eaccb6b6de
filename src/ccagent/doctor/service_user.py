"""The user of the service, and paths that this user cannot write.

Root may write everything, so a check as root is not valid for the service.
"""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING, NamedTuple

from ccagent.doctor.service import find_values, read_unit
from ccagent.errors import CcagentError, ProgramError
from ccagent.machine.program import ProgramUser, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.doctor.agent_checks import Site

_HOME = "/etc/ccagent/"
"""Directory of the service's configuration."""

_SECONDS = 5.0
_OUTPUT_LIMIT = 1024 * 1024
_REFUSED = """
for path; do
    if [ ! -w "$path" ] || { [ -d "$path" ] && [ ! -x "$path" ]; }; then printf '%s\\0' "$path"; fi
done
"""


class ServiceUser(NamedTuple):
    """The user of the service."""

    name: str
    uid: int
    gid: int


def find_service_user(site: Site, directory: str) -> ServiceUser | None:
    """Return the user of the service if root runs the doctor, and the service has another user.

    For the service's configuration this is the unit's user, else the owner of the directory.
    """
    if not site.node.is_live or os.geteuid() != 0:
        return None
    named = find_values(read_unit(site.node), "User")
    try:
        if named and site.configuration.place.startswith(_HOME):
            entry = pwd.getpwnam(named[-1])
        else:
            entry = pwd.getpwuid(site.node.owner(directory.lstrip("/")))
    except (KeyError, CcagentError):
        return None
    return ServiceUser(entry.pw_name, entry.pw_uid, entry.pw_gid) if entry.pw_uid else None


def find_unwritable(user: ServiceUser, paths: Sequence[str]) -> list[str]:
    """Return the paths that a user cannot write, or enter if it is a directory.

    A process of this user asks the kernel, because access control lists and mounts also matter.
    Raise ProgramError if the process can't be run.
    """
    try:
        output = run(
            ["/bin/sh", "-c", _REFUSED, "sh", *paths],
            time_limit=_SECONDS,
            output_limit=_OUTPUT_LIMIT,
            user=ProgramUser(user.uid, user.gid, os.getgrouplist(user.name, user.gid)),
        )
    except CcagentError as error:
        raise ProgramError(f"cannot ask as user {user.name}: {error}") from error
    return [os.fsdecode(path) for path in output.split(b"\0") if path]
