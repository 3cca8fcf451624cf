"""What clients and trajectories offer for reading."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

from anabranch._reading.compare import compare
from anabranch._reading.listing import Listing
from anabranch._reading.queries import compare_branches, export_archive, read_series, search, series_request
from anabranch._reading.read import HasId, Selection, Status, WorkStatus, id_of, require_word, statuses_of
from anabranch._reading.trajectories import (
    Branches,
    StepOrder,
    TrajectoryRecord,
    delete_trajectory,
    get_trajectory,
    list_steps,
    list_trajectories,
    trajectory_exists,
)
from anabranch._reading.tree import tree_text
from anabranch.episodes import Episodes, Step, episode_of, steps_of
from anabranch.v1.trajectory_service_pb2 import ListStepsRequest, ListTrajectoriesRequest
from anabranch.v1.trajectory_service_pb2 import StepOrder as StepOrderEnum

if TYPE_CHECKING:
    from anabranch._reading.compare import Comparison
    from anabranch._reading.queries import BranchComparison, Match, Measure, Series, StateAt, StateDifference
    from anabranch._wire.connection import Connection
    from anabranch._wire.shown import Text
    from anabranch.episodes import Episode
    from anabranch.tokens import Tokens
    from anabranch.v1.server_service_pb2 import RunPageChanges
    from anabranch.v1.state_service_pb2 import StorageUsage
    from anabranch.v1.trajectory_service_pb2 import TreeNode


class ClientReading:
    """The reading half of a client. Reads first wait for what this process has recorded and not sent of the trajectories
    that they select, for at most ANABRANCH_READ_SECONDS (5); then they warn, and read."""

    connection: Connection

    def episodes(
        self,
        *,
        task: str = "",
        run: HasId | str | None = None,
        experiment: HasId | str | None = None,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        step_labels: Mapping[str, str] | None = None,
        status: Status | Iterable[Status] = (),
        min_reward: float | None = None,
        max_reward: float | None = None,
        ids: Iterable[HasId | str] | None = None,
    ) -> Episodes:
        """Selects trajectories. A trajectory must match all filters that are set.

        `status` is one or several of `running`, `completed`, `failed`, `cancelled`. `min_reward` and `max_reward` bound
        the sum of the rewards, both inclusive. `step_labels` matches trajectories of whose own steps at least one has all
        these labels; inherited steps do not count. The episodes are read newest first; `ids` are read in their order, and
        those that do not exist are left out.
        """
        statuses: tuple[Status, ...] = (status,) if isinstance(status, str) else tuple(status)
        statuses_of(statuses, Status)
        selection = Selection(
            ids=None if ids is None else tuple(id_of(resource) for resource in ids),
            task=task,
            run=id_of(run),
            experiment=id_of(experiment),
            name=name,
            labels=dict(labels or {}),
            step_labels=dict(step_labels or {}),
            statuses=statuses,
            min_reward=min_reward,
            max_reward=max_reward,
        )
        return Episodes(self.connection, selection)

    def search(
        self,
        text: str,
        *,
        trajectory: HasId | str | None = None,
        tree: HasId | str | None = None,
        run: HasId | str | None = None,
        experiment: HasId | str | None = None,
        task: str = "",
        limit: int | None = None,
    ) -> Iterator[Match]:
        """Yields the fields of steps that have a text of 1 to 256 bytes, newest trajectory first, at most `limit`.

        Capitals match small letters. At most one place: a trajectory with its inherited steps, the tree of a trajectory,
        a run, an experiment or a task. Default: everywhere.
        """
        ids = {
            "trajectory_id": trajectory,
            "tree_id": tree,
            "run_id": run,
            "experiment_id": experiment,
            "task_id": task,
        }
        place = {field: id_of(resource) for field, resource in ids.items() if resource}
        self._before_read([trajectory] if trajectory else None, run=id_of(run), task=task)
        return search(self.connection, text, place, limit)

    def series(
        self,
        value: str = "reward_sum",
        *,
        trajectories: Iterable[HasId | str] = (),
        tree: HasId | str | None = None,
        own: bool = False,
        start: int = 0,
        stop: int | None = None,
        points: int = 1000,
    ) -> dict[str, Series]:
        """Returns a value of the steps of trajectories, or of all trajectories of a tree, by the ids of trajectories.

        The other arguments are those of `Trajectory.series`. With `own`, inherited steps are left out.
        """
        request = series_request(value, own=own, start=start, stop=stop, points=points)
        request.trajectory_ids.extend(id_of(each) for each in trajectories)
        request.tree_id = id_of(tree)
        self._before_read(None if tree else request.trajectory_ids)
        return read_series(self.connection, request)

    def compare_branches(
        self,
        tree: HasId | str,
        label: str,
        value: str,
        other: str,
        *,
        measure: Measure = "reward_sum",
        confidence: float = 0.95,
        seed: int = 0,
    ) -> BranchComparison:
        """Compares branches whose label is `other` with those whose label is `value`, in pairs of the same branch point.

        `tree` is any trajectory of the tree. `measure` is of the own steps of a branch. The interval of the mean
        difference is from 10,000 bootstrap resamples.
        """
        self._before_read()
        return compare_branches(self.connection, id_of(tree), label, value, other, measure, confidence, seed)

    def watch_tree(self, tree: HasId | str) -> Iterator[list[TreeNode]]:
        """Yields the trajectories of the tree of a trajectory, then those that change, whenever some do. Never ends by
        itself, and continues after a lost connection: then trajectories are yielded again."""
        from anabranch._reading.queries import watch_tree

        self._before_read([tree])
        return watch_tree(self.connection, id_of(tree))

    def watch_runs(
        self,
        *,
        experiment: HasId | str | None = None,
        labels: Mapping[str, str] | None = None,
        status: WorkStatus | Iterable[WorkStatus] = (),
        limit: int = 50,
    ) -> Iterator[RunPageChanges]:
        """Yields the newest runs that match, at most `limit`, then those that change, and `page` when their ids or order
        change. Never ends by itself, and continues after a lost connection: then runs are yielded again."""
        from anabranch._reading.queries import watch_runs
        from anabranch.v1.run_service_pb2 import ListRunsRequest

        request = ListRunsRequest(
            page_size=limit, experiment_id=id_of(experiment), labels=labels, statuses=statuses_of(status)
        )
        return watch_runs(self.connection, request)

    def diff_states(self, state: StateAt, other: StateAt) -> StateDifference:
        """Compares two states, each given by its digest or by (trajectory, number of the step, name).

        Reads both. If both are JSON, the difference is a JSON Patch. Raises StateNotFound, StatePruned,
        TrajectoryNotFound or StepNotFound.
        """
        from anabranch._reading.queries import diff_states

        self._before_read([each[0] for each in (state, other) if not isinstance(each, str)])
        return diff_states(self.connection, state, other)

    def storage_usage(self, *, trajectory: HasId | str | None = None, run: HasId | str | None = None) -> StorageUsage:
        """Returns the bytes that the steps and states of a trajectory, of a run, or of everything take: `steps` and
        `states`, each with `logical_bytes`, `stored_bytes`, `shared_bytes` and `unique_bytes`."""
        from anabranch._reading.queries import storage_usage

        self._before_read([trajectory] if trajectory else None, run=id_of(run))
        return storage_usage(self.connection, id_of(trajectory), id_of(run))

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        trajectory: HasId | str | None = None,
        run: HasId | str | None = None,
    ) -> int:
        """Writes an archive (docs/archive.md) of a trajectory with its ancestors, of a run, or of everything, into a new
        file. Returns its size in bytes. Raises FileExistsError: no file is replaced. An incomplete file is removed."""
        self._before_read([trajectory] if trajectory else None, run=id_of(run))
        return export_archive(self.connection, path, id_of(trajectory), id_of(run))

    def trajectories(
        self,
        *,
        task: str = "",
        run: HasId | str | None = None,
        experiment: HasId | str | None = None,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        status: Status | Iterable[Status] = (),
        parent: HasId | str | None = None,
        tree: HasId | str | None = None,
        roots: bool = False,
        text: str = "",
    ) -> Listing[TrajectoryRecord]:
        """Lists trajectories without their steps, newest first. A trajectory must match all filters that are set.

        `parent` matches its branches, `tree` the trajectories of the tree with this root, `roots` those that are no
        branches, and `text` a part of the name or of the value of a label.
        """
        request = ListTrajectoriesRequest(
            task_id=task,
            run_id=id_of(run),
            experiment_id=id_of(experiment),
            name=name,
            labels=labels,
            statuses=statuses_of(status, Status),
            parent_id=id_of(parent),
            tree_id=id_of(tree),
            roots_only=roots,
            text=text,
        )
        return list_trajectories(self.connection, request)

    def get(self, trajectory: HasId | str) -> TrajectoryRecord:
        """Returns a trajectory without its steps. Raises TrajectoryNotFound."""
        return get_trajectory(self.connection, id_of(trajectory))

    def exists(self, trajectory: HasId | str) -> bool:
        """Returns whether the server has a trajectory."""
        return trajectory_exists(self.connection, id_of(trajectory))

    def delete(self, trajectory: HasId | str, *, branches: Branches = "refuse") -> int:
        """Deletes a trajectory with its steps, and returns how many trajectories were deleted permanently.

        If it has branches, "refuse" raises HasBranches, "cascade" deletes them too, and "keep_shared" keeps them with
        the steps that they share. Raises TrajectoryNotFound.
        """
        return delete_trajectory(self.connection, id_of(trajectory), branches)

    def steps(
        self,
        *,
        trajectory: HasId | str | None = None,
        task: str = "",
        run: HasId | str | None = None,
        experiment: HasId | str | None = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        terminal: bool = False,
        state: str = "",
        labels: Mapping[str, str] | None = None,
        order: StepOrder = "number",
        metric: str = "",
        descending: bool = False,
    ) -> Listing[Step]:
        """Lists the steps of a trajectory, inherited ones included, or those that the trajectories of a task, a run or an
        experiment own. Exactly one of the four is needed. A step must match all other filters that are set.

        The bounds of the reward are inclusive. `terminal` matches steps that ended an episode, `state` those that have a
        state of this name. `order` is `number`, `reward`, `time`, or `metric` with a metric that was declared as scored.
        """
        require_word("order", order, get_args(StepOrder))
        request = ListStepsRequest(
            trajectory_id=id_of(trajectory),
            task_id=task,
            run_id=id_of(run),
            experiment_id=id_of(experiment),
            min_reward=min_reward,
            max_reward=max_reward,
            terminal_only=terminal,
            has_state=state,
            labels=labels,
            order=StepOrderEnum.Value(f"STEP_ORDER_{order.upper()}"),
            metric_key=metric,
            descending=descending,
        )
        return list_steps(self.connection, request)

    def episode(self, trajectory: HasId | str) -> Episode:
        """Reads a trajectory with all of its steps. Raises TrajectoryNotFound."""
        self._before_read([trajectory])
        return episode_of(self.connection, id_of(trajectory))

    def _before_read(self, ids: Iterable[HasId | str] | None = None, run: str = "", task: str = "") -> None:
        selected = None if ids is None else tuple(id_of(each) for each in ids)
        self.connection.before_read(Selection(ids=selected, run=run, task=task).may_include)


class TrajectoryReading:
    """The reading half of a trajectory. Reads first wait for what was recorded and not sent, for at most
    ANABRANCH_READ_SECONDS (5); then they warn, and read."""

    if TYPE_CHECKING:

        @property
        def id(self) -> str: ...

        @property
        def _connection(self) -> Connection: ...

    def steps(self, start: int = 0, stop: int | None = None, *, follow: bool = False) -> Iterator[Step]:
        """Yields the steps [start, stop), inherited ones included. With `follow`, waits for further steps until the
        trajectory is sealed."""
        return steps_of(self._durable(), self.id, start, stop, follow=follow)

    def episode(self) -> Episode:
        """Reads all steps."""
        return episode_of(self._durable(), self.id)

    def to_numpy(self) -> dict[str, Any]:
        """Returns `observations`, `actions`, `rewards`, `terminated` and `truncated` as arrays (see Episode)."""
        return self.episode().to_numpy()

    def tokens(self) -> Tokens:
        """Returns input_ids, loss_mask, logprobs and rewards of all steps."""
        return self.episode().tokens()

    def series(
        self, value: str = "reward_sum", *, start: int = 0, stop: int | None = None, points: int = 1000
    ) -> Series:
        """Returns a value of the steps [start, stop), inherited ones included, downsampled to at most `points`.

        `value` is `reward_sum`, `reward`, `reward_mean`, `metric:KEY`, or a number in JSON or in an array of at most 4,096
        numbers: `action:POINTER`, `observation:POINTER`, `info:POINTER`, `state:NAME:POINTER` with a JSON Pointer such as
        `/pole/angle` or `/2`. Of each stretch of steps, the first, last, smallest and largest values are returned.
        """
        request = series_request(value, start=start, stop=stop, points=points)
        connection = self._durable()
        request.trajectory_ids.append(self.id)
        return read_series(connection, request)[self.id]

    def search(self, text: str, *, limit: int | None = None) -> Iterator[Match]:
        """Yields the fields of the steps that have a text, inherited steps included, at most `limit`."""
        yield from search(self._durable(), text, {"trajectory_id": self.id}, limit)

    def compare(self, other: HasId | str) -> Comparison:
        """Compares this trajectory with another one: shared steps, first difference, rewards."""
        connection = self._durable(other)
        return compare(connection, self.id, id_of(other))

    def tree(self) -> Text:
        """Returns the tree of this trajectory as text, as `anabranch tree` draws it."""
        self._connection.before_read(Selection().may_include)
        return tree_text(self._connection, self.id)

    def _durable(self, *others: HasId | str) -> Connection:
        """Returns the connection when the server has what was recorded of this trajectory and of others."""
        selection = Selection(ids=(self.id, *(id_of(each) for each in others)))
        self._connection.before_read(selection.may_include)
        return self._connection
