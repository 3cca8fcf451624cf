"""Lists of the server's resources, read page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from anabranch._wire.outage import pages
from anabranch._wire.shown import Shown, html_text
from anabranch.v1.trajectory_pb2 import VIEW_BASIC, VIEW_FULL

if TYPE_CHECKING:
    from anabranch._wire.connection import Connection

R = TypeVar("R")

_PAGE_SIZE = 200
_COUNTED_SIZE = 1000
#: Rows of a list that a notebook shows.
_SHOWN = 10


class Listing(Shown, Generic[R]):
    """A list of resources. Nothing is read before the iteration, which reads page by page; each iteration reads again."""

    def __init__(
        self,
        connection: Connection,
        method: Callable[[Any], Any],
        request: Any,
        rows: Callable[[Any], Iterable[R]],
    ) -> None:
        self._connection = connection
        self._method = method
        self._request = request
        self._rows = rows

    def __iter__(self) -> Iterator[R]:
        return self._read(VIEW_FULL, _PAGE_SIZE)

    def first(self) -> R | None:
        """Returns the first resource; None if there is none."""
        return next(self._read(VIEW_FULL, 1), None)

    def count(self) -> int:
        """Returns how many resources there are. Reads short forms of all of them."""
        return sum(1 for _ in self._read(VIEW_BASIC, _COUNTED_SIZE))

    def __repr__(self) -> str:
        filters = ", ".join(f"{field.name}={value}" for field, value in self._request.ListFields())
        return (
            f"Listing({type(self._request).__name__.removeprefix('List').removesuffix('Request')}: {filters or 'all'})"
        )

    def _repr_html_(self) -> str:
        rows = [repr(row) for row in islice(self, _SHOWN + 1)]
        shown = [*rows[:_SHOWN], "…"] if len(rows) > _SHOWN else rows
        return html_text("\n".join([repr(self), *shown]))

    def _read(self, view: int, page_size: int) -> Iterator[R]:
        request = type(self._request)()
        request.CopyFrom(self._request)
        request.page_size = page_size
        if "view" in request.DESCRIPTOR.fields_by_name:
            request.view = view
        for page in pages(self._connection, self._method, request):
            yield from self._rows(page)
