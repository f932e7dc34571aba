"""The folders of `log.dirs`: loading, creating, moving and losing logs."""
