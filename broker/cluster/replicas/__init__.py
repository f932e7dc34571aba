"""Partitions of this broker: appends, high watermark, moves between folders."""
