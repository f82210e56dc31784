"""A throw-away certificate authority, and a certificate signed by it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificates:
    """PEM files for 127.0.0.1 and localhost; `stranger_ca` is an authority that signed neither."""

    ca: Path
    cert: Path
    key: Path
    stranger_ca: Path


def issue_certificates(directory: Path) -> Certificates:
    """Write an authority and a certificate for a server and for a client."""
    files = Certificates(*(directory / name for name in ("ca.pem", "cert.pem", "key.pem", "stranger.pem")))
    authority = trustme.CA()
    authority.cert_pem.write_to_path(files.ca)
    trustme.CA().cert_pem.write_to_path(files.stranger_ca)
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(files.key)
    issued.cert_chain_pems[0].write_to_path(files.cert)
    return files
