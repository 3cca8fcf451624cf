"""The connection to a server: `connect()` and `Client`."""

from __future__ import annotations

import functools
import json
import math
import os
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, get_args

from anabranch._reading.methods import ClientReading
from anabranch._reading.read import HasId, Selection, id_of
from anabranch._recording.creation import METADATA_BYTES, Creation, checked_id
from anabranch._recording.durable import await_all, await_records, await_selected
from anabranch._recording.history import Position, find, find_checkpoint, find_continuation, require_run, run_exists
from anabranch._recording.recorder import recorder_for, recorders_of
from anabranch._recording.rpc import BRANCH, CREATE
from anabranch._recording.sending import DEFAULT_SENDING, Sending
from anabranch._recording.spool import Identity
from anabranch._training.methods import ClientRuns
from anabranch._training.metrics import Metrics
from anabranch._wire.access import Access, Pem, Token, access_of, give, given_for
from anabranch._wire.connection import Connection, address_from
from anabranch._wire.limits import limits_of
from anabranch._wire.local import SCHEME, keep, leave
from anabranch._wire.outage import call
from anabranch._wire.shown import Shown
from anabranch._wire.values import ValueEncoder
from anabranch.errors import RunNotFound, TrajectoryNotFound
from anabranch.trajectory import Trajectory, step_number
from anabranch.v1.trajectory_pb2 import VIEW_BASIC
from anabranch.v1.trajectory_service_pb2 import (
    BranchTrajectoryRequest,
    CreateTrajectoryRequest,
    GetStepRequest,
    GetTrajectoryRequest,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from anabranch._recording.batch import StepGroup
    from anabranch._recording.recorder import Recorder, Stats
    from anabranch.v1.trajectory_pb2 import Trajectory as TrajectoryMessage

Spool = str | os.PathLike[str] | Literal[False] | None
Resume = Literal["never", "allow", "must", "checkpoint"]

#: Names of trajectories that `resume` finds again.
_NAMES = uuid.UUID("5f0c4a51-1df1-5d4f-9c2b-6c1f3b0f0a7e")


def connect(
    address: str | None = None,
    *,
    strict: bool = False,
    spool: Spool = None,
    silence: float = 45.0,
    give_up_after: float = math.inf,
    token: Token | None = None,
    namespace: str | None = None,
    ca: Pem | None = None,
    cert: Pem | None = None,
    key: Pem | None = None,
) -> Client:
    """Returns a client. It connects at its first call.

    `address` is HOST:PORT, https://HOST:PORT, unix:PATH or sqlite:PATH; the default is ANABRANCH_ADDRESS, else
    127.0.0.1:50051. `sqlite:PATH` is a database file of this machine: the first call starts its server, as `local` does,
    and connects to it. The server serves this process until it ends. With `strict`, values that cannot be stored raise;
    otherwise a marker replaces them. `spool` is the folder for steps that are not on the server yet; the
    default is ANABRANCH_SPOOL, else $XDG_STATE_HOME/anabranch/spool. False keeps them in memory. A relative folder is
    resolved at this call.

    The recorder opens a stream again on which the server owes an answer for `silence` seconds. If it makes no progress
    with a trajectory for `give_up_after` seconds, it stops sending this trajectory and reports so: its steps, also later
    ones, stay in the spool for the next process. Default: never.

    `token` is an API key or another token, the file that has it, or a function that returns it; default: ANABRANCH_TOKEN,
    else the file ANABRANCH_TOKEN_FILE. A file and a function are asked for each call, and once more after a call that was
    refused with UNAUTHENTICATED. `namespace` is that of all calls; default: ANABRANCH_NAMESPACE, else the server
    decides. `ca` has the certificates of authorities to trust, as PEM or as a path; default: ANABRANCH_CA_FILE, else
    those of gRPC. `cert` and `key` are the certificate of the client and its key, as PEM or as paths, for servers that
    accept it in place of a token; default: ANABRANCH_CERT_FILE and ANABRANCH_KEY_FILE. What was given last for an address
    counts for all clients of it in the process.

    Raises ValueError for another address or namespace, for a time that is not above 0, and for a certificate without its
    key.
    """
    sending = Sending(silence, give_up_after)
    chosen = address_from(address, namespace)
    if (cert is None) != (key is None):
        raise ValueError("cert and key belong together: expected both, or neither")
    give(chosen, Access(token, ca, cert, key))
    access_of(chosen)
    return Client(chosen, strict=strict, spool=spool, sending=sending)


@contextmanager
def local(
    database: str | os.PathLike[str] = ".anabranch/data.db",
    *,
    strict: bool = False,
    spool: Spool = None,
    namespace: str | None = None,
) -> Generator[Client]:
    """Serves a database file in a `with` block, and returns a client of its server.

    `database` is the path of an SQLite file, which is created if there is none. A relative path starts from the working
    directory. All processes of this user that open the same file share one server, which the first one starts: from the
    package `anabranch`, with default settings, on a Unix socket. It ends ten seconds after its last client has gone,
    also if that was killed. If another server has the file open, the client connects to that one. `strict`, `spool` and
    `namespace` are as in `connect`.

    The server is healthy when the block begins. If it is killed, the next call starts it again. The end of the block
    waits until all that was recorded is durable, unless an exception ends it; the client can still be used afterwards,
    and starts the server again if it has ended.

    Raises NoLocalServer if the server cannot be started, or if the process that has the file open does not answer for
    30 seconds; ValueError for a path that cannot be a database; and at the end of the block what `flush` raises.
    """
    text = os.fspath(database)
    address = text if text.startswith(SCHEME) else f"{SCHEME}{text}"
    client = connect(address, strict=strict, spool=spool, namespace=namespace)
    keep(client.address)
    try:
        yield client
        client.flush()
    finally:
        client.close()
        for recorder in recorders_of(client.address):
            recorder.sender.disconnect()
        leave(client.address)


class Client(ClientReading, ClientRuns, Shown):
    """A client of one server. Threads can share it, and it can be pickled: the pickle has the address, and the token
    and the key if they were given."""

    _internal = frozenset(
        {
            "attempt",
            "connection",
            "create",
            "creation",
            "flush_metrics",
            "metadata_json",
            "metrics",
            "recorder",
            "values",
        }
    )

    def __init__(
        self, address: str, *, strict: bool = False, spool: Spool = None, sending: Sending = DEFAULT_SENDING
    ) -> None:
        self.address = address
        self.strict = strict
        self._sending = sending
        self._given_spool = _absolute(spool)
        # The program can change its working directory before it records. Another process has an ANABRANCH_SPOOL of its
        # own.
        self._spool = _absolute(os.environ.get("ANABRANCH_SPOOL") or None if spool is None else spool)
        self._values: ValueEncoder | None = None
        self.connection = Connection(address)
        self.connection.before_read = functools.partial(await_selected, address)
        #: Ids of runs that were looked up.
        self._asked_runs: set[str] = set()
        if spool is not False:
            # Sends what dead processes left, also if this one records nothing.
            _ = self.recorder

    def trajectory(
        self,
        *,
        task: str = "",
        name: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: object = None,
        run: HasId | str | None = None,
        id: str | None = None,
        resume: Resume = "never",
        resume_timeout: float = 30.0,
    ) -> Trajectory:
        """Returns a new trajectory, or continues one. A new one needs no server: its creation is recorded.

        `task` and `name` have at most 256 bytes. `labels` are at most 64, with keys of 1 to 64 and values of at most
        256 bytes. `metadata` is a value of any shape, as `info` of a step, of at most 512 KiB as JSON. `run` is a Run or
        its id; an id is looked up once, if the server answers within a second. `id` is a UUID, by default a random one.

        With `resume`, the id is derived from the run's id, the task and the name. "allow" continues the
        trajectory at its end, or creates it; "must" raises TrajectoryNotFound if it does not exist; "checkpoint" is "allow"
        followed by `rewind()`, whose states `checkpoint()` returns. Resuming waits for the server, for at most
        `resume_timeout` seconds in all: first it sends what earlier processes left of the trajectory. Raises TimeoutError,
        or Unreachable if the server does not answer.

        Raises TypeError or ValueError for arguments that the server would refuse, and RunNotFound.
        """
        if resume not in get_args(Resume):
            raise ValueError(f"`resume` is {resume!r}: expected one of {', '.join(get_args(Resume))}")
        creation = self.creation(task=task, name=name, labels=labels, run=run)
        id = None if id is None else checked_id(id)
        metadata_json = self.metadata_json(metadata)
        if resume != "never":
            deadline = time.monotonic() + resume_timeout
            base = id or self._named(run, task, name, deadline)
            found = self._resume(base, name, creation.labels, resume_timeout, deadline, must=resume == "must")
            if found is not None:
                checkpoint = (
                    find_checkpoint(self.connection, found.id, None, deadline) if resume == "checkpoint" else None
                )
                if checkpoint is not None:
                    found.continue_after(checkpoint, deadline)
                return found
            id = base
        return self.create(id or str(uuid.uuid4()), creation, metadata_json)

    def creation(
        self, *, task: str = "", name: str = "", labels: Mapping[str, str] | None = None, run: HasId | str | None = None
    ) -> Creation:
        """Returns what `create` needs. Raises as `trajectory` does for what the server would refuse."""
        creation = Creation.checked(task=task, name=name, labels=labels, run=run)
        if isinstance(run, str) and run and run not in self._asked_runs:
            self._asked_runs.add(run)
            if not run_exists(self.connection, creation.run_id):
                self._asked_runs.discard(run)
                text = (
                    f"`run` is {run!r}, and the server at {self.address} has no such run: client.run(name) creates one"
                )
                raise RunNotFound(text, reason="RUN_NOT_FOUND", metadata={"run": run})
        return creation

    def metadata_json(self, metadata: object) -> str:
        """Returns metadata as JSON text. Raises ValueError if it is too large."""
        text = "" if metadata is None else self.values.info_json(metadata, "metadata")
        size = len(text.encode())
        if size > METADATA_BYTES:
            raise ValueError(f"`metadata` has {size} bytes as JSON: expected at most {METADATA_BYTES}")
        return text

    def create(
        self, trajectory_id: str, creation: Creation, metadata_json: str = "", group: StepGroup | None = None
    ) -> Trajectory:
        """Returns a new trajectory. The trajectories of a group step together."""
        request = CreateTrajectoryRequest(trajectory_id=trajectory_id, request_id=trajectory_id)
        request.name, request.task_id, request.run_id = creation.name, creation.task, creation.run_id
        request.labels.update(creation.labels)
        request.metadata_json = metadata_json
        created = self._open(
            trajectory_id, creation.name, creation.labels, task=creation.task, run=creation.run_id, group=group
        )
        created.create(CREATE, request.SerializeToString())
        return created

    def _named(self, run: HasId | str | None, task: str, name: str, deadline: float) -> str:
        """Returns the id of the trajectory with this name: the same on each server that has the run, because an import
        keeps the ids of runs. Raises RunNotFound if `run` is an id that the server does not have."""
        run_id = id_of(run)
        if isinstance(run, str):
            require_run(self.connection, run_id, deadline)
        return str(uuid.uuid5(_NAMES, json.dumps([run_id, task, name])))

    def branch(
        self,
        source: Trajectory | str,
        *,
        at: int | None = None,
        tag: str | None = None,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: object = None,
    ) -> Trajectory:
        """Creates a trajectory that shares steps 0 to `at` of `source`, or to the step of a tag; not both.

        Default: all steps recorded so far, and what was said after them. Waits for the server only if `source` is an id, or with `tag`. Raises
        ValueError at once if there is no such step: the trajectory has none, or `at` is not one of them. Raises
        TagNotFound and TrajectoryNotFound. `name` and `labels` are as in `trajectory`.
        """
        creation = Creation.checked(name=name, labels=labels)
        said = source.unrecorded if not isinstance(source, str) and at is None and tag is None else []
        at = self._branch_point(source, at, tag)
        source_id = source if isinstance(source, str) else source.id
        known = None if isinstance(source, str) else source.position_at(at)
        branch_id = str(uuid.uuid4())
        request = BranchTrajectoryRequest(trajectory_id=source_id, step_number=at, branch_id=branch_id, name=name)
        request.request_id = branch_id
        request.labels.update(creation.labels)
        request.metadata_json = self.metadata_json(metadata)
        task, run = (None, None) if isinstance(source, str) else (source.recorded.task, source.recorded.run)
        start = known if known is not None else Position(at + 1)
        branch = self._open(branch_id, name, creation.labels, start, at + 1, task=task, run=run)
        if not isinstance(source, str):
            branch.after(source, at)
        branch.create(BRANCH, request.SerializeToString())
        branch.say_again(said)
        return branch

    @property
    def stats(self) -> Stats:
        """What happened to the steps of this process that were recorded for this server."""
        return self.recorder.stats(self.values.unstored)

    @property
    def recorder(self) -> Recorder:
        """The recorder of this process for the server, the spool and the limits of this client."""
        return recorder_for(self.address, self._spool, self._sending)

    @property
    def values(self) -> ValueEncoder:
        """Writes Python values into steps."""
        if self._values is None:
            self._values = ValueEncoder(strict=self.strict, limits=limits_of(self.address))
        return self._values

    def attempt(self, trajectory_id: str) -> Trajectory:
        """Continues the trajectory of an attempt at a rollout: its unsent steps are dropped when the lease is lost."""
        found = self._resume(trajectory_id, "", {}, 30.0, time.monotonic() + 30.0, must=True, is_attempt=True)
        assert found is not None
        return found

    def metrics(self, run_id: str) -> Metrics:
        """Records metrics of a run. `Run.log` and `Stage.log` do so."""
        return Metrics(self.recorder, self.values, run_id)

    def flush_metrics(self, run_id: str) -> None:
        """Returns when the metrics of a run that this process has logged are durable."""
        if self.recorder.has_calls(run_id):
            self.metrics(run_id).flush()

    def flush(self, timeout: float | None = None) -> None:
        """Returns when everything that this process has recorded for this server is durable there, with what dead
        processes left in the spool.

        `timeout` is in seconds; default: no limit. Raises TimeoutError when it has passed, and AnabranchError, with the
        class of the reason, if records cannot be sent: the others are durable then. What a warning has reported as
        dropped is not waited for.
        """
        # Also a process that has recorded nothing sends what dead processes left.
        _ = self.recorder
        await_all(self.address, timeout)

    def close(self) -> None:
        """Closes the connection for reads and calls, and ends the renewal of leases. The next call connects again.

        What was recorded is still sent: `flush` waits for it.
        """
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        given = given_for(self.address)
        return (_unpickle, (self.address, self.strict, self._given_spool, self._sending, given))

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    def _open(
        self,
        trajectory_id: str,
        name: str,
        labels: Mapping[str, str],
        start: Position | None = None,
        next_step: int = 0,
        *,
        epoch: int | None = None,
        is_attempt: bool = False,
        task: str | None = None,
        run: str | None = None,
        origin: str = "",
        done: bool = False,
        group: StepGroup | None = None,
    ) -> Trajectory:
        identity = Identity(trajectory_id, str(uuid.uuid4()), name, epoch, epoch is not None, is_attempt)
        return Trajectory(
            self,
            self.recorder,
            identity,
            labels,
            start or Position(),
            next_step,
            task=task,
            run=run,
            origin=origin,
            done=done,
            group=group,
        )

    def _resume(
        self,
        trajectory_id: str,
        name: str,
        labels: Mapping[str, str],
        timeout: float,
        deadline: float,
        *,
        must: bool,
        is_attempt: bool = False,
    ) -> Trajectory | None:
        """Continues the trajectory with this id, or the last of the branches that continue it (rule W13)."""
        latest: TrajectoryMessage | None = None
        following: str | None = trajectory_id
        while following is not None:
            selects = Selection(ids=(following,)).may_include
            if await_records(self.address, selects, deadline):
                raise TimeoutError(
                    f"trajectory {following}: spooled steps were not sent within {timeout} s of resuming"
                )
            found = find(self.connection, following, deadline)
            if found is None:
                break
            latest = found
            continuation = None if is_attempt else find_continuation(self.connection, found, deadline)
            following = None if continuation is None else continuation.id
        if latest is None:
            if must:
                raise TrajectoryNotFound(f"trajectory {trajectory_id} does not exist: resume is 'must'")
            return None
        end = latest.next_step_number
        done = latest.HasField("seal_time")
        known = dict(latest.labels)
        return self._open(
            latest.id,
            name or latest.name,
            {**known, **labels},
            Position(end),
            end,
            epoch=latest.writer_epoch,
            is_attempt=is_attempt,
            task=latest.task_id,
            run=latest.run_id,
            origin=trajectory_id,
            done=done,
        )

    def _branch_point(self, source: Trajectory | str, at: int | None, tag: str | None) -> int:
        """Returns the number of the last step that a branch shares."""
        if at is not None and tag is not None:
            raise ValueError(f"`at` is {at!r} and `tag` is {tag!r}: expected one of them")
        if isinstance(source, str):
            self.connection.before_read(Selection(ids=(source,)).may_include)
        if tag is not None:
            if not isinstance(source, str):
                source.flush(60)
            by_tag = GetStepRequest(trajectory_id=id_of(source), tag=tag, view=VIEW_BASIC)
            return call(self.connection, lambda stubs: stubs.trajectories.GetStep, by_tag).step.step_number
        end = self._end_of(source) if isinstance(source, str) else source.next_step
        if at is not None:
            return step_number(at, "at", id_of(source), end)
        if end == 0:
            raise ValueError(f"trajectory {id_of(source)} has no steps: branch() needs a recorded step")
        return end - 1

    def _end_of(self, trajectory_id: str) -> int:
        """Returns the number of steps that the server has."""
        request = GetTrajectoryRequest(trajectory_id=trajectory_id)
        found = call(self.connection, lambda stubs: stubs.trajectories.GetTrajectory, request)
        return found.trajectory.next_step_number


def _absolute(spool: Spool) -> Spool:
    return spool if spool is None or spool is False else Path(spool).expanduser().resolve()


def _unpickle(address: str, strict: bool, spool: Spool, sending: Sending, access: Access) -> Client:
    give(address, access)
    return Client(address, strict=strict, spool=spool, sending=sending)
