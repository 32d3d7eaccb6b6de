"""The Sonar JSON envelopes as structures, from which the JSON is encoded.

Source: Sonar JSON format output specification (version 0), with later additions to the format. A
field with its default value is omitted. Fields without a default are always written, because
consumers need them. Memory is in KB (1024 bytes), clocks in MHz, power in
W, utilisation in percent, `Timestamp` as `ccagent.machine.clock.timestamp` makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from ccagent.records.json_encoding import Envelope, ErrorObject, Structure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NO_FLOAT = 0.0
"""The default of float fields. msgspec omits a default only if it is this object."""

SONAR_EPOCH = 1_577_836_800
"""2020-01-01T00:00:00Z; the `epoch` of a job is the boot time minus this."""

LARGEST_UINT = 2**64 - 1
"""The largest value of uint64, the type of most fields."""


class SampleDisk(Structure, frozen=True, kw_only=True):
    """One block device: all values after the name in its line of /proc/diskstats."""

    name: str
    major: int
    minor: int
    stats: list[int]


class SampleGpu(Structure, frozen=True, kw_only=True, gc=False):
    """The state of one card, or of one instance of a partitioned card.

    index: unique on the node, from 0; it may change at boot.
    uuid: the vendor's, else one constructed from boot, host and address.
    failing: 1 for a card that does not respond, else 0.
    fan: percent of the maximum speed. compute_mode: the vendor's name of the mode.
    performance_state: ExtendedUint, 0 unknown, n + 2 for n.
    memory: KB in use; memory_util: percent of the card's memory. ce_util: percent.
    temperature: degrees Celsius. power, power_limit: W. ce_clock, memory_clock: MHz.
    """

    index: int
    uuid: str
    failing: int = 0
    fan: int = 0
    compute_mode: str = ""
    performance_state: int = 0
    memory: int = 0
    ce_util: int = 0
    memory_util: int = 0
    temperature: int = 0
    power: int = 0
    power_limit: int = 0
    ce_clock: int = 0
    memory_clock: int = 0


class SampleProcessGpu(Structure, frozen=True, kw_only=True, gc=False):
    """The use of one card by one process.

    gpu_util: percent of the card's compute elements since the previous reading.
    gpu_memory: KB; gpu_memory_util: percent of the card's memory.
    """

    index: int
    uuid: str
    gpu_util: float = NO_FLOAT
    gpu_memory: int = 0
    gpu_memory_util: float = NO_FLOAT


class SampleSystem(Structure, frozen=True, kw_only=True):
    """State of the node as a whole.

    boot: Timestamp of the boot (/proc/stat `btime`).
    cpus: CPU seconds since boot, dense and sorted by logical cpu (/proc/stat `cpuN`: user, nice,
    system, irq, softirq); 0 for an offline cpu.
    gpus: the cards and their instances.
    disks: /proc/diskstats, without unused devices.
    used_memory: KB, MemTotal - MemAvailable of /proc/meminfo.
    load1, load5, load15, runnable_entities, existing_entities: /proc/loadavg.
    """

    boot: str
    cpus: list[int] = []
    gpus: list[SampleGpu] = []
    disks: list[SampleDisk] = []
    used_memory: int = 0
    load1: float = NO_FLOAT
    load5: float = NO_FLOAT
    load15: float = NO_FLOAT
    runnable_entities: int = 0
    existing_entities: int = 0


class SampleProcess(Structure, frozen=True, kw_only=True, gc=False):
    """One process, or the sum of several.

    resident_memory: KB of anonymous memory, RssAnon (/proc/PID/statm: resident - shared). Pages
    shared after a fork count in each process, shared memory in none.
    virtual_memory: KB of data and stack (/proc/PID/statm `data`).
    cmd: the command name (/proc/PID/stat `comm`), with ` <defunct>` for a zombie.
    pid, ppid: /proc/PID/stat; a rolled-up record has a synthetic pid above pid_max.
    in_container: in a container by its namespaces and its root directory.
    num_threads: number of threads except for the first.
    cpu_avg: percent of one core over the life of the process, without its children.
    cpu_util: percent of one core since the previous reading, without its children.
    cpu_time: seconds, including waited-for children (/proc/PID/stat utime, stime, cutime, cstime).
    data_read, data_written, data_cancelled: KB, rounded up (/proc/PID/io rchar, wchar, or
    read_bytes, write_bytes if so configured; cancelled_write_bytes).
    rolledup: number of further processes in the sum.
    gpus: the cards that the process uses.
    """

    resident_memory: int = 0
    virtual_memory: int = 0
    cmd: str = ""
    pid: int = 0
    ppid: int = 0
    in_container: bool = False
    num_threads: int = 0
    cpu_avg: float = NO_FLOAT
    cpu_util: float = NO_FLOAT
    cpu_time: int = 0
    data_read: int = 0
    data_written: int = 0
    data_cancelled: int = 0
    rolledup: int = 0
    gpus: list[SampleProcessGpu] = []


ROLL_UP: dict[str, Callable[[Iterable[float]], float]] = {
    "resident_memory": sum,
    "virtual_memory": sum,
    "num_threads": sum,
    "cpu_avg": sum,
    "cpu_util": sum,
    "cpu_time": sum,
    "data_read": sum,
    "data_written": sum,
    "data_cancelled": sum,
}
"""Fields of SampleProcess that are combined in a rolled-up record, with the operation."""


class SampleJobCgroup(Structure, frozen=True, kw_only=True):
    """The counters of a job's control group. Only with the extra `job-cgroups`.

    used_memory, peak_memory: charged memory, page cache included. rss_memory: the sum of
    anon_memory and shmem_memory; file_memory: page cache, shmem_memory
    included. pss_memory: sum over the processes, if configured.
    *_memory, memory_limit, data_*: KB; data_* of block devices. oom_kills: processes killed by the
    OOM killer. *_time, *_pressure: ms; pressure is the time during which a task of the job waited.
    """

    used_memory: int = 0
    peak_memory: int = 0
    rss_memory: int = 0
    anon_memory: int = 0
    shmem_memory: int = 0
    file_memory: int = 0
    pss_memory: int = 0
    memory_limit: int = 0
    oom_kills: int = 0
    cpu_time: int = 0
    throttled_time: int = 0
    data_read: int = 0
    data_written: int = 0
    cpu_pressure: int = 0
    memory_pressure: int = 0
    io_pressure: int = 0


class SampleJobEnergy(Structure, frozen=True, kw_only=True):
    """Energy of a job on this node so far. Only with the extra `job-energy`.

    active, idle: J. least, most: bounds of their sum. power: W in the last tick of the agent
    `energy`. coverage: percent of the job's time with valid readings. idle_known: 1 if the idle
    power of its domains was always known.
    """

    active: int = 0
    idle: int = 0
    least: int = 0
    most: int = 0
    idle_known: int = 0
    power: int = 0
    coverage: float = NO_FLOAT


class SampleJob(Structure, frozen=True, kw_only=True):
    """The processes of one job and user.

    job: Slurm's raw job id, else the process group.
    epoch: 0 for Slurm jobs, else boot time - SONAR_EPOCH; always written.
    user: name, `_user_<uid>` if it has none.
    """

    job: int
    user: str
    epoch: int
    processes: list[SampleProcess]
    cgroup: SampleJobCgroup | None = None
    energy: SampleJobEnergy | None = None


class SampleAttributes(Structure, frozen=True, kw_only=True):
    """The state of a node and its processes at one time."""

    time: str
    cluster: str
    node: str
    system: SampleSystem
    jobs: list[SampleJob] = []
    errors: list[ErrorObject] = []


class SampleData(Structure, frozen=True, kw_only=True):
    """The data of a sample."""

    type: str
    attributes: SampleAttributes


class SampleEnvelope(Envelope, frozen=True, kw_only=True):
    """A sample, with either `data` or `errors`."""

    kind: ClassVar[str] = "sample"

    data: SampleData | None = None
    errors: list[ErrorObject] = []


class SampleOfStreams(SampleEnvelope, frozen=True, kw_only=True):
    """A sample for receivers that compute CPU time from differences of `cpu_time`."""

    takes_differences: ClassVar[bool | None] = True


class SampleOfProcesses(SampleEnvelope, frozen=True, kw_only=True):
    """A sample for the other receivers, if both are among the sinks."""

    takes_differences: ClassVar[bool | None] = False


class SysinfoSoftwareVersion(Structure, frozen=True, kw_only=True):
    """One software package: unique key, version, display name."""

    key: str
    version: str
    name: str = ""


class SysinfoGpuCard(Structure, frozen=True, kw_only=True):
    """A card, or an instance of a partitioned card.

    index, uuid: as in SampleGpu. address: PCI address such as `00000000:0E:00.0`. manufacturer:
    "NVIDIA", "AMD". model, architecture, driver, firmware: as the vendor names them.
    memory: KB. power_limit, max_power_limit, min_power_limit: W.
    max_ce_clock, max_memory_clock: MHz.
    """

    index: int
    uuid: str
    address: str = ""
    manufacturer: str = ""
    model: str = ""
    architecture: str = ""
    driver: str = ""
    firmware: str = ""
    memory: int = 0
    power_limit: int = 0
    max_power_limit: int = 0
    min_power_limit: int = 0
    max_ce_clock: int = 0
    max_memory_clock: int = 0


class SysinfoAttributes(Structure, frozen=True, kw_only=True):
    """The hardware and software of a node.

    os_name, os_release, architecture: uname(2) sysname, release, machine.
    sockets, cores_per_socket, threads_per_core: of the online cpus, from
    /sys/devices/system/cpu/cpu*/topology, else /proc/cpuinfo; the maximum if sockets or cores
    differ.
    cpu_model: /proc/cpuinfo.
    memory: KB, MemTotal of /proc/meminfo.
    numa_nodes, distances: /sys/devices/system/node/node*/distance, in node order.
    topo_svg, topo_text: base64 of the output of the configured commands.
    cards: GPUs and their instances.
    """

    time: str
    cluster: str
    node: str
    os_name: str
    os_release: str
    architecture: str
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory: int
    cpu_model: str
    numa_nodes: int
    distances: list[list[int]] = []
    topo_svg: str = ""
    topo_text: str = ""
    cards: list[SysinfoGpuCard] = []
    software: list[SysinfoSoftwareVersion] = []


class SysinfoData(Structure, frozen=True, kw_only=True):
    """The data of a sysinfo envelope."""

    type: str
    attributes: SysinfoAttributes


class SysinfoEnvelope(Envelope, frozen=True, kw_only=True):
    """The description of a node, with either `data` or `errors`."""

    kind: ClassVar[str] = "sysinfo"

    data: SysinfoData | None = None
    errors: list[ErrorObject] = []


class SacctData(Structure, frozen=True, kw_only=True, rename="pascal"):
    """Accounting values of a job or step, with the names of sacct(1).

    AveCPU, MinCPU, SystemCPU, UserCPU, ElapsedRaw: seconds. AveRSS, AveVMSize, MaxRSS, MaxVMSize:
    KB. AveDiskRead, AveDiskWrite: also KB, as receivers expect (the specification says bytes).
    """

    min_cpu: int = msgspec.field(default=0, name="MinCPU")
    alloc_tres: str = msgspec.field(default="", name="AllocTRES")
    ave_cpu: int = msgspec.field(default=0, name="AveCPU")
    ave_disk_read: int = 0
    ave_disk_write: int = 0
    ave_rss: int = msgspec.field(default=0, name="AveRSS")
    ave_vm_size: int = msgspec.field(default=0, name="AveVMSize")
    elapsed_raw: int = 0
    system_cpu: int = msgspec.field(default=0, name="SystemCPU")
    user_cpu: int = msgspec.field(default=0, name="UserCPU")
    max_rss: int = msgspec.field(default=0, name="MaxRSS")
    max_vm_size: int = msgspec.field(default=0, name="MaxVMSize")


class SlurmJob(Structure, frozen=True, kw_only=True, gc=False):
    """A job or one of its steps in Slurm.

    job_id, job_step: JobIDRaw of sacct, before and after the dot.
    job_state: one word, without a suffix such as `by 5002`.
    array_job_id, array_task_id: n and m of a JobID `n_m`; unset for pending tasks that
    share a record, `n_[...]`. het_job_id, het_job_offset: of `n+m`.
    time_limit, priority: ExtendedUint, 0 unset, 1 infinite, n + 2 for n. time_limit is in seconds,
    as Sonar sends it and receivers expect it (the specification's text says minutes).
    nodes: host ranges. requested_memory_per_node: KB. suspend_time: seconds.
    exit_code: of the job; 0 if a signal ended it.
    requested_resources, allocated_resources: TRES (ReqTRES and AllocTRES of sacct).
    """

    job_id: int
    job_state: str
    job_step: str = ""
    job_name: str = ""
    array_job_id: int = 0
    array_task_id: int = 0
    het_job_id: int = 0
    het_job_offset: int = 0
    user_name: str = ""
    account: str = ""
    submit_time: str = ""
    time_limit: int = 0
    partition: str = ""
    reservation: str = ""
    nodes: list[str] = []
    priority: int = 0
    distribution: str = ""
    requested_resources: str = ""
    allocated_resources: str = ""
    gres_detail: list[str] = []
    requested_cpus: int = 0
    minimum_cpus_per_node: int = 0
    requested_memory_per_node: int = 0
    requested_node_count: int = 0
    start_time: str = ""
    suspend_time: int = 0
    end_time: str = ""
    exit_code: int = 0
    sacct: SacctData | None = None


class JobsAttributes(Structure, frozen=True, kw_only=True):
    """Jobs of a cluster: at most one record of each job and step."""

    time: str
    cluster: str
    slurm_jobs: list[SlurmJob]


class JobsData(Structure, frozen=True, kw_only=True):
    """The data of a jobs envelope."""

    type: str
    attributes: JobsAttributes


class JobsEnvelope(Envelope, frozen=True, kw_only=True):
    """Jobs, with either `data` or `errors`."""

    kind: ClassVar[str] = "job"

    data: JobsData | None = None
    errors: list[ErrorObject] = []


class ClusterPartition(Structure, frozen=True, kw_only=True):
    """A partition and the host ranges of its nodes."""

    name: str
    nodes: list[str]


class ClusterNodes(Structure, frozen=True, kw_only=True):
    """Nodes, as host ranges, that share their states (StateComplete of sinfo, in upper case)."""

    names: list[str]
    states: list[str]


class ClusterAttributes(Structure, frozen=True, kw_only=True):
    """The partitions and nodes of a cluster, as Slurm's master reports them."""

    time: str
    cluster: str
    slurm: bool
    partitions: list[ClusterPartition]
    nodes: list[ClusterNodes]


class ClusterData(Structure, frozen=True, kw_only=True):
    """The data of a cluster envelope."""

    type: str
    attributes: ClusterAttributes


class ClusterEnvelope(Envelope, frozen=True, kw_only=True):
    """A cluster, with either `data` or `errors`."""

    kind: ClassVar[str] = "cluster"

    data: ClusterData | None = None
    errors: list[ErrorObject] = []
