"""The document's records for a spreadsheet: one line each, an empty field is unknown."""

from __future__ import annotations

import csv
import io

from howfar.report.document import Document


def render(document: Document) -> str:
    """CSV with a header line and `\\n` line ends."""
    names = list(dict.fromkeys(name for record in document.records for name in record))
    out = io.StringIO()
    if document.records:
        writer = csv.DictWriter(out, names, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(document.records)
    return out.getvalue()
