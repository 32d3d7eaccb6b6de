"""How all tests run: examples of Hypothesis, and groups for parallel runs."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.slurm_cluster import tracking_here

_INTEGRATION = "tests/integration/"

_OTHER_KERNEL = ("kernel/test_io_by_job", "kernel/test_io_in_slurm")
"""They boot a kernel of Debian in an emulator, and share nothing."""

_APART = (*_OTHER_KERNEL, "packages/test_package.py", "packages/test_packages.py")
"""Below a directory of `_ONE_WORKER`, files that share nothing with the others that changes."""

_SLOW = (
    *_OTHER_KERNEL, "packages/test_package", "slurm", "kernel", "commands/test_readme",
    "lustre/test_lustre_day", "jobstats/test_jobstats_day", "packages", "daemon",
    "http/test_receivers",
)  # fmt: skip
"""Below tests/integration, what takes longest: it starts first.

The other tests of packages would only wait for those that test_packages.py builds.
"""

_ONE_WORKER = ("packages", "slurm", "kernel")
"""Directories whose tests share a server, the package manager or the kernel.

Where Slurm makes control groups of jobs, its tests and those of the kernel are one group.
"""

_SLURM_TRACKING = tracking_here()

_ALONE = (
    "daemon", "http/test_receivers", "commands/test_doctor", "lustre/test_lustre_day",
    "jobstats/test_jobstats_day",
)  # fmt: skip
"""Each of these tests has servers of its own: any worker runs any of them."""

_CHECKS = [
    HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large
]  # fmt: skip
settings.register_profile(
    "ci", max_examples=25, deadline=None, derandomize=True, suppress_health_check=_CHECKS
)
settings.register_profile("nightly", max_examples=500, deadline=None, suppress_health_check=_CHECKS)
settings.register_profile(
    "quick", max_examples=5, deadline=None, derandomize=True, suppress_health_check=_CHECKS
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure() -> None:
    """Take the signals that a shell ignores for what runs in its background, or nohup does."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from the million objects of the collected tests.

    It would search them while they are made, and again and again while the tests run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _begins_with(place: str, names: Iterable[str]) -> int | None:
    """Return the number of the first of these names that a place begins with."""
    return next((n for n, name in enumerate(names) if place.startswith(name)), None)


def _rank(file: str) -> int:
    slow = _begins_with(file.removeprefix(_INTEGRATION), _SLOW)
    return len(_SLOW) if slow is None else slow


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slow tests first, so that no worker begins one at the end.

    Then files of unit tests, which compute, alternate with those of other tests, which wait.
    """
    ranks = {file: _rank(file) for file in dict.fromkeys(map(_file, items))}
    mixed = [file for file, rank in ranks.items() if rank == len(_SLOW)]
    waiting = [file for file in mixed if file.startswith(_INTEGRATION)]
    computing = [file for file in mixed if not file.startswith(_INTEGRATION)]
    turns = {file: n / len(part) for part in (waiting, computing) for n, file in enumerate(part)}

    def order(item: pytest.Item) -> tuple[int, float, str]:
        file = _file(item)
        return ranks[file], turns.get(file, 0), file

    items.sort(key=order)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _group(nodeid: str) -> str:
    """Return what one worker runs together: a directory, a file or a test."""
    file, _, _ = nodeid.partition("::")
    place = file.removeprefix(_INTEGRATION)
    shared = _begins_with(place, _ONE_WORKER)
    if shared is not None and not place.startswith(_APART):
        name = _ONE_WORKER[shared]
        return "slurm, kernel" if name != "packages" and _SLURM_TRACKING == "cgroup" else name
    return file if _begins_with(place, _ALONE) is None else nodeid


def _remove_worker(scheduler: Any, worker: object) -> str | None:
    """Hand what a crashed worker had to do to others, and return the test that crashed it.

    The method of pytest-xdist 3.8 hands its finished groups on too. Whoever gets one is sent no
    test, and waits for the next one forever. It also repeats the test that has just crashed.
    """
    assigned: dict[str, dict[str, bool]] = scheduler.assigned_work.pop(worker)
    crashed = next(
        (test for tests in assigned.values() for test, is_done in tests.items() if not is_done),
        None,
    )
    for group, tests in assigned.items():
        left = {test: False for test, is_done in tests.items() if not is_done and test != crashed}
        if left:
            scheduler.workqueue[group] = left
    for other in scheduler.nodes if crashed else ():
        scheduler._reschedule(other)
    return crashed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler for `--dist loadgroup` whose groups are those of `_group`."""
    from xdist.scheduler import LoadScopeScheduling

    scheduler: Any = LoadScopeScheduling(config, log)
    scheduler._split_scope = _group
    scheduler.remove_node = partial(_remove_worker, scheduler)
    return scheduler
