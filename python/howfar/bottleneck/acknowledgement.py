"""The acknowledgement of another server that commits wait for, as the slice that has such commits registers it."""

from __future__ import annotations

from howfar.model.resource import Acknowledgement
from howfar.slices import collect

_NONE = Acknowledgement(
    part="acknowledgement",
    mean_wait_s=lambda trials: None,
    limit="",
    measured="",
    unmeasured="",
    nearer="",
    more_waits="",
    no_wait="",
    no_help="",
    untestable="",
    action="",
)
"""If no slice has such commits. Then none of these texts is used."""
(ACKNOWLEDGEMENT,) = collect("waits", "ACKNOWLEDGEMENTS", Acknowledgement) or (_NONE,)
