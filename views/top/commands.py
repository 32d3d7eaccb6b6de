"""The command `ccagent top`."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ccagent.views.top.reader import NodeReader
    from ccagent.views.top.snapshot import TopSnapshot
    from ccagent.views.top.state import TopView, ViewState

_ONCE_PAUSE = 0.5
_MOST_ROWS = 1_000_000


@click.command("top")
@click.option("--once", is_flag=True, help="Print one screen with all rows, then exit.")
@click.option("--json", "is_json", is_flag=True, help="Print one snapshot as JSON, then exit.")
@click.option("--plain", is_flag=True, help="Print screens as text without colours.")
@click.option("--processes", is_flag=True, help="Start with processes instead of jobs.")
@click.option("--mounts", is_flag=True, help="Start with the file systems of jobs.")
@click.option("--job", type=click.IntRange(min=1), metavar="ID", help="Start with this job opened.")
@click.option("--interval", type=click.FloatRange(1, 3600), default=2.0, show_default=True,
              metavar="SECONDS", help="Time between readings.")  # fmt: skip
@click.option("--no-gpus", is_flag=True, help="Do not read GPUs.")
def top(
    *,
    once: bool,
    is_json: bool,
    plain: bool,
    processes: bool,
    mounts: bool,
    job: int | None,
    interval: float,
    no_gpus: bool,
) -> None:
    """Show this node live: its jobs, their processes and GPUs. Never kill a process.

    Keys: ? help, q quit, / filter, < > sort, Enter opens a job, m mounts. An ordinary user sees
    less. The exit status is 2 if the job of --job does not run here.
    """
    from ccagent import log
    from ccagent.machine.node import Node
    from ccagent.views.terminal import is_terminal
    from ccagent.views.top.reader import NodeReader
    from ccagent.views.top.state import ViewState

    if math.isnan(interval):
        raise click.UsageError("--interval: expected a number of seconds")
    log.configure(0, "error", is_brief=True)
    view: TopView = "mounts" if mounts else "processes" if processes or job else "jobs"
    state = ViewState(interval=interval, view=view, job=job)
    reader = NodeReader(Node(), has_gpus=not no_gpus)
    try:
        if is_json:
            import msgspec

            click.echo(msgspec.json.encode(_read_twice(reader)))
        elif once or plain or not is_terminal(sys.stdout):
            _print_screens(reader, state, is_once=once or not plain)
        else:
            from ccagent.views.terminal import find_style
            from ccagent.views.top.terminal import run_screen

            run_screen(reader, state, has_colours=find_style().has_colours)
    finally:
        reader.close()


def _read_twice(reader: NodeReader) -> TopSnapshot:
    import time

    reader.begin()
    time.sleep(_ONCE_PAUSE)
    return reader.read()


def _print_screens(reader: NodeReader, state: ViewState, *, is_once: bool) -> None:
    """Print all rows once, or at each interval."""
    import time

    from ccagent.errors import NotHereError
    from ccagent.views.terminal import find_width, is_unicode, print_lines
    from ccagent.views.top.screen import draw

    is_ascii = not is_unicode(getattr(sys.stdout, "encoding", None))
    snapshot = _read_twice(reader)
    if state.job and all(one.job != state.job for one in snapshot.jobs):
        raise NotHereError(f"job {state.job}: does not run on this node ({snapshot.node})")
    state = state.begin(has_jobs=any(job.job for job in snapshot.jobs))
    while True:
        # The terminal's size may change between readings.
        width = find_width()
        screen = draw(snapshot, state, width, _MOST_ROWS, is_ascii=is_ascii, has_keys=False)
        print_lines(line.text.rstrip() for line in screen.lines)
        if is_once:
            return
        print_lines([""])
        sys.stdout.flush()
        time.sleep(state.interval)
        snapshot = reader.read()
