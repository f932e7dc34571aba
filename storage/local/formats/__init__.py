"""Files of a log folder: indexes, checkpoints, snapshots, names."""
