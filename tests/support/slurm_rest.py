"""slurmrestd played back: recorded answers of Slurm 22.05, also in the forms of later versions.

The later forms are those of the OpenAPI documents of Slurm 23.02 to 26.05.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

RECORDED = ROOT / "tests/support/slurm_recorded"
VERSIONS = range(38, 46)

_Convert = Callable[[dict[str, Any], int], dict[str, Any]]

_NUMBERS = {
    "priority", "array_job_id", "array_task_id", "array_max_tasks", "het_job_id", "het_job_offset",
    "cpus", "node_count", "tasks", "time_limit", "time_minimum", "max_cpus", "max_nodes",
}  # fmt: skip
_TIMES = {"submit_time", "start_time", "end_time", "eligible_time", "suspend_time"}


def answers(minor: int = 38) -> dict[str, Any]:
    """Return the recorded answers by path, in the forms of v0.0.`minor`."""
    recorded = json.loads((RECORDED / "rest-v0.0.38.json").read_text())
    if minor == 38:
        return dict(recorded)
    converters: dict[str, tuple[_Convert | None, _Convert]] = {
        "jobs": (_accounted, _queued),
        "nodes": (None, _node),
        "partitions": (None, _part),
    }
    if minor >= 40:
        _restore_codes(recorded)
    found: dict[str, Any] = {}
    for path, answer in recorded.items():
        _, part, _, name = path.split("/")
        accounting, controller = converters[name]
        convert = controller if part == "slurm" else accounting
        assert convert is not None
        records: list[Any] = [convert(copy.deepcopy(record), minor) for record in answer[name]]
        found[f"/{part}/v0.0.{minor}/{name}"] = {name: records, "errors": [], "warnings": []}
    return found


def _restore_codes(recorded: dict[str, Any]) -> None:
    """Put in the exit codes that slurmrestd gives since v0.0.40 and lost before."""
    codes = {
        job["job_id"]: job["exit_code"] >> 8 for job in recorded["/slurm/v0.0.38/jobs"]["jobs"]
    }
    for job in recorded["/slurmdb/v0.0.38/jobs"]["jobs"]:
        job["exit_code"]["return_code"] = codes[job["job_id"]]
        for step in job["steps"]:
            if step["step"]["id"] == "batch" and step["state"] == "FAILED":
                step["exit_code"]["return_code"] = codes[job["job_id"]]
            if step["step"]["name"] == "second":
                step["exit_code"]["return_code"] = 7


def unset(value: Any) -> dict[str, Any]:
    """Return a number as an object, as from v0.0.39; null is not set."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


def _exit_code(value: dict[str, Any], minor: int) -> dict[str, Any]:
    if minor == 39:
        return {"return_code": -127, **value} if "signal" in value else value
    signal = value.get("signal", {})
    return {
        "status": [value["status"]],
        "return_code": unset(None if signal else value["return_code"]),
        "signal": {"id": unset(signal.get("signal_id")), "name": signal.get("name", "")},
    }


def _tres(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        one | {"name": one["name"] or "", "count": -2 if one["count"] is None else one["count"]}
        for one in found
    ]


def _words(value: str, minor: int) -> Any:
    return value if minor == 39 else [value]


def _accounted(job: dict[str, Any], minor: int) -> dict[str, Any]:
    for key in ("allocated", "requested"):
        job["tres"][key] = _tres(job["tres"][key])
    limit = job["time"]["limit"]
    # Null of v0.0.38 is no limit for a job that has started.
    is_unlimited = limit is None and bool(job["time"]["start"])
    job["time"]["limit"] = unset(limit) | ({"infinite": True} if is_unlimited else {})
    job["array"]["task_id"] = unset(job["array"]["task_id"])
    job["array"]["task"] = job["array"]["task"] or ""
    job["het"]["job_offset"] = unset(job["het"]["job_offset"])
    job["priority"] = unset(job["priority"])
    job["exit_code"] = _exit_code(job["exit_code"], minor)
    job["state"]["current"] = _words(job["state"]["current"], minor)
    job["reservation"]["name"] = "night|shift" if job["reservation"]["id"] else ""
    for step in job["steps"]:
        name = str(step["step"]["id"])
        step["step"]["id"] = (
            {"job_id": job["job_id"], "step_id": name} if minor == 39 else f"{job['job_id']}.{name}"
        )
        step["state"] = _words(step["state"], minor)
        step["exit_code"] = _exit_code(step["exit_code"], minor)
        if minor >= 40:
            for key in ("start", "end"):
                step["time"][key] = unset(step["time"][key])
        if minor >= 43:
            step["time"]["limit"] = {"set": False, "infinite": True, "number": 0}
        for use in ("requested", "consumed"):
            usage: dict[str, Any] = step["tres"][use]
            step["tres"][use] = {key: _tres(found) for key, found in usage.items()}
        step["tres"]["allocated"] = _tres(step["tres"]["allocated"])
    return job


def _queued(job: dict[str, Any], minor: int) -> dict[str, Any]:
    is_unlimited = job["time_limit"] is None
    for key in _NUMBERS:
        job[key] = unset(job[key])
    job["time_limit"]["infinite"] = is_unlimited
    if minor >= 40:
        for key in _TIMES:
            job[key] = unset(job[key])
        code = job["exit_code"]
        job["exit_code"] = {
            "status": ["ERROR" if code else "SUCCESS"],
            "return_code": unset(code >> 8),
            "signal": {"id": unset(code & 127 or None), "name": ""},
        }
    else:
        job["exit_code"] = unset(job["exit_code"])
    job["job_state"] = _words(job["job_state"], minor)
    job["shared"] = [job["shared"]] if job["shared"] else []
    if minor >= 45:
        del job["shared"]
    if minor >= 41 and (held := job.get("job_resources")):
        held["nodes"] = {"list": held["nodes"], "allocation": held.pop("allocated_nodes")}
        for node in held["nodes"]["allocation"]:
            node["name"] = node.pop("nodename")
            node["sockets"] = [
                {
                    "index": int(index),
                    "cores": [
                        {"index": int(core), "status": [status.upper()]}
                        for core, status in part["cores"].items()
                    ],
                }
                for index, part in node["sockets"].items()
            ]
    return job


def _node(node: dict[str, Any], minor: int) -> dict[str, Any]:
    del minor
    node["state"] = [node["state"].upper(), *node.pop("state_flags")]
    return node


def _part(partition: dict[str, Any], minor: int) -> dict[str, Any]:
    del minor
    partition["nodes"] = {"configured": partition["nodes"], "total": partition["total_nodes"]}
    return partition


class RestServer(ThreadingHTTPServer):
    """Answers GET by path, without the query; 404 as text for another path, as slurmrestd does.

    An answer is an object, or bytes. `status` has the status of paths that do not answer 200.
    """

    daemon_threads = True

    def __init__(self, found: Mapping[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = dict(found)
        self.answers.setdefault("/openapi/v3", {"paths": {path: {} for path in found}})
        self.status: dict[str, int] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, RestServer)
        server.requests.append((self.path, dict(self.headers.items())))
        path = urlsplit(self.path).path
        answer = server.answers.get(path)
        status = server.status.get(path, 200 if answer is not None else 404)
        if answer is None:
            answer = b"Unable find requested URL."
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base
        """Log nothing."""
