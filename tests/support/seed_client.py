"""A client of the store, written from the specification alone: posts its arrays, reads them back.

python seed_client.py URL DATABASE
"""

import json
import sys
import urllib.request

import psycopg

ENTRY = {"target": "scratch-OST0001", "entry_id": "11317854:17627127:r01c01"}
RECORDS = [
    {**ENTRY, "timestamp": "2022-11-21T06:00:00.000+00:00", "snapshot_time": None,
     "read": 0, "write": 0},
    {**ENTRY, "timestamp": "2022-11-21T06:02:00.000+00:00", "snapshot_time": 1669010520,
     "read": 7754, "write": 4284},
]  # fmt: skip
READ = """
SELECT time_series_id::text, target, entry_id, job_id, user_id, nodename, executable,
    timestamp::text, extract(epoch FROM snapshot_time)::bigint, read::bigint, write::bigint
FROM ost JOIN metadata USING (time_series_id) ORDER BY timestamp
"""

headers = {"Content-Type": "application/json"}
url, database = sys.argv[1:]
for message in (RECORDS, RECORDS[1:]):
    request = urllib.request.Request(url, json.dumps(message).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200
with psycopg.connect(database, options="-c timezone=UTC") as connection:
    print(json.dumps(connection.execute(READ).fetchall()))
