"""Sessions: `simulation_db.database`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from anabranch.compat._settings import ask_server, connect_to, database_of, setting

if TYPE_CHECKING:
    from typing_extensions import Self

    from anabranch.client import Client


class Model(Protocol):
    """An object that has an id: a Simulation, a SimulationRun or a State."""

    id: str

    @classmethod
    def read(cls, client: Client, id: str) -> Self | None:
        """Returns the object with an id; None if there is none."""
        ...


Found = TypeVar("Found", bound=Model)


class Session:
    """What the managers work with. Each call of a manager is durable when it returns, so that nothing is to be
    committed or rolled back."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.connection = client.connection

    def get(self, model: type[Found], id: str) -> Found | None:
        """Returns a Simulation, a SimulationRun or a State by its id; None if there is none."""
        return model.read(self.client, id)

    def refresh(self, instance: Model) -> None:
        """Reads an object again."""
        found = type(instance).read(self.client, instance.id)
        if found is not None:
            vars(instance).update(vars(found))

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def SessionLocal() -> Session:
    """Returns a session of the database that DATABASE_URL names: postgresql://… or sqlite:///FILE.

    Of FILE, `data.anabranch.db` beside it is used for `data.db`. Raises RuntimeError if neither DATABASE_URL nor
    ANABRANCH_ADDRESS is set.
    """
    url = setting("DATABASE_URL")
    if not url and not setting("ANABRANCH_ADDRESS"):
        raise RuntimeError("DATABASE_URL is not set. Set it in environment or .env")
    return Session(_client_of(setting("ANABRANCH_ADDRESS"), url, setting("ANABRANCH_NAMESPACE")))


def get_db() -> Iterator[Session]:
    """Yields a session."""
    yield SessionLocal()


def init_db() -> None:
    """Connects to the store, which needs no tables to be made. Raises Unreachable if no server answers (one that has
    answered before is waited for, as by every call)."""
    ask_server(SessionLocal().client)


@functools.lru_cache
def _client_of(address: str, url: str, namespace: str) -> Client:
    """Returns the client of a database and a namespace. The sessions of a process share it."""
    return connect_to(address or database_of(url, "simulator-state-db", "run_state_sequence"), namespace)
