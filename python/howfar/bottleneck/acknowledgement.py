"""The acknowledgement of another server that commits wait for, as the slice that has such commits registers it."""

from __future__ import annotations

from howfar.model.resource import Acknowledgement
from howfar.slices import collect

_NONE = Acknowledgement("acknowledgement", lambda trials: None, *[""] * 9)
"""No slice has such commits, so that none of these texts is used."""
(ACKNOWLEDGEMENT,) = collect("waits", "ACKNOWLEDGEMENTS", Acknowledgement) or (_NONE,)
