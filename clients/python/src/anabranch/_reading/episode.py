"""One recorded trajectory: its steps, and arrays of their observations, actions and rewards."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from anabranch._reading.blobs import Blobs
from anabranch._reading.read import OwnedStep, status_name
from anabranch._reading.stack import stack
from anabranch._reading.turn import action_of, observation_of
from anabranch._wire.decode import Decode, decode_content, decode_json, digests_of, state_of
from anabranch._wire.shown import Shown, html_curve, html_table
from anabranch._wire.tensors import optional
from anabranch._wire.values import JSON_TYPE
from anabranch.errors import StateNotFound

if TYPE_CHECKING:
    from anabranch._wire.connection import Connection
    from anabranch.v1.trajectory_pb2 import Step as StepMessage
    from anabranch.v1.trajectory_pb2 import Trajectory

INFO_STATE = "info"


class Step(Shown):
    """A recorded step. Its values are decoded when they are read. `message` is the step as the server returned it."""

    def __init__(self, trajectory_id: str, owned: OwnedStep, blobs: Blobs) -> None:
        self.trajectory_id = trajectory_id
        self.owner_id = owned.owner_id
        self.message: StepMessage = owned.message
        self._owned = owned
        self._blobs = blobs
        self._held: dict[str, bytes] = {}

    @property
    def number(self) -> int:
        return self.message.step_number

    @functools.cached_property
    def observation(self) -> Any:
        """The observation after the actions; None if there is none. Several are a dict or tuple by their types. That of a
        turn has `messages` and `tool_results`. What cannot be decoded is `Undecodable`."""
        return observation_of(self.message, decoder_of(self))

    @functools.cached_property
    def action(self) -> Any:
        """The action that led to the observation; None for a reset. A turn has `text`, `tool_calls` and `messages`."""
        return action_of(self.message, decoder_of(self))

    @property
    def reward(self) -> float | None:
        return self.message.reward if self.message.HasField("reward") else None

    @property
    def terminated(self) -> bool:
        return self.message.terminated

    @property
    def truncated(self) -> bool:
        return self.message.truncated

    @functools.cached_property
    def info(self) -> Any:
        """The info of the environment, as plain JSON has it; None if there is none."""
        return None if self.info_text is None else decode_json(self.info_text)

    @functools.cached_property
    def info_text(self) -> str | None:
        """The info as JSON text. Info that is too large for a step is stored as its state `info`."""
        if self.message.info_json:
            return self.message.info_json
        if not _has_info_state(self.message):
            return None
        try:
            data = self._blobs.state_of(self._owned, INFO_STATE)
        except StateNotFound:  # it was pruned
            return None
        return None if data is None else data.decode("utf-8", "replace")

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.message.metrics

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states after the step."""
        hidden = INFO_STATE if _has_info_state(self.message) else ""
        return tuple(state.name for state in self.message.states if state.name != hidden)

    def state(self, name: str = "env") -> bytes:
        """Returns the bytes of a state. Raises StateNotFound if the step has none of this name."""
        data = self._blobs.state_of(self._owned, name)
        if data is None:
            message = f"step {self.number} of trajectory {self.owner_id} has no state {name!r}"
            raise StateNotFound(message, reason="STATE_NOT_FOUND")
        return data

    def blob(self, digest: str) -> bytes:
        """Returns the bytes of a state that the actions or observations name by its digest. Raises StateNotFound."""
        found = self._held.get(digest)
        try:
            return self._blobs.get(digest) if found is None else found
        except StateNotFound as error:
            message = f"step {self.number} of trajectory {self.trajectory_id}: {error}"
            raise StateNotFound(message, reason=error.reason, metadata=error.metadata) from None

    def prefetch(self) -> None:
        """Reads what `observation`, `action` and `info` need. Otherwise they read it at their first use."""
        for digest in digests_of(self.message):
            try:
                self._held[digest] = self._blobs.get(digest)
            except StateNotFound:
                continue  # it raises when it is used
        _ = self.info_text

    @property
    def commit_time(self) -> datetime.datetime:
        return self.message.commit_time.ToDatetime(datetime.timezone.utc)

    def __repr__(self) -> str:
        return f"Step({self.number}, action={self.action!r}, observation={self.observation!r}, reward={self.reward})"


def decoder_of(step: Step) -> Decode:
    """Returns how to decode the contents of a step."""
    return lambda content: decode_content(content, step.blob)


def _has_info_state(step: StepMessage) -> bool:
    """Returns whether a state of the step is its info. Other clients can give a state the same name."""
    state = None if step.info_json else state_of(step, INFO_STATE)
    return state is not None and state.media_type == JSON_TYPE


class RecordedEpisode(Shown):
    """A recorded trajectory with all of its steps, inherited ones included."""

    def __init__(self, trajectory: Trajectory, owned: list[OwnedStep], connection: Connection) -> None:
        self.trajectory = trajectory
        self._blobs = Blobs(connection, owned)
        self._has_contents = False
        self.steps = [Step(trajectory.id, step, self._blobs) for step in owned]

    @property
    def id(self) -> str:
        return self.trajectory.id

    @property
    def name(self) -> str:
        return self.trajectory.name

    @property
    def task(self) -> str:
        return self.trajectory.task_id

    @property
    def labels(self) -> Mapping[str, str]:
        return self.trajectory.labels

    @property
    def metadata(self) -> Any:
        """The metadata that the trajectory was created with; None if there is none."""
        return decode_json(self.trajectory.metadata_json) if self.trajectory.metadata_json else None

    @property
    def status(self) -> str:
        """`running`, `completed`, `failed` or `cancelled`."""
        return status_name(self.trajectory.status)

    @property
    def reward_sum(self) -> float:
        return self.trajectory.reward_sum

    @property
    def terminated(self) -> bool:
        return bool(self.steps) and self.steps[-1].terminated

    @property
    def truncated(self) -> bool:
        return bool(self.steps) and self.steps[-1].truncated

    def __len__(self) -> int:
        """Number of steps T, without the reset."""
        return len(self.moves)

    @property
    def has_reset(self) -> bool:
        """True if step 0 is the result of a reset: it has no action and no reward."""
        return bool(self.steps) and not self.steps[0].message.actions and self.steps[0].reward is None

    @property
    def moves(self) -> list[Step]:
        """The steps without the reset."""
        return self.steps[1:] if self.has_reset else self.steps

    @functools.cached_property
    def observations(self) -> Any:
        """All observations, of length T + 1: the reset's first. Without a reset, of length T.

        An array whose first axis is the step if all observations agree in dtype and shape; a dict or tuple of such
        arrays for values of Dict and Tuple spaces; otherwise an array of objects.
        """
        self.prefetch()
        return stack([step.observation for step in self.steps])

    @functools.cached_property
    def actions(self) -> Any:
        """All actions, of length T, in the forms of `observations`."""
        self.prefetch()
        return stack([step.action for step in self.moves])

    @functools.cached_property
    def rewards(self) -> Any:
        """All rewards, a float64 array of length T. NaN for a step without a reward."""
        rewards = [float("nan") if step.reward is None else step.reward for step in self.moves]
        return optional("numpy", "to read arrays").array(rewards, "float64")

    @property
    def infos(self) -> list[Any]:
        """The info of each step, the reset's first."""
        return [step.info for step in self.steps]

    def to_numpy(self) -> dict[str, Any]:
        """Returns `observations`, `actions`, `rewards`, `terminated` and `truncated` as arrays."""
        terminated = [step.terminated for step in self.moves]
        truncated = [step.truncated for step in self.moves]
        return {
            "observations": self.observations,
            "actions": self.actions,
            "rewards": self.rewards,
            "terminated": stack(terminated),
            "truncated": stack(truncated),
        }

    def __repr__(self) -> str:
        return f"Episode({self.name or self.id!r}, {len(self)} steps, reward {self.reward_sum:g}, {self.status})"

    def _repr_html_(self) -> str:
        sums = accumulate(step.reward or 0.0 for step in self.moves)
        rows = [("episode", self.name or self.id), ("task", self.task), ("steps", str(len(self)))]
        rows += [("reward", f"{self.reward_sum:g}"), ("status", self.status)]
        return html_table(rows, html_curve(sums, "sum of the rewards after each step"))

    def prefetch(self) -> None:
        """Reads the large contents of all steps in one call. `observations` and `actions` do so too."""
        if not self._has_contents:
            self.prefetch_states(digests_of)
            self._has_contents = True

    def prefetch_states(self, digests: Callable[[StepMessage], Iterable[str]]) -> None:
        """Reads the states whose digests a function returns for each step, in one call."""
        self._blobs.prefetch([digest for step in self.steps for digest in digests(step.message)])
