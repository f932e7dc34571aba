"""URLs of servers, as users write them."""

from __future__ import annotations

import re

from strandline.storage.errors import InvalidConfig

AWS_CHAIN = (
    "credentials come from the usual AWS chain: a role, ~/.aws/credentials, AWS_ACCESS_KEY_ID"
)
_WITH_USER = re.compile(r"[^/?#]*//[^/?#]*@.*", re.DOTALL)


def check_no_password(name: str, url: str, instead: str = AWS_CHAIN) -> None:
    """Raises InvalidConfig, without the URL, if a URL has a user and a password.

    URLs stand in logs, in error messages and in the list of processes; `name` says who set it,
    `instead` where they belong.
    """
    if _WITH_USER.fullmatch(url):
        raise InvalidConfig(
            f"{name}: a URL with a user or a password is refused, because logs show URLs; {instead}"
        )
