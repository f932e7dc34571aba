"""Spark's data source, streams, views and frames."""
