"""`Trajectory`: what a program records, and the handle to read, branch and resume it."""

from __future__ import annotations

import logging
import operator
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, cast

from anabranch._reading.methods import TrajectoryReading
from anabranch._recording import rpc
from anabranch._recording.arguments import flag_of, names_of, prompt_of, write_metrics, write_reward, write_tokens
from anabranch._recording.fitting import fit, fitted_tags, fitted_text, text_of
from anabranch._recording.history import (
    REWOUND_FROM,
    Checkpoint,
    Position,
    continue_by_branch,
    find,
    find_checkpoint,
    states_of,
)
from anabranch._recording.messages import MESSAGE, PROMPT_MESSAGE, copied, message_items, messages_in
from anabranch._recording.recording import NoRecording, TrajectoryRecording, not_recorded_here
from anabranch._recording.segment import Kind
from anabranch._recording.spool import Identity, SpoolFullError
from anabranch._recording.steps import UNSET, TooLargeError, encode, fill
from anabranch._recording.turns import Turn, no_state
from anabranch._wire.errors import AnabranchError, SpoolFull
from anabranch._wire.failures import error_from_failure
from anabranch._wire.plain import text_of_error
from anabranch._wire.recorded import Recorded
from anabranch._wire.scope import is_interrupt
from anabranch._wire.shown import Shown
from anabranch._wire.termination import blocks
from anabranch._wire.values import step_too_large
from anabranch.errors import TrajectorySealed
from anabranch.receipt import Receipt
from anabranch.v1.trajectory_pb2 import Observation, Step
from anabranch.v1.trajectory_service_pb2 import BranchTrajectoryRequest

if TYPE_CHECKING:
    from typing_extensions import Self

    from anabranch._recording.batch import StepGroup
    from anabranch._recording.recorder import Recorder
    from anabranch._wire.connection import Connection
    from anabranch.client import Client

log = logging.getLogger("anabranch")

Status = Literal["completed", "failed", "cancelled"]
#: The default of arguments that are sequences.
NOTHING: tuple[()] = ()
#: How long reads of the steps before a resumed one wait until the server has them.
_SOURCE_SECONDS = 60
_STATUSES: dict[str, int] = {"completed": 5, "failed": 6, "cancelled": 7}


class Trajectory(TrajectoryReading, Shown):
    """A sequence of steps. Threads can share it; steps are numbered in the order of the calls.

    As a context manager, a normal exit seals it as completed, an exception as failed with its text, KeyboardInterrupt
    and the cancellation of a task as cancelled. So does SIGTERM in the main thread, unless the program has a handler of
    its own: it raises SystemExit(143) there. Without `with`, nothing is sealed until `seal()`.
    """

    _internal = frozenset(
        {
            "after",
            "begin",
            "continue_after",
            "create",
            "dropped",
            "end",
            "position_at",
            "record_said",
            "recorded",
            "say_again",
            "unrecorded",
        }
    )

    def __init__(
        self,
        client: Client,
        recorder: Recorder,
        identity: Identity,
        labels: Mapping[str, str],
        start: Position,
        next_step: int,
        *,
        task: str | None = None,
        run: str | None = None,
        origin: str = "",
        done: bool = False,
        group: StepGroup | None = None,
    ) -> None:
        self.client = client
        self.name = identity.name
        self._labels = dict(labels)
        #: What reads need to know. Task and run are None if the trajectory is a branch of one that is given by its id.
        self.recorded = Recorded(identity.trajectory_id, identity.name, task, run, self._labels)
        self._values = client.values
        self._lock = threading.RLock()
        self._is_attempt = identity.is_attempt
        #: The id that `resume` looks for. A trajectory that rewinds keeps it.
        self._origin = origin or identity.trajectory_id
        #: Messages that no step has, and the turns that are open: the next step has what they say.
        self._said: list[Observation] = []
        self._turns: list[Turn] = []
        self._begin(recorder, identity, start, next_step, done=done, existed=identity.take_over, group=group)

    def _begin(
        self,
        recorder: Recorder,
        identity: Identity,
        start: Position,
        next_step: int,
        *,
        done: bool,
        existed: bool,
        group: StepGroup | None = None,
    ) -> None:
        """Records from a step on, into a trajectory of the server. `existed` tells whether the server has it already."""
        self._recorder = recorder
        self._transfer, self._spooled = recorder.open(identity, group, self.recorded)
        self._recording = TrajectoryRecording(recorder, self._transfer)
        self._next = self._start = next_step
        self._existed = existed
        self._at = start
        self._sealed = False
        self._done = done
        self._ended = ""
        self._warned = False
        self._last_position = -1

    # What is known of it

    @property
    def id(self) -> str:
        """Id of the trajectory. It changes if another writer continues the trajectory, or after `rewind()`."""
        return self._transfer.trajectory_id

    @property
    def next_step(self) -> int:
        """Number of the next step."""
        return self._next

    @property
    def done(self) -> bool:
        """Whether the last step was terminated or truncated, or the trajectory is sealed."""
        return self._done or self._sealed

    @property
    def reward_sum(self) -> float:
        """Sum of the rewards so far, inherited steps included."""
        return self._at.reward_sum(self._source)

    @property
    def last_observation(self) -> object:
        """The observation of the last step. None if there is none."""
        return self._at.last_observation(self._source)

    @property
    def messages(self) -> list[dict[str, object]]:
        """The conversation so far: the messages of `reset` and `say`, the replies of `turn` and the results of tool
        calls, in the form that the service that answered accepts.

        A copy: changes of it change nothing. It is the same while it is recorded and when it is read back. In OpenAI's
        chat format, images of results follow as a message of the user, because messages of tools have text only.
        """
        self._at.read_messages(self._source)
        with self._lock:
            messages = self._at.messages(self._source)
            for turn in self._turns:
                messages += copied(turn.messages)
            return messages + messages_in(self._said, no_state)

    def load(self) -> None:
        """Reads what `reward_sum`, `last_observation` and `messages` need of earlier steps. Otherwise they read it at
        their first use."""
        _ = self.reward_sum, self.last_observation, self.messages

    @property
    def dropped(self) -> str:
        """Why the server accepts no further steps, which are dropped. Empty if it accepts them."""
        return self._transfer.dropped

    def __repr__(self) -> str:
        return f"Trajectory({self.id!r}, name={self.name!r}, next_step={self._next})"

    # Writing

    def reset(
        self,
        *,
        observation: object = UNSET,
        info: object = UNSET,
        messages: Iterable[Mapping[str, object]] | str = (),
        screenshot: object = UNSET,
        states: Mapping[str, object] | None = None,
    ) -> Receipt:
        """Records step 0: the result of the environment's reset. Raises ValueError if the trajectory has steps.

        `messages` begin the conversation, as in `say`.
        """
        said = message_items(self._values, messages)
        step = Step(observations=said)
        fill(step, self._values, observation, info, screenshot, states)
        with self._lock:
            if self._next > 0:
                raise ValueError(f"reset() must be the first step, but {self._next} steps are recorded")
            receipt = self._append(step, ())
            self._at.observe(None if observation is UNSET else observation)
            self._at.say(messages_in(said, no_state))
            return receipt

    def step(
        self,
        *,
        action: object = UNSET,
        observation: object = UNSET,
        reward: float | None = None,
        terminated: bool = False,
        truncated: bool = False,
        info: object = UNSET,
        metrics: Mapping[str, float] | None = None,
        token_ids: Sequence[int] = NOTHING,
        logprobs: Sequence[float] = NOTHING,
        prompt_token_ids: Sequence[int] | None = None,
        screenshot: object = UNSET,
        states: Mapping[str, object] | None = None,
        tags: Iterable[str] = NOTHING,
    ) -> Receipt:
        """Records one step and returns without waiting for the server.

        `action`, `observation` and `info` are values of any shape (docs/python.md, "Values"); arrays are copied
        before the call returns. `reward` and the values of `metrics` are numbers, or arrays of one. A reward of
        several numbers is stored as the metrics `reward/0`, `reward/1`, …, and the step has none. `token_ids` are
        those of the reply, with one of `logprobs` (natural logarithms) for each, or none. `prompt_token_ids` is the
        whole prompt of the model; only what it adds to the tokens before is sent. `states` are bytes or values by
        name, at most 256; a step with states is a checkpoint. `tags` are at most 16 names that move to this step.

        A step without `reset()` before it follows an empty step 0. Values that cannot be stored are replaced by
        markers, names that break a limit and arguments that are none are left out, and a full spool ends the recording;
        none of these raises. With `strict`, the call raises TypeError, ValueError and SpoolFull for them, StepTooLarge
        for what is too large, and
        TrajectorySealed after `seal()`.
        """
        step = Step()
        if action is not UNSET:
            self._values.add_action(step, action)
        prompt: object = UNSET
        if token_ids is not NOTHING or logprobs is not NOTHING or prompt_token_ids is not None:
            prompt = self._write_tokens(step, token_ids, logprobs, prompt_token_ids)
        fill(step, self._values, observation, info, screenshot, states)
        if type(reward) is float:
            step.reward = reward
        elif reward is not None:
            write_reward(self._values, step, reward)
        if terminated is not False:
            step.terminated = flag_of(self._values, terminated, "terminated")
        if truncated is not False:
            step.truncated = flag_of(self._values, truncated, "truncated")
        if metrics is not None:
            write_metrics(self._values, step, metrics)
        if tags is not NOTHING:
            tags = names_of(self._values, tags, "tags")
        with self._lock:
            receipt = self._append(step, tags, prompt)
            if observation is not UNSET:
                self._at.observe(observation)
            return receipt

    def _write_tokens(self, step: Step, token_ids: Any, logprobs: Any, prompt: Any) -> object:
        """Writes the tokens of a step on its first action. Returns the prompt; UNSET if the step has no tokens."""
        added = not step.actions
        first = step.actions.add() if added else step.actions[0]
        known = write_tokens(self._values, first, token_ids, logprobs)
        if known and (first.token_ids or first.logprobs or prompt is not None):
            return prompt_of(self._values, prompt)
        if added:
            del step.actions[:]
        return UNSET

    def turn(self, reply: object) -> Turn:
        """Returns a context manager that records a reply of a model, with the results of its tool calls, as one step.

        `reply` is an object or a dict in OpenAI's chat or responses format, or in Anthropic's messages format. All of
        it is recorded. Of several choices, the first is the turn. One that cannot be read has neither text nor tool
        calls. Raises TypeError for an object that can be no reply, also for a part of a streamed one, and with `strict`
        any error of reading.
        """
        return Turn(self, self._values, reply)

    def say(self, messages: Iterable[Mapping[str, object]] | str) -> None:
        """Adds messages to the conversation, for example of the user. Text alone is a message of the user.

        When the call has returned, the messages survive the end of the process. The next step has them; without one,
        the end of the trajectory or of the process records them as a step of their own. `flush` does not wait for them.
        Within the `with` block of a turn, they follow its reply and its results. A message that is no object is left
        out with a warning; with `strict`, the call raises TypeError, and TrajectorySealed after `seal()`.
        """
        items = message_items(self._values, messages)
        with self._lock:
            if self._turns:
                self._turns[-1].say(items)
            else:
                self._said += items
            self._hold()

    @property
    def unrecorded(self) -> list[Observation]:
        """Messages that were said after the last step."""
        return list(self._said)

    def say_again(self, items: Iterable[Observation]) -> None:
        """Adds messages that were said to another trajectory."""
        with self._lock:
            self._said += items
            self._hold()

    def begin(self, turn: Turn) -> None:
        """Opens a turn. What was said before precedes its reply."""
        with self._lock:
            turn.say(self._said, before=True)
            self._said = []
            self._turns.append(turn)

    def end(self, turn: Turn, step: Step, prompt: Sequence[int] | None) -> Receipt:
        """Records a turn. The number of its step and the prompt of its first action are set."""
        with self._lock:
            self._turns.remove(turn)
            # Read before the step is encoded, which stores its large contents apart.
            messages = turn.messages
            receipt = self._append(step, (), prompt)
            self._at.say(messages)
            self._hold()
            return receipt

    def record_said(self) -> None:
        """Records what was said after the last step as a step of its own."""
        with self._lock:
            if self._said:
                self._append(Step(), ())

    def tag(self, name: str, step: int | None = None) -> None:
        """Names a step. Default: the last one. A tag that exists is moved. Raises ValueError if there is no such step. A name
        that the server would reject is left out, or raises ValueError with `strict`."""
        with self._lock:
            if self._next == 0:
                raise ValueError("tag() needs a recorded step")
            number = self._next - 1 if step is None else step_number(step, "step", self.id, self._next)
            for fitted in fitted_tags([text_of(name)], self._values):
                self._record(Kind.TAG, rpc.tagging(fitted, number))

    def seal(self, status: Status = "completed", message: str = "") -> None:
        """Ends the trajectory permanently. It accepts no more steps. The server gets the seal after the last step."""
        if status not in _STATUSES:
            raise ValueError(f"status is {status!r}: expected one of {', '.join(_STATUSES)}")
        with self._lock:
            if self._sealed:
                return
            self.record_said()
            text = fitted_text("Seal.message", message, self._values.limits)
            self._record(Kind.SEAL, rpc.sealing(_STATUSES[status], text))
            self._sealed = True

    def flush(self, timeout: float | None = None) -> None:
        """Returns when everything recorded so far is durable on the server.

        `timeout` is in seconds. Raises TimeoutError when it has passed, and AnabranchError if steps are not recorded:
        the class of the reason, for example TrajectoryNotFound or SpoolFull. After ten seconds, a warning says what it
        waits for.
        """
        if self._recorder.alive:
            # Children that were terminated may have left records of other trajectories.
            self._recorder.sender.scan()
        with self._lock:
            recording, position, ended = self._recording, self._last_position, self._ended
        if ended:
            raise SpoolFull(ended, reason="SPOOL_FULL")
        recording.wait_for(position, timeout)

    # Branches and checkpoints

    def branch(self, *, at: int | None = None, tag: str | None = None, name: str = "") -> Trajectory:
        """Creates a trajectory that shares steps 0 to `at` of this one. Default: all steps recorded so far."""
        return self.client.branch(self, at=at, tag=tag, name=name)

    def checkpoint(self, at: int | str | None = None, *, timeout: float = 30.0) -> Checkpoint | None:
        """Reads the states of a checkpoint, by name: of the latest, of a step, or of a tag. Nothing else changes.

        Waits for the server. Returns None if there is no checkpoint and `at` was not given. Raises CheckpointNotFound if
        the step has no states, StepNotFound, TagNotFound, and TimeoutError if what was recorded is not durable after
        `timeout` seconds.
        """
        step = self._checkpoint(at, timeout)
        return None if step is None else states_of(self._connection, self.id, step)

    def rewind(self, at: int | str | None = None, *, timeout: float = 30.0) -> Checkpoint | None:
        """Reads the states of a checkpoint as `checkpoint` does, and continues the recording after it.

        This trajectory becomes a branch at the checkpoint, with the same name and labels, which `resume` continues. It
        stays the same trajectory if it ends with the checkpoint and is not sealed. What was recorded before is kept. If
        there is no checkpoint, or with an error, nothing changes. Raises ValueError for an attempt at a rollout, whose
        trajectory is the result of the attempt.
        """
        if self._is_attempt:
            raise ValueError(
                f"trajectory {self.id} is an attempt at a rollout, which cannot continue in a branch: rewind() is refused. "
                "checkpoint() reads the states, and release() of the rollout lets another attempt begin"
            )
        deadline = time.monotonic() + timeout
        self.record_said()
        step = self._checkpoint(at, timeout)
        if step is None:
            return None
        checkpoint = states_of(self._connection, self.id, step)
        self.continue_after(step, deadline)
        return checkpoint

    def continue_after(self, step: Step, deadline: float) -> None:
        """Continues after a stored step, in a branch if it is not the end (rule W13)."""
        connection, number = self._connection, step.step_number
        stored = find(connection, self.id, deadline)
        if (
            stored is not None
            and number + 1 == self._next == stored.next_step_number
            and not (self._sealed or stored.HasField("seal_time"))
        ):
            return
        request = BranchTrajectoryRequest(trajectory_id=self.id, step_number=number, branch_id=str(uuid.uuid4()))
        request.request_id, request.name = request.branch_id, self.name
        labels = {**self._labels, REWOUND_FROM: self._origin}
        request.labels.update(labels)
        continue_by_branch(connection, request, deadline)
        with self._lock:
            self._labels = labels
            self.recorded = replace(self.recorded, labels=labels)
            # A forked child has a recorder of its own.
            recorder, identity = self.client.recorder, Identity(request.branch_id, str(uuid.uuid4()), self.name)
            done = step.terminated or step.truncated
            self._begin(recorder, identity, Position(number + 1), number + 1, done=done, existed=True)

    def _checkpoint(self, at: int | str | None, timeout: float) -> Step | None:
        if at is not None and not isinstance(at, str):
            at = step_number(at, "at", self.id)
        if self._next == 0:
            if at is None:
                return None
            raise ValueError(f"`at` is {at!r}: trajectory {self.id} has no steps")
        self.flush(timeout)
        return find_checkpoint(self._connection, self.id, at)

    def position_at(self, number: int) -> Position | None:
        """Returns what is known of the trajectory after a step, if that needs no call."""
        with self._lock:
            return self._at.copy() if number == self._next - 1 else None

    # The context

    def __enter__(self) -> Self:
        blocks.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.seal("completed")
            elif is_interrupt(error):
                self.seal("cancelled", type(error).__name__)
            else:
                self.seal("failed", text_of_error(error))
        finally:
            blocks.leave(self)

    # Details

    @property
    def _connection(self) -> Connection:
        return self.client.connection

    def _source(self) -> tuple[Connection, str]:
        self.flush(_SOURCE_SECONDS)
        return self.client.connection, self.id

    def _append(self, step: Step, tags: Iterable[str], prompt: Any = UNSET) -> Receipt:
        """Records a step under the next number. The caller holds the lock. `prompt` is set if the step has tokens."""
        fit(step, self._values)
        tags = fitted_tags(tags, self._values) if tags else ()
        if self._next == 0 and step.actions:
            self._append(Step(), ())
        number = step.step_number = self._next
        problem = self._problem()
        if problem is not None:
            return self._refuse(problem)
        if self._said:
            self._add_said(step)
        position = self._spooled.position
        if prompt is not UNSET:
            self._at.add_tokens(step.actions[0], prompt)
        try:
            position = self._write(step, number, tags)
        except SpoolFullError as error:
            self._end(str(error))
            return self._refuse(SpoolFull(self._ended, reason="SPOOL_FULL"))
        self._next = number + 1
        self._done = step.terminated or step.truncated
        if step.HasField("reward") and step.reward == step.reward:
            self._at.add_reward(step.reward)
        return Receipt(self._recording, number, position)

    def _write(self, step: Step, number: int, tags: Iterable[str]) -> int:
        def left_out(fault: str, outcome: str) -> None:
            self._at.context = None
            self._values.misfit("step", f"step {number}: {fault}", outcome, step_too_large)

        try:
            data, uploads = encode(step, self._values.limits, left_out)
        except TooLargeError as error:
            left_out(str(error), "A marker with its reward and its flags replaces it.")
            data, uploads = rpc.marker_of(step, str(error)).SerializeToString(), []
        for upload in uploads:
            self._last_position = self._recorder.record(self._transfer, self._spooled, Kind.UPLOAD, number, upload)
        kind = Kind.STEP
        if tags:
            kind, data = Kind.TAGGED_STEP, rpc.tagged_step(data, number, tags)
        self._last_position = self._recorder.record(self._transfer, self._spooled, kind, number, data)
        return self._last_position

    def _add_said(self, step: Step) -> None:
        """Adds what was said to the step that follows."""
        said, self._said = self._said, []
        for item in said:
            item.type = PROMPT_MESSAGE if step.actions else MESSAGE
        observed = list(step.observations)
        del step.observations[:]
        step.observations.extend([*said, *observed])
        self._at.say(messages_in(said, no_state))

    def _hold(self) -> None:
        """Keeps what was said in the spool, for the end of the process. The caller holds the lock."""
        said = [*(item for turn in self._turns for item in turn.said), *self._said]
        if not said:
            return
        problem = self._problem()
        if problem is not None:
            return self._report(problem)
        step = Step(step_number=self._next, observations=said)
        try:
            self._recorder.hold(self._transfer, self._spooled, self._next, step.SerializeToString())
        except SpoolFullError as error:
            self._end(str(error))

    def _record(self, kind: Kind, payload: bytes) -> None:
        """Records what is not a step. The caller holds the lock."""
        if self._problem() is not None:
            return
        try:
            self._last_position = self._recorder.record(self._transfer, self._spooled, kind, self._next, payload)
        except SpoolFullError as error:
            self._end(str(error))

    def after(self, source: Trajectory, step: int) -> None:
        """Waits with sending until a step of another trajectory is durable."""
        transfer = source._transfer
        inherited, existed = step < source._start, source._existed

        def durable() -> bool:
            return (
                transfer.durable > step
                or (inherited and (existed or transfer.settled > 0))
                or transfer.failure is not None
            )

        self._transfer.waits_for = durable

    def create(self, method: str, request: bytes) -> None:
        """Records the call that creates the trajectory."""
        with self._lock:
            self._record(Kind.CREATE, method.encode() + b"\0" + request)

    def _problem(self) -> AnabranchError | None:
        """Returns why nothing can be recorded; None if it can."""
        if self._ended:
            return SpoolFull(self._ended, reason="SPOOL_FULL")
        if not self._recorder.alive:
            return not_recorded_here(self.id)
        if self._sealed:
            return TrajectorySealed(f"trajectory {self.id} is sealed", reason="TRAJECTORY_SEALED")
        dropped, failure = self._transfer.dropped, self._transfer.failure
        return error_from_failure(failure, dropped) if dropped and failure is not None else None

    def _refuse(self, problem: AnabranchError) -> Receipt:
        """Counts a step that is not recorded."""
        self._report(problem)
        self._recorder.drop()
        return Receipt(NoRecording(problem), -1, 0)

    def _report(self, problem: AnabranchError) -> None:
        """Reports once that nothing more is recorded. With `strict`, raises it."""
        if self.client.strict:
            raise problem
        if not self._warned:
            self._warned = True
            log.warning("anabranch: %s; its further steps are not recorded", problem)

    def _end(self, problem: str) -> None:
        """Ends the recording at the last whole step."""
        self._ended = f"recording of trajectory {self.id} has ended after step {self._next - 1}: {problem}"

        labels = {**self._labels, "anabranch.incomplete": "true"}
        self._transfer.last_call = (rpc.UPDATE, lambda trajectory_id: rpc.labels_of(trajectory_id, labels))
        self._recorder.sender.notify(self._transfer)


def step_number(value: object, argument: str, trajectory_id: str, end: int | None = None) -> int:
    """Returns the number of a step, which is below `end`. Raises TypeError and ValueError, which name the argument."""
    try:
        number = operator.index(cast("SupportsIndex", value))
    except TypeError:
        raise TypeError(f"`{argument}` is {value!r}: expected the number of a step") from None
    if number < 0 or (end is not None and number >= end):
        bound = "0 or above" if end is None else f"0 to {end - 1}" if end else "which has none"
        expected = f"expected the number of a step of trajectory {trajectory_id}, {bound}"
        raise ValueError(f"`{argument}` is {number}: {expected}")
    return number
