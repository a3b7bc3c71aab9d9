"""The base of all parts of a receipt."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class ReceiptPart(BaseModel):
    """A part of a receipt. Fields that other versions wrote are kept, but code can name only those that are declared."""

    model_config = ConfigDict(
        extra="allow", allow_inf_nan=False, validate_by_name=True, serialize_by_alias=True, defer_build=True
    )

    def as_json(self) -> dict[str, Any]:
        """The part for a file or a report, with the fields that were recorded."""
        return self.model_dump(mode="json", exclude_unset=True)

    def updated(self, other: Self) -> Self:
        """This part with the fields that another one sets."""
        return self.model_copy(update={name: getattr(other, name) for name in other.model_fields_set})

    def with_defaults(self) -> Self:
        """This part with its default values as if they had been set, so that a file shows them."""
        return self.model_copy(update=dict(self))
