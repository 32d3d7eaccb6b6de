"""The running gateway: the store's interface in front of VictoriaMetrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.gateway import GatewayApi
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.listening import ListeningServer
from ccagent.stores.metrics.query import QueryLimits
from ccagent.stores.metrics.settings import parse_size
from ccagent.stores.metrics.store import MetricStore
from ccagent.stores.metrics.tokens import TokenVerifier
from ccagent.stores.metrics.victoria import VictoriaEngine

if TYPE_CHECKING:
    from ccagent.stores.metrics.settings import StoreSettings


class GatewayServer(ListeningServer):
    """Keeps nothing, so that several can share one engine."""

    def __init__(self, settings: StoreSettings) -> None:
        """Raises ConfigurationError."""
        super().__init__(settings)
        names = MetricStore(settings.catalogue(), time.time)
        ingest = LineIngest(
            names,
            future=int(settings.limits.future.seconds),
            is_strict=settings.strict == "reference",
            most_series=settings.limits.series,
        )
        key = settings.jwt_public_key
        self.api = GatewayApi(
            VictoriaEngine(settings.engine_url),
            names,
            ingest,
            GroupCommit(None, "write"),
            verifier=TokenVerifier(key, time.time) if key else None,
            limits=QueryLimits(settings.limits.values),
            largest_body=parse_size(settings.limits.body),
        )
