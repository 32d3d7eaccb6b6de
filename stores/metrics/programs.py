"""Separate programs for the store's large libraries."""

from __future__ import annotations

import asyncio

from ccagent.errors import ProgramError
from ccagent.log import printable
from ccagent.machine.interpreter import python


async def run_program(module: str, *arguments: str, text: bytes = b"", seconds: float) -> bytes:
    """Run the function `main` of a module of this package. Return its stdout.

    Raise ProgramError, OSError, TimeoutError.
    """
    name = f"ccagent.stores.metrics.{module}"
    process = await asyncio.create_subprocess_exec(
        *python(f"from {name} import main; main()"), *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        found, said = await asyncio.wait_for(process.communicate(text), seconds)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ProgramError(printable(last) or f"{module}: exit status {process.returncode}")
    return found
