"""Sessions of the OpenAI Agents SDK that are kept in Anabranch.

    session = AnabranchSession("user-42", "sqlite:runs.db")
    await Runner.run(agent, "Hello", session=session)

A session is a trajectory and an item is a step: item n is step n, above an empty step 0. What is popped or cleared
stays readable: the session continues in a branch before it.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from anabranch._reading.blobs import Blobs
from anabranch._reading.read import read_steps
from anabranch._recording.replies import RESPONSES
from anabranch._sessions import (
    CALL,
    append,
    call_tools,
    client_of,
    creation_of,
    json_of,
    json_text,
    reply,
    say,
)
from anabranch._wire.kinds import is_a, type_name
from anabranch._wire.outage import call
from anabranch._wire.tensors import optional
from anabranch._wire.waiting import Threads
from anabranch.compat._strict import append_all, store_large_parts_of
from anabranch.errors import (
    BranchTooDeep,
    StepConflict,
    StepGap,
    TrajectoryExists,
    TrajectoryNotFound,
    TrajectorySealed,
)
from anabranch.v1.status_pb2 import STATUS_CANCELLED, STATUS_RUNNING
from anabranch.v1.trajectory_pb2 import Step
from anabranch.v1.trajectory_service_pb2 import (
    AppendEntry,
    BranchTrajectoryRequest,
    CreateTrajectoryRequest,
    ListTrajectoriesRequest,
    Seal,
    SealTrajectoryRequest,
)

if TYPE_CHECKING:
    from agents import SessionSettings, TResponseInputItem

    from anabranch._wire.decode import Fetch
    from anabranch.client import Client
    from anabranch.v1.trajectory_pb2 import Trajectory

__all__ = ["AnabranchSession"]

R = TypeVar("R")

_agents: Any = optional("agents", "for anabranch.openai_agents")

_IDS = uuid.UUID("552eb3b9-ff64-4e22-b720-83f3b617a134")
_INTEGRATION = "openai-agents"
#: Begins the message of the seal of a trajectory whose session has popped its last item, or was cleared.
_POP, _CLEAR = "pop ", "clear "
#: A reply with an item: what comes before its JSON text and after it.
_BEFORE, _AFTER = '{"output":[', "]}"
#: Types of items that the model writes, besides its messages and calls.
_OF_MODEL = frozenset({"reasoning", "compaction"})


class AnabranchSession:
    """A session. Any number of processes and threads can share it: no item is lost, and the items of one `add_items`
    stay together.

    `session_id` has 1 to 240 bytes. `client` is a client or an address as in `anabranch.connect`, by default
    ANABRANCH_ADDRESS. `session_settings.limit` is the default of `get_items`. Raises TypeError and ValueError.

    Calls return when their data is durable. They wait for a server that is away, as those of a client do, and raise
    AnabranchError. A write that raises Unreachable may have been stored; one that raises another error has stored nothing.
    """

    def __init__(
        self, session_id: str, client: Client | str | None = None, *, session_settings: SessionSettings | None = None
    ) -> None:
        self._creation = creation_of(_INTEGRATION, session_id, name=session_id, session=session_id)
        self.session_id = session_id
        self.session_settings: SessionSettings | None = session_settings or _agents.SessionSettings()
        self._client = client_of(client)
        self._connection = self._client.connection
        self._threads = Threads()
        #: Writes of this object wait for each other, so that they do not compete.
        self._lock = threading.Lock()
        #: The trajectory that holds the session and its end, when this object wrote last.
        self._written: tuple[str, int] | None = None

    def __repr__(self) -> str:
        return f"AnabranchSession({self.session_id!r}, {self._connection.address!r})"

    @property
    def trajectory_id(self) -> str:
        """The id of the first trajectory of the session. Later ones are its branches."""
        return str(uuid.uuid5(_IDS, self.session_id))

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Returns the items, oldest first; none if there is no such session.

        `limit` selects the latest ones, 0 none. Default: the limit of the settings, else all.
        """
        settings = self.session_settings
        most = limit if limit is not None or settings is None else settings.limit
        return await self._threads.run(lambda: self._items(most))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Adds items at the end, all or none. Creates the session with its first items.

        Raises TypeError and ValueError for an item that JSON cannot hold, and StepTooLarge for an item that is too large
        and for items that do not fit into one message, their large parts aside.
        """
        steps = [_step_of(item, index) for index, item in enumerate(items)]
        if steps:
            await self._written_by(lambda: self._add(steps))

    async def pop_item(self) -> TResponseInputItem | None:
        """Removes the latest item and returns it; None if there is none. The session continues in a branch before the
        item. Of calls at the same time, each gets an item of its own."""
        return await self._written_by(self._pop)

    async def clear_session(self) -> None:
        """Removes all items: the session continues in a branch before the first one."""
        await self._written_by(self._clear)

    async def fork(self, at: int | None = None, *, session_id: str | None = None) -> AnabranchSession:
        """Returns a new session that begins with the first `at` items of this one, by default with all. Nothing is
        copied, except below 10,000 branches.

        `session_id` is by default a random UUID. Raises ValueError if the session does not have so many items,
        TrajectoryNotFound if there is no such session, and TrajectoryExists if `session_id` is in use.
        """
        name = str(uuid.uuid4()) if session_id is None else session_id
        forked = AnabranchSession(name, self._client, session_settings=self.session_settings)
        await self._threads.run(lambda: self._fork(forked, at))
        return forked

    async def _written_by(self, write: Callable[[], R]) -> R:
        def one() -> R:
            with self._lock:
                return write()

        return await self._threads.run(one)

    # Blocking forms, each in a thread of its own.

    def _items(self, limit: int | None) -> list[TResponseInputItem]:
        tip = self._tip()
        if tip is None or limit == 0:
            return []
        end = _end_of(tip)
        start = 1 if limit is None or limit < 0 else max(1, end - limit)
        return [item for item in self._read(tip.id, start, end) if item is not None]

    def _add(self, steps: Sequence[Step]) -> None:
        own = str(uuid.uuid4())
        for step in steps:
            # Processes may add equal items at the same moment. The name of the call tells them apart.
            step.labels[CALL] = own
        store_large_parts_of(self._connection, steps)
        known, self._written = self._written, None
        while True:
            tip = None if known else self._open()
            trajectory_id, start = known or ((tip.id, tip.next_step_number) if tip else (self.trajectory_id, 1))
            for number, step in enumerate(steps, start):
                step.step_number = number
            entry = AppendEntry(trajectory_id=trajectory_id, steps=steps)
            if known is None and tip is None:
                entry.create.trajectory.CopyFrom(self._root())
            known = None
            with suppress(StepConflict, StepGap, TrajectorySealed, TrajectoryNotFound):
                append(self._connection, entry)
                self._written = (trajectory_id, start + len(steps))
                return

    def _pop(self) -> TResponseInputItem | None:
        while (tip := self._open()) is not None and tip.next_step_number > 1:
            sealed = self._seal(tip, _POP)
            if sealed is not None:
                self._continue(sealed)
                number = sealed.next_step_number - 1
                for item in self._read(sealed.id, number, number + 1):
                    if item is not None:
                        return item
        return None

    def _clear(self) -> None:
        while (tip := self._open()) is not None and tip.next_step_number > 1:
            sealed = self._seal(tip, _CLEAR)
            if sealed is not None:
                self._continue(sealed)
                return

    def _fork(self, forked: AnabranchSession, at: int | None) -> None:
        tip = self._tip()
        if tip is None:
            message, metadata = f"there is no session {self.session_id!r}", {"trajectory_id": self.trajectory_id}
            raise TrajectoryNotFound(message, reason="TRAJECTORY_NOT_FOUND", metadata=metadata)
        count = _end_of(tip) - 1
        if at is not None and not 0 <= at <= count:
            raise ValueError(f"`at` is {at}: expected 0 to {count}, the number of items of the session")
        forked._branch(tip, count if at is None else at, forked.trajectory_id)

    def _tip(self) -> Trajectory | None:
        """Returns the trajectory that holds the session now. None if there is none."""
        request = ListTrajectoriesRequest(task_id=self._creation.task, labels=self._creation.labels, page_size=1)
        found = call(self._connection, lambda stubs: stubs.trajectories.ListTrajectories, request).trajectories
        return found[0] if found else None

    def _open(self) -> Trajectory | None:
        """Returns the same, open for items: continues it if its process ended before that was done."""
        tip = self._tip()
        if tip is None or tip.status == STATUS_RUNNING:
            return tip
        self._continue(tip)
        again = self._tip()
        if again is not None and again.id == tip.id:
            text = f"session {self.session_id!r} cannot continue: the trajectory after {tip.id} was deleted"
            raise TrajectorySealed(text, reason="TRAJECTORY_SEALED", metadata={"trajectory_id": tip.id})
        return self._open()

    def _seal(self, tip: Trajectory, purpose: str) -> Trajectory | None:
        """Ends a trajectory of the session. None if another call has done so: of all calls, one seals."""
        seal = Seal(status=STATUS_CANCELLED, message=f"{purpose}{uuid.uuid4()}")
        request = SealTrajectoryRequest(trajectory_id=tip.id, seal=seal)
        try:
            return call(self._connection, lambda stubs: stubs.trajectories.SealTrajectory, request).trajectory
        except TrajectorySealed:
            return None

    def _continue(self, sealed: Trajectory) -> None:
        """Creates the branch in which a session continues after a seal, unless another call has done so."""
        branch_id = str(uuid.uuid5(uuid.UUID(sealed.id), "next"))
        with suppress(TrajectoryExists):
            self._branch(sealed, _end_of(sealed) - 1, branch_id)

    def _branch(self, source: Trajectory, at: int, branch_id: str) -> None:
        request = BranchTrajectoryRequest(trajectory_id=source.id, step_number=at, branch_id=branch_id)
        # Only repetitions of this call share the id: a branch of the same id may have been deleted.
        request.request_id = str(uuid.uuid4())
        request.name, request.task_id = self._creation.name, self._creation.task
        request.labels.update(self._creation.labels)
        try:
            call(self._connection, lambda stubs: stubs.trajectories.BranchTrajectory, request)
        except BranchTooDeep:
            request.trajectory_id = self._copied(source.id, at)
            call(self._connection, lambda stubs: stubs.trajectories.BranchTrajectory, request)

    def _copied(self, trajectory_id: str, at: int) -> str:
        """Copies the first items of a trajectory into a root, and returns its id. The root has no task: it is found by
        the label of the session, but does not hold the session."""
        root = self._root()
        root.trajectory_id, root.task_id = str(uuid.uuid4()), ""
        call(self._connection, lambda stubs: stubs.trajectories.CreateTrajectory, root)
        read = read_steps(self._connection, trajectory_id, 1, at + 1)
        for _ in append_all(self._connection, root.trajectory_id, (step.message for steps in read for step in steps)):
            pass
        return root.trajectory_id

    def _root(self) -> CreateTrajectoryRequest:
        creation = self._creation
        return CreateTrajectoryRequest(
            trajectory_id=self.trajectory_id,
            request_id=str(uuid.uuid4()),
            task_id=creation.task,
            name=creation.name,
            labels=creation.labels,
            root=Step(),
        )

    def _read(self, trajectory_id: str, start: int, stop: int) -> Iterator[TResponseInputItem | None]:
        """Yields the items of steps; None for a step without one."""
        for steps in read_steps(self._connection, trajectory_id, start, stop):
            blobs = Blobs(self._connection, steps)
            for step in steps:
                yield _item_of(step.message, blobs.get)


def _end_of(tip: Trajectory) -> int:
    """Returns the end of the items that a trajectory still holds: its seal says what the session has given up."""
    if tip.status == STATUS_RUNNING:
        return tip.next_step_number
    if tip.status_message.startswith(_CLEAR):
        return 1
    return tip.next_step_number - tip.status_message.startswith(_POP)


def _step_of(item: Any, index: int) -> Step:
    name = f"item {index}"
    if not is_a(item, dict):
        raise TypeError(f"{name} is of type {type_name(item)}: expected a dict")
    text, step = json_of(item, name), Step()
    kind = item.get("type")
    is_call = isinstance(kind, str) and kind.endswith("_call")
    if not (is_call or item.get("role") == "assistant" or kind in _OF_MODEL):
        say(step, text, item.get("call_id"))
        return step
    reply(step, RESPONSES, f"{_BEFORE}{text}{_AFTER}")
    if is_call:
        tool = item.get("name") or kind.removesuffix("_call")
        call_tools(step, [(tool, item.get("call_id"), item.get("arguments", item.get("input")))])
    return step


def _item_of(step: Step, fetch: Fetch) -> TResponseInputItem | None:
    if step.actions:
        text = json_text(step.actions[0].content, fetch)
        return json.loads(text[len(_BEFORE) : -len(_AFTER)])
    return json.loads(json_text(step.observations[0].content, fetch)) if step.observations else None
