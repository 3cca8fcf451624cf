"""Who calls a server: the token and the namespace of calls, and the certificates of both sides."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("anabranch")

#: A token, the file that has it, or what returns it. A file and a function are asked for each call, because tokens are
#: renewed.
Token = str | os.PathLike[str] | Callable[[], str]

#: Certificates or a key as PEM, or the path of a file with them.
Pem = bytes | str | os.PathLike[str]

NAMESPACE_HEADER = "anabranch-namespace"


@dataclass(frozen=True)
class Access:
    """What was given to `connect`, or what the environment says."""

    token: Token | None = None
    #: Certificates of authorities as PEM, or the path of a file with them. Default: those of gRPC.
    ca: Pem | None = None
    #: The certificate of the client and its key, for servers that ask for them.
    cert: Pem | None = None
    key: Pem | None = None

    def authorization(self) -> str | None:
        """Returns the value of the header. None without a token, and if it cannot be read: the server says so then."""
        try:
            token = self._token()
        except Exception:
            log.warning("anabranch: the token cannot be read", exc_info=True)
            return None
        return f"Bearer {token.strip()}" if token else None

    def certificates(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Returns the certificates of the authorities to trust, and the key and the certificate of the client. Raises
        OSError if a file cannot be read."""
        return _read(self.ca), _read(self.key), _read(self.cert)

    def _token(self) -> str | None:
        token = self.token
        if token is None or isinstance(token, str):
            return token
        return token() if callable(token) else Path(token).read_text(encoding="utf-8")


def _read(pem: Pem | None) -> bytes | None:
    return pem if pem is None or isinstance(pem, bytes) else Path(pem).read_bytes()


_given: dict[str, Access] = {}


def give(address: str, access: Access) -> None:
    """Sets how this process calls a server. The default is the environment's."""
    if access != Access():
        _given[address] = access


def given_for(address: str) -> Access:
    """Returns what was given for a server, for a process that does not share the memory of this one."""
    return _given.get(address, Access())


def access_of(address: str) -> Access:
    """Returns how to call a server: what was given, and for what was not given ANABRANCH_TOKEN, ANABRANCH_TOKEN_FILE,
    ANABRANCH_CA_FILE, and ANABRANCH_CERT_FILE with ANABRANCH_KEY_FILE. Raises ValueError for one of these two alone."""
    given, env = given_for(address), os.environ
    token: Token | None = given.token
    if token is None:
        file = env.get("ANABRANCH_TOKEN_FILE")
        token = env.get("ANABRANCH_TOKEN") or (Path(file) if file else None)
    ca = given.ca if given.ca is not None else env.get("ANABRANCH_CA_FILE") or None
    cert, key = given.cert, given.key
    if cert is None and key is None:
        cert, key = env.get("ANABRANCH_CERT_FILE") or None, env.get("ANABRANCH_KEY_FILE") or None
        if (cert is None) != (key is None):
            raise ValueError("ANABRANCH_CERT_FILE and ANABRANCH_KEY_FILE belong together: expected both, or neither")
    return Access(token, ca, cert, key)
