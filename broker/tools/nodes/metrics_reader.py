"""Reads the metrics listener of a broker, over HTTP or HTTPS.

Of a connection's settings those of TLS apply: the authorities to trust, and the own certificate.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException

from strandline.broker.tools.client.failures import ToolFailure, WrongUse

METRICS_KEY = "strandline.metrics.listener"
HTTP_SECONDS_MAX = 15.0
# A page of 20,000 partitions has a few MB.
PAGE_BYTES_MAX = 64 * 1024 * 1024


class Unready(ToolFailure):
    """The broker is not ready; has its reason."""


class MetricsReader:
    """A client of metrics listeners."""

    def __init__(self, settings: Mapping[str, str], *, within_s: float = HTTP_SECONDS_MAX) -> None:
        """`settings` are librdkafka's. Raises WrongUse."""
        self._within_s = within_s
        self._opener = urllib.request.build_opener(
            # Monitoring addresses are internal, so requests bypass the machine's proxy.
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=_context(settings)),
        )

    def get(self, url: str) -> str:
        """Returns what is there. Raises Unready for a status of 503, and ToolFailure."""
        try:
            with self._opener.open(url, timeout=self._within_s) as answer:
                body: bytes = answer.read(PAGE_BYTES_MAX)
        except urllib.error.HTTPError as error:
            if error.code == 503:
                raise Unready(error.read(1000).decode(errors="replace").strip()) from None
            raise ToolFailure(f"{url} answers {error.code}: no metrics of strandline") from None
        except (OSError, ValueError, HTTPException) as error:
            raise _failure(url, getattr(error, "reason", error)) from None
        return body.decode(errors="replace")


def _failure(url: str, reason: object) -> ToolFailure:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return ToolFailure(
            f"cannot read {url}: {reason.verify_message}",
            remedy="name its authority: -X ssl.ca.location=FILE, or --command-config FILE",
        )
    return ToolFailure(
        f"cannot read {url}: {getattr(reason, 'strerror', None) or reason}",
        remedy=f"is it bound where you are ({METRICS_KEY})? say where with --metrics URL",
    )


def _context(settings: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(
            cafile=settings.get("ssl.ca.location"), cadata=settings.get("ssl.ca.pem")
        )
        certificate = settings.get("ssl.certificate.location")
        if certificate is not None:
            context.load_cert_chain(
                certificate,
                settings.get("ssl.key.location"),
                # Without a function OpenSSL would ask the terminal for the password.
                lambda: settings.get("ssl.key.password", ""),
            )
    except (OSError, ValueError) as error:
        raise WrongUse(f"the settings of TLS cannot be used: {error}") from None
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    return context
