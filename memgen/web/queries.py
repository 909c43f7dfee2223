"""The queries of the page, with limits for every field. All others are refused before any work begins."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memgen.errors import MemgenError
from memgen.tasks import inspection

MOST_MODELS = 16
MOST_PIXELS = 256 * 256 * 3
MOST_ROWS = 1000
MOST_TEXT = 1_000_000
"""Largest number of characters of a table."""

Place = Annotated[int, Field(ge=0, le=999)]
Index = Annotated[int, Field(ge=0, le=10_000_000)]
Model = Annotated[int, Field(ge=0, lt=MOST_MODELS)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Code = Annotated[list[Annotated[float, Field(ge=-1000, le=1000)]], Field(min_length=1, max_length=4096)]
"""z of the first level."""
Bits = Annotated[str, Field(pattern="^[01]*$", max_length=MOST_PIXELS)]
Bytes = Annotated[str, Field(pattern="^(?:[0-9a-f]{2})*$", max_length=2 * MOST_PIXELS)]
"""Two hexadecimal digits a pixel and channel."""


class Query(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class OfModel(Query):
    model: Model = 0


class Change(Query):
    """See `memgen.tasks.inspection.Change`."""

    place: Place
    slot: Annotated[int, Field(ge=-1, le=99_999)]
    factor: Annotated[float, Field(ge=0, le=20)] = 0.0
    other: Annotated[int, Field(ge=0, le=99_999)] | None = None


class Changed(OfModel):
    changes: Annotated[list[Change], Field(max_length=64)] = []

    @property
    def memory_changes(self) -> list[inspection.Change]:
        return [inspection.Change(**change.model_dump()) for change in self.changes]


class Row(OfModel):
    """An example, or an image in hexadecimal."""

    row: Index | None = None
    pixels: Bytes | None = None


class Samples(OfModel):
    seed: Seed = 0
    n: Annotated[int, Field(ge=1, le=100)] = 48
    draw: bool = False
    hold: Annotated[int, Field(ge=0, le=32)] = 0
    """The number of levels that all samples share, from the top."""
    label: Annotated[str, Field(max_length=200)] | None = None
    """The class whose rows give z."""


class Decode(Changed):
    z: Code
    draw: bool = False
    seed: Seed = 0


class Morph(OfModel):
    a: Code
    b: Code
    steps: Annotated[int, Field(ge=2, le=24)] = 9


class Examples(OfModel):
    first: Index = 0
    n: Annotated[int, Field(ge=1, le=100)] = 20


class Look(Row, Changed):
    z: Code
    samples: Annotated[int, Field(ge=1, le=2000)] = 50
    """Importance samples for log p(x): few while a person tries things, more when the hand rests."""


class OfPlace(OfModel):
    place: Place = 0


class Slots(OfPlace):
    by: Annotated[str, Field(max_length=200)] | None = None
    """The column of a table whose levels are the classes; None: the labels of the data."""


class OfSlot(OfPlace):
    slot: Index = 0


class Pattern(OfModel):
    pattern: Annotated[str, Field(pattern="^[a-z0-9.-]{1,20}$")]
    seed: Seed = 0


class Complete(Row):
    hidden: Bits
    steps: Annotated[int, Field(ge=4, le=400)] = 100
    seed: Seed = 0


class Table(OfModel):
    text: Annotated[str, Field(max_length=MOST_TEXT)]
    seed: Seed = 0


class Rows(OfModel):
    given: Annotated[
        dict[Annotated[str, Field(max_length=200)], Annotated[str, Field(max_length=200)]], Field(max_length=1000)
    ] = {}
    n: Annotated[int, Field(ge=1, le=200)] = 10
    seed: Seed = 0


Q = TypeVar("Q", bound=Query)


def read(kind: type[Q], body: bytes) -> Q:
    """Parse a query from JSON; an invalid one raises an error of one line."""
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        raise MemgenError(f"{where or 'the request'}: {first['msg']}") from None
