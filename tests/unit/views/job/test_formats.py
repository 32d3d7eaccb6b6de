"""The report as text, as JSON, and as a summary."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ccagent.views.amounts import GB
from ccagent.views.job.figures import JobFigures
from ccagent.views.job.formats import encode_report, encode_summary, format_report
from ccagent.views.terminal import Style, width_of
from tests.unit.views.job.support import HOUR, card, job, node, report


def text(figures: JobFigures, width: int = 80, style: Style | None = None) -> list[str]:
    return format_report(report(figures), style or Style(), width).splitlines()


def test_a_good_job() -> None:
    assert text(job()) == [
        "Job 4711 relax.sh  alice/phys normal  COMPLETED  fox n1",
        "ran 2:00:00 of 3:00:00 (67 %)   16 cores   64 GB   no GPU   240 samples, 100 %",
        "CPU     [||||||||||||||||||||||||||||||||||||||||  ]  95 % of 32 core-h",
        "memory  [|||||||||||||||||||||||||||||||||         ]  78 % 50 of 64 GB peak, and",
        "                                                           10 GB page cache",
        "ok      nothing to improve",
    ]


def test_a_bad_job_and_the_advice_that_waits() -> None:
    cards = (card(utilization=42.0), card("1", utilization=0.0, samples=250))
    figures = job(
        node(cards=cards, memory_limit=200 * GB, memory_peak=4.4 * GB), state="RUNNING", stop=None,
        time_limit=None, gpus=2,
    )  # fmt: skip
    assert text(figures, style=Style(is_plain=True)) == [
        "Job 4711 relax.sh  alice/phys normal  RUNNING  fox n1",
        "ran 2:00:00   16 cores   200 GB   2 GPUs   240 samples, 100 %",
        "CPU       95 % of 32 core-h",
        "memory   2.2 % 4.4 of 200 GB peak, and 55.6 GB page cache",
        "GPU       21 % of 2 GPUs",
        "GPU mem   75 % 120 of 160 GB peak",
        "        GPU 0 42 %, GPU 1 0 %",
        "BAD     GPU 1 wasn't used: 0 % on average of 250 samples (2:00:00), up to 2.1 %",
        "        counts as none. Ask for 1 GPU (--gpus=1), which frees 2 GPU-h; the run",
        "        time stays. Or make the program use all. [gpu-idle]",
    ]


def test_hidden_hints_are_named() -> None:
    found = text(job(node(cpu_seconds=1.0, memory_peak=20 * GB)))
    assert found[-1] == "        Then further advice follows: mem-excess."


def test_small_amounts_have_small_units() -> None:
    figures = job(
        node(cores=1, cpu_seconds=12.0, memory_limit=200 << 20, memory_peak=float(150 << 20),
             memory_charged=160 << 20),
        elapsed=12.0, time_limit=60.0,
    )  # fmt: skip
    found = "\n".join(text(figures, 120))
    assert "100 % of 12 core-s" in found
    assert "150 of 200 MB peak" in found
    assert " 1 core   200 MB" in found


def test_unknown_is_written() -> None:
    found = text(job(node(cores=None, memory_limit=None, memory_peak=None), gpus=None))
    assert any(line.startswith("unknown nothing reports how many cores it has") for line in found)
    assert "memory  unknown" in found
    assert "cores unknown   no memory limit   GPUs unknown" in found[1]
    assert "CPU     unknown" in found


def test_charged_memory_says_that_it_has_the_page_cache() -> None:
    found = text(job(node(memory_peak=None)))
    assert "page cache included" in " ".join(" ".join(found[3:5]).split())


def test_many_cards_are_the_least_used_ones() -> None:
    cards = tuple(card(str(n), utilization=10.0 * n) for n in range(9))
    found = "\n".join(text(job(node("n1", cards=cards), node("n2", cards=cards))))
    assert "least used: GPU 0 of n1 0 %, GPU 0 of n2 0 %" in found


def test_levels_are_words_also_with_colours() -> None:
    found = text(job(node(cpu_seconds=2 * HOUR)), style=Style(has_colours=True))
    assert any(line.startswith("\x1b[1;31mBAD\x1b[0m     one core's work") for line in found)


def test_exit_codes_and_nodes() -> None:
    figures = job(node("n042"), node("n043"), state="FAILED", exit_code=1)
    assert text(figures)[0].endswith("FAILED exit 1  fox n[042-043]")
    assert text(job(node("a b")))[0].endswith("fox a b")


@given(st.text(max_size=50), st.sampled_from((20, 40, 72, 80, 120)))
def test_no_name_reaches_the_terminal_raw(name: str, width: int) -> None:
    figures = structs.replace(
        job(node(name, cpu_seconds=0.0), node("n2")), name=name, user=name, account=name,
        partition=name, state=name, cluster=name,
    )  # fmt: skip
    lines = text(figures, width)
    assert all(line.isprintable() for line in lines)
    assert all(width_of(line) <= max(width, 20) for line in lines if line.isascii())


@pytest.mark.parametrize("width", [20, 30, 60, 71, 72, 80, 200])
def test_lines_fit_the_width(width: int) -> None:
    cards = (card(), card("1", utilization=None))
    figures = job(node(cards=cards, oom_kills=3), node("n2", cpu_seconds=0.0))
    assert all(len(line) <= width for line in text(figures, width))


def test_the_object_has_figures_shares_and_findings() -> None:
    found = json.loads(encode_report(report(job(node(cards=(card(),))))))
    assert found["verdict"] == "ok"
    assert found["efficiency"]["cpu"] == {
        "percent": 95.0, "used": 109440.0, "total": 115200.0, "parts": 1,
    }  # fmt: skip
    assert found["job"]["nodes"][0]["cards"][0]["utilization"] == 80.0
    assert (found["samples"], found["coverage"]) == (240, 100.0)


def test_unknown_is_null() -> None:
    found = json.loads(encode_report(report(job(node(cores=None), time_limit=None))))
    assert found["efficiency"]["cpu"] is None
    assert found["efficiency"]["time"] is None
    assert found["job"]["nodes"][0]["cores"] is None


def decode(figures: JobFigures) -> Any:
    text = encode_summary(report(figures))
    assert text.startswith("JS1:H4s")
    return json.loads(gzip.decompress(base64.b64decode(text[4:])))


def test_figures_of_nodes_and_cards() -> None:
    cards = (card(utilization=42.04), card("1", utilization=0.0, memory_peak=0.0))
    assert decode(job(node(cards=cards))) == {
        "nodes": {"n1": {
            "total_memory": 64 << 30, "used_memory": 50 << 30, "total_time": 109440.0, "cpus": 16,
            "gpu_total_memory": {"0": 80 << 30, "1": 80 << 30},
            "gpu_used_memory": {"0": 60 << 30, "1": 0},
            "gpu_utilization": {"0": 42.0, "1": 0.0},
        }},
        "total_time": 7200, "gpus": 2,
    }  # fmt: skip


def test_a_card_without_utilization_is_left_out() -> None:
    found = decode(job(node(cards=(card(utilization=None), card("1", utilization=42.0)))))
    keys = ("gpu_utilization", "gpu_total_memory", "gpu_used_memory")
    assert [list(found["nodes"]["n1"][key]) for key in keys] == [["1"]] * 3


@pytest.mark.parametrize(
    "odd", [card(memory_total=None), card(memory_total=0.0), card(memory_peak=None)]
)
def test_a_card_with_unknown_memory_keeps_its_utilization(odd: Any) -> None:
    found = decode(job(node(cards=(odd,))))["nodes"]["n1"]
    assert found["gpu_utilization"] == {"0": 80.0}
    assert not found.keys() & {"gpu_total_memory", "gpu_used_memory"}


def test_nothing_stands_without_its_total() -> None:
    found = decode(job(node(memory_limit=None, cores=None), node("n2", samples=0)))
    assert found["nodes"] == {"n1": {}}


def test_the_same_job_has_the_same_summary() -> None:
    assert encode_summary(report(job())) == encode_summary(report(job()))


def test_jobs_that_are_short_or_have_no_data() -> None:
    assert encode_summary(report(job(node(samples=1), elapsed=59.0))) == "JS1:Short"
    assert encode_summary(report(job(node(samples=1)))) == "JS1:None"
    assert encode_summary(report(job(node(samples=0)))) == "JS1:None"
    assert encode_summary(report(job(elapsed=120.0))).startswith("JS1:H4s")


def test_a_thousand_nodes_fit_into_a_comment() -> None:
    nodes = [node(f"n{n:04d}", memory_peak=n * GB / 20) for n in range(1000)]
    assert len(encode_summary(report(job(*nodes)))) < 40_000
