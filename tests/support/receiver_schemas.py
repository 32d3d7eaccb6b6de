"""What the decoders of receivers know: fields by path, from the receivers' own sources.

A field with `!` is required. `*`: other fields are ignored. Paths of attributes start with the type
of the data.
"""

from __future__ import annotations

from typing import Any, cast

Schema = dict[str, str]

_COMMON = {
    "": "meta! data errors",
    "errors": "time! detail! cluster! node!",
    "data": "type! attributes!",
}

# github.com/NordicHPC/sonar, util/formats/newfmt/types.go at 0.18.3, which sonalyze's insert
# decodes: a field without `omitempty` is required, another field is an error.
NEWFMT: Schema = _COMMON | {
    "meta": "producer! version! format attrs token",
    "meta.attrs": "key! value",
    "sample": "time! cluster! node! system! jobs errors",
    "sample.errors": "time! detail! cluster! node!",
    "sample.system": "boot! cpus gpus disks used_memory load1 load5 load15 runnable_entities "
    "existing_entities",
    "sample.system.gpus": "index! uuid! failing fan compute_mode performance_state memory ce_util "
    "memory_util temperature power power_limit ce_clock memory_clock",
    "sample.system.disks": "name! major! minor! stats!",
    "sample.jobs": "job! user! epoch! processes",
    "sample.jobs.processes": "resident_memory virtual_memory cmd pid ppid in_container num_threads "
    "cpu_avg cpu_util cpu_time data_read data_written data_cancelled rolledup gpus",
    "sample.jobs.processes.gpus": "index! uuid! gpu_util gpu_memory gpu_memory_util",
    "sysinfo": "time! cluster! node! os_name! os_release! architecture! numa_nodes! sockets! "
    "cores_per_socket! threads_per_core! cpu_model! memory! topo_svg topo_text cards distances",
    "sysinfo.cards": "index! uuid address manufacturer model architecture driver firmware memory "
    "power_limit max_power_limit min_power_limit max_ce_clock max_memory_clock",
    "job": "time! cluster! slurm_jobs",
    "job.slurm_jobs": "job_id! job_step job_name job_state! array_job_id array_task_id het_job_id "
    "het_job_offset user_name account submit_time! time_limit partition reservation nodes priority "
    "distribution requested_resources allocated_resources requested_cpus "
    "requested_memory_per_node requested_node_count start_time! suspend_time end_time! exit_code "
    "sacct",
    "job.slurm_jobs.sacct": "AllocTRES AveCPU AveDiskRead AveDiskWrite AveRSS AveVMSize ElapsedRaw "
    "MaxRSS MaxVMSize MinCPU SystemCPU UserCPU",
    "cluster": "time! cluster! slurm partitions nodes",
    "cluster.partitions": "name! nodes",
    "cluster.nodes": "names states",
}

# github.com/2maz/slurm-monitor, db/v2/importer.py and db_tables.py: keyword arguments of tables in
# strict mode (`__extra_values__ = 'forbid'`), and the keys that the importer reads.
SLURM_MONITOR: Schema = _COMMON | {
    "meta": "producer! version!",
    "sample": "time! cluster node! system jobs *",
    "sample.errors": "*",
    "sample.system": "boot cpus gpus disks used_memory load1 load5 load15 runnable_entities "
    "existing_entities",
    "sample.system.gpus": "index uuid! failing fan compute_mode performance_state memory ce_util "
    "memory_util temperature power power_limit ce_clock memory_clock",
    "sample.system.disks": "name major minor stats",
    "sample.jobs": "job! user! epoch processes! *",
    "sample.jobs.cgroup": "*",
    "sample.jobs.processes": "resident_memory virtual_memory cmd pid ppid num_threads cpu_avg "
    "cpu_util cpu_time data_read data_written data_cancelled rolledup in_container gpus",
    "sample.jobs.processes.gpus": "uuid! index gpu_util gpu_memory gpu_memory_util",
    "sysinfo": "time! cluster node! os_name os_release architecture! sockets cores_per_socket "
    "threads_per_core cpu_model memory topo_svg topo_text numa_nodes distances cards",
    "sysinfo.cards": "uuid! index manufacturer model architecture memory address driver firmware "
    "power_limit max_power_limit min_power_limit max_ce_clock max_memory_clock",
    "job": "time! cluster slurm_jobs!",
    "job.slurm_jobs": "job_id job_step job_name job_state array_job_id array_task_id het_job_id "
    "het_job_offset user_name account start_time suspend_time submit_time time_limit end_time "
    "exit_code partition reservation nodes priority distribution gres_detail requested_resources "
    "allocated_resources requested_cpus requested_memory_per_node requested_node_count "
    "minimum_cpus_per_node sacct",
    "job.slurm_jobs.sacct": "AllocTRES ElapsedRaw SystemCPU UserCPU AveVMSize MaxVMSize AveCPU "
    "MinCPU AveRSS MaxRSS AveDiskRead AveDiskWrite",
    "cluster": "time! cluster slurm! partitions! nodes! *",
    "cluster.partitions": "name! nodes! *",
    "cluster.nodes": "names! states! *",
}

SCHEMAS = {"jobanalyzer": NEWFMT, "slurm-monitor": SLURM_MONITOR}


def find_refused(envelope: dict[str, Any], schema: Schema) -> list[str]:
    """Return the fields of an envelope that a decoder does not know, and those that it misses."""
    kind = str(envelope["data"]["type"]) if "data" in envelope else ""
    return [*_refused(envelope, schema, "", kind)]


def _refused(value: object, schema: Schema, path: str, kind: str) -> list[str]:
    if isinstance(value, list):
        items = cast("list[object]", value)
        return [each for item in items for each in _refused(item, schema, path, kind)]
    if not isinstance(value, dict):
        return []
    fields = cast("dict[str, object]", value)
    known = schema[path].split()
    names = {name.rstrip("!") for name in known}
    found = [f"{path}: {name}" for name in fields if name not in names and "*" not in names]
    found += [f"{path}: no {name[:-1]}" for name in known if name.endswith("!")
              and name[:-1] not in fields]  # fmt: skip
    for name, held in fields.items():
        below = f"{path}.{name}" if path and path != "data" else name
        below = kind if path == "data" and name == "attributes" else below
        if below in schema:
            found += _refused(held, schema, below, kind)
        elif isinstance(held, dict) and name in names:
            found.append(f"{below}: not in the schema")
    return found
