"""What a broker key is, and the short way to write one down.

The modules beside this one yield their keys in the order in which the documentation shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.storage.config.log_config import ConfigDef, ConfigType, parse_config_value

MIB = 1024 * 1024
HOUR_MS = 3_600_000
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfigDef(ConfigDef):
    """A broker key. `nullable` ones may be empty, which means unset.

    `dynamic` ones can be altered while the broker runs. `topic_property` names the topic property
    whose default this key sets, `scale` turns the key's unit into that property's.
    """

    section: str
    nullable: bool = False
    dynamic: bool = False
    # For texts with a form of their own: raises InvalidConfig.
    check: Callable[[str], object] | None = None
    topic_property: str | None = None
    scale: int = 1

    @property
    def field_name(self) -> str:
        """The field of BrokerConfig that holds the key's value."""
        return self.name.removeprefix("strandline.").replace(".", "_")

    def parse(self, text: str) -> object:
        """The typed value, None for an empty nullable key. Raises InvalidConfig."""
        if self.nullable and not text.strip():
            return None
        value = parse_config_value(self, text)
        if self.check is not None:
            self.check(text.strip())
        return value


# The headings of docs/configuration.md, in its order (SECTIONS).
NETWORK = "Identity and listeners"
CONNECTIONS = "Connections and requests"
TOPICS = "Topics"
LOG = "Log folders and background work"
TIER = "Remote tier"
GROUPS = "Consumer groups"
TOPIC_DEFAULTS = "Defaults of topics"
SECTIONS = (NETWORK, CONNECTIONS, TOPICS, GROUPS, LOG, TIER, TOPIC_DEFAULTS)


def key(
    section: str,
    name: str,
    config_type: ConfigType,
    default: object,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    dynamic: bool = False,
    check: Callable[[str], object] | None = None,
    choices: tuple[str, ...] = (),
) -> BrokerConfigDef:
    """One key of `section`; a default of None makes it nullable and unset."""
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return BrokerConfigDef(
        section=section,
        name=name,
        type=config_type,
        default="" if default is None else text,
        doc=doc,
        minimum=minimum,
        maximum=maximum,
        nullable=default is None,
        dynamic=dynamic,
        check=check,
        choices=choices,
    )
