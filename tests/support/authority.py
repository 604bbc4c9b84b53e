"""A certificate authority of the test's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

SIGNS_CERTIFICATES: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""The use of an authority's key; from Python 3.13 on, an authority without it is refused."""


class Authority:
    """A certificate authority of the test's own."""

    def __init__(self, folder: Path, name: str = "test ca") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.file = folder / f"{name.replace(' ', '-')}.pem"
        certificate = self._certificate(
            self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=None), SIGNS_CERTIFICATES
        )
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *more: str) -> tuple[bytes, bytes]:
        """A certificate for this name and localhost, and `more` hosts, and its key, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = ("localhost", "temporal.internal", *more)
        hosts = x509.SubjectAlternativeName([x509.DNSName(each) for each in names])
        certificate = self._certificate(_name(name), key.public_key(), hosts)
        written = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM), written

    def issue_into(self, folder: Path, name: str, *more: str) -> tuple[Path, Path]:
        """The same, as files."""
        folder.mkdir(exist_ok=True)
        for file, content in zip(("tls.crt", "tls.key"), self.issue(name, *more), strict=True):
            (folder / file).write_bytes(content)
        return folder / "tls.crt", folder / "tls.key"

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for each in (*extensions, x509.SubjectKeyIdentifier.from_public_key(key), issuer):
            builder = builder.add_extension(each, critical=isinstance(each, x509.BasicConstraints | x509.KeyUsage))
        return builder.sign(self._key, hashes.SHA256())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
