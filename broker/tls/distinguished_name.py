"""Distinguished names as Java prints them: `X500Principal.getName()`, the format of RFC 2253.

    CN=writer,OU=Teams\\, inc.,O=Example,1.2.840.113549.1.9.1=#160a...

The last attribute comes first. Attributes without a keyword in RFC 2253, and values that are no
text, are the hexadecimal digits of their encoding. Kafka makes principals of these names, so users
write them into `ssl.principal.mapping.rules`, `super.users` and ACLs.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.tls import der

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_UTF8, _PRINTABLE, _T61, _IA5, _GENERAL, _BMP = 0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E
_TEXTS = frozenset((_UTF8, _PRINTABLE, _T61, _IA5, _GENERAL, _BMP))
_ESCAPED = frozenset(',=+<>#;"\\')
# What Java takes for blanks at the ends of a value.
_BLANKS = " \r"


def distinguished_name(name: bytes) -> str:
    """Returns the text of a Name in DER. Raises MalformedDer."""
    relative_names = list(der.first(name).expect(der.SEQUENCE).children())
    return ",".join("+".join(_attributes(one)) for one in reversed(relative_names))


def _attributes(relative_name: der.Element) -> Iterator[str]:
    for attribute in relative_name.expect(der.SET).children():
        parts = list(attribute.expect(der.SEQUENCE).children())
        if len(parts) != 2:
            raise der.MalformedDer("an attribute that is no pair")
        name, value = parts
        number = der.object_id(name.expect(der.OBJECT_ID).content)
        keyword = _KEYWORDS.get(number)
        if keyword is None or value.tag not in _TEXTS:
            yield f"{keyword or number}=#{value.encoded.hex()}"
        else:
            yield f"{keyword}={_escape(value.content.decode('utf-8', 'replace'))}"


def _escape(text: str) -> str:
    begin = len(text) - len(text.lstrip(_BLANKS))
    end = len(text.rstrip(_BLANKS))
    return "".join(
        f"\\{character}"
        if character in _ESCAPED or not begin <= at < end
        else "\\00"
        if character == "\0"
        else character
        for at, character in enumerate(text)
    )
