"""Cost of the jobstats store: CPU and memory of storing, duration of queries.

    python benchmarks/jobstats_store.py [--observations 4]
    python benchmarks/jobstats_store.py --queries [--rows 10000000] [--days 1]
    python benchmarks/jobstats_store.py --queries --timescale
    python benchmarks/jobstats_store.py --partitions [--timescale] [--captures DIRECTORY]
    python benchmarks/jobstats_store.py --compression [--jobs 300]

Needs Debian's PostgreSQL. Storing: 8 servers with 10,000 entries each, in arrays of 1,000 over
HTTP. The CPU of the store's process and of PostgreSQL are separate figures. A plain loop that
parses the same arrays with json is measured for comparison of machines. Only the first observation
writes the metadata of the series.

Partitions: the cost of records of new and of known series, in store and database, with 3 and with
91 partitions, beside a binary COPY of the same rows into a table without and with the indexes: COPY
and observations alternate, and the medians are compared. The sums of quarters of an hour are
computed apart, after 6 observations of each series; with one each 2 minutes a quarter has 7.
`--captures tests/data/lustre/captures` multiplies the records that the agent makes of recorded
text.

Queries: SQL fills a table with rows of some days, 720 observations of each series. Then queries are
sent to the running store over HTTP. The median of many is printed.

Compression: the size of a day's chunks of TimescaleDB before and after compression. The day is one
of jobs that run for minutes to hours, read first, then write checkpoints with pauses between, and
are read each minute until ten minutes after their last operation: 500 rows a job.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.jobstats_day import day_of_jobs
from ccagent.stores.jobstats.schema import FIELDS, OST, TimePartitions, migrate
from ccagent.stores.jobstats.settings import SeriesTableSettings
from ccagent.stores.jobstats.sums import QUARTER, sum_up
from tests.support.jobstats_store import RunningJobstatsStore, StoreAnswer
from tests.support.metric_store import RunningStore
from tests.support.page_server import open_browser, watch
from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SERVERS, ENTRIES, ARRAY = 8, 10_000, 1000
EVERY = 120
OBSERVATIONS = 720
QUESTIONS = 25
_KNOWN = 5
"""Observations of known series, of which medians are printed."""

_FILL_METADATA = """
INSERT INTO metadata (
    time_series_id, target, entry_id, kind, job_id, job, user_id, nodename, malformed
)
SELECT md5('series' || n)::uuid, 'scratch-OST' || lpad(to_hex(n %% 24), 4, '0'),
    (n / 5) || ':' || (n %% 500) || ':c' || n %% 5, 'ost', n / 5, (n / 5)::text, n %% 500,
    'c' || n %% 5, false
FROM generate_series(0, %s - 1) AS n
"""
_FILL = """
INSERT INTO ost (
    time_series_id, timestamp, since, server, snapshot_time, start_time,
    read_bytes, write_bytes, read, write, read_bytes_delta, write_bytes_delta, read_delta,
    write_delta
)
SELECT md5('series' || n)::uuid, %(t)s, %(t)s - INTERVAL '2 minutes', 'oss' || n %% 8, %(t)s, %(t)s,
    (k * 4194304.0)::bigint, (k * 1048576.0)::bigint, k * 4, k, 4194304 + n, 1048576 + n, 4, 1
FROM generate_series(0, %(series)s - 1) AS n, (SELECT %(k)s AS k) AS step
"""


def read_captures(directory: str) -> list[dict[str, Any]]:
    """Return the OSTs' records that the agent makes of recorded text."""
    command = (sys.executable, "-m", "ccagent", "lustre", "--once", "--no-config", "--input")
    return [
        record
        for path in sorted(Path(directory).glob("*.txt"))
        for record in json.loads(subprocess.check_output([*command, str(path)]) or b"[]")
        if "OST" in record["target"]
    ]


def make_counters(
    server: int, number: int, chance: random.Random, captured: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return an entry's counters and names. captured: records to multiply; else made up."""
    if captured:
        one = captured[number % len(captured)]
        target = f"copy{number // len(captured)}-{server}-{one['target']}"
        return one | {"target": target}
    return {
        **{name: chance.randrange(5000) if chance.random() < 0.4 else 0 for name in OST},
        "read_bytes": 2**30 + number,
        "target": f"scratch-OST{number % 3 + server * 3:04x}",
        "entry_id": f"{11_000_000 + number}:{number % 997}:r{number % 96:02}",
        "job_id": 11_000_000 + number,
        "user_id": number % 997,
        "nodename": f"r{number % 96:02}",
        "start_time": 1_669_000_520.125,
    }


def bodies(observation: int, captured: Sequence[dict[str, Any]] = ()) -> Iterator[bytes]:
    """Yield the arrays of all servers for one observation, in the current quarter of an hour."""
    # The same rates in each observation: with an equal start time no counter may fall.
    chance = random.Random(7)  # noqa: S311 - no secret
    moment = datetime.now(UTC)
    for server in range(SERVERS):
        for begin in range(0, ENTRIES, ARRAY):
            records: list[dict[str, Any]] = []
            for number in range(begin, begin + ARRAY):
                values = make_counters(server, number, chance, captured)
                for name in values.keys() - FIELDS:
                    values[name] *= observation
                records.append(values | {
                    "server": f"oss{server}",
                    "timestamp": moment.isoformat(timespec="milliseconds"),
                    "snapshot_time": moment.timestamp() - 5.5,
                })  # fmt: skip
            yield json.dumps(records).encode()


def expect(answer: StoreAnswer) -> None:
    """Exit unless the response is a success."""
    if answer.status != 200:
        sys.exit(f"{answer.status}: {answer.body!r}")


def cpu_of(server: PostgresServer) -> float:
    """Return the CPU seconds of PostgreSQL and its children, including ended ones."""
    process = psutil.Process(server.pid)
    spent = 0.0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            spent += times.user + times.system
    ended = process.cpu_times()
    return spent + ended.children_user + ended.children_system


def measure_storing(observations: int) -> None:
    """Print the cost of storing."""
    with PostgresServer() as server, tempfile.TemporaryDirectory() as directory:
        url = server.make_database()
        with RunningJobstatsStore(Path(directory), "--database", url) as store:
            print("observation  records/CPU-s  of json.loads  PostgreSQL  wall records/s  RSS MB")
            share = both = 0.0
            for observation in range(1, observations + 1):
                arrays = list(bodies(observation))
                begin = time.process_time()
                for body in arrays:
                    json.loads(body)
                plain = time.process_time() - begin
                own, database, wall = store.cpu_seconds(), cpu_of(server), time.perf_counter()
                for body in arrays:
                    expect(store.ask("POST", "/lustre", body))
                own, database = store.cpu_seconds() - own, cpu_of(server) - database
                wall = time.perf_counter() - wall
                records = SERVERS * ENTRIES
                print(
                    f"{observation:11} {records / own:14,.0f} {own / plain:13.1f}x "
                    f"{records / database:10,.0f} {records / wall:15,.0f} "
                    f"{store.resident() / 1e6:7.0f}",
                    flush=True,
                )
                share = 100 * own / EVERY
                both = 100 * (own + database) / EVERY
            print(f"of a core, each {EVERY} s: {share:.1f} %; with PostgreSQL {both:.1f} %")


def measure_partitions(*, is_timescale: bool, captured: Sequence[dict[str, Any]]) -> None:
    """Print the cost of storing beside COPY, with few and with many partitions.

    A COPY before and one after each observation of known series, so that they share its conditions.
    """
    few = 0.0
    print("partitions  observation  store us  database us  COPY us")
    records = SERVERS * ENTRIES
    for partitions in (3, 91):
        with (
            PostgresServer(has_timescale=is_timescale) as server,
            tempfile.TemporaryDirectory() as directory,
        ):
            url, times = make_partitions(server, partitions, is_timescale=is_timescale)
            known: list[tuple[float, ...]] = []
            with RunningJobstatsStore(Path(directory), "--database", url) as store:
                for observation in range(1, _KNOWN + 2):
                    arrays = list(bodies(observation, captured))
                    first = copy_rows(url, server) if observation > 1 else 0.0
                    own, database = store.cpu_seconds(), cpu_of(server)
                    for body in arrays:
                        expect(store.ask("POST", "/lustre", body))
                    own, database = store.cpu_seconds() - own, cpu_of(server) - database
                    own, database = own / records * 1e6, database / records * 1e6
                    copied = copy_rows(url, server)
                    print(
                        f"{partitions:10} {observation:12} {own:9.1f} {database:12.1f} "
                        f"{first:8.1f} {copied:.1f}",
                        flush=True,
                    )
                    if observation > 1:
                        indexed = copy_rows(url, server, "INCLUDING INDEXES")
                        known.append((own, database, first, copied, indexed))
                sums = cpu_of(server)
                sum_all(url, times, datetime.now(UTC) + 2 * QUARTER)
                sums = (cpu_of(server) - sums) / ((_KNOWN + 1) * records) * 1e6
            own, database, _, _, indexed = map(statistics.median, zip(*known, strict=True))
            copied = statistics.median(each for one in known for each in one[2:4])
            whole = own + database
            few = few or database
            print(
                f"{partitions} partitions, medians of known series: store {own:.1f} us, database "
                f"{database:.1f} ({database / few:.2f} times that with 3), COPY {copied:.1f}, with "
                f"indexes {indexed:.1f}, sums {sums:.1f}\n"
                f"store and database / COPY: {whole / copied:.1f}, of each observation "
                f"{', '.join(f'{2 * (a + b) / (c + d):.1f}' for a, b, c, d, _ in known)}; / COPY "
                f"with indexes {whole / indexed:.1f}; with sums / COPY "
                f"{(whole + sums) / copied:.1f}",
                flush=True,
            )


def make_partitions(
    server: PostgresServer, number: int, *, is_timescale: bool
) -> tuple[str, TimePartitions | None]:
    """Make a database with a number of partitions, and all their sums. Return its URL, and them."""
    url = server.make_database("template0")
    with psycopg.connect(url, autocommit=True) as connection:
        if is_timescale:
            connection.execute("CREATE EXTENSION timescaledb")
        migrate(connection, SeriesTableSettings())
        now = datetime.now(UTC).replace(microsecond=0)
        days = [now - timedelta(days=each) for each in range(number)]
        partitions = None if is_timescale else TimePartitions(86400)
        if partitions is not None:
            partitions.ensure(connection, days)
        for day in days:
            connection.execute(_FILL, {"t": day, "series": 1000, "k": 1})
    sum_all(url, partitions, now)
    return url, partitions


def sum_all(url: str, partitions: TimePartitions | None, now: datetime) -> int:
    """Compute all sums that are missing at a time. Return their number."""
    found = 0
    with psycopg.connect(url, autocommit=True) as connection:
        while done := sum_up(connection, partitions, now, timedelta(days=90)):
            found += done
    return found


def copy_rows(url: str, server: PostgresServer, like: str = "") -> float:
    """Return the database's CPU in us of a binary COPY of a row of the last observation.

    like: what else the table has of the observations' one.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE UNLOGGED TABLE copied (LIKE ost {like})".encode())
        connection.execute("ALTER TABLE copied SET LOGGED")
        with connection.cursor().copy(
            "COPY (SELECT * FROM ost ORDER BY timestamp DESC LIMIT 80000) TO STDOUT (FORMAT BINARY)"
        ) as copy:
            rows = b"".join(bytes(each) for each in copy)
        before = cpu_of(server)
        with connection.cursor().copy("COPY copied FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(rows)
        spent = cpu_of(server) - before
        connection.execute("DROP TABLE copied")
    return spent / 80_000 * 1e6


def measure_compression(jobs: int) -> None:
    """Print the size of a day's chunks, plain and compressed."""
    with (
        PostgresServer(has_timescale=True) as server,
        tempfile.TemporaryDirectory() as directory,
    ):
        url = server.make_database("template0")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION timescaledb")
            with RunningJobstatsStore(Path(directory), "--database", url) as store:
                for records in day_of_jobs(jobs):
                    for begin in range(0, len(records), 5000):
                        expect(store.post(records[begin : begin + 5000]))
            for table in ("ost", "mdt"):
                query = "SELECT count(*) FROM {}"
                print(table, "rows:", connection.execute(query.format(table).encode()).fetchone())
                compress(connection, table)


def compress(connection: psycopg.Connection[Any], table: str) -> None:
    """Compress all chunks of a table, and print their size."""
    connection.execute("SELECT compress_chunk(c, true) FROM show_chunks(%s::regclass) c", [table])
    query = "SELECT * FROM hypertable_compression_stats(%s::regclass)"
    print_sizes(table, connection.execute(query, [table]))


def fill(url: str, rows: int, days: int, now: datetime) -> None:
    """Fill a table with rows of some days."""
    series = rows // OBSERVATIONS
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_FILL_METADATA, [series])
        for k in range(1, OBSERVATIONS + 1):
            moment = now - timedelta(seconds=EVERY * days * (OBSERVATIONS - k))
            connection.execute(_FILL, {"t": moment, "series": series, "k": k})
        connection.execute("VACUUM ANALYZE")


def measure_queries(rows: int, days: int, *, is_timescale: bool) -> None:
    """Print the duration of queries."""
    with (
        PostgresServer(has_timescale=is_timescale) as server,
        tempfile.TemporaryDirectory() as directory,
    ):
        url = server.make_database("template0")
        if is_timescale:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("CREATE EXTENSION timescaledb")
        with psycopg.connect(url, autocommit=True) as connection:
            migrate(connection, SeriesTableSettings())
            partitions = None if is_timescale else TimePartitions(86400)
            now = datetime.now(UTC).replace(microsecond=0)
            if partitions is not None:
                partitions.ensure(
                    connection, [now - timedelta(days=day) for day in range(days + 1)]
                )
            begin = time.perf_counter()
            fill(url, rows, days, now)
            print(f"filled with {rows:,} rows in {time.perf_counter() - begin:.0f} s", flush=True)
            begin = time.perf_counter()
            # A store that has run all these days has computed the sums of each.
            moments = (now - timedelta(days=back) for back in range(days, -1, -1))
            number = sum(sum_all(url, partitions, moment) for moment in moments)
            took = time.perf_counter() - begin
            print(f"summed {number} quarters, hours and days in {took:.0f} s", flush=True)
        with RunningJobstatsStore(Path(directory), "--database", url) as store:
            ask_questions(store, server, rows, days, now)
            open_live(store, f"{now:%Y-%m-%dT%H:%M:%S}")
            if is_timescale:
                with psycopg.connect(url, autocommit=True) as connection:
                    for table in ("ost", "ost_sums"):
                        compress(connection, table)
                ask_questions(store, server, rows, days, now)


def print_sizes(table: str, sizes: psycopg.Cursor[tuple[Any, ...]]) -> None:
    """Print the size of a table's compressed chunks."""
    found = sizes.fetchone()
    names = [column.name for column in sizes.description or ()]
    size = dict(zip(names, found or (), strict=True))
    before, after = size["before_compression_total_bytes"], size["after_compression_total_bytes"]
    print(f"{table} compressed: {after / 1e6:.0f} of {before / 1e6:.0f} MB, {after / before:.3f}")


def ask_questions(
    store: RunningJobstatsStore, server: PostgresServer, rows: int, days: int, latest: datetime
) -> None:
    """Print the median duration of each query, and its CPU in store and PostgreSQL.

    latest: of the observations.
    """
    jobs = rows // OBSERVATIONS // 5
    for name, path in (
        ("nothing", "/status"),
        ("last hour of one job", "/job/{}?last=1h"),
        ("last hour of one job, in steps", "/job/{}?last=1h&step=5m"),
        ("top of an hour, by job", "/top?last=1h"),
        ("top of an hour, by user, sorted by open", "/top?last=1h&by=user&sort=open"),
        ("top of an hour, one user's jobs", "/top?last=1h&user=17"),
        ("live", f"/live?at={latest:%Y-%m-%dT%H:%M:%S}"),
        ("top of all days, by job", f"/top?last={days}d"),
    ):
        times: list[float] = []
        questions = 5 if "day" in name else QUESTIONS
        spent = cpu_of(server) + store.cpu_seconds()
        for n in range(questions):
            begin = time.perf_counter()
            answer = store.ask("GET", path.format(n * 37 % jobs))
            times.append(time.perf_counter() - begin)
            expect(answer)
        median = statistics.median(times)
        spent = (cpu_of(server) + store.cpu_seconds() - spent) / questions
        print(
            f"{name:42} {median * 1000:9.1f} ms, worst {max(times) * 1000:.1f}, "
            f"CPU {spent * 1000:.0f}",
            flush=True,
        )


def open_live(store: RunningJobstatsStore, at: str) -> None:
    """Print how long the command and the page take from start to answer.

    at: a time with observations.
    """
    command = (sys.executable, "-m", "ccagent", "jobstats", "live", "--once", "--at", at)
    begin = time.perf_counter()
    subprocess.run([*command, "--url", store.url], check=True, stdout=subprocess.DEVNULL)
    print(f"ccagent jobstats live --once: {time.perf_counter() - begin:.2f} s")
    with tempfile.TemporaryDirectory() as directory:
        (configuration := Path(directory, "web.toml")).write_text(
            f'[web]\njobstats = "{store.url}"\n'
        )
        options = ("--config", str(configuration), "--web", "127.0.0.1:0")
        with (
            RunningStore(Path(directory, "metrics"), *options) as metrics,
            open_browser() as browser,
        ):
            found = re.search(r"pages at (http://\S+)/\n", metrics.log.read_text())
            with watch(browser, found[1] if found else "") as window:
                begin = time.perf_counter()
                page = window.open(f"/lustre?at={at}Z")
                page.get_by_role("region", name="Jobs on Lustre").wait_for()
                print(f"page of Lustre, in a browser: {time.perf_counter() - begin:.2f} s")
            metrics.stop()


def main() -> None:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--observations", type=int, default=4)
    parser.add_argument("--queries", action="store_true")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--days", type=int, default=1)
    parser.add_argument("--timescale", action="store_true")
    parser.add_argument("--partitions", action="store_true")
    parser.add_argument("--captures", metavar="DIRECTORY", help="recorded text to multiply")
    parser.add_argument("--compression", action="store_true")
    parser.add_argument("--jobs", type=int, default=300)
    options = parser.parse_args()
    if options.compression:
        measure_compression(options.jobs)
    elif options.partitions:
        captured = read_captures(options.captures) if options.captures else []
        measure_partitions(is_timescale=options.timescale, captured=captured)
    elif options.queries:
        measure_queries(options.rows, options.days, is_timescale=options.timescale)
    else:
        measure_storing(options.observations)


if __name__ == "__main__":
    main()
