"""One Slurm for all tests of this directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.slurm_cluster import SlurmCluster, missing
from tests.support.slurm_namespaces import NoNamespacesError
from tests.support.slurm_scenarios import Jobs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A running cluster. Where none can run, its tests fail."""
    cluster = SlurmCluster()
    reason = missing()
    if not reason:
        try:
            cluster.up()
        except NoNamespacesError as error:
            reason = f"no namespaces: {error}"
    if reason:
        pytest.fail(f"no Slurm for the tests: {reason}")
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def slurm_jobs(slurm: SlurmCluster) -> Iterator[Jobs]:
    """The jobs of all scenarios, submitted; `wait` for those that a test looks at."""
    jobs = Jobs(slurm)
    try:
        jobs.submit()
        yield jobs
    finally:
        jobs.close()
