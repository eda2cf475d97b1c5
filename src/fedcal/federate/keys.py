"""Certificates of the server and keys of the nodes: for a federation on this machine, or on several (docs/deploy.md)."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedcal.base.store import write_bytes

DAYS = 30
# Python 3.13 refuses an authority that does not say what its key is for, and certificates without key identifiers.
CA_USAGE = x509.KeyUsage(False, False, False, False, False, True, False, False, False)  # only to sign certificates


def write_certificates(folder: str | Path, address: str) -> None:
    """Write ca.crt, server.pem and server.key, for this user alone. The key of the certificate authority is not kept.

    Args:
        folder: where to.
        address: the server's name or IP address.
    """
    folder = Path(folder)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = _name("FedCal test authority")
    ca = (
        _certificate(issuer, issuer, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(CA_USAGE, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    names = [x509.DNSName("localhost"), _alternative_name(address)]
    certificate = (
        _certificate(_name("FedCal SuperLink"), issuer, server)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    write_bytes(folder / "ca.crt", ca.public_bytes(pem), private=True)
    write_bytes(folder / "server.pem", certificate.public_bytes(pem), private=True)
    secret = server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_bytes(folder / "server.key", secret, private=True)


def write_node_key(path: Path) -> None:
    """Write a SuperNode's key pair in OpenSSH's format, to `path` and `path.pub`.

    Args:
        path: where to.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    write_bytes(path, key.private_bytes(*form), private=True)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_bytes(path.with_name(path.name + ".pub"), public + b"\n", private=True)


def _alternative_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _name(words: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, words)])


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )
