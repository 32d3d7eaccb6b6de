"""The Prometheus endpoint: ccagent's readings under the metric names of common exporters."""
