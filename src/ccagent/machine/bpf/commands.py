"""The command `ccagent kernel`, for root, so that the agent needs no privilege."""

from __future__ import annotations

import sys

import click

from ccagent.cli.command_options import HelpfulGroup
from ccagent.errors import ConfigurationError
from ccagent.machine.bpf import pins

_directory = click.option(
    "--directory",
    default=pins.DIRECTORY,
    show_default=True,
    metavar="DIRECTORY",
    help="Directory of the pinned programs.",
)


@click.group(cls=HelpfulGroup)
def kernel() -> None:
    """Manage the kernel programs with which the agent reads all processes at once."""


@kernel.command()
@_directory
@click.option(
    "--mode",
    default=f"{pins.MODE:04o}",
    show_default=True,
    metavar="OCTAL",
    help="Permissions of the files: readers only.",
)
@click.option(
    "--group",
    metavar="NAME",
    help=f"The group of the files; without it {pins.GROUP}, where there is one, else root.",
)
def load(directory: str, mode: str, group: str | None) -> None:
    """Load and pin the programs, as root; replace those of another version."""
    from ccagent.machine.bpf import loading

    done = loading.load(
        _absolute(directory),
        mode=_mode(mode),
        group=None if group is None else _group(group),
    )
    if done.complaint:
        click.echo(f"ccagent: ended processes are not counted: {done.complaint}", err=True)
    click.echo(f"{directory}: {'loaded' if done.changed else 'was loaded'}, {done.version}")


@kernel.command()
@_directory
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(directory: str, as_json: bool) -> None:
    """Show the loaded programs; exit status 1 unless all have this version."""
    import msgspec

    from ccagent.machine.bpf.status import read_status

    found = read_status(_absolute(directory))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        for name, value in msgspec.structs.asdict(found).items():
            if name != "problems" and value not in {None, ""}:
                click.echo(f"{name.replace('_', ' ') + ':':17} {value}")
        for problem in found.problems:
            click.echo(f"problem:          {problem}")
    if found.state != "loaded":
        sys.exit(1)


@kernel.command()
@_directory
def unload(directory: str) -> None:
    """Unload the programs, as root."""
    from ccagent.machine.bpf import loading

    there = loading.unload(_absolute(directory))
    click.echo(f"{directory}: {'unloaded' if there else 'was not loaded'}")


def _absolute(directory: str) -> str:
    if not directory.startswith("/"):
        raise ConfigurationError(f"--directory: {directory!r} does not begin with /")
    return directory.rstrip("/") or "/"


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if mode < 0 or mode & ~0o444:
        raise ConfigurationError(f"--mode: {text!r} is none of 0400, 0440, 0444: read-only files")
    return mode


def _group(name: str) -> int:
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise ConfigurationError(f"--group: there is no group {name!r}") from error
