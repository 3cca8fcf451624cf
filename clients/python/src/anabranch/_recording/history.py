"""What the server has of a trajectory that is resumed or branched: its end, checkpoints, messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

from anabranch._reading.blobs import Blobs
from anabranch._reading.read import OwnedStep, fetch_states, read_steps
from anabranch._recording.context import Context, context_after, new_context, write_prompt
from anabranch._recording.messages import MESSAGE, PROMPT_MESSAGE, Message, copied
from anabranch._recording.turns import messages_of
from anabranch._wire.decode import decode_content, decode_items
from anabranch._wire.errors import AnabranchError, Unreachable
from anabranch._wire.failures import raising_reasons
from anabranch._wire.limits import ask
from anabranch._wire.outage import call
from anabranch._wire.proxies import via_proxy
from anabranch._wire.retry import retrying
from anabranch.errors import CheckpointNotFound, RunNotFound, TrajectoryNotFound
from anabranch.v1.run_service_pb2 import GetRunRequest
from anabranch.v1.trajectory_pb2 import Content
from anabranch.v1.trajectory_service_pb2 import (
    BranchTrajectoryRequest,
    GetCheckpointRequest,
    GetStepRequest,
    GetTrajectoryRequest,
    ListTrajectoriesRequest,
)

if TYPE_CHECKING:
    from anabranch._wire.connection import Connection
    from anabranch.v1.trajectory_pb2 import Action, Step, Trajectory

_LOOK_UP_SECONDS = 1.0
#: The most that the server sends with a step. Smaller states can be stored where their digests do not find them.
_INLINE_BYTES = 256 * 1024

#: Label of a branch by which a trajectory was continued at a checkpoint: the id that `resume` looks for.
REWOUND_FROM = "anabranch.rewound_from"

_T = TypeVar("_T")

#: The observation of a step that is not read yet.
_UNREAD = object()


#: Returns the connection and the id of the trajectory whose steps are read, when the server has what it inherits.
Source = Callable[[], "tuple[Connection, str]"]


class Position:
    """What is known of a trajectory after its last step: what this process recorded, after what the server has.

    `inherited` is the number of steps that were stored before. They are read when they are needed.
    """

    def __init__(self, inherited: int = 0) -> None:
        self.inherited = inherited
        self._reward_before: float | None = None if inherited else 0.0
        self._reward = 0.0
        self._observation: object = _UNREAD if inherited else None
        self._messages_before: list[Message] | None = None if inherited else []
        self._messages: list[Message] = []
        #: The tokens of the model so far. None if they are unknown.
        self.context: Context | None = None if inherited else new_context()
        self._context_is_read = inherited == 0

    def add_reward(self, reward: float) -> None:
        self._reward += reward

    def observe(self, observation: object) -> None:
        self._observation = observation

    def say(self, messages: Iterable[Message]) -> None:
        """Adds the messages of a recorded step, as they are read back."""
        self._messages += messages

    def add_tokens(self, action: Action, prompt: Sequence[int] | None) -> None:
        """Writes the prompt of an action that has its tokens already. Never waits for what it inherits."""
        self.context = write_prompt(action, self.context, prompt)
        self._context_is_read = True

    def reward_sum(self, source: Source) -> float:
        if self._reward_before is None:
            self._reward_before = self._last_step(*source()).reward_sum
        return self._reward_before + self._reward

    def last_observation(self, source: Source) -> object:
        if self._observation is _UNREAD:
            connection, trajectory_id = source()
            step = self._last_step(connection, trajectory_id)
            fetch = Blobs(connection, [OwnedStep(trajectory_id, step)]).get
            items = [item for item in step.observations if item.type not in (MESSAGE, PROMPT_MESSAGE)]
            self._observation = decode_items(items, fetch)
        return self._observation

    def messages(self, source: Source) -> list[Message]:
        """Returns copies of the messages, which the caller may change."""
        return copied(self.read_messages(source) + self._messages)

    def read_messages(self, source: Source) -> list[Message]:
        """Reads the messages of the steps before, unless that was done."""
        if self._messages_before is None:
            self._messages_before, context = _read_conversation(*source(), self.inherited)
            if not self._context_is_read:
                self.context, self._context_is_read = context, True
        return self._messages_before

    def copy(self) -> Position:
        copied = copy(self)
        copied._messages = list(self._messages)
        return copied

    def _last_step(self, connection: Connection, trajectory_id: str) -> Step:
        request = GetStepRequest(trajectory_id=trajectory_id, step_number=self.inherited - 1)
        return call(connection, lambda stubs: stubs.trajectories.GetStep, request).step


class Checkpoint(Mapping[str, Any]):
    """The states of a step, by name. `step` is its number."""

    def __init__(self, step: int, states: Mapping[str, Any]) -> None:
        self.step = step
        self._states = states

    def __getitem__(self, name: str) -> Any:
        return self._states[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __repr__(self) -> str:
        return f"Checkpoint(step={self.step}, states={sorted(self._states)})"


def find(connection: Connection, trajectory_id: str, deadline: float) -> Trajectory | None:
    """Returns a trajectory, or None if it does not exist. Waits for a server that is not reachable, until the deadline
    on the monotonic clock."""
    request = GetTrajectoryRequest(trajectory_id=trajectory_id)
    stub = connection.stubs.trajectories
    try:
        return _until(connection, deadline, lambda left: stub.GetTrajectory(request, timeout=left)).trajectory
    except TrajectoryNotFound:
        return None


def find_continuation(connection: Connection, trajectory: Trajectory, deadline: float) -> Trajectory | None:
    """Returns the newest branch by which a trajectory was continued at a checkpoint (rule W13), or None. Waits as `find`
    does."""
    labels = {REWOUND_FROM: trajectory.id}
    request = ListTrajectoriesRequest(tree_id=trajectory.tree_id, labels=labels, page_size=1)
    stub = connection.stubs.trajectories
    found = _until(connection, deadline, lambda left: stub.ListTrajectories(request, timeout=left)).trajectories
    return found[0] if found else None


def continue_by_branch(connection: Connection, request: BranchTrajectoryRequest, deadline: float) -> None:
    """Creates the branch by which a trajectory continues at a checkpoint. Waits as `find` does."""
    stub = connection.stubs.trajectories
    _until(connection, deadline, lambda left: stub.BranchTrajectory(request, timeout=left))


def require_run(connection: Connection, run_id: str, deadline: float) -> None:
    """Raises RunNotFound if the server does not have the run. Waits as `find` does."""
    request = GetRunRequest(run_id=run_id)
    stub = connection.stubs.runs
    _until(connection, deadline, lambda left: stub.GetRun(request, timeout=left))


def run_exists(connection: Connection, run_id: str) -> bool:
    """Returns False if a run does not exist. Asks once, for at most a second: a server that does not answer may have it."""
    end = time.monotonic() + _LOOK_UP_SECONDS
    try:
        with raising_reasons():
            ask(connection, _LOOK_UP_SECONDS)
            request = GetRunRequest(run_id=run_id)
            connection.stubs.runs.GetRun(request, timeout=max(0.0, end - time.monotonic()))
    except RunNotFound:
        return False
    except AnabranchError:
        return True
    return True


def _until(connection: Connection, deadline: float, once: Callable[[float], _T]) -> _T:
    """Repeats a call until it succeeds, fails permanently, or the time is up. It is given the seconds that are left."""

    def left() -> float:
        return max(0.0, deadline - time.monotonic())

    def attempt() -> _T:
        ask(connection, left())
        return once(left())

    try:
        with raising_reasons():
            return retrying(attempt, left())
    except Unreachable as error:
        address = f"{connection.address}{via_proxy(connection.address)}"
        raise Unreachable(f"no server answers at {address}: {error}") from error.__cause__


def find_checkpoint(
    connection: Connection, trajectory_id: str, at: int | str | None = None, deadline: float | None = None
) -> Step | None:
    """Returns a step that has states, or that of a tag. Default: the latest checkpoint, None if there is none. With a
    deadline, waits as `find` does."""
    request = GetCheckpointRequest(trajectory_id=trajectory_id)
    if isinstance(at, str):
        request.tag = at
    elif at is not None:
        request.step_number = at
    try:
        if deadline is None:
            return call(connection, lambda stubs: stubs.trajectories.GetCheckpoint, request).step
        stub = connection.stubs.trajectories
        return _until(connection, deadline, lambda left: stub.GetCheckpoint(request, timeout=left)).step
    except CheckpointNotFound:
        if at is None:
            return None
        raise


def states_of(connection: Connection, trajectory_id: str, step: Step) -> Checkpoint:
    """Reads the states of a step that are not in the message."""
    number = step.step_number
    found = {state.digest: state.data for state in step.states if state.HasField("data")}
    if len(found) < len(step.states):
        ((owned,),) = read_steps(connection, trajectory_id, number, number + 1, inline_bytes=_INLINE_BYTES)
        found |= owned.blobs
        found |= fetch_states(connection, [state.digest for state in step.states if state.digest not in found])
    states = {
        state.name: decode_content(Content(data=found[state.digest], media_type=state.media_type), found.__getitem__)
        for state in step.states
    }
    return Checkpoint(number, states)


def _read_conversation(connection: Connection, trajectory_id: str, end: int) -> tuple[list[Message], Context | None]:
    """Returns the messages and the tokens of the first steps."""
    messages: list[Message] = []
    context: Context | None = new_context()
    for together in read_steps(connection, trajectory_id, stop=end):
        fetch = Blobs(connection, together).get
        for step in together:
            messages += messages_of(step.message, fetch)
            context = context_after(context, step.message, fetch)
    return messages, context
