"""Where the programs of a source are stored."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from anabranch.compat._fle_import.programs import heads
from anabranch.compat._fle_import.step import meta_of
from anabranch.compat._source import WHOLE_RANGE, Source, SourceError, text_of, time_of, whole_of


class TrajectoryKey(NamedTuple):
    """What identifies the trajectory of a program."""

    version: str | None
    instance: str | None
    process_id: str | None
    task_key: str | None
    model: str | None


class Program(NamedTuple):
    """A program, without its content."""

    id: int
    parent_id: int | None
    created: Timestamp | None
    key: TrajectoryKey


class StepPosition(NamedTuple):
    """The step that stores a program, or will store it."""

    trajectory_id: str
    number: int


@dataclass
class End:
    """The end of a trajectory."""

    next_step: int
    sealed: bool = False
    #: Current epoch of the trajectory's writer.
    epoch: int = 0


@dataclass
class Chain:
    """Programs to append to one trajectory, in order."""

    trajectory_id: str
    key: TrajectoryKey
    #: What to create before: a root with an empty step 0, or a branch at a step. None if the trajectory exists.
    start: StepPosition | None
    first_step: int
    #: Current epoch of the trajectory's writer.
    epoch: int
    ids: list[int] = field(default_factory=list[int])

    @property
    def is_root(self) -> bool:
        return self.start is not None and self.start.trajectory_id == self.trajectory_id


@dataclass
class Stored:
    """What a run has already."""

    ends: dict[str, End] = field(default_factory=dict[str, End])
    programs: dict[int, StepPosition] = field(default_factory=dict[int, StepPosition])


def read_versions(source: Source) -> dict[str | None, dict[int, Program]]:
    """Returns the programs of each version, by id. Raises SourceError if a metric cannot represent an id."""
    versions: dict[str | None, dict[int, Program]] = {}
    for row in heads(source):
        id = whole_of(row, "id")
        if id is None:
            expected = f"expected a whole number, {WHOLE_RANGE[0]} to {WHOLE_RANGE[1]}"
            text = f'{source.description}: "programs" has a row whose id is {text_of(row["id"]) or "NULL"}: {expected}.'
            raise SourceError(text)
        version, instance, model = (text_of(row[name]) for name in ("version", "instance", "model"))
        meta = meta_of(row["meta"])
        key = TrajectoryKey(version, instance, meta.process_id, meta.task_key, model)
        program = Program(id, whole_of(row, "parent_id"), time_of(row["created_at"]), key)
        versions.setdefault(version, {})[id] = program
    return versions


def plan_version(programs: Mapping[int, Program], stored: Stored, run_id: str) -> list[Chain]:
    """Decides where the programs of one version that are not stored yet are stored. A program follows its parent:

    - in the parent's trajectory, if the parent is the last step there and both have the same key;
    - else in a branch at the parent's step.

    A program whose parent is NULL, not in the source, or of another version or task follows step 0 of the trajectory of
    its key: in that trajectory if it is the first program, else in a branch at step 0.

    The result depends only on the programs, on what is stored, and on the id of the run. The chains are returned in an
    order in which each can be stored. Raises SourceError if programs are their own ancestors.
    """
    positions = dict(stored.programs)
    ends = {id: End(end.next_step, end.sealed, end.epoch) for id, end in stored.ends.items()}
    chains: dict[str, Chain] = {}

    def append(program: Program, trajectory_id: str, start: StepPosition | None) -> None:
        if start is not None:
            ends[trajectory_id] = End(start.number + 1)
        end = ends[trajectory_id]
        if trajectory_id not in chains:
            chains[trajectory_id] = Chain(trajectory_id, program.key, start, end.next_step, end.epoch)
        chains[trajectory_id].ids.append(program.id)
        positions[program.id] = StepPosition(trajectory_id, end.next_step)
        end.next_step += 1

    for program in _parents_first(programs):
        if program.id in positions:
            continue
        parent = None if program.parent_id is None else programs.get(program.parent_id)
        if parent is not None and parent.key.task_key == program.key.task_key:
            position, same_key = positions[parent.id], parent.key == program.key
        else:
            # A branch has the task of its parent, so a program of another task does not branch from it.
            root_id = id_of(run_id, f"line {json.dumps(program.key)}")
            position, same_key = StepPosition(root_id, 0), True
            if root_id not in ends:
                append(program, root_id, position)
                continue
        end = ends[position.trajectory_id]
        if same_key and not end.sealed and end.next_step == position.number + 1:
            append(program, position.trajectory_id, None)
        else:
            # An interrupted import may have created the branch without a step.
            branch_id = id_of(run_id, f"program {program.id}")
            append(program, branch_id, None if branch_id in ends else position)
    return list(chains.values())


def id_of(run_id: str, name: str) -> str:
    """Returns the id of a trajectory of the run. It depends only on the run and the name."""
    return str(uuid.uuid5(uuid.UUID(run_id), name))


def _parents_first(programs: Mapping[int, Program]) -> Iterator[Program]:
    """Yields every program after its parent, otherwise by id."""
    done: set[int] = set()
    for program in programs.values():
        path: dict[int, Program] = {}
        following: Program | None = program
        while following is not None and following.id not in done:
            if following.id in path:
                raise SourceError(f"Program {following.id} is its own ancestor (parent_id): correct it.")
            path[following.id] = following
            following = None if following.parent_id is None else programs.get(following.parent_id)
        yield from reversed(path.values())
        done.update(path)
