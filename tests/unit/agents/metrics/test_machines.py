"""What the agent `metrics` sends of five machines, line by line, and the numbers reckoned by hand.

The machines are in tests/machines/metrics, the lines in tests/data/metrics.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.agents.metrics.cluster_config import cluster_config
from ccagent.agents.metrics.commands import format_metrics
from ccagent.records.line_protocol import decode, decode_lines
from tests.machines.metrics import MACHINES, golden
from tests.machines.metrics.machine import START, MachineNode, lines
from tests.support.line_checks import check_message

INTEL, AMD, ARM, VM = "intel-icelake", "amd-epyc", "arm-grace", "plain-vm"
SENSORS = "many-sensors"

names = pytest.mark.parametrize("name", MACHINES)


class Values:
    """Values of lines, by metric and by what comes behind `type=`: `node`, `socket 1`, `job 7`."""

    def __init__(self, sent: list[str]) -> None:
        self._values: dict[tuple[str, str], float] = {}
        for text in sent:
            line = decode(text)
            tags = line.tags
            words = [tags["type"], tags.get("type-id", "")]
            if "stype" in tags:
                words = [tags["stype"], tags["stype-id"]]
            key = line.measurement, " ".join(words).strip()
            assert key not in self._values, text
            self._values[key] = float(line.value)

    def of(self, metric: str) -> object:
        """Return the values of a metric; what differs in the last digits is the same."""
        values = {place: value for (name, place), value in self._values.items() if name == metric}
        return pytest.approx(values, rel=1e-12, abs=0)

    def at(self, metric: str, place: str) -> object:
        """Return one value likewise."""
        return pytest.approx(self._values[metric, place], rel=1e-12, abs=0)

    def names(self) -> set[str]:
        return {name for name, _ in self._values}


@pytest.fixture(scope="module")
def intel(tmp_path_factory: pytest.TempPathFactory) -> Values:
    return Values(lines(MACHINES[INTEL], tmp_path_factory.mktemp("intel")))


@pytest.fixture(scope="module")
def amd(tmp_path_factory: pytest.TempPathFactory) -> Values:
    return Values(lines(MACHINES[AMD], tmp_path_factory.mktemp("amd")))


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Values:
    return Values(lines(MACHINES[ARM], tmp_path_factory.mktemp("arm")))


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory) -> Values:
    return Values(lines(MACHINES[VM], tmp_path_factory.mktemp("vm")))


@pytest.fixture(scope="module")
def sensors(tmp_path_factory: pytest.TempPathFactory) -> Values:
    return Values(lines(MACHINES[SENSORS], tmp_path_factory.mktemp("sensors")))


def threads(first: float, step: float, number: int) -> dict[str, float]:
    """Return what hwthreads have if each has a `step` more than the one before."""
    return {f"hwthread {n}": first + step * n for n in range(number)}


@names
def test_a_machine_gives_its_lines(name: str, tmp_path: Path) -> None:
    assert lines(MACHINES[name], tmp_path) == golden(name).read_text("utf-8").splitlines()


@names
def test_nothing_is_worth_a_warning(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines(MACHINES[name], tmp_path)
    assert [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"] == []


@names
def test_each_line_is_a_metric_that_the_store_keeps(name: str) -> None:
    found = list(decode_lines(golden(name).read_text("utf-8")))
    assert len(found) > 40
    for line in found:
        assert line.category == "metric"
        # Values of jobs are for stores that tell them apart: see the agent's README.
        assert "stype" in line.tags or check_message(line) == []


@names
def test_all_lines_have_the_time_of_the_tick(name: str) -> None:
    times = {line.time for line in decode_lines(golden(name).read_text("utf-8"), "s")}
    assert times == {int(START + 50_000 + MACHINES[name].seconds) * 10**9}


@names
def test_the_list_says_yes_to_what_is_sent(name: str, tmp_path: Path) -> None:
    node = MachineNode(MACHINES[name], tmp_path)
    agent = node.agent()
    rows = [row for row in format_metrics(agent, node).splitlines()[1:] if "not sent" not in row]
    agent.close()
    here = {row.split()[0] for row in rows if "  yes  " in row}
    assert here == {line.measurement for line in decode_lines(golden(name).read_text("utf-8"))}


class TestIntel:
    def test_load_is_the_first_number(self, intel: Values) -> None:
        assert intel.of("cpu_load") == {"node": 12.34}
        assert intel.of("cpu_load5") == {"node": 11.25}
        assert intel.of("cpu_load15") == {"node": 9.75}
        assert intel.of("proc_run") == {"node": 9}
        assert intel.of("proc_total") == {"node": 1234}

    def test_times_are_percent_of_a_hwthread_and_the_node_has_their_mean(
        self, intel: Values
    ) -> None:
        assert intel.of("cpu_user") == threads(40, 1, 16) | {"node": 47.5}
        assert intel.of("cpu_system") == threads(6, 0.5, 16) | {"node": 9.75}
        assert intel.of("cpu_idle") == threads(49, -1.5, 16) | {"node": 37.75}
        same = {"nice": 0.5, "iowait": 2, "irq": 1, "softirq": 1.5, "steal": 0}
        for state, share in same.items():
            assert intel.of(f"cpu_{state}") == threads(share, 0, 16) | {"node": share}

    def test_memory_is_in_gb_of_1000_to_the_3_bytes(self, intel: Values) -> None:
        kb = 1024 / 1e9
        assert intel.of("mem_used") == {
            "node": 107_842_816 * kb,
            "memoryDomain 0": (71_921_408 - 12_000_000 - 1_900_000) * kb,
            "memoryDomain 1": (61_921_408 - 12_000_000 - 1_500_000) * kb,
        }
        assert intel.of("mem_free") == {
            "node": 133.12, "memoryDomain 0": 61.44, "memoryDomain 1": 71.68
        }  # fmt: skip
        assert intel.of("swap_used") == {"node": 0.198656}
        assert intel.of("hugepages_used") == {"node": 1.073741824}

    def test_pages_are_bytes(self, intel: Values) -> None:
        assert intel.of("swap_in") == {"node": 25 * 4096 / 1e6}
        assert intel.of("swap_out") == {"node": 50 * 4096 / 1e6}
        assert intel.of("page_faults") == {"node": 12_345}
        assert intel.of("major_page_faults") == {"node": 5}
        assert intel.of("oom_kills") == {"node": 0.1}

    def test_power_is_energy_over_time_also_where_the_counter_wraps(self, intel: Values) -> None:
        assert intel.of("cpu_power") == {"socket 0": 200, "socket 1": 150, "node": 350}
        assert intel.of("mem_power") == {"socket 0": 15, "socket 1": 12.5, "node": 27.5}
        assert intel.of("psys_power") == {"node": 500}

    def test_infiniband_counts_words_of_four_bytes(self, intel: Values) -> None:
        assert intel.of("ib_recv") == {"node": 2_500_000_000 * 4 / 10}
        assert intel.of("ib_xmit") == {"node": 1_250_000_000 * 4 / 10}
        assert intel.of("ib_recv_pkts") == {"node": 100_000}
        assert intel.of("ib_xmit_pkts") == {"node": 50_000}
        assert intel.of("ib_ports_active") == {"node": 1}
        # 200 Gb/s in the unit of ib_recv, so that one can be held against the other.
        assert intel.of("ib_rate") == {"node": 25e9}

    def test_interfaces_are_those_that_are_hardware(self, intel: Values) -> None:
        assert intel.of("net_bytes_in") == {"node": (12.5 + 50) / 10}
        assert intel.of("net_bytes_out") == {"node": (2.5 + 10) / 10}
        assert intel.of("net_bw") == {"node": 7.5}
        assert intel.of("net_pkts_in") == {"node": 5_000}
        assert intel.of("net_pkts_out") == {"node": 1_500}
        found = {name: intel.of(f"net_{name}") for name in
                 ("errors_in", "drops_in", "errors_out", "drops_out")}  # fmt: skip
        assert found == {
            "errors_in": {"node": 1}, "drops_in": {"node": 2},
            "errors_out": {"node": 3}, "drops_out": {"node": 4},
        }  # fmt: skip

    def test_nfs_bytes_are_counted_once_and_operations_wrap_at_32_bits(self, intel: Values) -> None:
        assert intel.of("nfs4_read") == {"node": 40}
        assert intel.of("nfs4_write") == {"node": 10}
        assert intel.of("nfs3_read") == {"node": 5}
        assert intel.of("nfs3_write") == {"node": 2.5}
        assert intel.of("nfs3_reads") == {"node": 5}
        assert intel.of("nfs3_writes") == {"node": 6}
        assert intel.of("nfs3_total") == {"node": 31}
        assert intel.of("nfs4_reads") == {"node": 70}
        assert intel.of("nfs4_writes") == {"node": 80}
        assert intel.of("nfs4_total") == {"node": 160}
        assert intel.of("nfs_retrans") == {"node": 3}

    def test_disks_are_whole_ones_and_sectors_have_512_bytes(self, intel: Values) -> None:
        assert intel.of("disk_read") == {"node": (20_480 + 204_800) * 512 / 1e7}
        assert intel.of("disk_write") == {"node": (40_960 + 409_600) * 512 / 1e7}
        assert intel.of("disk_reads") == {"node": 100}
        assert intel.of("disk_writes") == {"node": 200}
        assert intel.of("disk_busy") == {"node": 25}

    def test_file_systems_are_local_ones(self, intel: Values) -> None:
        assert intel.of("disk_total") == {"node": 410_000_000 * 4096 / 1e9}
        assert intel.of("disk_free") == {"node": 284_000_000 * 4096 / 1e9}
        assert intel.of("part_max_used") == {"node": 60}
        assert intel.of("part_max_inodes_used") == {"node": 10}

    def test_temperatures_are_those_of_both_threads_of_a_core(self, intel: Values) -> None:
        assert intel.of("temp_package") == {"socket 0": 57, "socket 1": 67, "node": 67}
        cores = {0: 50, 1: 51, 2: 54, 3: 56, 4: 60, 5: 62, 6: 63, 7: 65}
        expected = {f"hwthread {n}": float(cores[n % 8]) for n in range(16)}
        assert intel.of("temp_core") == expected | {"node": 65}

    def test_the_clock_is_that_of_the_time_awake(self, intel: Values) -> None:
        # 2.4 GHz * 1.6 / 1.2, and 10 MHz more for each.
        assert intel.of("clock") == threads(3_200, 10, 16)
        expected = {f"hwthread {n}": (300 + 3 * n) / (200 + n) for n in range(16)}
        assert intel.of("ipc") == expected

    def test_operations_are_counted_by_the_width_of_vectors(self, intel: Values) -> None:
        # Millions: scalar + 2 * 128 bits + 4 * 256 bits + 8 * 512 bits; single has twice as many.
        double = 1 + 2 * 2 + 4 * 3 + 8 * 100
        single = 4 + 4 * 5 + 8 * 6 + 16 * 7
        assert intel.of("flops_dp") == threads(double / 1e3, 0.001, 16)
        assert intel.of("flops_sp") == threads(single / 1e3, 0, 16)
        assert intel.of("flops_any") == threads((2 * double + single) / 1e3, 0.002, 16)
        assert intel.of("perf_counted") == {"node": 50}

    def test_memory_traffic_is_cache_lines_of_all_controllers_of_a_socket(
        self, intel: Values
    ) -> None:
        assert intel.of("mem_bw") == {
            "socket 0": (200 + 50 + 210 + 60) * 64 / 1e3,
            "socket 1": (100 + 30 + 110 + 40) * 64 / 1e3,
        }

    def test_jobs_of_version_1(self, intel: Values) -> None:
        assert intel.of("job_mem_used") == {"job 4711": 8, "job 4712": 24}
        assert intel.of("job_mem_peak") == {"job 4711": 9, "job 4712": 27}
        assert intel.of("job_mem_limit") == {"job 4711": 16}
        assert intel.of("job_oom_kills") == {"job 4711": 0, "job 4712": 2}
        assert intel.of("job_cpu_util") == {"job 4711": 400, "job 4712": 1200}
        assert intel.of("job_cpu_throttled") == {"job 4711": 10, "job 4712": 30}

    def test_events_of_the_kernel(self, intel: Values) -> None:
        assert intel.of("interrupts") == {"node": 5_432}
        assert intel.of("context_switches") == {"node": 9_876}
        assert intel.of("forks") == {"node": 12}


class TestPresets:
    def test_base_units(self, tmp_path: Path) -> None:
        sent = Values(lines(MACHINES[INTEL], tmp_path, preset="base"))
        assert sent.at("mem_free", "node") == 133_120_000_000
        assert sent.of("net_bw") == {"node": 7_500_000}
        assert sent.at("clock", "hwthread 0") == 3_200_000_000
        assert sent.at("flops_sp", "hwthread 0") == 184_000_000
        assert sent.at("mem_bw", "socket 1") == 17_920_000_000
        assert sent.of("ib_recv") == {"node": 1_000_000_000}

    def test_those_of_the_specification(self, tmp_path: Path) -> None:
        sent = Values(lines(MACHINES[INTEL], tmp_path, preset="spec"))
        assert sent.at("mem_free", "node") == 133.12
        assert sent.of("net_bw") == {"node": 7.5}
        assert sent.at("clock", "hwthread 0") == 3_200
        assert sent.at("flops_sp", "hwthread 0") == 184_000_000
        assert sent.at("mem_bw", "socket 1") == 17_920
        assert sent.of("ib_recv") == {"node": 1_000}
        assert sent.at("cpu_power", "node") == 350


class TestAmd:
    def test_times(self, amd: Values) -> None:
        assert amd.of("cpu_user") == threads(50, 0.5, 16) | {"node": 53.75}
        assert amd.of("cpu_idle") == threads(41, -0.5, 16) | {"node": 37.25}

    def test_eight_numa_nodes_have_memory(self, amd: Values) -> None:
        gb = 1.024
        domains = {f"memoryDomain {n}": (14 + n) * gb for n in range(8)}
        assert amd.of("mem_used") == domains | {"node": 140 * gb}
        domains = {f"memoryDomain {n}": (40 - n) * gb for n in range(8)}
        assert amd.of("mem_free") == domains | {"node": 292 * gb}

    def test_power_is_told_of_packages_alone(self, amd: Values) -> None:
        assert amd.of("cpu_power") == {"socket 0": 210, "socket 1": 180, "node": 390}
        assert "mem_power" not in amd.names()

    def test_power_of_cores_comes_on_demand(self, tmp_path: Path) -> None:
        sent = Values(lines(MACHINES[AMD], tmp_path, include=["core_power"]))
        assert sent.of("core_power") == {"socket 0": 5, "socket 1": 4, "node": 9}

    def test_pressure_is_percent_of_the_time(self, amd: Values) -> None:
        shares = {
            "cpu_some": (2, 2.34), "memory_some": (1, 1.12), "memory_full": (0.5, 0.56),
            "io_some": (5, 5.67), "io_full": (3, 3.45), "irq_full": (0.1, 0.12),
        }  # fmt: skip
        for name, (share, of_ten_seconds) in shares.items():
            assert amd.of(f"pressure_{name}") == {"node": share}
            assert amd.of(f"pressure_{name}_avg10") == {"node": of_ten_seconds}
        assert len([name for name in amd.names() if name.startswith("pressure")]) == 12

    def test_a_bond_stands_for_its_cards(self, amd: Values) -> None:
        assert amd.of("net_bytes_in") == {"node": 15}
        assert amd.of("net_bytes_out") == {"node": 1.5}
        assert amd.of("net_pkts_in") == {"node": 15_000}

    def test_omni_path_counts_flits_of_eight_bytes(self, amd: Values) -> None:
        assert amd.of("ib_recv") == {"node": 600_000_000 * 8 / 60}
        assert amd.of("ib_xmit") == {"node": 150_000_000 * 8 / 60}
        assert amd.of("ib_recv_pkts") == {"node": 20_000}
        assert amd.of("ib_xmit_pkts") == {"node": 5_000}

    def test_temperatures_are_those_of_the_sockets(self, amd: Values) -> None:
        assert amd.of("temp_package") == {"socket 0": 61.25, "socket 1": 63.5, "node": 63.5}

    def test_the_processor_tells_operations_of_all_precisions_together(self, amd: Values) -> None:
        assert amd.of("flops_any") == threads(5, 0.25, 16)
        assert not {"flops_dp", "flops_sp"} & amd.names()
        # 2.8 GHz * 1.6 / 1.4, and 32 MHz more for each.
        assert amd.of("clock") == threads(3_200, 32, 16)
        assert amd.of("ipc") == {f"hwthread {n}": (120 + 2 * n) / (160 + 1.6 * n)
                                 for n in range(16)}  # fmt: skip

    def test_memory_traffic_is_that_of_eight_channels_of_a_socket(self, amd: Values) -> None:
        requests = sum(range(10, 18)) * 1e6
        assert amd.of("mem_bw") == {
            "socket 0": requests * 64 / 1e9, "socket 1": 2 * requests * 64 / 1e9
        }  # fmt: skip

    def test_jobs_of_version_2(self, amd: Values) -> None:
        assert amd.of("job_mem_used") == {"job 9001": 4, "job 9002": 8}
        assert amd.of("job_mem_peak") == {"job 9001": 5, "job 9002": 10}
        assert amd.of("job_mem_limit") == {"job 9001": 8}
        assert amd.of("job_oom_kills") == {"job 9001": 1, "job 9002": 2}
        assert amd.of("job_cpu_util") == {"job 9001": 150, "job 9002": 300}
        assert amd.of("job_cpu_throttled") == {"job 9001": 50, "job 9002": 100}
        assert amd.of("job_io_read") == {"job 9001": 1, "job 9002": 2}
        assert amd.of("job_io_write") == {"job 9001": 2, "job 9002": 4}
        assert amd.of("job_pressure_cpu") == {"job 9001": 0.5, "job 9002": 1}
        assert amd.of("job_pressure_memory") == {"job 9001": 0.1, "job 9002": 0.2}
        assert amd.of("job_pressure_io") == {"job 9001": 1.5, "job 9002": 3}


class TestArm:
    def test_pages_have_64_kb(self, arm: Values) -> None:
        assert arm.of("swap_in") == {"node": 65_536 / 1e6}
        assert arm.of("swap_out") == {"node": 2 * 65_536 / 1e6}
        assert arm.of("hugepages_used") == {"node": 3 * 524_288 * 1024 / 1e9}

    def test_the_clock_is_held_against_the_time_of_the_kernel(self, arm: Values) -> None:
        # 1 GHz * 0.6 / 0.2, and 100 MHz more for each.
        assert arm.of("clock") == threads(3_000, 100, 4)

    def test_operations_are_in_the_unit_of_the_specification(self, arm: Values) -> None:
        assert arm.of("flops_any") == threads(4.5e9, 0.11e9, 4)

    def test_memory_traffic_is_read_in_32_bytes_and_written_in_bytes(self, arm: Values) -> None:
        assert arm.of("mem_bw") == {"socket 36": 2_000 * 32 + 16_000}

    def test_disks_and_cards(self, arm: Values) -> None:
        assert arm.of("net_bw") == {"node": 1.2}
        assert arm.of("disk_read") == {"node": 600_000 * 512 / 30e6}
        assert arm.of("disk_busy") == {"node": 10}
        assert "part_max_inodes_used" not in arm.names()

    def test_slurm_without_a_job_has_no_values_of_jobs(self, arm: Values) -> None:
        assert not {name for name in arm.names() if name.startswith("job_")}


class TestVm:
    def test_it_has_what_every_machine_has(self, vm: Values) -> None:
        assert vm.of("cpu_steal") == {"hwthread 0": 4.5, "node": 4.5}
        assert vm.of("cpu_user") == {"hwthread 0": 20, "node": 20}
        assert vm.of("mem_used") == {"node": 700_000 * 1024 / 1e9}
        assert vm.of("net_bytes_in") == {"node": 0.01}
        assert vm.of("disk_write") == {"node": 640 * 512 / 1e7}

    def test_and_nothing_else(self, vm: Values) -> None:
        others = ("ib_", "nfs", "temp_", "job_", "pressure_", "flops_")
        assert not {name for name in vm.names() if name.startswith(others)}
        assert not {"clock", "ipc", "mem_bw", "cpu_power", "mem_power"} & vm.names()


class TestManySensors:
    def test_frequencies_are_those_of_hwthreads_with_a_driver(self, sensors: Values) -> None:
        assert sensors.of("cpufreq") == {
            "hwthread 0": 3.4e9, "hwthread 1": 2.1e9, "hwthread 2": 8e8
        }  # fmt: skip

    def test_the_scheduler_counts_nanoseconds(self, sensors: Values) -> None:
        assert sensors.of("sched_run") == threads(10, 10, 4)
        assert sensors.of("sched_wait") == threads(0, 10, 4)
        assert sensors.of("cpu_load_core") == threads(0.1, 0.2, 4)
        assert sensors.of("sched_timeslices") == threads(0, 100, 4)

    def test_numa_nodes_count_pages(self, sensors: Values) -> None:
        both = {"numa_hit": 1e5, "interleave_hit": 1, "local_node": 9e4, "other_node": 1e4}
        for name, rate in both.items():
            assert sensors.of(f"numastats_{name}") == {
                "memoryDomain 0": rate, "memoryDomain 1": rate
            }  # fmt: skip
        assert sensors.of("numastats_numa_miss") == {"memoryDomain 0": 0, "memoryDomain 1": 10}
        assert sensors.of("numastats_numa_foreign") == {"memoryDomain 0": 10, "memoryDomain 1": 0}

    def test_fields_of_meminfo_are_of_numa_nodes_too(self, sensors: Values) -> None:
        of_domains = {
            "active": 1_000, "inactive": 2_000, "unevictable": 300, "locked": 200, "dirty": 40,
            "writeback": 5, "mapped": 700, "anon": 5_000, "kernelstack": 80, "pagetables": 90,
            "sreclaimable": 400, "sunreclaim": 600, "anon_hugepages": 4_096,
            "shared_hugepages": 2_048,
        }  # fmt: skip
        for name, size in of_domains.items():
            assert sensors.of(f"mem_{name}") == {
                "memoryDomain 0": size * 1024, "memoryDomain 1": size * 1024,
                "node": 2 * size * 1024,
            }  # fmt: skip
        of_node = {
            "commit_limit": 9_000_000, "committed": 3_000_000, "vmalloc_used": 70_000,
            "percpu": 8_000, "hugetlb": 2_097_152, "direct_mapped_4k": 500_000,
            "direct_mapped_2m": 6_000_000, "direct_mapped_1g": 8_388_608,
        }  # fmt: skip
        for name, size in of_node.items():
            assert sensors.of(f"mem_{name}") == {"node": size * 1024}

    def test_requests_of_disks_have_times_and_queues(self, sensors: Values) -> None:
        idle = {"disk nvme1n1": 0}
        rates = {
            "disk_reads": 20, "disk_writes": 10, "disk_reads_merged": 4,
            "disk_writes_merged": 0.5, "disk_read": 4_000 * 512 / 10,
            "disk_write": 8_000 * 512 / 10, "disk_queue": 0.4, "disk_discards": 1,
            "disk_discard": 2_048 * 512 / 10, "disk_flushes": 0.5, "disk_in_progress": 3,
            "disk_busy": 20,
        }  # fmt: skip
        for name, rate in rates.items():
            assert sensors.of(name) == {"disk nvme0n1": rate, "node": rate} | idle
        times = {"read": 0.1 / 200, "write": 0.3 / 100, "discard": 0.02 / 10, "flush": 0.01 / 5}
        for name, seconds in times.items():
            assert sensors.of(f"disk_{name}_time") == {"disk nvme0n1": seconds, "node": seconds}

    def test_sensors_have_their_limits(self, sensors: Values) -> None:
        drive, board, supply = "sensor nvme-0/temp", "sensor nct6798-0/", "sensor psu-0/"
        assert sensors.of("hwmon_temp") == {
            f"{drive}1/Composite": 38.85, f"{drive}2/Sensor 1": 41.85,
            f"{board}temp1/SYSTIN": 33,
        }  # fmt: skip
        # A drive without a limit has one of 65261.85 degrees.
        assert sensors.of("hwmon_temp_max") == {
            f"{drive}1/Composite": 84.85, f"{board}temp1/SYSTIN": 80
        }  # fmt: skip
        assert sensors.of("hwmon_temp_min") == {f"{drive}1/Composite": -273.15}
        assert sensors.of("hwmon_temp_crit") == {f"{drive}1/Composite": 89.85}
        assert sensors.of("hwmon_fan") == {f"{board}fan1": 1250, f"{board}fan2": 0}
        assert sensors.of("hwmon_fan_min") == {f"{board}fan1": 300, f"{board}fan2": 0}
        assert sensors.of("hwmon_voltage") == {f"{board}in0": 0.856, f"{board}in1/+12V": 11.988}
        assert sensors.of("hwmon_power") == {f"{supply}power1/Input": 412.5}
        assert sensors.of("hwmon_power_cap") == {f"{supply}power1/Input": 1000}
        assert sensors.of("hwmon_current_crit") == {f"{supply}curr1": 9}

    def test_mounts_of_nfs_have_traffic_and_times(self, sensors: Values) -> None:
        home, idle = "filesystem /home", {"filesystem /apps old": 0}
        rates = {
            "app_read": 2e7, "app_write": 1e6, "direct_read": 1e5, "direct_write": 0,
            "read": 1e7, "write": 1e6, "pages_read": 2_500, "pages_written": 250, "ops": 16,
            "reads": 10, "writes": 5, "retrans": 0.3, "timeouts": 0.1,
        }  # fmt: skip
        for name, rate in rates.items():
            assert sensors.of(f"nfs_mount_{name}") == {home: rate} | idle
        # Before Linux 5.3 the kernel did not count errors.
        assert sensors.of("nfs_mount_errors") == {home: 0.5}
        times = {
            "read_queue": 0.01 / 100, "read_rtt": 0.2 / 100, "read_exec": 0.25 / 100,
            "write_queue": 0.05 / 50, "write_rtt": 0.5 / 50, "write_exec": 0.6 / 50,
            "queue": 0.06 / 160, "rtt": 0.704 / 160, "exec": 0.856 / 160,
        }  # fmt: skip
        for name, seconds in times.items():
            assert sensors.of(f"nfs_mount_{name}") == {home: seconds}

    def test_drives_tell_their_health(self, sensors: Values) -> None:
        logs = {
            "critical_warning": (4, 0), "temp": (39, 26), "spare": (9, 100),
            "spare_threshold": (10, 10), "percentage_used": (101, 0),
            "bytes_read": (123_456_789 * 512_000, 512_000),
            "bytes_written": (987_654_341 * 512_000, 1_024_000), "host_reads": (10**9, 3),
            "host_writes": (2 * 10**9 + 50, 4), "busy_time": (2_400_000, 0),
            "power_cycles": (60, 1), "power_on_time": (108_000_000, 18_000),
            "unsafe_shutdowns": (25, 0), "media_errors": (3, 0), "error_log_entries": (70, 0),
            "warning_temp_time": (5_400, 0), "critical_temp_time": (120, 0),
        }  # fmt: skip
        for name, (worn, new) in logs.items():
            assert sensors.of(f"nvme_{name}") == {"disk nvme0": worn, "disk nvme1": new}
        assert sensors.of("nvme_temp_sensor") == {"sensor nvme0/1": 42, "sensor nvme0/3": 49}

    def test_the_bmc_has_sensors_of_all_kinds(self, sensors: Values) -> None:
        assert sensors.of("ipmi_temp") == {"sensor CPU1 Temp": 42, "sensor CPU2 Temp": 44}
        assert sensors.of("ipmi_fan") == {"sensor FAN1": 8400}
        assert sensors.of("ipmi_voltage") == {"sensor Rail, 12 V": 12.06}
        assert sensors.of("ipmi_current") == {"sensor PSU1 Iin": 1.8}
        assert sensors.of("ipmi_power") == {"sensor Pwr Consumption": 392}
        assert sensors.of("ipmi_share") == {"sensor Fan Duty": 35.28}

    def test_gpfs_and_beegfs_have_rates(self, sensors: Values) -> None:
        rates = {
            "read": 1e8, "write": 5e7, "opens": 10, "closes": 9, "reads": 100, "writes": 50,
            "readdirs": 1, "inode_updates": 2,
        }  # fmt: skip
        for name, rate in rates.items():
            assert sensors.of(f"gpfs_{name}") == {"filesystem scratch": rate}
        rates = {
            "meta_sum": 30, "meta_ack": 0, "meta_close": 10, "meta_open": 20, "storage_sum": 7,
            "storage_ops_rd": 5, "storage_read": 1e7, "storage_ops_wr": 2, "storage_write": 4e6,
        }  # fmt: skip
        for name, rate in rates.items():
            assert sensors.of(f"beegfs_{name}") == {"filesystem /mnt/beeond": rate}

    def test_the_preset_of_the_collector_has_its_names_and_units(self, tmp_path: Path) -> None:
        sent = Values(lines(MACHINES[SENSORS], tmp_path, preset="cc-metric-collector"))
        assert sent.at("smartmon_data_units_write", "disk nvme0") == 987_654_341
        assert sent.at("smartmon_power_on", "disk nvme1") == 18_000
        assert sent.at("smartmon_warn_temp_time", "disk nvme0") == 90
        assert sent.at("smartmon_temp", "disk nvme0") == 39
        assert sent.at("nfsio_nread_bw", "filesystem /home") == 2e7
        assert sent.at("nfsio_nfswrite_bw", "filesystem /home") == 1e6
        assert sent.at("gpfs_bw_read", "filesystem scratch") == 1e8
        assert sent.at("gpfs_opens_rate", "filesystem scratch") == 10


class TestClusterConfig:
    """What cc-backend is told of the machines, beside what they send."""

    def config(self, name: str, directory: Path) -> dict[str, tuple[str, str, str]]:
        node = MachineNode(MACHINES[name], directory)
        agent = node.agent()
        metrics = cluster_config(agent, node)["metricConfig"]
        agent.close()
        return {
            each["name"]: (
                each["scope"],
                each["unit"].get("prefix", "") + each["unit"]["base"],
                each["aggregation"],
            )
            for each in metrics
        }

    def test_it_is_what_the_front_end_expects(self, tmp_path: Path) -> None:
        found = self.config(INTEL, tmp_path)
        expected = {
            "cpu_load": ("node", "", "avg"),
            "cpu_user": ("hwthread", "", "avg"),
            "flops_any": ("hwthread", "GF/s", "sum"),
            "flops_sp": ("hwthread", "GF/s", "sum"),
            "flops_dp": ("hwthread", "GF/s", "sum"),
            "mem_bw": ("socket", "GB/s", "sum"),
            "clock": ("hwthread", "MHz", "avg"),
            "ipc": ("hwthread", "", "avg"),
            "cpu_power": ("socket", "W", "sum"),
            "mem_power": ("socket", "W", "sum"),
            "ib_recv": ("node", "B/s", "sum"),
            "ib_xmit": ("node", "B/s", "sum"),
            "net_bw": ("node", "MB/s", "sum"),
            "nfs4_read": ("node", "MB/s", "sum"),
            "nfs4_write": ("node", "MB/s", "sum"),
        }
        assert {name: found[name] for name in expected} == expected
        assert found["mem_used"] == ("memoryDomain", "GB", "sum")

    def test_units_of_the_specification_have_prefixes_too(self, tmp_path: Path) -> None:
        found = self.config(ARM, tmp_path)
        assert found["net_bw"] == ("node", "MB/s", "sum")
        assert found["flops_any"] == ("hwthread", "F/s", "sum")

    @names
    def test_a_metric_has_the_scope_of_its_smallest_parts(self, name: str, tmp_path: Path) -> None:
        sent: dict[str, set[str]] = {}
        for line in decode_lines(golden(name).read_text("utf-8")):
            if "stype" not in line.tags:
                sent.setdefault(line.measurement, set()).add(line.tags["type"])
        found = {metric: told[0] for metric, told in self.config(name, tmp_path).items()}
        assert found == {
            metric: next(iter(types - {"node"}), "node") for metric, types in sent.items()
        }

    def test_a_part_stands_where_its_number_says(self, tmp_path: Path) -> None:
        node = MachineNode(MACHINES[ARM], tmp_path)
        topology = cluster_config(node.agent(), node)["subClusters"][0]["topology"]
        assert topology["socket"] == [[]] * 36 + [[0, 1, 2, 3]]
        assert topology["memoryDomain"] == [[0, 1, 2, 3]]

    @names
    def test_parts_are_those_of_the_topology(self, name: str, tmp_path: Path) -> None:
        node = MachineNode(MACHINES[name], tmp_path)
        topology = cluster_config(node.agent(), node)["subClusters"][0]["topology"]
        for line in decode_lines(golden(name).read_text("utf-8")):
            kind, number = line.tags["type"], int(line.tags.get("type-id", "0"))
            if kind == "hwthread":
                assert number in topology["node"]
            elif kind != "node":
                assert topology[kind][number]
        for part in ("socket", "memoryDomain", "core"):
            assert sorted(cpu for members in topology[part] for cpu in members) == topology["node"]
