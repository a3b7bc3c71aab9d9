"""Where the server is and how it is spoken to, as far as one source says it: a DSN, sysbench's options, an option file.

`None` means that the source says nothing. Sources are laid over each other (`over`); what nobody says has a default in `job.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

SslMode = Literal["DISABLED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"]
SSL_MODES: tuple[SslMode, ...] = ("DISABLED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
DEFAULT_PORT = 3306
DEFAULT_NAME = "sbtest"
"""User and database, as sysbench has them."""


@dataclass(frozen=True)
class Place:
    """One source's word on the server. Has no password: that never stands where this is printed."""

    host: str | None = None
    port: int | None = None
    socket: str | None = None
    user: str | None = None
    database: str | None = None
    ssl_mode: SslMode | None = None
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None
    ssl_cipher: str | None = None
    tls_versions: Literal["any", "1.2", "1.3"] | None = None
    compression: Literal["zlib", "zstd"] | None = None
    compression_level: int | None = None
    fetch_server_key: bool | None = None
    server_key_file: str | None = None

    def over(self, below: Place) -> Place:
        """This one, with `below` where this one is silent. A host here silences a socket below, and the other way round."""
        if self.host is not None or self.socket is not None:
            below = replace(below, host=None, port=None, socket=None)
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(below, **{name: value for name, value in said.items() if value is not None})

    @property
    def names_a_server(self) -> bool:
        return self.host is not None or self.socket is not None or self.port is not None
