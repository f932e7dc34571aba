"""Storage class and tags of a topic's segment objects, from its configuration.

Only `.log` objects have them: manifests and `.meta` objects are small, are read first, and must be
readable at once.
"""

from __future__ import annotations

from strandline.storage.config.definition import HOUR_MS
from strandline.storage.config.log_config import LogConfig
from strandline.storage.remote.object_store.interface import ObjectOptions

# Days that S3 charges for an object of the class, however early it is deleted.
MINIMUM_DAYS = {"STANDARD_IA": 30, "ONEZONE_IA": 30, "GLACIER_IR": 90}


def may_rewrite(config: LogConfig) -> bool:
    """Whether segments may be replaced by merged or compacted ones, which requires reading them."""
    return config.archive_is_readable and not config.remote_log_copy_disable


def minimum_duration_ms(config: LogConfig) -> int:
    """Returns the age in ms before which replacing an object of the topic's class costs extra."""
    return MINIMUM_DAYS.get(config.strandline_remote_storage_class, 0) * 24 * HOUR_MS


def object_options(config: LogConfig) -> ObjectOptions:
    """Storage class and tags of the topic's segment objects."""
    storage_class = config.strandline_remote_storage_class
    tags = (tag.partition("=") for tag in config.strandline_remote_object_tags)
    return ObjectOptions(
        storage_class="" if storage_class == "DEFAULT" else storage_class,
        tags=tuple((key.strip(), value.strip()) for key, _, value in tags),
    )
