"""Policies of TimescaleDB as statements."""

from __future__ import annotations

from ccagent.config.duration import Duration
from ccagent.stores.jobstats.settings import SeriesTableSettings
from ccagent.stores.jobstats.timescale import list_policies


def test_policies_are_what_the_settings_say() -> None:
    settings = SeriesTableSettings(
        partition=Duration("6h"), compress_after=Duration("2d"), hourly_retention=Duration("365d")
    )
    assert list_policies(settings)[:7] == [
        "SELECT set_chunk_time_interval('ost', INTERVAL '21600 seconds')",
        "SELECT remove_compression_policy('ost', if_exists => true)",
        "SELECT add_compression_policy('ost', INTERVAL '172800 seconds')",
        "SELECT remove_continuous_aggregate_policy('ost_hourly', if_exists => true)",
        (
            "SELECT add_continuous_aggregate_policy('ost_hourly', "
            "start_offset => INTERVAL '259200 seconds', end_offset => INTERVAL '3600 seconds', "
            "schedule_interval => INTERVAL '1800 seconds')"
        ),
        "SELECT remove_retention_policy('ost_hourly', if_exists => true)",
        "SELECT add_retention_policy('ost_hourly', INTERVAL '31536000 seconds')",
    ]
    assert len(list_policies(settings)) == 14
