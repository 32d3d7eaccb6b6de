"""The user of the service, and the paths that this user cannot write.

Root may write everything, so a check by root is no check for the service.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from ccagent.doctor.service import read_unit, values_of
from ccagent.errors import CcagentError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.doctor.agent_checks import Site

_HOME = "/etc/ccagent/"
"""Directory of the service's configuration."""

_SECONDS = 5.0
_REFUSED = """
for path; do
    if [ ! -w "$path" ] || { [ -d "$path" ] && [ ! -x "$path" ]; }; then printf '%s\\0' "$path"; fi
done
"""


class ServiceUser(NamedTuple):
    """The user that the service runs as."""

    name: str
    uid: int
    gid: int


def find_service_user(site: Site, directory: str) -> ServiceUser | None:
    """Return the user of the service if root runs the doctor and the service another user.

    That is the user of the unit, for the service's configuration, else the owner of the directory.
    """
    if not site.node.is_live or os.geteuid() != 0:
        return None
    named = values_of(read_unit(site.node), "User")
    try:
        if named and site.configuration.place.startswith(_HOME):
            entry = pwd.getpwnam(named[-1])
        else:
            entry = pwd.getpwuid(site.node.owner(directory.lstrip("/")))
    except (KeyError, CcagentError):
        return None
    return ServiceUser(entry.pw_name, entry.pw_uid, entry.pw_gid) if entry.pw_uid else None


def find_unwritable(user: ServiceUser, paths: Sequence[str]) -> list[str]:
    """Return those of the paths that a user can't write, or for a directory can't enter.

    A process of that user asks the kernel, so that access control lists and mounts count. Raises
    ProgramError.
    """
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", _REFUSED, "sh", *paths],
            user=user.uid,
            group=user.gid,
            extra_groups=os.getgrouplist(user.name, user.gid),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ProgramError(f"cannot ask as user {user.name}: {error}") from error
    return [os.fsdecode(path) for path in done.stdout.split(b"\0") if path]
