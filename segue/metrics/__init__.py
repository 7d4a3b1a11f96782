"""The metrics of the runs whose parents are in this process, for Prometheus and OpenTelemetry."""
