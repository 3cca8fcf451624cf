"""`Trajectory`: what a program records, and the handle to read, branch and resume it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from anabranch._reading.methods import TrajectoryReading
from anabranch._recording import rpc
from anabranch._recording.arguments import flag_of, names_of, number_of, prompt_of, write_metrics, write_tokens
from anabranch._recording.fitting import fit, fitted_tags, fitted_text, text_of
from anabranch._recording.history import Checkpoint, Position, read_checkpoint
from anabranch._recording.segment import Kind
from anabranch._recording.spool import Identity, SpoolFullError
from anabranch._recording.steps import UNSET, TooLargeError, encode, fill
from anabranch._recording.turns import Turn, write_messages
from anabranch._wire.errors import AnabranchError, RecorderClosed, SpoolFull
from anabranch._wire.failures import error_from_failure
from anabranch._wire.recorded import Recorded
from anabranch._wire.scope import is_interrupt
from anabranch._wire.shown import Shown
from anabranch._wire.values import step_too_large
from anabranch.errors import TrajectorySealed
from anabranch.receipt import Receipt
from anabranch.v1.trajectory_pb2 import Step

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
#: Position of a step that is not recorded.
_REFUSED = 1 << 62
_STATUSES: dict[str, int] = {"completed": 5, "failed": 6, "cancelled": 7}


class Trajectory(TrajectoryReading, Shown):
    """A sequence of steps. Threads can share it; steps are numbered in the order of the calls.

    As a context manager, a normal exit seals it as completed, an exception as failed with its text, KeyboardInterrupt
    and the cancellation of a task as cancelled. Without `with`, nothing is sealed until `seal()`.
    """

    _internal = frozenset({"after", "append_step", "create", "dropped", "position_at", "settled", "wait_for"})

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
        done: bool = False,
        group: StepGroup | None = None,
    ) -> None:
        self.client = client
        self._recorder = recorder
        self.name = identity.name
        self._labels = dict(labels)
        #: What reads need to know. Task and run are None if the trajectory is a branch of one that is given by its id.
        self.recorded = Recorded(identity.trajectory_id, identity.name, task, run, self._labels)
        self._values = client.values
        self._lock = threading.RLock()
        self._transfer, self._spooled = recorder.open(identity, group, self.recorded)
        self._next = self._start = next_step
        self._existed = identity.take_over
        self._at = start
        #: Whether `checkpoint()` returned a step before the end: the next step begins a branch there.
        self._rewound = False
        self._sealed = False
        self._done = done
        self._ended = ""
        self._warned = False
        self._last_position = -1

    # What is known of it

    @property
    def id(self) -> str:
        """Id of the trajectory. It changes if another writer continues the trajectory, or after `checkpoint()`."""
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
        """The conversation so far: the messages of `reset`, the replies of `turn` and the results of tool calls."""
        return self._at.messages(self._source)

    def load(self) -> None:
        """Reads what `reward_sum`, `last_observation` and `messages` need of earlier steps. Otherwise they read it at
        their first use."""
        _ = self.reward_sum, self.last_observation, self.messages

    @property
    def dropped(self) -> str:
        """Why the server accepts no further steps, which are dropped. Empty if it accepts them."""
        return self._transfer.dropped

    @property
    def settled(self) -> int:
        """Number of records that are durable on the server."""
        return self._transfer.settled

    def __repr__(self) -> str:
        return f"Trajectory({self.id!r}, name={self.name!r}, next_step={self._next})"

    # Writing

    def reset(
        self,
        *,
        observation: object = UNSET,
        info: object = UNSET,
        messages: Sequence[Mapping[str, object]] = (),
        screenshot: object = UNSET,
        states: Mapping[str, object] | None = None,
    ) -> Receipt:
        """Records step 0: the result of the environment's reset. Raises ValueError if the trajectory has steps."""
        step = Step()
        write_messages(self._values, step, messages)
        fill(step, self._values, observation, info, screenshot, states)
        with self._lock:
            if self._next > 0:
                raise ValueError(f"reset() must be the first step, but {self._next} steps are recorded")
            receipt = self._append(step, ())
            self._at.observe(None if observation is UNSET else observation)
            self._at.say(messages)
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

        `action`, `observation` and `info` are values of any shape (docs/python.md, "Values"); arrays are copied before
        the call returns. `reward` and the values of `metrics` are numbers, or arrays of one. `token_ids` are those of the
        reply, with one of `logprobs` (natural logarithms) for each, or none. `prompt_token_ids` is the whole prompt of the
        model; only what it adds to the tokens before is sent. `states` are bytes or values by name, at most 256; a step
        with states is a checkpoint. `tags` are at most 16 names that move to this step.

        A step without `reset()` before it follows an empty step 0. Values that cannot be stored are replaced by markers,
        names that break a limit are left out, and a full spool ends the recording; none of these raises. With `strict`,
        the call raises TypeError, ValueError and SpoolFull for them, StepTooLarge for what is too large, and
        TrajectorySealed after `seal()`.
        """
        step = Step()
        if action is not UNSET:
            self._values.add_action(step, action)
        prompt: object = UNSET
        if token_ids is not NOTHING or logprobs is not NOTHING or prompt_token_ids is not None:
            prompt = self._write_tokens(step, token_ids, logprobs, prompt_token_ids)
        fill(step, self._values, observation, info, screenshot, states)
        if reward is not None:
            number = reward if type(reward) is float else number_of(self._values, reward, "reward")
            if number is not None:
                step.reward = number
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

        `reply` is an object or a dict in OpenAI's chat or responses format, or in Anthropic's messages format.
        """
        return Turn(self, self._values, reply)

    def say(self, messages: Iterable[Mapping[str, object]]) -> None:
        """Adds messages to the conversation. The step that has them follows."""
        with self._lock:
            self._at.say(messages)

    def append_step(self, step: Step, prompt: Sequence[int] | None) -> Receipt:
        """Records a step that is built already. Its number and the prompt of its first action are set."""
        with self._lock:
            return self._append(step, (), prompt)

    def tag(self, name: str, step: int | None = None) -> None:
        """Names a step. Default: the last one. A tag that exists is moved. A name that the server would reject is left out,
        or raises ValueError with `strict`."""
        with self._lock:
            number = self._next - 1 if step is None else step
            if number < 0:
                raise ValueError("tag() needs a recorded step")
            for fitted in fitted_tags([text_of(name)], self._values):
                self._record(Kind.TAG, rpc.tagging(fitted, number))

    def seal(self, status: Status = "completed", message: str = "") -> None:
        """Ends the trajectory permanently. It accepts no more steps. The server gets the seal after the last step."""
        if status not in _STATUSES:
            raise ValueError(f"status is {status!r}: expected one of {', '.join(_STATUSES)}")
        with self._lock:
            if self._sealed:
                return
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
            position = self._last_position
        self.wait_for(position, timeout)

    def wait_for(self, position: int, timeout: float | None) -> None:
        """Waits until the record at a position is durable."""
        transfer, recorder = self._transfer, self._recorder
        if self._ended or position == _REFUSED or (not recorder.alive and transfer.settled <= position):
            problem = self._problem()
            assert problem is not None
            raise problem
        settled: Callable[[], bool] = lambda: transfer.settled > position or transfer.failure is not None
        what: Callable[[], str] = lambda: f"{position + 1 - transfer.settled} records of trajectory {self.id}"
        done = recorder.sender.wait(settled, timeout, what)
        if transfer.failure is not None and position >= transfer.failed_at:
            raise error_from_failure(transfer.failure, str(transfer.failure))
        if not done:
            text = f"steps of trajectory {self.id} are not durable after {timeout} s; they are kept"
            raise TimeoutError(f"{text}: {recorder.sender.problem}")

    # Branches and checkpoints

    def branch(self, *, at: int | None = None, tag: str | None = None, name: str = "") -> Trajectory:
        """Creates a trajectory that shares steps 0 to `at` of this one. Default: all steps recorded so far."""
        return self.client.branch(self, at=at, tag=tag, name=name)

    def checkpoint(self, at: int | str | None = None, *, timeout: float = 30.0) -> Checkpoint | None:
        """Returns the states of a checkpoint by name: the latest, that of a step, or that of a tag.

        Waits for the server. Returns None if there is no checkpoint and `at` was not given. If the checkpoint is not
        the last step, the next recorded step makes this trajectory a branch at the checkpoint.
        """
        if self._next == 0:
            return None
        self.flush(timeout)
        with self._lock:
            found = read_checkpoint(self.client.connection, self.id, at)
            if found is None:
                return None
            if found.step < self._next - 1:
                self._rewound = True
                self._next = found.step + 1
                self._at = Position(self._next)
                self._done = False
            return found

    def position_at(self, number: int) -> Position | None:
        """Returns what is known of the trajectory after a step, if that needs no call."""
        with self._lock:
            return self._at.copy() if number == self._next - 1 else None

    # The context

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.seal("completed")
        elif is_interrupt(error):
            self.seal("cancelled", type(error).__name__)
        else:
            self.seal("failed", f"{type(error).__name__}: {error}")

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
        if self._rewound:
            self._branch_off(self._next - 1)
        number = step.step_number = self._next
        problem = self._problem()
        if problem is not None:
            return self._refuse(problem)
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
        return Receipt(self, number, position)

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
            text = f"trajectory {self.id} belongs to another process, or this process is exiting"
            return RecorderClosed(text, reason="RECORDER_CLOSED")
        if self._sealed:
            return TrajectorySealed(f"trajectory {self.id} is sealed", reason="TRAJECTORY_SEALED")
        dropped, failure = self._transfer.dropped, self._transfer.failure
        return error_from_failure(failure, dropped) if dropped and failure is not None else None

    def _refuse(self, problem: AnabranchError) -> Receipt:
        """Counts a step that is not recorded."""
        if self.client.strict:
            raise problem
        self._recorder.drop()
        if not self._warned:
            self._warned = True
            log.warning("anabranch: %s; its further steps are not recorded", problem)
        return Receipt(self, -1, _REFUSED)

    def _end(self, problem: str) -> None:
        """Ends the recording at the last whole step."""
        self._ended = f"recording of trajectory {self.id} has ended after step {self._next - 1}: {problem}"

        labels = {**self._labels, "anabranch.incomplete": "true"}
        self._transfer.last_call = (rpc.UPDATE, lambda trajectory_id: rpc.labels_of(trajectory_id, labels))
        self._recorder.sender.notify(self._transfer)

    def _branch_off(self, at: int) -> None:
        """Makes this trajectory a branch at a checkpoint (rule W13)."""
        self._rewound = False
        following = self.client.branch(self, at=at, name=self.name, successor=True)
        self._transfer, self._spooled = following._transfer, following._spooled
        self._start, self._existed = at + 1, False
        self._last_position = following._last_position
