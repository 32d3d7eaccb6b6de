"""What the tests of jobstats stand on: the plain parser and the simulated server."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lustre_reference import ReferenceEntry, ReferenceStat, canonical, parse
from tests.support.lustre_server import (
    ID_BYTES,
    LAYOUTS,
    NANOSECONDS,
    Counter,
    Kind,
    LiveEntry,
    SimulatedTarget,
    Total,
    large_text,
)
from tests.support.paths import DATA

LUSTRE = DATA / "lustre"
LAYOUT_FILES = sorted(LUSTRE.glob("layouts/*.txt"))
FILES = [*sorted(LUSTRE.glob("captures/*.txt")), *LAYOUT_FILES]

NOW = 1_700_000_000.5


def parsed(name: str) -> list[ReferenceEntry]:
    return parse((LUSTRE / name).read_bytes())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_entry_and_no_operation_of_the_files_is_missed(path: Path) -> None:
    text = path.read_bytes()
    entries = parse(text)
    assert len(entries) == text.count(b"job_id") > 0
    assert sum(len(entry.stats) for entry in entries) == text.count(b"{ samples:")
    assert all(entry.snapshot_time for entry in entries)


def test_a_capture_with_histograms() -> None:
    entries = parsed("captures/jobstats_2.14.0_ddn162.txt")
    assert {entry.target for entry in entries} == {"es01a-OST0001"}
    first = entries[0]
    assert first.job_id == "SLURM_JOB10:0:es18kxe-co-client"
    assert first.snapshot_time == "1723114647.887515895"
    assert first.start_time == "1723102025.057286226"
    assert first.elapsed_time == "12622.830229669"
    assert first.stats["write_bytes"] == ReferenceStat(
        samples=861,
        unit="bytes",
        min=24576,
        max=16777216,
        sum=11025514496,
        sumsq=166242808078794752,
        hist="32K: 1, 64K: 1, 128K: 4, 256K: 11, 512K: 8, 1M: 13, 2M: 21, 4M: 38, 8M: 98, 16M: 666",
    )
    assert first.stats["read_bytes"] == ReferenceStat(0, "bytes", 0, 0, 0, 0, "")
    assert first.stats["read"] == ReferenceStat(0, "usecs", 0, 0, 0, 0, None)


def test_two_targets_have_the_same_job_ids() -> None:
    entries = parsed("captures/jobstats_2.14.0_ddn164.txt")
    assert [(entry.target, entry.job_id) for entry in entries[4:8]] == [
        ("es01a-MDT0000", "df:0:es-2-virt3-cosp"),
        ("es02a-MDT0000", "node_exporter:989:es-2-virt3-co"),
        ("es02a-MDT0000", "df:0:es-2-virt3-cosp"),
        ("es02a-MDT0000", "vi:0:es-2-virt3-cosp"),
    ]


def test_other_parameters_are_around_it() -> None:
    entries = parsed("captures/ex8761-lctl_with_jobstats.txt")
    assert [(entry.target, entry.job_id, entry.snapshot_time) for entry in entries] == [
        ("fs-MDT0000", "mount.lustre@0@co-es-pm-149.co-", "1701771260"),
        ("fs-MDT0000", "df@0@co-es-pm-149.co-es.datadir", "1701771302"),
    ]
    assert [list(entry.stats)[-1] for entry in entries] == ["migrate", "migrate"]


def test_without_names_targets_are_numbered() -> None:
    entry = b"- job_id:          a\n  snapshot_time:   1\n"
    twice = parse(b"job_stats:\n" + entry + b"job_stats:\njob_stats:\n" + entry)
    assert [one.target for one in twice] == ["unnamed-1", "unnamed-3"]
    assert [one.target for one in parse(entry)] == ["unnamed-1"]


def test_what_cannot_be_read_costs_itself() -> None:
    (first, second) = parse(
        b"- job_id:          a\n  open:            { samples: x, unit:  reqs }\n"
        b"  close:           { samples:           2, unit:\n- job_id:          b\n"
        b"  snapshot_time:   today\n\xff\n  mknod:           { samples: 4, unit:  reqs }\n"
    )
    assert (first.job_id, first.stats) == ("a", {})
    assert (second.snapshot_time, second.stats) == ("", {"mknod": ReferenceStat(4, "reqs")})


IDS_OF_LAYOUTS = [
    "11317854:17627127:r01c01", ":17627127:r01c02", "11317854:", "wget.11317854", "wget",
    "kworker/0:1.0", "Web Content.1000", "@foo.0", "11317854:17627127:r01c01.bullx", "123:45",
    "0123", "no",
]  # fmt: skip


@pytest.mark.parametrize("path", LAYOUT_FILES, ids=lambda path: path.stem)
def test_every_version_has_the_same_job_ids(path: Path) -> None:
    entries = parse(path.read_bytes())
    assert [entry.job_id for entry in entries] == IDS_OF_LAYOUTS[: len(entries)]


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (b"          a", "a"),
        (b"           a ", " a "),
        (b" a", "a"),
        (b"          ", ""),
        (b'          "a\\x3Ab\\x3a"', "a:b:"),
        (b'          "a\\x5Cx3A"', "a\\\\x3A"),
        (b"          a\\x3A", "a\\\\x3A"),
        (b'          "', '"'),
        (b'          "a', '"a'),
        (b"          gr\xc3\xbcn\xc2\xad", "gr\u00fcn\\xc2\\xad"),
        (b'          "\\xFF\\xC3\\x28\\x09"', "\\xff\\xc3(\\x09"),
        (b"          a\r", "a\\x0d"),
    ],
)
def test_job_ids_are_canonical(printed: bytes, expected: str) -> None:
    (entry,) = parse(b"- job_id:" + printed + b"\n")
    assert entry.job_id == expected


@given(st.lists(st.binary(max_size=8), min_size=2, max_size=2, unique=True))
def test_no_two_job_ids_become_one(raw: list[bytes]) -> None:
    first, second = map(canonical, raw)
    assert first != second
    assert (first + second).isprintable()


def restored(entries: list[ReferenceEntry], name: str, kind: Kind) -> SimulatedTarget:
    """A target that holds what was printed."""
    target = SimulatedTarget(name, kind)
    for entry in entries:
        snapshot = nanoseconds(entry.snapshot_time)
        live = LiveEntry(nanoseconds(entry.start_time), snapshot)
        for operation, stat in entry.stats.items():
            hist = [pair.split(": ") for pair in (stat.hist or "").split(", ") if pair]
            counted = operation
            if stat.unit == "bytes" and not operation.endswith("_bytes"):
                counted = f"{operation}_bytes"
            live.counters[counted] = Counter(
                stat.samples,
                stat.min or 0,
                stat.max or 0,
                stat.sum or 0,
                stat.sumsq or 0,
                {bucket(size): int(count) for size, count in hist},
            )
        target.entries[entry.job_id] = live
    return target


def nanoseconds(text: str) -> int:
    seconds, _, fraction = text.partition(".")
    return int(seconds or 0) * NANOSECONDS + int(fraction.ljust(9, "0"))


def bucket(size: str) -> int:
    number, thousands = size.rstrip("KMG"), "KMG".find(size[-1]) + 1
    return int(number).bit_length() - 1 + 10 * thousands


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("2.5", "ost_v2_5_0"),
        ("2.8", "ost_v2_8_0_to_2_13"),
        ("2.12", "mdt_v2_12_0"),
        ("2.14", "ost_v2_14_0"),
        ("2.15.0", "ost_v2_15_0_to_2_15_1"),
        ("2.15.2", "ost_v2_15_2_to_2_15_8"),
        ("2.16", "ost_v2_16_0"),
        ("2.17", "mdt_v2_17_0_with_empty_target"),
    ],
)
def test_the_server_prints_what_the_versions_do(layout: str, name: str) -> None:
    text = (LUSTRE / "layouts" / f"{name}.txt").read_bytes()
    kind: Kind = "mdt" if name.startswith("mdt") else "obdfilter"
    entries = parse(text)
    target = restored(entries, entries[0].target, kind)
    printed = target.parameter(layout, now=2e9)
    if not entries[0].target.endswith("0000"):
        empty = SimulatedTarget(
            "scratch-OST0000" if kind == "obdfilter" else "scratch-MDT0000", kind
        )
        printed = empty.parameter(layout, now=2e9) + printed
    assert printed == text


@pytest.mark.parametrize("name", ["embedded_mds_649431_0", "embedded_oss_7eb556_1"])
def test_the_server_prints_what_was_recorded(name: str) -> None:
    text = (LUSTRE / "captures" / f"{name}.txt").read_bytes()
    kind: Kind = "mdt" if "mds" in name else "obdfilter"
    target = restored(parse(text), "x", kind)
    assert target.text("2.14" if kind == "mdt" else "2.16", now=2e9) == text


@given(
    layout=st.sampled_from(["2.15.2", "2.16", "2.17"]),
    entry_id=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
    .filter(lambda text: len(text.encode()) <= ID_BYTES),
)  # fmt: skip
def test_quoted_job_ids_come_back(layout: str, entry_id: str) -> None:
    target = SimulatedTarget("x", "mdt")
    target.do(entry_id, "open", 1, now=NOW)
    (entry,) = parse(target.text(layout, NOW))
    assert entry.job_id == canonical(entry_id.encode())


def test_before_2_15_2_unprintable_bytes_are_lost() -> None:
    target = SimulatedTarget("x", "mdt")
    target.do("a\tb", "open", 1, now=NOW)
    assert b"- job_id:          a?b\n" in target.text("2.14", NOW)
    assert b"- job_id:          a\tb\n" in target.text("2.5", NOW)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_counters_grow(layout: str) -> None:
    target = SimulatedTarget("scratch-OST0000", "obdfilter", boot_time=NOW - 100)
    target.do("1:2:a", "write_bytes", 2, 4096, now=NOW)
    target.do("1:2:a", "write_bytes", 1, 100, now=NOW + 10)
    (entry,) = parse(target.parameter(layout, NOW + 20))
    stat = entry.stats["write" if layout == "2.5" else "write_bytes"]
    assert (stat.samples, stat.min, stat.max, stat.sum) == (3, 100, 4096, 8292)
    assert stat.sumsq == (2 * 4096**2 + 100**2 if LAYOUTS[layout].latencies else None)
    assert stat.hist == ("128: 1, 4K: 2" if LAYOUTS[layout].hist else None)
    assert (entry.snapshot_time, entry.start_time, entry.elapsed_time) == {
        "whole": ("1700000010", "", ""),
        "boot": ("110.000000000", "100.000000000", "10.000000000"),
        "nanoseconds": ("1700000010.500000000", "1700000000.500000000", "10.000000000"),
    }[LAYOUTS[layout].times]


def test_sums_of_squares_wrap_as_the_kernel_has_them() -> None:
    target = SimulatedTarget("x", "obdfilter")
    target.do("a", "write_bytes", 65536, 2**24, now=NOW)
    (entry,) = parse(target.text("2.16", NOW))
    assert entry.stats["write_bytes"].sum == 2**40
    assert entry.stats["write_bytes"].sumsq == 0


def test_resets_lose_entries_and_the_truth_does_not() -> None:
    target = SimulatedTarget("x", "mdt")

    def live() -> dict[str, int]:
        entries = parse(target.text("2.17", NOW + 10_000))
        return {entry.job_id: entry.stats["open"].samples for entry in entries}

    for entry_id in ("a", "b", "c"):
        target.do(entry_id, "open", 5, 30, now=NOW)
    target.do("a", "open", 1, 10, now=NOW + 1)
    target.cleanup(NOW + 600)
    assert live() == {"a": 6, "b": 5, "c": 5}
    target.cleanup(NOW + 9000, interval=0)
    assert live() == {"a": 6, "b": 5, "c": 5}
    target.cleanup(NOW + 600.5)
    assert live() == {"a": 6}
    target.do("b", "open", 2, 1, now=NOW + 700)
    target.reset("a")
    assert live() == {"b": 2}
    target.do("a", "open", 3, 1, now=NOW + 700)
    target.clear()
    assert live() == {}
    target.do("a", "open", 4, 1, now=NOW + 700)
    target.failover(boot_time=NOW)
    assert live() == {}
    assert target.parameter("2.17", NOW + 700) == b"mdt.x.job_stats=\n"
    assert target.parameter("2.16", NOW + 700) == b"mdt.x.job_stats=job_stats:\n"
    assert target.truth == {
        "a": {"open": Total(13, 5 * 30 + 10 + 3 + 4)},
        "b": {"open": Total(7, 152)},
        "c": {"open": Total(5, 150)},
    }


def test_a_large_target_has_the_size_of_real_ones() -> None:
    text = b"".join(large_text(1000, nonzero=0.25, seed=1))
    assert len(text) == pytest.approx(106e6 / 50, rel=0.05)
    entries = parse(text)
    assert {entry.target for entry in entries} == {"scratch-OST0000"}
    assert len({entry.job_id for entry in entries}) == 1000
    stats = [stat for entry in entries for stat in entry.stats.values()]
    assert (len(stats), sum(stat.samples > 0 for stat in stats)) == (15_000, 3750)
    assert text == b"".join(large_text(1000, nonzero=0.25, seed=1))


def test_a_large_target_may_be_without_zeros() -> None:
    entries = parse(b"".join(large_text(150, nonzero=1, seed=1, layout="2.16", target="y")))
    stats = [stat for entry in entries for stat in entry.stats.values()]
    assert (len(stats), min(stat.samples for stat in stats) > 0) == (2250, True)
    assert {entry.target for entry in entries} == {"y"}
