"""HTTP endpoints of the server: the Prometheus metrics."""
