"""The Prometheus endpoint: what ccagent reads, under the names that dashboards know."""
