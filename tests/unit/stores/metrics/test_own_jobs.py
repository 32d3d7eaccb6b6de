"""Tokens of the role `user` read their own jobs, and nodes without the jobs of others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.stores.metrics.api import ROUTES, StoreApi
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.job_table import JobTable, StoredJob
from ccagent.stores.metrics.responses import StoreResponse
from ccagent.stores.metrics.tokens import TokenVerifier
from tests.unit.stores.metrics.support import NOW, line, new_ingest, new_store
from tests.unit.stores.metrics.test_tokens import PUBLIC, token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVE = token({"sub": "eve", "roles": ["user"]})
JOB = {"metric": "power", "host": "n1", "type": "job"}


class OpenedApi:
    """Asks the endpoints of a store with three jobs on a node, of which eve has 7."""

    def __init__(self, table: JobTable) -> None:
        store = new_store()
        body = line("load", 5)
        for job in (7, 8):
            body += line("power", job, tags=f",type=node,stype=job,stype-id={job}")
        ingest = new_ingest(store)
        assert ingest.write(body.encode(), "fox").stored == 3
        for number, user in (("7", "eve"), ("8", "bob"), ("9", "")):
            table.start(StoredJob("fox", number, user, "running", NOW - 600, None, ("n1",)))
        self._api = StoreApi(
            store, ingest, GroupCommit(None, "write"), jobs=table,
            verifier=TokenVerifier(PUBLIC, lambda: NOW, frozenset({"ada"})),
        )  # fmt: skip

    def ask(
        self, path: str, body: Any = None, given: bytes = EVE, *, is_known: bool = True
    ) -> tuple[int, Any]:
        route = ROUTES[path.partition("/?")[0].encode()]
        assert self._api.authorize(route, given) is None
        found: list[StoreResponse] = []
        text = b"" if body is None else json.dumps(body).encode()
        restricted = self._api.restrict(route, given) if is_known else route
        self._api.respond(restricted, path.encode(), text, False, found.append)
        (answer,) = found
        whole = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
        return answer.status, json.loads(whole)

    def query(self, *queries: dict[str, Any], given: bytes = EVE, **more: Any) -> tuple[int, Any]:
        body = {"cluster": "fox", "from": NOW - 60, "to": NOW + 60, "queries": queries, **more}
        return self.ask("/api/query/?", body, given)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenedApi]:
    table = JobTable(str(tmp_path / "jobs.sqlite"))
    yield OpenedApi(table)
    table.close()


def values(answer: tuple[int, Any]) -> list[float]:
    status, found = answer
    assert status == 200
    return [one["max"] for results in found["results"] for one in results]


def test_a_user_reads_own_jobs_and_nodes(opened: OpenedApi) -> None:
    assert values(opened.query(JOB | {"type-ids": ["7"]}, {"metric": "load", "host": "n1"})) == [
        7, 5,
    ]  # fmt: skip
    status, jobs = opened.ask("/api/job/?job=7")
    assert (status, [one["user"] for one in jobs]) == (200, ["eve"])
    assert opened.query({"metric": "load"}, job="7")[0] == 200


@pytest.mark.parametrize(
    ("query", "more"),
    [
        (JOB | {"type-ids": ["8"]}, {}),
        (JOB | {"type-ids": ["7", "8"], "aggreg": True}, {}),
        (JOB | {"type-ids": ["9"]}, {}),
        (JOB | {"type": "jo", "type-ids": ["b8"]}, {}),
        (JOB | {"type": "", "type-ids": ["job8"]}, {}),
        (JOB | {"type": "socket", "type-ids": ["0"], "subtype": "job", "subtype-ids": ["8"]}, {}),
        ({"metric": "power", "host": "n1"}, {}),
        ({"metric": "job_mem_rss", "host": "n2"}, {}),
        ({"metric": "load"}, {"job": "8"}),
        ({"metric": "load", "host": "n1"}, {"for-all-nodes": ["load"]}),
        ({"metric": "load"}, {"job": "7", "for-all-nodes": ["power"]}),
    ],
)  # fmt: skip
def test_a_user_reads_no_job_of_others(
    opened: OpenedApi, query: dict[str, Any], more: dict[str, Any]
) -> None:
    assert opened.query(query, **more)[0] == 403
    everything = opened.query(query, given=token({"roles": ["read"]}), **more)
    assert everything[0] == 200


def test_others_jobs_are_not_listed(opened: OpenedApi) -> None:
    for number in "89":
        assert opened.ask(f"/api/job/?job={number}") == (200, [])
    nobody = token({"roles": ["user"]})
    assert opened.ask("/api/job/?job=9", given=nobody) == (200, [])


def test_a_request_whose_token_was_forgotten_reads_no_job(opened: OpenedApi) -> None:
    assert opened.ask("/api/job/?job=7", is_known=False) == (200, [])


def test_tables_are_not_for_users(opened: OpenedApi) -> None:
    body = {"cluster": "fox", "from": NOW - 60, "to": NOW, "metrics": ["power"]}
    assert opened.ask("/api/query/?version=2", body)[0] == 403


@pytest.mark.parametrize(
    "claims",
    [{"sub": "eve"}, {"sub": "ada", "roles": ["user"]}, {"sub": "eve", "roles": ["user", "api"]},
     {"sub": "eve", "roles": "ROLE_SUPPORT"}],
)  # fmt: skip
def test_staff_and_programs_read_the_jobs_of_all(opened: OpenedApi, claims: dict[str, Any]) -> None:
    assert values(opened.query(JOB | {"type-ids": ["8"]}, given=token(claims))) == [8]


def test_a_number_that_others_had_too_is_nobodys(tmp_path: Path) -> None:
    table = JobTable(str(tmp_path / "jobs.sqlite"))
    opened = OpenedApi(table)
    table.start(StoredJob("fox", "7", "bob", "completed", NOW - 9000, NOW - 8000, ("n1",)))
    assert opened.query(JOB | {"type-ids": ["7"]})[0] == 403
    table.close()
