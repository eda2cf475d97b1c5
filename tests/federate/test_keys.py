"""The certificates of `write_certificates`: TLS's own check accepts them for the server's name, and for no other."""

import ssl
from pathlib import Path

import pytest

from fedcal.federate.keys import write_certificates


def handshake(folder: Path, name: str) -> None:
    """A client's and a server's, in memory, as strict as Python 3.13 is by default."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    client = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(back, there, server_hostname=name), server.wrap_bio(there, back, server_side=True)
    for end in (*ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue


@pytest.mark.parametrize("address", ["127.0.0.1", "link.example.org"])
def test_certificates_are_for_the_servers_address(tmp_path: Path, address: str) -> None:
    write_certificates(tmp_path, address)
    handshake(tmp_path, address)
    handshake(tmp_path, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(tmp_path, "other.example.org")
