"""What the broker reads of a certificate: its names, and from when to when it is valid."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from strandline.broker.tls import der
from strandline.broker.tls.distinguished_name import distinguished_name

_VERSION, _EXTENSIONS = 0xA0, 0xA3
_UTC_TIME, _GENERALIZED_TIME = _TIMES = 0x17, 0x18
_SUBJECT_ALT_NAME = "2.5.29.17"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate; times are seconds since 1970, `alternative_names` GeneralNames in DER."""

    subject: str
    valid_from_s: float
    valid_until_s: float
    alternative_names: frozenset[bytes]


def parse_certificate(encoded: bytes) -> Certificate:
    """Parses a certificate in DER. Raises MalformedDer."""
    to_be_signed = next(der.first(encoded).expect(der.SEQUENCE).children(), None)
    if to_be_signed is None:
        raise der.MalformedDer("a certificate without content")
    fields = [one for one in to_be_signed.children() if one.tag != _VERSION]
    if len(fields) < 6:
        raise der.MalformedDer("a certificate without a public key")
    _serial, _algorithm, _issuer, validity, subject, _key, *others = fields
    times = [_seconds(one) for one in validity.expect(der.SEQUENCE).children()]
    if len(times) != 2:
        raise der.MalformedDer("a validity without two times")
    extensions = next((one for one in others if one.tag == _EXTENSIONS), None)
    return Certificate(
        subject=distinguished_name(subject.encoded),
        valid_from_s=times[0],
        valid_until_s=times[1],
        alternative_names=frozenset() if extensions is None else _alternative_names(extensions),
    )


def is_self_issued(encoded: bytes) -> bool:
    """Whether a certificate names itself as its issuer, as that of a root. Raises MalformedDer."""
    to_be_signed = next(der.first(encoded).expect(der.SEQUENCE).children())
    fields = [one.encoded for one in to_be_signed.children() if one.tag != _VERSION]
    return fields[2:3] == fields[4:5]


def list_ends_s(encoded: bytes) -> float | None:
    """Returns when the next list of revoked certificates is due; None if it does not say so.

    Raises MalformedDer.
    """
    to_be_signed = next(der.first(encoded).expect(der.SEQUENCE).children(), None)
    if to_be_signed is None:
        raise der.MalformedDer("a list without content")
    times = [one for one in to_be_signed.children() if one.tag in _TIMES]
    return _seconds(times[1]) if len(times) > 1 else None


def _alternative_names(extensions: der.Element) -> frozenset[bytes]:
    for extension in der.first(extensions.content).expect(der.SEQUENCE).children():
        parts = list(extension.children())
        is_named = len(parts) >= 2 and der.object_id(parts[0].content) == _SUBJECT_ALT_NAME
        if is_named:
            value = der.first(parts[-1].expect(der.OCTET_STRING).content)
            return frozenset(one.encoded for one in value.children())
    return frozenset()


def _seconds(time: der.Element) -> float:
    formats = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
    try:
        text = time.content.decode("ascii")
        found = datetime.strptime(text, formats[time.tag]).replace(tzinfo=UTC)
    except (KeyError, ValueError) as error:
        raise der.MalformedDer(f"a time of tag {time.tag:#04x} that is none") from error
    # RFC 5280: two digits from 50 on are of the 20th century; Python's are from 69 on.
    if time.tag == _UTC_TIME and found.year >= 2050:
        found = found.replace(year=found.year - 100)
    return found.timestamp()
