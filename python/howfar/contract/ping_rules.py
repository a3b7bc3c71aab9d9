"""Rules that the generated types of `ping_messages.py` cannot express; see `rules.py`."""

from __future__ import annotations

from howfar.contract.message import rule_of
from howfar.contract.ping_messages import Tls


@rule_of(Tls)
def _tls(tls: Tls) -> None:
    if tls.verify in ("ca", "full") and tls.ca_file is None:
        raise ValueError("verify needs ca_file")
    if tls.verify in ("full", "password") and tls.server_name is None:
        raise ValueError("verify=full and verify=password need server_name")
    if (tls.cert_file is None) != (tls.key_file is None):
        raise ValueError("cert_file and key_file come together")
