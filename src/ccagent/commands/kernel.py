"""The command `ccagent kernel`. Root loads the programs; the agent needs no privileges."""

from __future__ import annotations

import sys

import click

from ccagent.config.command_options import HelpfulGroup
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
    """Load, show and unload the kernel programs.

    They read all processes, and the I/O of jobs.
    """


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
@click.option(
    "--io",
    "has_io",
    is_flag=True,
    help="Also count I/O and network traffic of jobs; adds a cost to each of these calls.",
)
@click.option(
    "--io-time", "has_time", is_flag=True, help="With --io: also measure the time of calls."
)
def load(directory: str, mode: str, group: str | None, has_io: bool, has_time: bool) -> None:
    """Load and pin the programs, as root. Replace programs of another version.

    Without --io, loaded programs for I/O stay unchanged.
    """
    from ccagent.machine.bpf import loading
    from ccagent.machine.bpf.io_loading import IoOptions

    done = loading.load(
        _absolute(directory),
        mode=_mode(mode),
        group=None if group is None else _group(group),
        io=IoOptions(has_time=has_time) if has_io or has_time else None,
    )
    if done.complaint:
        click.echo(f"ccagent: ended processes are not counted: {done.complaint}", err=True)
    for value, reason in done.left_out.items():
        click.echo(f"ccagent: not counted: {value}: {reason}", err=True)
    versions = " ".join(filter(None, (done.version, done.io_version and f"io {done.io_version}")))
    click.echo(f"{directory}: {'loaded' if done.changed else 'was loaded'}, {versions}")


@kernel.command()
@_directory
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(directory: str, as_json: bool) -> None:
    """Show the loaded programs. The exit status is 1 unless all have this version."""
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
    if found.state != "loaded" or found.io not in {"", "loaded"}:
        sys.exit(1)


@kernel.command()
@_directory
@click.option("--io", "only_io", is_flag=True, help="Unload only the programs for I/O.")
def unload(directory: str, only_io: bool) -> None:
    """Unload the programs, as root."""
    from ccagent.machine.bpf import loading

    remove = loading.unload_io if only_io else loading.unload
    there = remove(_absolute(directory))
    click.echo(f"{directory}: {'unloaded' if there else 'was not loaded'}")


def _absolute(directory: str) -> str:
    if not directory.startswith("/"):
        raise ConfigurationError(f"--directory: {directory!r} does not start with /")
    return directory.rstrip("/") or "/"


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if mode < 0 or mode & ~0o444:
        raise ConfigurationError(f"--mode: {text!r}: expected 0400, 0440 or 0444")
    return mode


def _group(name: str) -> int:
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise ConfigurationError(f"--group: there is no group {name!r}") from error
