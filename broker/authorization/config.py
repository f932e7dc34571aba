"""Settings of the authorizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strandline.storage.config.definition import BOOLEAN, STRING, key
from strandline.storage.errors import InvalidConfig

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _parse_class(name: str) -> str:
    if name.strip() not in ("", STANDARD_AUTHORIZER):
        raise InvalidConfig(
            f"authorizer.class.name={name!r}: expected {STANDARD_AUTHORIZER}, whose rules"
            " strandline has, or nothing"
        )
    return name.strip()


def _parse_super_users(text: str) -> frozenset[str]:
    """Parses principals between semicolons, as the names in a certificate have commas."""
    principals = frozenset(one.strip() for one in text.split(";") if one.strip())
    for principal in sorted(principals):
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise InvalidConfig(
                f"super.users: {principal!r}: expected Type:name, such as User:admin, separated"
                " by semicolons"
            )
    return principals


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizerConfig:
    """Whether clients need rights, and who has all of them."""

    class_name: str = key(
        "authorizer.class.name",
        STRING,
        "",
        f"{STANDARD_AUTHORIZER} lets clients do only what ACLs allow them. Empty: every client may"
        " do everything.",
        convert=_parse_class,
    )
    super_users: frozenset[str] = key(
        "super.users",
        STRING,
        "",
        "Principals that may do everything, separated by semicolons: User:admin;User:backup.",
        convert=_parse_super_users,
    )
    allows_without_acl: bool = key(
        "allow.everyone.if.no.acl.found",
        BOOLEAN,
        False,
        "Allow every operation on a resource that no ACL matches.",
    )

    @property
    def is_enabled(self) -> bool:
        return bool(self.class_name)

    def check(self) -> None:
        """Raises InvalidConfig for super users of no authorizer."""
        if self.super_users and not self.is_enabled:
            raise InvalidConfig(
                "super.users has no effect without an authorizer, and every client may do"
                f" everything: set authorizer.class.name={STANDARD_AUTHORIZER}, or remove it"
            )
