"""Spark over the archive: a batch data source that reads the bucket without a broker."""
