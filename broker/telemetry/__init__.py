"""Metrics of a running broker: counters, the collector, and the HTTP listener."""
