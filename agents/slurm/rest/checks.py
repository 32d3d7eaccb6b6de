"""Checks of slurmrestd for `ccagent doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.agents.slurm.rest.client import RestClient
from ccagent.config.duration import Duration
from ccagent.errors import CcagentError
from ccagent.machine.checks import Check, CheckResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.agents.slurm.rest.settings import SlurmSourceSettings

_SECONDS = Duration("5s")
_SUBJECTS = {
    "slurm": "controller of Slurm, by slurmrestd",
    "slurmdb": "accounting of Slurm, by slurmrestd",
}


def check_rest(settings: SlurmSourceSettings, parts: Sequence[str]) -> Iterator[Check]:
    """Yield a check of each part of the API, slurm or slurmdb. The queries are small."""
    quick = msgspec.structs.replace(settings, command_time_limit=_SECONDS)
    for part in parts:

        def find(part: str = part) -> CheckResult:
            return _find(quick, part)

        yield Check("slurm", _SUBJECTS[part], find, "all of it", is_vital=True, is_query=True)


def _find(settings: SlurmSourceSettings, part: str) -> CheckResult:
    client = RestClient(settings, lambda _: None)
    name = "clusters" if part == "slurmdb" else "pings"
    where = "clusters" if part == "slurmdb" else "ping"
    try:
        count = sum(1 for _ in client.records(part, name, where=where))
        version = client.version()
    except CcagentError as error:
        return CheckResult("problem", str(error), "check slurmrestd, url and jwt-file")
    finally:
        client.close()
    return CheckResult("good", f"{settings.url} answers, API {version}, {name}: {count}")
