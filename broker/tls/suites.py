"""Cipher suites: Java's names, which are IANA's, as OpenSSL has them.

    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256      ECDHE-RSA-AES128-GCM-SHA256
    TLS_AES_256_GCM_SHA384                     a suite of TLS 1.3, with the same name

Those of TLS 1.3 are all on, or TLS 1.3 is off: Python's `ssl` cannot choose among them before 3.15.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from strandline.storage.errors import InvalidConfig

# Those that OpenSSL has on by default.
OF_TLS_1_3 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_OTHERS_OF_TLS_1_3 = ("TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256")
_OF_TLS_1_2 = re.compile(
    r"TLS_(?P<keys>(?:ECDHE|DHE)_(?:ECDSA|RSA)|RSA)_WITH_"
    r"(?P<cipher>AES_(?P<bits>128|256)_(?P<mode>GCM|CBC|CCM|CCM_8)|CHACHA20_POLY1305)"
    r"(?:_(?P<hash>SHA|SHA256|SHA384))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suites:
    """Chosen suites: those of TLS 1.2 in OpenSSL's names, and whether those of TLS 1.3 are on."""

    of_tls_1_2: tuple[str, ...]
    has_tls_1_3: bool


def choose_suites(names: Sequence[str]) -> Suites:
    """Translates `ssl.cipher.suites`. Raises InvalidConfig for what cannot be chosen."""
    of_tls_1_3 = {name for name in names if name in (*OF_TLS_1_3, *_OTHERS_OF_TLS_1_3)}
    if of_tls_1_3 and of_tls_1_3 != set(OF_TLS_1_3):
        raise InvalidConfig(
            f"ssl.cipher.suites names {', '.join(sorted(of_tls_1_3))}: Python's ssl cannot choose"
            f" among the suites of TLS 1.3; name all of {', '.join(OF_TLS_1_3)}, or none of them,"
            " which turns TLS 1.3 off"
        )
    return Suites(
        of_tls_1_2=tuple(openssl_name(name) for name in names if name not in of_tls_1_3),
        has_tls_1_3=bool(of_tls_1_3),
    )


def openssl_name(name: str) -> str:
    """Returns OpenSSL's name of a suite of TLS 1.2. Raises InvalidConfig."""
    match = _OF_TLS_1_2.fullmatch(name)
    if match is None:
        raise InvalidConfig(
            f"ssl.cipher.suites: {name!r} is no suite of TLS 1.2 or 1.3 that is served; expected"
            " names such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
        )
    parts = [] if match["keys"] == "RSA" else [match["keys"].replace("_", "-")]
    mode = match["mode"]
    if mode is None:
        return "-".join([*parts, "CHACHA20-POLY1305"])
    parts.append(f"AES{match['bits']}")
    if mode != "CBC":
        parts.append(mode.replace("_", ""))
    if match["hash"] and not mode.startswith("CCM"):
        parts.append(match["hash"])
    return "-".join(parts)
