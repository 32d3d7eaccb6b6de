"""Jobs and cards under the names of Princeton's jobstats and of slurm-job-exporter."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from ccagent.agents.sonar.jobs.allocations import Allocation
from ccagent.errors import CcagentError, NotHereError
from ccagent.exporter.collector import Collector, make_collectors
from ccagent.exporter.community_metrics import (
    JobstatsCollector,
    OmnistatCollector,
    SlurmJobExporterCollector,
)
from ccagent.exporter.exposition import SampleEncoder
from ccagent.exporter.settings import ExporterSettings
from ccagent.exporter.sources import CardsOnNode, NodeSources, SharedReading
from ccagent.machine.gpu.nvml import ACTIVITY, TRAFFIC
from ccagent.machine.gpu.vendor import Detail
from ccagent.machine.node import Node
from ccagent.records.envelopes import SysinfoGpuCard
from tests.support.job_io import JobIoNode
from tests.support.paths import DATA
from tests.support.scraped import collected, make
from tests.support.tree import TreeNode
from tests.unit.agents.metrics.readers.test_cgroup_jobs import MB
from tests.unit.exporter.node_exporter.test_on_demand import NFSD
from tests.unit.exporter.test_gpu_metrics import CARDS, card
from tests.unit.exporter.test_job_metrics import add_v1, add_v2, write
from tests.unit.exporter.test_slurm_exporter import controller, slurm

SHARED_CARDS = CARDS._replace(allocations=[Allocation(12, 1001, (0,))])


BOTH_VENDORS = SHARED_CARDS._replace(
    reading=structs.replace(
        SHARED_CARDS.reading,
        cards=[*SHARED_CARDS.reading.cards,
               card(3, ce_util=40, memory=16384, temperature=50, power=250, power_limit=500,
                    ce_clock=1700, memory_clock=1600)],
        details={0: [
            *(Detail(name, 12_000) for name in ACTIVITY),
            *(Detail(name, 2**20) for name in TRAFFIC), Detail("mem_utilization", 30),
        ]} | {3: [
            Detail("energy", 7_000), Detail("mem_utilization", 30), Detail("xgmi_rx", 11),
            Detail("xgmi_tx", 12),
        ]},
    ),
    descriptions=SHARED_CARDS.descriptions | {3: SysinfoGpuCard(
        index=3, uuid="GPU-3", manufacturer="AMD", model="MI210", memory=65536, driver="6.8",
        firmware="113-D67",
    )},
)  # fmt: skip


def with_cards(collector: Collector, cards: CardsOnNode | None = SHARED_CARDS) -> Collector:
    """Return the collector with a shared reading of cards that is given."""

    def read(_: Node) -> CardsOnNode:
        if cards is None:
            raise NotHereError("none")
        return cards

    collector.sources.cards = SharedReading(read)
    return collector


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    made = TreeNode(tmp_path)
    add_v2(made, 12, 100, "SLURM_JOB_ACCOUNT=chem\0")
    return made


def test_princetons_queries_find_a_job(node: TreeNode) -> None:
    found = collected(with_cards(make(JobstatsCollector)), node)
    job = 'jobid="12",step="",task=""'
    assert found[f"cgroup_cpu_total_seconds{{{job}}}"] == 2.0
    assert found[f"cgroup_cpus{{{job}}}"] == 3
    # Without the page cache: jobstats adds the shared memory itself.
    assert found[f"cgroup_memory_rss_bytes{{{job}}}"] == 20 * MB + 4096
    assert found[f"cgroup_memory_shmem_bytes{{{job}}}"] == 10 * MB
    assert found[f"cgroup_memory_total_bytes{{{job}}}"] == 200 * MB
    assert found['cgroup_uid{jobid="12"}'] == 1001
    assert found['cgroup_info{jobid="12",uid="1001",username="ada"}'] == 1
    card = ",".join(
        sorted(
            ('GPU_I_ID=""', 'jobid="12"', 'minor_number="0"', 'name="H100"', 'ordinal="0"',
             'userid="1001"', 'uuid="GPU-0"')
        )
    )  # fmt: skip
    assert found[f"nvidia_gpu_duty_cycle{{{card}}}"] == 50
    assert found[f"nvidia_gpu_memory_used_bytes{{{card}}}"] == 2048 * 1024
    assert found[f"nvidia_gpu_memory_total_bytes{{{card}}}"] == 80 * 1024**3
    assert found[f"nvidia_gpu_power_usage_milliwatts{{{card}}}"] == 300_000
    assert found[f"nvidia_gpu_jobId{{{card}}}"] == 12
    assert found["nvidia_gpu_num_devices"] == 2
    found = collected(with_cards(make(JobstatsCollector), BOTH_VENDORS), node)
    assert found[f"nvidia_gpu_fp64_util_percent{{{card}}}"] == 0.12
    assert found[f"nvidia_gpu_nvlink_total_rx_per_sec{{{card}}}"] == 2**20


def test_swap_space_of_version_1_counts_memory_for_jobstats(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    add_v1(node, 7, 100)
    top = "sys/fs/cgroup/memory/slurm/uid_1001/job_7"
    write(tmp_path, f"{top}/memory.memsw.limit_in_bytes", f"{300 * MB}\n")
    write(tmp_path, f"{top}/memory.limit_in_bytes", "9223372036854771712\n")
    found = collected(with_cards(make(JobstatsCollector), None), node)
    job = 'jobid="7",step="",task=""'
    assert found[f"cgroup_memsw_used_bytes{{{job}}}"] == 110 * MB
    assert found[f"cgroup_memsw_total_bytes{{{job}}}"] == 300 * MB
    assert found[f"cgroup_memory_total_bytes{{{job}}}"] == 9223372036854771712


def test_shared_memory_before_linux_4_13_is_the_cache_of_no_file(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    add_v1(node, 7, 100)
    top = "sys/fs/cgroup/memory/slurm/uid_1001/job_7"
    fields = "total_cache 700\ntotal_rss 300\ntotal_mapped_file 100\n"
    lists = "total_active_file 150\ntotal_inactive_file 50\n"
    series = 'cgroup_memory_shmem_bytes{jobid="7",step="",task=""}'
    for text, expected in ((fields + lists, 500), (fields, None)):
        write(tmp_path, f"{top}/memory.stat", text)
        found = collected(with_cards(make(JobstatsCollector), None), node)
        assert found.get(series) == expected


def test_a_card_without_a_job_has_no_job(node: TreeNode) -> None:
    found = collected(with_cards(make(JobstatsCollector)), node)
    free = [name for name in found if 'uuid="GPU-1"' in name]
    assert free
    assert all('jobid=""' in name for name in free)
    assert not [name for name in free if name.startswith("nvidia_gpu_job")]


def test_a_node_without_cards_and_one_without_jobs(node: TreeNode, tmp_path: Path) -> None:
    found = collected(with_cards(make(JobstatsCollector), None), node)
    assert not [name for name in found if name.startswith("nvidia")]
    empty = TreeNode(tmp_path / "empty")
    found = collected(with_cards(make(JobstatsCollector)), empty)
    assert not [name for name in found if name.startswith("cgroup")]
    with pytest.raises(NotHereError):
        collected(with_cards(make(JobstatsCollector), None), empty)


def test_a_job_without_a_memory_limit_has_the_number_of_the_exporter(node: TreeNode) -> None:
    (node.path / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_12/memory.max").write_text("max")
    found = collected(with_cards(make(JobstatsCollector), None), node)
    assert found['cgroup_memory_total_bytes{jobid="12",step="",task=""}'] == -1


def test_the_names_of_slurm_job_exporter(node: TreeNode) -> None:
    found = collected(with_cards(make(SlurmJobExporterCollector)), node)
    own = 'slurmjobid="12",user="ada"'
    assert found[f'slurm_job_memory_usage{{account="chem",{own}}}'] == 100 * MB
    assert found[f'slurm_job_memory_max{{account="chem",{own}}}'] == 150 * MB
    assert found[f'slurm_job_process_count{{account="chem",{own}}}'] == 1
    cores = [value for name, value in found.items() if name.startswith("slurm_job_core_usage")]
    assert len(cores) == 3
    assert sum(cores) == pytest.approx(2e9)
    card = f'account="chem",gpu="0",gpu_type="H100",{own}'
    assert found[f"slurm_job_utilization_gpu{{{card}}}"] == 50
    assert found[f"slurm_job_memory_usage_gpu{{{card}}}"] == 2048 * 1024
    found = collected(with_cards(make(SlurmJobExporterCollector), BOTH_VENDORS), node)
    assert found[f"slurm_job_fp64_gpu{{{card}}}"] == 12
    assert found[f"slurm_job_utilization_gpu_memory{{{card}}}"] == 30
    card = f'account="chem",direction="RX",gpu="0",gpu_type="H100",{own}'
    assert found[f"slurm_job_nvlink_gpu{{{card}}}"] == 2**20
    assert found[f'slurm_job_memory_mapped_file{{account="chem",{own}}}'] == 15 * MB


def test_omnistat_has_the_cards_of_amd(node: TreeNode) -> None:
    node.write("stat", "cpu  1\ncpu0 1 2 3 4 5 6 7 8\nbtime 1700000000\n")
    node.write("meminfo", "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 100 kB\n")
    found = collected(with_cards(make(OmnistatCollector), BOTH_VENDORS), node)
    assert found["rocm_num_gpus"] == 1
    for name, value in (
        ("utilization_percentage", 40), ("average_socket_power_watts", 250),
        ("sclk_clock_mhz", 1700), ("vram_total_bytes", 65536 * 1024),
        ("vram_used_percentage", 25), ("vram_busy_percentage", 30), ("energy_joules", 7),
        ("xgmi_total_read_kilobytes", 11), ("xgmi_total_write_kilobytes", 12),
    ):  # fmt: skip
        assert found[f'rocm_{name}{{card="3"}}'] == value
    assert not [name for name in found if name.startswith("rocm") and 'card="0"' in name]
    assert found["omnistat_host_boot_time_seconds"] == 1700000000
    assert found["omnistat_host_mem_available_bytes"] == 102400
    assert [name for name in found if name.startswith("rmsjob_info") and 'user="ada"' in name]


def test_a_damaged_file_of_the_node_costs_omnistat_its_values_only(
    node: TreeNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.write("loadavg", "")
    found = collected(with_cards(make(OmnistatCollector), None), node)
    assert "omnistat_host_cpu_load1" not in found
    assert found["omnistat_host_cpu_num_logical_cores"]
    assert [name for name in found if name.startswith("rmsjob_info")]
    assert "/proc/loadavg" in caplog.text


def test_omnistat_without_cards_has_the_node_and_jobs(node: TreeNode) -> None:
    found = collected(with_cards(make(OmnistatCollector), SHARED_CARDS), node)
    assert not [name for name in found if name.startswith("rocm")]
    assert "omnistat_host_cpu_load1" in found


def test_two_sets_with_the_same_names_are_refused() -> None:
    with pytest.raises(ValueError, match="cgroup_exporter and jobstats have the same names"):
        ExporterSettings(names=("cgroup_exporter", "jobstats"))


def read_dashboards() -> dict[str, tuple[list[str], set[str]]]:
    """Return sets of names and asked names by dashboard."""
    found: dict[str, tuple[list[str], set[str]]] = {}
    asked: set[str] = set()
    for line in (DATA / "prometheus/dashboards.txt").read_text().splitlines():
        if line.startswith("= "):
            head, _, sets = line[2:].rpartition(": ")
            asked = set()
            found[head.partition(" (")[0]] = (sets.split(), asked)
        elif not line.startswith("#"):
            asked.add(line)
    return found


@pytest.fixture
def exposed(tmp_path: Path) -> dict[str, set[str]]:
    """The names by set that a node with two jobs, their I/O, cards and Slurm exposes."""
    node = JobIoNode(tmp_path)
    for job in (12, 13):
        add_v2(node, job, 100 + job)
        node.count(job, "8:1", reads=1)
    node.write("stat", "cpu  1\ncpu0 1 2 3 4 5 6 7 8\nbtime 1700000000\n")
    node.write("net/rpc/nfsd", NFSD)
    node.write("net/rpc/nfs", "net 1 0 1 1\nrpc 5 0 0\nproc3 22" + " 1" * 22 + "\n")
    programs = slurm(tmp_path).settings
    scheduler, shares, licenses, _ = (each.settings for each in controller(tmp_path))
    settings = ExporterSettings(
        names=("ccagent", "ceems", "dcgm", "jobstats", "node_exporter", "omnistat", "slurm",
               "slurm-job-exporter"),
        squeue=programs.squeue, sinfo=programs.sinfo, sdiag=scheduler.sdiag,
        sshare=shares.sshare, scontrol=licenses.scontrol,
    )  # fmt: skip
    sources = NodeSources(settings)
    sources.cards = with_cards(make(JobstatsCollector), BOTH_VENDORS).sources.cards
    found: dict[str, set[str]] = {}
    for name_set, collectors in make_collectors(settings, sources).items():
        for collector in collectors:
            with_names = found.setdefault(name_set, set())
            try:
                blocks = SampleEncoder().encode(collector.collect(node))
            except CcagentError:
                continue
            with_names |= {family.name for family, _ in blocks}
    return found


ANSWERED = {
    "jobstats: Single Job Stats": (13, "node_"),
    "ceems: single job": (14, ""),
    "ceems: cluster status": (0, ""),
    "dcgm-exporter": (6, ""),
    "SckyzO slurm_exporter": (91, ""),
    "omnistat": (18, ""),
    "slurm-job-exporter: userportal": (23, ""),
    "NFS Full": (20, ""),
}
"""Number of answered names, and the prefix of names that the set node_exporter answers."""


def test_names_that_dashboards_ask_for(exposed: dict[str, set[str]]) -> None:
    answered: dict[str, tuple[int, str]] = {}
    for name, (sets, asked) in read_dashboards().items():
        prefix = ANSWERED[name][1]
        names = {each for each in asked if not prefix or not each.startswith(prefix)}
        there = names & {each for one in sets for each in exposed.get(one, ())}
        print(f"{name}: {len(there)} of {len(names)}; not: {' '.join(sorted(names - there))}")
        answered[name] = (len(there), prefix)
    assert answered == ANSWERED
