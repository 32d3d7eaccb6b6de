"""Requests as Prometheus and others send them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.exporter.pages import OPENMETRICS, TEXT, accepts_gzip, choose_format, scrape_seconds

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;"
    "escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)

PROTOBUF = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)
PROMETHEUS_3_NATIVE_HISTOGRAMS = (
    f"{PROTOBUF};q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;"
    "escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
"""With `scrape_native_histograms`, of Prometheus 3.14. OpenTelemetry's receiver is Prometheus'."""
VMAGENT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
TELEGRAF = f"{PROTOBUF};q=0.7,text/plain;version=0.0.4;q=0.3"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        (PROMETHEUS_3_NATIVE_HISTOGRAMS, OPENMETRICS),
        (VMAGENT, TEXT),
        (TELEGRAF, TEXT),
        ("text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6,*/*;q=0.5", TEXT),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", TEXT),
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html", TEXT),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text;q=0,text/plain;q=0.1", TEXT),
        ("text/plain;q=0.9,application/openmetrics-text;q=0.9", TEXT),
        ("application/openmetrics-text;version=2.0.0,text/plain;q=0.1", TEXT),
        ("application/openmetrics-text;version=0.0.1", OPENMETRICS.replace("1.0.0", "0.0.1")),
        (";;;q=nan,,", TEXT),
    ],
)
def test_the_format_that_a_client_prefers(accept: str, chosen: str) -> None:
    assert choose_format(accept) == chosen


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("*", True),
        ("", False),
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("*;q=0, gzip", True),
    ],
)
def test_gzip(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("10", 9.5),
        ("0.8", 0.4),
        ("", 7.0),
        ("-3", 7.0),
        ("nan", 7.0),
        ("inf", 7.0),
        ("x", 7.0),
        ("1e300", 119.5),
    ],
)
def test_the_time_limit_leaves_half_a_second_for_the_way(header: str, seconds: float) -> None:
    assert scrape_seconds(header, 7.0) == seconds


@given(st.text(max_size=60))
def test_no_header_raises(text: str) -> None:
    choose_format(text)
    accepts_gzip(text)
    assert scrape_seconds(text, 1.0) > 0
