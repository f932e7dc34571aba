"""The partitions of this broker: appends, high watermarks, moves between log folders."""
