"""The file of authorities that an S3 server is trusted by: certificates in PEM."""

from __future__ import annotations

import ssl

from strandline.storage.errors import InvalidConfig


def check_ca_file(path: str | None) -> None:
    """Raises InvalidConfig if the file cannot be read, or has no certificates."""
    if path is None:
        return
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError as error:
        raise InvalidConfig(
            f"CA file of S3 {path!r}: expected certificates in PEM; OpenSSL says {error.reason}"
        ) from None
    except OSError as error:
        raise InvalidConfig(f"CA file of S3 {path!r}: cannot be read: {error.strerror}") from None
