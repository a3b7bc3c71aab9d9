"""Limits of the engine for plans. Generated from `schema/contract.json` by `generate.py`: do not edit."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Tables = Annotated[int, Field(ge=1, le=1_048_576)]
TableSize = Annotated[int, Field(ge=1, le=4_503_599_627_370_495)]
RangeSize = Annotated[int, Field(ge=1, le=4_503_599_627_370_495)]
PointSelects = Annotated[int, Field(ge=0, le=1_048_576)]
SimpleRanges = Annotated[int, Field(ge=0, le=1_048_576)]
SumRanges = Annotated[int, Field(ge=0, le=1_048_576)]
OrderRanges = Annotated[int, Field(ge=0, le=1_048_576)]
DistinctRanges = Annotated[int, Field(ge=0, le=1_048_576)]
IndexUpdates = Annotated[int, Field(ge=0, le=1_048_576)]
NonIndexUpdates = Annotated[int, Field(ge=0, le=1_048_576)]
DeleteInserts = Annotated[int, Field(ge=0, le=1_048_576)]
RandomPoints = Annotated[int, Field(ge=1, le=10_000)]
NumberOfRanges = Annotated[int, Field(ge=1, le=10_000)]
Delta = Annotated[int, Field(ge=0, le=4_503_599_627_370_495)]
ParetoH = Annotated[float, Field(gt=0.0, lt=1.0)]
SpecIter = Annotated[int, Field(ge=1, le=10_000)]
SpecPct = Annotated[int, Field(ge=1, le=100)]
SpecRes = Annotated[int, Field(ge=1, le=99)]
ZipfianExp = Annotated[float, Field(ge=0.0)]
Keys = Annotated[int, Field(ge=1, le=999_999_999_999)]
Get = Annotated[int, Field(ge=0, le=1_000_000)]
Set = Annotated[int, Field(ge=0, le=1_000_000)]
MultiGet = Annotated[int, Field(ge=0, le=1_000_000)]
Delete = Annotated[int, Field(ge=0, le=1_000_000)]
KeysEach = Annotated[int, Field(ge=1, le=1000)]
Pipeline = Annotated[int, Field(ge=1, le=1000)]
