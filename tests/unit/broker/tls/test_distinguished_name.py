"""Names of certificates are printed as Java's X500Principal prints them."""

from __future__ import annotations

import contextlib

import pytest

from strandline.broker.tls.der import MalformedDer
from strandline.broker.tls.distinguished_name import distinguished_name

# Names in DER, and what OpenJDK 17's `X500Principal.getName()` returns for each.
OF_JAVA = [
    (
        "3036310b300906035504061302444531163014060355040a0c0d4578616d706c652c20496e632e310f300d06035504030c06777269746572",
        "CN=writer,O=Example\\, Inc.,C=DE",
    ),
    ("301b3119301706035504030c10206c65616420616e6420747261696c20", "CN=\\ lead and trail\\ "),
    (
        "30243122302006035504030c19236861736820612362203d202b203c203e203b2022205c202c",
        'CN=\\#hash a\\#b \\= \\+ \\< \\> \\; \\" \\\\ \\,',
    ),
    ("301b3119301706035504030c1074c3bc7220e69db1e4baac20f09f9880", "CN=tür 東京 😀"),
    ("30123110300e06035504030c076100620a630d64", "CN=a\\00b\nc\rd"),
    ("300e310c300a06035504030c030d780d", "CN=\\\rx\\\r"),
    (
        "3065310f300d06035504080c0642617965726e310a300806035504070c014d310c300a06035504090c03532031310b3009060355040b0c026f7531173015060a0992268993f22c64011916076578616d706c6531123010060a0992268993f22c6401010c027531",
        "UID=u1,DC=example,OU=ou,STREET=S 1,L=M,ST=Bayern",
    ),
    (
        "3081863114301206092a864886f70d01090116056140622e63310c300a06035504051303313233310a300806035504040c0173310a3008060355042a0c0167310a3008060355040c0c0174310c300a060355042c0c03494949310a3008060355042e130171310a300806035504110c0131310a300806032a03040c0176310a300806038837010c0177",
        "2.999.1=#0c0177,1.2.3.4=#0c0176,2.5.4.17=#0c0131,2.5.4.46=#130171,2.5.4.44=#0c03494949,2.5.4.12=#0c0174,2.5.4.42=#0c0167,2.5.4.4=#0c0173,2.5.4.5=#1303313233,1.2.840.113549.1.9.1=#16056140622e63",
    ),
    ("3011310f300d06035504031e060062006d0070", "CN=\\00b\\00m\\00p"),
    ("300e310c300a06035504031403743631", "CN=t61"),
    ("3010310e300c060355040313057072696e74", "CN=print"),
    (
        "301b3119301706035504031c10000000750000006e0000006900000076",
        "CN=#1c10000000750000006e0000006900000076",
    ),
    ("300e310c300a06035504031603696135", "CN=ia5"),
    ("300e310c300a06035504031a03766973", "CN=#1a03766973"),
    ("300f310d300b060355040312046e756d31", "CN=#12046e756d31"),
    ("3000", ""),
    (
        "303731293008060355040b0c017a300c06035504030c056d756c7469300f060a0992268993f22c6401010c0162310a3008060355040a0c016f",
        "O=o,OU=z+CN=multi+UID=b",
    ),
]


@pytest.mark.parametrize(("encoded", "text"), OF_JAVA)
def test_a_name_is_printed_as_java_prints_it(encoded: str, text: str) -> None:
    assert distinguished_name(bytes.fromhex(encoded)) == text


def test_a_name_that_is_cut_anywhere_is_refused() -> None:
    encoded = bytes.fromhex(OF_JAVA[0][0])
    for end in range(len(encoded)):
        with pytest.raises(MalformedDer):
            distinguished_name(encoded[:end])


@pytest.mark.parametrize(
    "encoded",
    [
        "3080",  # a length without an end
        "31020500",  # another tag
        "30023100310a",
        "300f310d300b06032a8680030477",
        "3006310430020603",
        "1f8101",
        "308500000000",
        # An attribute whose number has 5,000 digits.
        f"308209d4318209d0308209cc068209c555{'ff' * 2499}7f0c0161",
    ],
)
def test_bytes_that_are_no_name_are_refused_or_have_a_text(encoded: str) -> None:
    """Never another error: a client chooses them, though an authority has signed them."""
    with contextlib.suppress(MalformedDer):
        distinguished_name(bytes.fromhex(encoded))
