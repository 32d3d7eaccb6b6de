"""The agents `jobs` and `cluster` with slurmrestd, compared with Slurm's programs."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from ccagent.agents.slurm.cluster import ClusterAgent, ClusterSettings
from ccagent.agents.slurm.jobs.agent import JobsAgent, JobsSettings
from ccagent.agents.slurm.jobs.program_source import ProgramSource, SlurmPrograms
from ccagent.agents.slurm.rest.source import RestSource
from ccagent.machine.hostlist import expand
from ccagent.records.envelopes import ClusterEnvelope, JobsEnvelope, SlurmJob
from tests.integration.slurm.test_slurm_agent import NODE, new_agent, sampled
from tests.support.certificates import Authority
from tests.support.running import CCAGENT, until
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_scenarios import Jobs

CHANGING = ("running", "suspended", "requeued")
"""Jobs whose elapsed time or accounting changes between two queries."""

LOST_CODES = {"FAILED", "OUT_OF_MEMORY"}
"""States of steps whose exit code slurmrestd of Slurm 22.05 gives as 0."""


class Rest:
    """slurmrestd at a Unix socket, and a token of root."""

    def __init__(self, slurm: SlurmCluster, directory: Path) -> None:
        self.socket = slurm.start_rest("jwt")
        self.token = slurm.make_token(directory / "token")

    def keys(self, **more: Any) -> dict[str, Any]:
        """Return the keys of an agent."""
        url = f"unix:{self.socket}"
        return {"source": "slurmrestd", "url": url, "jwt_file": str(self.token), **more}


@pytest.fixture(scope="module")
def rest(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Rest:
    return Rest(slurm, tmp_path_factory.mktemp("rest"))


def rest_agent(rest: Rest, **keys: Any) -> JobsAgent:
    settings = JobsSettings(extras=["gres_detail"], **rest.keys(**keys))
    return JobsAgent(settings, frozenset({"sonar"}))


def by_run(jobs: list[SlurmJob]) -> dict[tuple[int, str, str], SlurmJob]:
    return {(job.job_id, job.job_step, job.submit_time): job for job in jobs}


def test_every_field_is_that_of_sacct(slurm: SlurmCluster, slurm_jobs: Jobs, rest: Rest) -> None:
    many = slurm.submit("bob", "--array=1-40", "-p", "bigmem", "--mem=10", "--wrap=true")
    slurm_jobs.wait()
    slurm.wait_for(many)
    changing = {slurm_jobs.ids[name] for name in CHANGING}
    told: dict[tuple[int, str, str], SlurmJob] = {}
    expected: dict[tuple[int, str, str], SlurmJob] = {}

    def have_all_settled() -> bool:
        # A first round of new agents: all records, once those of sacct are complete.
        expected.update(by_run(sampled(new_agent(slurm))))
        with closing(rest_agent(rest)) as agent:
            told.update(by_run(sampled(agent)))
        wanted = {*slurm_jobs.ids.values(), many}
        return wanted <= {number for number, step, _ in expected if not step} and (
            expected.keys() == told.keys()
        )

    until(have_all_settled, 120)
    compared = 0
    wrong: list[tuple[int, str, str, object, object]] = []
    for key, job in expected.items():
        if job.job_id in changing:
            continue
        for field in SlurmJob.__struct_fields__:
            found, wanted = getattr(told[key], field), getattr(job, field)
            if field == "exit_code" and job.job_step.isdecimal() and job.job_state in LOST_CODES:
                assert found in {0, wanted}  # Slurm 22.05 does not say
                continue
            if field == "exit_code" and job.job_state == "DEADLINE" and found == 0:
                continue  # nor after slurmctld has forgotten the job
            compared += 1
            if found != wanted:
                wrong.append((job.job_id, job.job_step, field, found, wanted))
    assert wrong == []
    assert len({number for number, _, _ in expected}) > 100
    assert compared > 5000


def test_partitions_and_nodes_are_those_of_sinfo(
    slurm: SlurmCluster, slurm_jobs: Jobs, rest: Rest
) -> None:
    slurm_jobs.wait("running")

    def told(settings: ClusterSettings) -> tuple[Any, Any]:
        with closing(ClusterAgent(settings, frozenset({"sonar"}))) as agent:
            (envelope,) = agent.sample(NODE)
        assert isinstance(envelope, ClusterEnvelope)
        assert envelope.data is not None, envelope.errors
        found = envelope.data.attributes
        return (
            {one.name: one.nodes for one in found.partitions},
            {
                tuple(one.states): sorted(name for names in one.names for name in expand(names))
                for one in found.nodes
            },
        )

    def are_equal() -> bool:  # jobs of other tests may just have ended
        programs = told(ClusterSettings(sinfo=str(slurm.programs / "sinfo")))
        return told(ClusterSettings(**rest.keys())) == programs

    until(are_equal)


def test_cpus_and_cards_of_a_running_job(slurm: SlurmCluster, rest: Rest) -> None:
    job = ("-p", "accel", "-n3", "--gres=gpu:a100:2", "--wrap=sleep 300")
    number = slurm.submit("alice", *job)
    slurm.wait_for(number, {"RUNNING"})
    programs = [str(slurm.programs / name) for name in ("sinfo", "squeue", "sacct", "scontrol")]
    complaints: list[str] = []
    by_programs = ProgramSource(SlurmPrograms(*programs), 60, complaints.append)
    try:
        with closing(RestSource(JobsSettings(**rest.keys()), complaints.append)) as by_rest:
            assert list(by_rest.read_queue(NODE))
            shares = [
                source.read_details(NODE, [str(number)], with_script=False)[str(number)].nodes
                for source in (by_rest, by_programs)
            ]
            assert by_rest.read_topology(NODE).items() >= by_programs.read_topology(NODE).items()
        assert shares[0] == shares[1]
        assert shares[0]["gpu-1"].gres == "gpu:a100:2(IDX:0-1)"
        assert complaints == []
        with closing(rest_agent(rest)) as agent:
            told: list[list[str]] = []

            def has_told() -> bool:
                told.extend(
                    one.gres_detail
                    for one in sampled(agent)
                    if (one.job_id, one.job_step) == (number, "")
                )
                return bool(told)

            until(has_told)
        assert told == [["gpu:a100:2(IDX:0-1)"]]
    finally:
        slurm.run("scancel", str(number))


def relay(server: socket.socket, context: ssl.SSLContext, path: Path) -> None:
    """Pass one connection with TLS on to a Unix socket, as a proxy before slurmrestd does."""
    with (
        context.wrap_socket(server.accept()[0], server_side=True) as client,
        socket.socket(socket.AF_UNIX) as behind,
    ):
        behind.connect(str(path))

        def answer() -> None:
            with suppress(OSError):
                while part := behind.recv(65536):
                    client.sendall(part)

        answering = threading.Thread(target=answer)
        answering.start()
        with suppress(OSError):
            while part := client.recv(65536):
                behind.sendall(part)
            behind.shutdown(socket.SHUT_RDWR)
        answering.join()


@pytest.fixture
def secure(rest: Rest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The keys of an agent for slurmrestd behind a proxy with TLS."""
    authority = Authority(tmp_path)
    certificate, key = authority.certify("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as server:
        relaying = threading.Thread(target=relay, args=(server, context, rest.socket))
        relaying.start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        yield rest.keys(url=url, ca_file=authority.certificate)
        relaying.join()


def test_https(slurm_jobs: Jobs, secure: dict[str, Any]) -> None:
    slurm_jobs.wait("plain")
    with closing(JobsAgent(JobsSettings(**secure), frozenset({"sonar"}))) as agent:
        until(lambda: slurm_jobs.ids["plain"] in {job.job_id for job in sampled(agent)})


def test_an_expired_token_is_named_and_a_new_one_used(
    slurm: SlurmCluster, rest: Rest, tmp_path: Path
) -> None:
    file = slurm.make_token(tmp_path / "token", seconds=1)
    time.sleep(2.1)  # in whole seconds, the clock of the token is that of the machine
    settings = JobsSettings(**rest.keys(jwt_file=str(file)))
    with closing(JobsAgent(settings, frozenset({"sonar"}))) as agent:
        *_, envelope = agent.sample(NODE)
        assert isinstance(envelope, JobsEnvelope)
        (error,) = envelope.errors
        # Slurm 26.05 says that its accounting can't be reached.
        assert re.search("the login is refused.* renew the token|token in jwt-file has expired",
                         error.detail)  # fmt: skip
        slurm.make_token(file)
        sampled(agent)


def test_the_doctor_asks_slurmrestd(rest: Rest, tmp_path: Path) -> None:
    file = tmp_path / "ccagent.toml"
    file.write_text(
        'cluster = "fox"\n[agents.jobs]\nevery = "1m"\nsource = "slurmrestd"\n'
        f'url = "unix:{rest.socket}"\njwt-file = "{rest.token}"\n'
    )
    command = [*CCAGENT, "doctor", "--json", "--config", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = {each["subject"]: each for each in json.loads(result.stdout)}
    for part in ("controller of Slurm, by slurmrestd", "accounting of Slurm, by slurmrestd"):
        assert found[part]["state"] == "good", found[part]
        assert "API v0.0." in found[part]["found"]
    assert "sacct" not in found


def test_root_needs_no_token_at_a_local_socket(slurm: SlurmCluster) -> None:
    path = slurm.start_rest("local")
    keys = ("--set", "source=slurmrestd", "--set", f"url=unix:{path}")
    # As root it may name any user; without a name Slurm sees slurmrestd's own.
    command = slurm.enter(*CCAGENT, "cluster", "--once", "--cluster", "fox", *keys)
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["data"]["attributes"]["partitions"]
