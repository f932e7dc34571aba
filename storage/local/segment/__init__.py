"""The segments of a log, and the files of a partition's folder."""
