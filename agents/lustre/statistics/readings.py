"""Reader of the parameters, programs and files for the groups of statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.lustre.parameters import Parameter, parse_parameters
from ccagent.agents.lustre.statistics.groups import GROUPS
from ccagent.errors import CcagentError, NotHereError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Collection

    from ccagent.machine.node import Node

_OUTPUT_LIMIT = 64 * 1024 * 1024


def read_statistics(
    node: Node, groups: Collection[str], lctl: str, time_limit: float, errors: list[str]
) -> list[Parameter]:
    """Return the parameters, program outputs and files of the groups on this node.

    Missing ones are skipped silently; other failures add a message to `errors`.
    """
    found: list[Parameter] = []
    wanted = [GROUPS[name] for name in groups]
    for program in dict.fromkeys(program for group in wanted for program in group.programs):
        output = _run(node, [*program], time_limit, errors)
        if output:
            found.append(Parameter(" ".join(program), output))
    # lctl stops at a pattern without a match, and servers differ in their parameters.
    for pattern in dict.fromkeys(pattern for group in wanted for pattern in group.patterns):
        output = _run(node, [lctl, "get_param", pattern], time_limit, errors)
        found += parse_parameters(output)
    for path in dict.fromkeys(path for group in wanted for path in group.files):
        try:
            found.append(Parameter(path, node.read(path)))
        except NotHereError:
            continue
        except CcagentError as error:
            errors.append(str(error))
    return found


def _run(node: Node, command: list[str], time_limit: float, errors: list[str]) -> bytes:
    """Return the output of a program, up to a failure."""
    parts: list[bytes] = []
    try:
        parts.extend(node.stream(command, time_limit=time_limit, output_limit=_OUTPUT_LIMIT))
    except NotHereError:
        return b""
    except ProgramError as error:
        if "No such file" not in str(error):
            errors.append(str(error))
    except CcagentError as error:
        errors.append(str(error))
    return b"".join(parts)
