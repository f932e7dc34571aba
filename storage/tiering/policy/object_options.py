"""Storage class and tags of a topic's segment objects, from its configuration.

Only `.log` objects have them: manifests and `.meta` objects are small, are read first, and must be
readable at once.
"""

from __future__ import annotations

from strandline.storage.config.log_config import LogConfig
from strandline.storage.remote.object_store.interface import ObjectOptions

# Classes whose objects must be restored before a read.
RESTORED_FIRST = frozenset({"GLACIER", "DEEP_ARCHIVE"})


def may_rewrite(config: LogConfig) -> bool:
    """Whether segments may be replaced by merged or compacted ones, which requires reading them."""
    is_readable = config.strandline_remote_storage_class not in RESTORED_FIRST
    return is_readable and not config.remote_log_copy_disable


def object_options(config: LogConfig) -> ObjectOptions:
    """Storage class and tags of the topic's segment objects."""
    storage_class = config.strandline_remote_storage_class
    tags = (tag.partition("=") for tag in config.strandline_remote_object_tags)
    return ObjectOptions(
        storage_class="" if storage_class == "DEFAULT" else storage_class,
        tags=tuple((key.strip(), value.strip()) for key, _, value in tags),
    )
