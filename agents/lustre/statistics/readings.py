"""Reading what the groups of statistics need: parameters, programs, files."""

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
    """Read all that the groups may be found in on this node.

    What a node hasn't is left out in silence; what fails otherwise adds a sentence to `errors`.
    """
    found: list[Parameter] = []
    wanted = [GROUPS[name] for name in groups]
    for program in dict.fromkeys(program for group in wanted for program in group.programs):
        output = _run(node, [*program], time_limit, errors)
        if output:
            found.append(Parameter(" ".join(program), output))
    # lctl gives up at a pattern that nothing matches, and servers differ in what they have.
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
    """Return what a program prints, up to where it fails."""
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
