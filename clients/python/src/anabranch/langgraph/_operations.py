"""What a saver does, as operations. They know neither threads nor asyncio."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_metadata,
)

from anabranch._recording.steps import TooLargeError, encode
from anabranch._wire.errors import AnabranchError, StepTooLarge
from anabranch._wire.limits import Limits, limits_of
from anabranch.errors import (
    BranchPointBeyondEnd,
    PermissionDenied,
    StateNotFound,
    StepConflict,
    StepGap,
    StepNotFound,
    TrajectoryExists,
    TrajectoryNotFound,
    TrajectorySealed,
    WriterFenced,
)
from anabranch.langgraph._calls import Call, Operation, Upload
from anabranch.langgraph._creation import AGAIN, CHECKPOINTS, branch_of, copy_of, creation_of, mark_again
from anabranch.langgraph._memory import CheckpointKey, Memory, Place, Recent
from anabranch.langgraph._messages import MESSAGES
from anabranch.langgraph._names import INTEGRATION, content_id, head_of, key_of, task_of
from anabranch.langgraph._steps import (
    CHECKPOINT,
    DIGEST_BYTES,
    FILTERS,
    WRITES,
    Layout,
    Serialized,
    States,
    about_of,
    again,
    checkpoint_id_of,
    checkpoint_of,
    checkpoint_step,
    config_of,
    digest_of,
    is_same,
    label_of,
    missing_states,
    namespace_of,
    note_stored,
    packed_list,
    serialize,
    serialize_as,
    step_key,
    thread_of,
    time_of,
    tuple_of,
    typed_states,
    typed_writes_step,
    writes_again,
    writes_of,
    writes_step,
)
from anabranch.langgraph._writes import Line
from anabranch.v1.access_pb2 import Role
from anabranch.v1.server_service_pb2 import GetServerInfoRequest
from anabranch.v1.state_service_pb2 import ReadStatesRequest, ReadStatesResponse, StatePiece, StateReference
from anabranch.v1.status_pb2 import Status
from anabranch.v1.trajectory_pb2 import Step, View
from anabranch.v1.trajectory_service_pb2 import (
    AppendBatchRequest,
    AppendEntry,
    DeleteTrajectoryRequest,
    GetStepRequest,
    ListStepsRequest,
    ListTrajectoriesRequest,
    OnBranches,
    ReadStepsRequest,
    ReadTrajectoriesRequest,
    Seal,
    SealTrajectoryRequest,
    StepOrder,
    StepScope,
)

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from anabranch.v1.trajectory_pb2 import Trajectory
    from anabranch.v1.trajectory_service_pb2 import OwnedStep

#: Most bytes of a state that comes with its step in a range of steps.
_INLINE_BYTES = 256 * 1024
#: Most bytes of a step. Leaves room for the other fields of a message.
_STEP_BYTES = 960 * 1024
_MOST_NAMES = 1000
_MOST_ENTRIES = 1000
#: Checkpoints of the first page of a list, and of a page whose states are small.
_FIRST_PAGE, _PAGE = 16, 100
#: Bytes of the states of a page of a list, as far as the page before tells. All are in memory at the same time.
_PAGE_BYTES = 4 * 1024 * 1024
#: Steps of the first window of ancestors, and of the largest one.
_FIRST_WINDOW, _MOST_WINDOW = 32, 512
#: Steps of pending writes that are stored again with one call. Each has less than 4 KiB, apart from what is a state.
_AGAIN = 200
_MOST_ATTEMPTS = 8
#: Errors after which a put continues from the parent as a branch.
_TAKEN = (StepConflict, TrajectorySealed, WriterFenced)
#: Errors after which the parent is looked for again.
_MOVED = (TrajectoryNotFound, TrajectoryExists, BranchPointBeyondEnd, StepGap)
STRATEGIES = ("keep_latest", "delete")


class Found(NamedTuple):
    """A step with the bytes of its states."""

    place: Place
    step: Step
    states: States


@dataclass(frozen=True)
class Query:
    """What remains to be listed."""

    thread_id: str
    #: None for all namespaces.
    ns: str | None
    filter: Mapping[str, Any]
    #: None without a limit.
    limit: int | None
    #: In nanoseconds. Steps that were committed at this time or later are left out.
    before_time: int | None = None
    #: The place of the checkpoint before which others are listed: its time and its id.
    before: tuple[int, str] | None = None
    #: Its id, if it is not stored.
    before_id: str | None = None
    page_size: int = _FIRST_PAGE
    page_token: str = ""
    listed: frozenset[tuple[str, str]] = frozenset()

    def with_page(self, size: int) -> Query:
        """Returns the same with pages of this size, or smaller ones if fewer checkpoints are wanted."""
        if self.limit is not None and set(self.filter) <= set(FILTERS.values()):
            # The checkpoint `before` may be among those that are found.
            size = min(size, self.limit + 1)
        return replace(self, page_size=min(size, _PAGE))


class Operations:
    """The operations on all threads of one server, for one serializer."""

    def __init__(self, address: str, serde: SerializerProtocol, memory: Memory) -> None:
        self._address = address
        self._serde = serde
        self._memory = memory
        self._lines: Recent[str, Line] = Recent(1_000)

    def line(self, thread_id: str) -> Line:
        """Returns what sends the pending writes of a thread."""
        found = self._lines.get(thread_id)
        if found is None:
            found = Line(thread_id)
            self._lines.put(thread_id, found)
        return found

    # Storing

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> Operation[RunnableConfig]:
        """Stores a checkpoint after its parent."""
        thread_id, ns = thread_of(config), namespace_of(config)
        layout = self._memory.layout(thread_id, ns)
        stored = serialize(self._serde, layout, config, checkpoint, get_checkpoint_metadata(config, metadata))
        messages = checkpoint["channel_values"].get(MESSAGES)
        own, step = (thread_id, ns, stored.id), checkpoint_step(stored, layout, messages)

        def is_stored(before: Step) -> bool:
            if is_same(before, step):
                return True
            # Which values are states of their own depends on what a process knows of other checkpoints.
            other = serialize_as(self._serde, before, config, checkpoint, get_checkpoint_metadata(config, metadata))
            return is_same(before, checkpoint_step(other, Layout()))

        try:
            yield from self._put(own, stored.parent_id, step, is_stored)
        except StateNotFound:
            # A state that was named by its digest has been deleted.
            layout.stored = set()
            step = checkpoint_step(stored, layout, messages)
            yield from self._put(own, stored.parent_id, step, is_stored)
        note_stored(layout, step, checkpoint)
        return config_of(*own)

    def put_serialized(self, thread_id: str, stored: Serialized, parent_id: str | None) -> Operation[None]:
        """Stores a checkpoint of another saver, unless it is stored."""
        if (yield from self._place_of(thread_id, stored.ns, stored.id)) is not None:
            return
        step = checkpoint_step(stored, Layout())
        yield from self._put((thread_id, stored.ns, stored.id), parent_id, step, lambda before: is_same(before, step))

    def import_writes(
        self,
        thread_id: str,
        ns: str,
        checkpoint_id: str,
        task_id: str,
        values: Sequence[tuple[int, str, bytes]],
        task_path: str,
    ) -> Operation[None]:
        """Stores pending writes of another saver, unless they are stored."""
        indexes = [(index, channel) for index, channel, _ in values]
        packed = packed_list([data for _, _, data in values])
        step = typed_writes_step(ns, checkpoint_id, indexes, packed, task_id, task_path)
        known = yield from self._steps(self._request(thread_id, [key_of(ns, checkpoint_id)], {"kind": WRITES}))
        if any(is_same(each.step, step) for each in known):
            return
        yield from self.prepare(step)
        yield from self.line(thread_id).send([step])

    def _put(
        self, own: CheckpointKey, parent_id: str | None, step: Step, is_stored: Callable[[Step], bool]
    ) -> Operation[None]:
        """Stores a checkpoint after its parent: in the trajectory of the parent if that ends there, else as a branch, and
        without a parent in a new trajectory. `is_stored` decides whether a step with the same id is this checkpoint, so
        that nothing is stored; else the checkpoint replaces the other one.
        """
        yield from self.prepare(step)
        thread_id, ns, _ = own
        ends, tried, branches, random = self._memory.ends, 0, False, ""
        while True:
            before, parent = yield from self._before(own, parent_id)
            if before is not None:
                if is_stored(before.step):
                    return
                branches, random = True, random or _random()
            continues = parent is not None and parent.is_own and not branches
            if parent is not None and continues and (ends.get(parent.trajectory_id) or 0) > parent.number + 1:
                branches, continues = True, False
                if (yield from self._is_at(own, parent.trajectory_id, parent.number + 1)):
                    continue
            entry = self._entry(thread_id, ns, parent, [step], None if continues else random)
            try:
                (place,) = yield from self._append(entry)
            except (*_TAKEN, *_MOVED) as error:
                tried += 1
                if tried == _MOST_ATTEMPTS:
                    raise
                if not continues:
                    # An id that is derived from the content was used before: it has other steps, or was deleted.
                    random = _random()
                if isinstance(error, _TAKEN):
                    branches = True
                    if continues:
                        # The next child of this parent is sent as a branch at once.
                        ends.put(entry.trajectory_id, max(step.step_number + 1, ends.get(entry.trajectory_id) or 0))
                    yield from self._is_at(own, entry.trajectory_id, step.step_number)
                elif parent_id is not None:
                    self._memory.places.forget((thread_id, ns, parent_id))
            else:
                self._memory.learn(own, place)
                return

    def _before(self, own: CheckpointKey, parent_id: str | None) -> Operation[tuple[OwnedStep | None, Place | None]]:
        """Returns a checkpoint, unless it is new as far as this process knows, and where its parent is."""
        thread_id, ns, id = own
        places = self._memory.places
        parent = None if parent_id is None else places.get((thread_id, ns, parent_id))
        if places.get(own) is None and (parent_id is None or parent is not None):
            return None, parent
        places.forget(own)
        found = yield from self._find(thread_id, ns, [id] if parent_id is None else [id, parent_id])
        return found.get(id), _place(found[parent_id]) if parent_id in found else parent

    def _find(self, thread_id: str, ns: str, ids: Sequence[str]) -> Operation[dict[str | None, OwnedStep]]:
        """Returns the newest steps of checkpoints by id, without the bytes of their states."""
        request = self._request(thread_id, [key_of(ns, id) for id in ids], {"kind": CHECKPOINT})
        found: dict[str | None, OwnedStep] = {}
        while True:
            answer = yield Call("ListSteps", request)
            for owned in answer.steps:
                _, id, _ = _ids(owned.step)
                if id not in found:
                    found[id] = owned
                    self._memory.learn((thread_id, ns, id), _place(owned))
            if not answer.next_page_token or len(found) == len(set(ids)):
                return found
            request.page_token = answer.next_page_token

    def _is_at(self, own: CheckpointKey, trajectory_id: str, number: int) -> Operation[bool]:
        """Returns whether a checkpoint is at a number of a trajectory. Remembers which one is."""
        at = (trajectory_id, number)
        known = self._memory.taken.get(at)
        if known is None:
            try:
                answer = yield Call("GetStep", GetStepRequest(trajectory_id=trajectory_id, step_number=number))
            except (TrajectoryNotFound, StepNotFound):
                return False
            ns, id, _ = _ids(answer.step)
            known = (own[0], ns, id)
            self._memory.taken.put(at, known)
        if known == own:
            # It is not new.
            self._memory.places.put(own, Place(trajectory_id, number, trajectory_id, 0))
        return known == own

    def _append(self, entry: AppendEntry) -> Operation[list[Place]]:
        """Appends steps: all or none. Returns where they are."""
        answer = yield Call("AppendBatch", AppendBatchRequest(entries=[entry]))
        id, time = entry.trajectory_id, answer.results[0].commit_time.ToNanoseconds()
        return [Place(id, step.step_number, id, time) for step in entry.steps]

    def _entry(
        self, thread_id: str, ns: str, parent: Place | None, steps: Sequence[Step], random: str | None
    ) -> AppendEntry:
        """Returns an entry that appends steps after a parent. With a text, possibly empty, it creates a trajectory, whose
        id is derived from the text and from the content of the first step, so that a repetition creates no other one.
        """
        for number, step in enumerate(steps, 0 if parent is None else parent.number + 1):
            step.step_number = number
        if parent is not None and random is None:
            return AppendEntry(trajectory_id=parent.trajectory_id, steps=steps)
        content = [steps[0].metadata_json, *(digest_of(state) for state in steps[0].states), random or ""]
        if parent is None:
            id = content_id(thread_id, ns, *content)
            create = creation_of(thread_id, id, ns)
        else:
            id = content_id(parent.trajectory_id, parent.number, thread_id, ns, *content)
            create = branch_of(thread_id, id, parent.heir_id, parent.number, ns)
        return AppendEntry(trajectory_id=id, create=create, steps=steps)

    def prepare(self, step: Step) -> Operation[None]:
        """Stores the parts of a step that are too large for it, and names them in it. Raises StepTooLarge."""
        known, limits = limits_of(self._address), Limits()
        limits.values = {**known.values, "stepBytes": min(known["stepBytes"], _STEP_BYTES)}
        try:
            _, uploads = encode(step, limits)
        except TooLargeError as error:
            raise StepTooLarge(f"the checkpoint is too large: {error}", reason="STEP_TOO_LARGE") from None
        for upload in uploads:
            yield Upload(upload)

    def writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Operation[Step]:
        """Returns the step of pending writes, whose large parts are stored."""
        step = writes_step(self._serde, config, writes, task_id, task_path)
        yield from self.prepare(step)
        return step

    def _place_of(self, thread_id: str, ns: str, checkpoint_id: str) -> Operation[Place | None]:
        """Returns where a checkpoint is. None if it is not stored."""
        known = self._memory.places.get((thread_id, ns, checkpoint_id))
        if known is not None:
            return known
        request = self._request(thread_id, [key_of(ns, checkpoint_id)], {"kind": CHECKPOINT}, page_size=1)
        request.view = View.VIEW_BASIC
        answer = yield Call("ListSteps", request)
        if not answer.steps:
            return None
        place = _place(answer.steps[0])
        self._memory.learn((thread_id, ns, checkpoint_id), place)
        return place

    # Reading

    def get(self, config: RunnableConfig) -> Operation[CheckpointTuple | None]:
        """Returns a checkpoint, by default the latest one."""
        thread_id, ns, checkpoint_id = thread_of(config), namespace_of(config), checkpoint_id_of(config)
        if checkpoint_id is not None:
            found = yield from self._steps(self._request(thread_id, [key_of(ns, checkpoint_id)]))
            heads = [each for each in found if each.step.labels["kind"] == CHECKPOINT]
            writes = [each for each in found if each.step.labels["kind"] == WRITES]
        else:
            heads, _ = yield from self._page(self._request(thread_id, [head_of(ns)], page_size=1))
            writes = None
        if not heads:
            return None
        head = heads[0]
        if writes is None:
            checkpoint_id = str(about_of(head.step)["checkpoint_id"])
            writes = yield from self._steps(self._request(thread_id, [key_of(ns, checkpoint_id)], {"kind": WRITES}))
        self._learn(thread_id, ns, head)
        return self._tuple(thread_id, head, writes)

    def _learn(self, thread_id: str, ns: str, head: Found) -> None:
        checkpoint_id = str(about_of(head.step)["checkpoint_id"])
        self._memory.learn((thread_id, ns, checkpoint_id), head.place)
        note_stored(self._memory.layout(thread_id, ns), head.step, None)

    def _tuple(self, thread_id: str, head: Found, writes: Iterable[Found]) -> CheckpointTuple:
        """`writes` are those of the checkpoint, newest first."""
        checkpoint, metadata = checkpoint_of(self._serde, head.step, head.states)
        ordered = [(each.step, each.states) for each in writes][::-1]
        pending = writes_of(self._serde, ordered)
        layout = self._memory.layout(thread_id, str(about_of(head.step)["checkpoint_ns"]))
        note_stored(layout, head.step, checkpoint)
        layout.large.update(about_of(head.step).get("channels", {}))
        return tuple_of(thread_id, head.step, checkpoint, metadata, pending)

    def query(
        self,
        config: RunnableConfig,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Operation[Query]:
        """Returns what to list of the thread of a config."""
        thread_id = thread_of(config)
        ns = config.get("configurable", {}).get("checkpoint_ns")
        query = Query(thread_id, ns, dict(filter or {}), limit).with_page(_FIRST_PAGE)
        before_id = None if before is None else checkpoint_id_of(before)
        if before is None or before_id is None:
            return query
        place = yield from self._place_of(thread_id, namespace_of(before) if ns is None else ns, before_id)
        if place is None:
            return replace(query, before_id=before_id)
        return replace(query, before=(place.time, before_id), before_time=place.time)

    def listed(self, query: Query) -> Operation[tuple[list[CheckpointTuple], Query | None]]:
        """Returns some of what remains to be listed, newest first, and what remains after it."""
        labels = {
            name: label_of(query.filter[key]) for name, key in FILTERS.items() if query.filter.get(key) is not None
        }
        names = [] if query.ns is None else [head_of(query.ns)]
        request = self._request(query.thread_id, names, {"kind": CHECKPOINT, **labels}, query.page_size)
        if query.before_time is not None:
            # Others may have the same time, which is in microseconds: ids tell them apart.
            request.commit_time_to.FromNanoseconds(query.before_time + 1000)
        request.page_token = query.page_token
        found, token = yield from self._page(request)
        found.sort(key=lambda each: (each.place.time, str(about_of(each.step)["checkpoint_id"])), reverse=True)
        listed, heads = set(query.listed), list[tuple[Found, Checkpoint, CheckpointMetadata]]()
        for each in found:
            if query.limit is not None and len(heads) == query.limit:
                break
            about = about_of(each.step)
            key = (str(about["checkpoint_ns"]), str(about["checkpoint_id"]))
            self._memory.learn((query.thread_id, *key), each.place)
            if key in listed or (query.before_id is not None and key[1] >= query.before_id):
                continue
            if query.before is not None and (each.place.time, key[1]) >= query.before:
                continue
            checkpoint, metadata = checkpoint_of(self._serde, each.step, each.states)
            if any(cast("dict[str, Any]", metadata).get(name) != value for name, value in query.filter.items()):
                continue
            listed.add(key)
            heads.append((each, checkpoint, metadata))
        writes = yield from self._writes_of(query.thread_id, [head.step for head, _, _ in heads])
        tuples = [
            tuple_of(query.thread_id, head.step, checkpoint, metadata, writes.get(step_key(head.step), []))
            for head, checkpoint, metadata in heads
        ]
        limit = None if query.limit is None else query.limit - len(tuples)
        if not token or limit == 0:
            return tuples, None
        size = sum(len(data) for each in found for _, data in each.states.values())
        rest = replace(query, limit=limit, page_token=token, listed=frozenset(listed))
        return tuples, rest.with_page(max(len(found) * _PAGE_BYTES // (size + 1), 1))

    def _writes_of(self, thread_id: str, heads: Sequence[Step]) -> Operation[dict[str, list[PendingWrite]]]:
        """Returns the pending writes of checkpoints by their keys."""
        steps: dict[str, list[Found]] = {}
        names = [step_key(head) for head in heads]
        for start in range(0, len(names), _MOST_NAMES):
            some = names[start : start + _MOST_NAMES]
            for each in (yield from self._steps(self._request(thread_id, some, {"kind": WRITES}))):
                steps.setdefault(step_key(each.step), []).append(each)
        return {
            key: writes_of(self._serde, [(each.step, each.states) for each in reversed(found)])
            for key, found in steps.items()
        }

    def everything(
        self, filter: Mapping[str, Any] | None, before: RunnableConfig | None, limit: int | None
    ) -> Operation[list[CheckpointTuple]]:
        """Returns the checkpoints of all threads, newest first. Reads all that match the filter."""
        threads = yield from self._threads({})
        before_id = None if before is None else checkpoint_id_of(before)
        tuples: list[CheckpointTuple] = []
        for thread_id in threads:
            query: Query | None = Query(thread_id, None, dict(filter or {}), limit)
            while query is not None:
                some, query = yield from self.listed(replace(query, before_id=before_id))
                tuples += some
        tuples.sort(key=lambda each: each.checkpoint["id"], reverse=True)
        return tuples[:limit]

    def _threads(self, step_labels: Mapping[str, str]) -> Operation[list[str]]:
        """Returns the threads with a step that has these labels."""
        request = ReadTrajectoriesRequest(steps=StepScope.STEP_SCOPE_NONE, view=View.VIEW_FULL)
        request.labels.update({"integration": INTEGRATION, "kind": CHECKPOINTS})
        request.step_labels.update(step_labels)
        messages = yield Call("ReadTrajectories", request, streams=True)
        found = (about_of(each.trajectory)["thread_id"] for each in messages if each.HasField("trajectory"))
        return list(dict.fromkeys(found))

    def history(self, config: RunnableConfig, channels: Sequence[str]) -> Operation[dict[str, DeltaChannelHistory]]:
        """Returns what channels contributed to the ancestors of a checkpoint, up to the nearest one with a value."""
        thread_id, ns, checkpoint_id = thread_of(config), namespace_of(config), checkpoint_id_of(config)
        ancestors: list[Found] = []
        seeds: dict[str, Any] = {}
        #: How many ancestors count for each channel.
        counts: dict[str, int] = {}
        last = yield from self._target(thread_id, ns, checkpoint_id)
        window = _FIRST_WINDOW
        while last is not None and len(counts) < len(set(channels)):
            parents = yield from self._parents(thread_id, last, window)
            for each in parents:
                ancestors.append(each)
                values = checkpoint_of(self._serde, each.step, each.states)[0]["channel_values"]
                for channel in channels:
                    if channel not in counts and channel in values:
                        counts[channel], seeds[channel] = len(ancestors), values[channel]
            last, window = (parents[-1] if parents else None), min(2 * window, _MOST_WINDOW)
        steps = [each.step for each in ancestors]
        writes = yield from self._writes_of(thread_id, steps)
        history: dict[str, DeltaChannelHistory] = {}
        for channel in channels:
            path = reversed(steps[: counts.get(channel, len(steps))])
            own = [write for step in path for write in writes.get(step_key(step), []) if write[1] == channel]
            history[channel] = {"writes": own, "seed": seeds[channel]} if channel in seeds else {"writes": own}
        return history

    def _target(self, thread_id: str, ns: str, checkpoint_id: str | None) -> Operation[Found | None]:
        names = [head_of(ns)] if checkpoint_id is None else [key_of(ns, checkpoint_id)]
        request = self._request(thread_id, names, {"kind": CHECKPOINT}, page_size=1)
        found, _ = yield from self._page(request)
        return found[0] if found else None

    def _parents(self, thread_id: str, child: Found, count: int) -> Operation[list[Found]]:
        """Returns the next ancestors of a checkpoint, nearest first, at most `count`. None if it has no stored parent."""
        about = about_of(child.step)
        ns, parent_id = str(about["checkpoint_ns"]), about.get("parent_checkpoint_id")
        if parent_id is None:
            return []
        number = child.place.number
        before = yield from self._range(child.place.heir_id, max(number - count, 0), number)
        parents: list[Found] = []
        for each in reversed(before):
            about = about_of(each.step)
            if about.get("checkpoint_ns") != ns or about.get("checkpoint_id") != parent_id:
                break
            parents.append(each)
            parent_id = about.get("parent_checkpoint_id")
        if not parents:
            other = yield from self._target(thread_id, ns, str(parent_id))
            return [] if other is None else [other]
        return parents

    def _range(self, trajectory_id: str, start: int, end: int) -> Operation[list[Found]]:
        """Returns the steps [start, end) of the lineage of a trajectory."""
        if start == end:
            return []
        request = ReadStepsRequest(
            trajectory_id=trajectory_id, start_step_number=start, end_step_number=end, inline_bytes=_INLINE_BYTES
        )
        messages = yield Call("ReadSteps", request, streams=True)
        data = {blob.digest: blob.data for message in messages for blob in message.blobs}
        steps = [(message.trajectory_id, step) for message in messages for step in message.steps]
        yield from self._complete([(trajectory_id, step) for _, step in steps], data)
        found: list[Found] = []
        for owner_id, step in steps:
            place = Place(owner_id, step.step_number, trajectory_id, step.commit_time.ToNanoseconds())
            found.append(Found(place, step, typed_states(step, data)))
        return found

    # Requests

    def _request(
        self, thread_id: str, names: Sequence[str], labels: Mapping[str, str] | None = None, page_size: int = 1000
    ) -> ListStepsRequest:
        """Returns a request for the steps of a thread that have a state with one of the names, newest first."""
        request = ListStepsRequest(
            task_id=task_of(thread_id),
            any_of_states=names,
            inherited=True,
            order=StepOrder.STEP_ORDER_TIME,
            descending=True,
            view=View.VIEW_FULL,
            page_size=page_size,
        )
        request.labels.update(labels or {})
        return request

    def _page(self, request: ListStepsRequest) -> Operation[tuple[list[Found], str]]:
        """Returns a page with all bytes of the states, and the token of the next one."""
        tried = 0
        while True:
            messages = yield Call("ReadStates", ReadStatesRequest(steps=request), streams=True)
            page, data = messages[0], _joined(messages)
            try:
                yield from self._complete([(owned.heir_id, owned.step) for owned in page.steps], data)
                break
            except (TrajectoryNotFound, StepNotFound):
                # A prune has moved the steps since they were listed.
                tried += 1
                if tried == _MOST_ATTEMPTS:
                    raise
        found = [Found(_place(owned), owned.step, typed_states(owned.step, data)) for owned in page.steps]
        return found, page.next_page_token

    def _steps(self, request: ListStepsRequest) -> Operation[list[Found]]:
        """Returns all pages."""
        found: list[Found] = []
        if not request.any_of_states:
            return found
        while True:
            some, token = yield from self._page(request)
            found += some
            if not token:
                return found
            request.page_token = token

    def _complete(self, steps: Sequence[tuple[str, Step]], data: dict[str, bytes]) -> Operation[None]:
        """Reads the states that did not come with their steps, each once. `steps` have the ids of their heirs, because the
        owners may be deleted."""
        missing: dict[str, StateReference] = {}
        for heir_id, step in steps:
            for state in missing_states(step, data):
                reference = StateReference(trajectory_id=heir_id, step_number=step.step_number, name=state.name)
                missing.setdefault(state.digest, reference)
        references = list(missing.values())
        for start in range(0, len(references), _MOST_NAMES):
            request = ReadStatesRequest(references=references[start : start + _MOST_NAMES])
            data.update(_joined((yield Call("ReadStates", request, streams=True))))

    # Copying and deleting

    def copy(self, source_id: str, target_id: str) -> Operation[None]:
        """Copies a thread: a branch for each of its trajectories."""
        yield Call("BranchTrajectories", copy_of(source_id, target_id, _random()))

    def delete(self, thread_id: str) -> Operation[None]:
        """Deletes a thread. Copies of it keep what they share with it."""
        trajectories = yield from self._trajectories(thread_id)
        yield from self._delete(trajectories)

    def _delete(self, trajectories: Iterable[Trajectory]) -> Operation[None]:
        # Newest first: branches before their parents.
        for each in trajectories:
            keep = OnBranches.ON_BRANCHES_KEEP_SHARED
            try:
                yield Call("DeleteTrajectory", DeleteTrajectoryRequest(trajectory_id=each.id, on_branches=keep))
            except TrajectoryNotFound:
                continue

    def _trajectories(self, thread_id: str) -> Operation[list[Trajectory]]:
        """Returns the trajectories of a thread, newest first."""
        request = ListTrajectoriesRequest(task_id=task_of(thread_id), page_size=1000, view=View.VIEW_FULL)
        found: list[Trajectory] = []
        while True:
            answer = yield Call("ListTrajectories", request)
            found += answer.trajectories
            if not answer.next_page_token:
                return found
            request.page_token = answer.next_page_token

    def delete_runs(self, run_ids: Sequence[str]) -> Operation[None]:
        """Deletes the checkpoints of runs, and their writes. Copies of their threads keep them."""
        yield from self._require_write()
        labels = {label_of(id) for id in run_ids}
        threads: list[str] = []
        for label in sorted(labels):
            threads += yield from self._threads({"kind": CHECKPOINT, "run": label})
        for thread_id in dict.fromkeys(threads):
            yield from self._rewrite(
                thread_id,
                lambda found: [
                    each for each in found if not each.place.is_own or each.step.labels.get("run") not in labels
                ],
            )

    def prune(self, thread_ids: Sequence[str], strategy: str) -> Operation[None]:
        """Deletes the checkpoints of threads: all, or all but the latest of each namespace."""
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy is {strategy!r}: expected one of {', '.join(STRATEGIES)}")
        yield from self._require_write()
        for thread_id in thread_ids:
            if strategy == "delete":
                yield from self.delete(thread_id)
            else:
                yield from self._rewrite(thread_id, self._latest)

    def _require_write(self) -> Operation[None]:
        """Raises PermissionDenied unless the caller may delete, so that what ends with a deletion is not begun."""
        answer = yield Call("GetServerInfo", GetServerInfoRequest())
        if answer.caller.role < Role.ROLE_WRITE:
            role = Role.Name(answer.caller.role).removeprefix("ROLE_")
            message = f"this needs the role WRITE, and {answer.caller.name} has the role {role}: nothing was changed"
            metadata = {"needed_role": "WRITE", "role": role}
            raise PermissionDenied(message, reason="PERMISSION_DENIED", metadata=metadata)

    def _latest(self, found: Sequence[Found]) -> list[Found]:
        """Returns the latest checkpoint of each namespace, with the ancestors that its delta channels need."""
        kept: list[Found] = []
        by_key = {step_key(each.step): each for each in reversed(found)}
        namespaces: set[str] = set()
        for each in found:
            ns = str(about_of(each.step)["checkpoint_ns"])
            if ns in namespaces:
                continue
            namespaces.add(ns)
            metadata = checkpoint_of(self._serde, each.step, each.states)[1]
            channels = set(metadata.get("counters_since_delta_snapshot") or ())
            current: Found | None = each
            while current is not None and current not in kept:
                kept.append(current)
                channels -= set(checkpoint_of(self._serde, current.step, current.states)[0]["channel_values"])
                parent_id = about_of(current.step).get("parent_checkpoint_id")
                current = by_key.get(key_of(ns, parent_id)) if channels and parent_id else None
        return kept

    def _rewrite(self, thread_id: str, choose: Callable[[list[Found]], list[Found]]) -> Operation[None]:
        """Keeps some checkpoints of a thread: stores them anew, and then deletes what was there.

        The trajectories are sealed first, so that what another process puts from then on becomes a branch. If that came
        before the checkpoints that are stored anew, one of these would be the latest: all begins again.
        """
        sealed: set[str] = set()
        for _ in range(_MOST_ATTEMPTS):
            trajectories = yield from self._trajectories(thread_id)
            for each in trajectories:
                if each.id not in sealed:
                    yield from self._seal(each.id)
                sealed.add(each.id)
            found: list[Found] = []
            request = self._request(thread_id, [], {"kind": CHECKPOINT}, page_size=_PAGE)
            while True:
                some, token = yield from self._page(request)
                found += some
                if not token:
                    break
                request.page_token = token
            kept = choose(_distinct(found))
            ends = yield from self._store_again(thread_id, sorted(kept, key=lambda each: time_of(each.step)))
            if not (yield from self._has_grown(thread_id, sealed, ends)):
                yield from self._delete(trajectories)
                return
        raise AnabranchError(
            f"thread {thread_id!r} was written to at each of {_MOST_ATTEMPTS} attempts to prune it: nothing was deleted. "
            "Prune it again while no graph runs on it."
        )

    def _seal(self, trajectory_id: str) -> Operation[None]:
        seal = Seal(status=Status.STATUS_CANCELLED, message="replaced by a pruned copy")
        try:
            yield Call("SealTrajectory", SealTrajectoryRequest(trajectory_id=trajectory_id, seal=seal))
        except (TrajectorySealed, TrajectoryNotFound):
            return

    def _has_grown(self, thread_id: str, sealed: AbstractSet[str], ends: Mapping[str, int]) -> Operation[bool]:
        """Returns whether a thread has checkpoints besides those of sealed trajectories, of others up to an end, and those
        that another process has stored again."""
        return any(
            each.id not in sealed
            and each.labels["kind"] == CHECKPOINTS
            and str(each.next_step_number) not in (str(ends.get(each.id)), each.labels.get(AGAIN))
            for each in (yield from self._trajectories(thread_id))
        )

    def _store_again(self, thread_id: str, kept: Sequence[Found]) -> Operation[dict[str, int]]:
        """Stores checkpoints and their writes in new trajectories, oldest first. Returns where those of the checkpoints
        end."""
        found: list[Found] = []
        for start in range(0, len(kept), _MOST_NAMES):
            names = [step_key(each.step) for each in kept[start : start + _MOST_NAMES]]
            found += yield from self._steps(self._request(thread_id, names, {"kind": WRITES}))
        places: dict[tuple[str, str | None], Place] = {}
        for chain in _chains(kept):
            ns, _, parent_id = _ids(chain[0].step)
            steps = [again(each.step, each.states) for each in chain]
            stored = yield from self._append_again(thread_id, ns, places.get((ns, parent_id)), steps)
            for each, place in zip(chain, stored, strict=True):
                _, id, _ = _ids(each.step)
                places[(ns, id)] = place
                self._memory.learn((thread_id, ns, id), place)
        writes = writes_again([(each.step, each.states) for each in reversed(found)])
        for start in range(0, len(writes), _AGAIN):
            some = writes[start : start + _AGAIN]
            for number, step in enumerate(some):
                step.step_number = number
            # Not a trajectory of `Line`, which may be one of those that are deleted.
            trajectory_id = _random()
            create = creation_of(thread_id, trajectory_id)
            yield from self._append(AppendEntry(trajectory_id=trajectory_id, create=create, steps=some))
        return {place.trajectory_id: place.number + 1 for place in places.values()}

    def _append_again(
        self, thread_id: str, ns: str, parent: Place | None, steps: Sequence[Step]
    ) -> Operation[list[Place]]:
        """Appends steps after a parent that was stored anew, or in a new trajectory. Returns where they are."""
        for step in steps:
            yield from self.prepare(step)
        random = _random() if parent is None else None
        for _ in range(_MOST_ATTEMPTS):
            try:
                entry = self._entry(thread_id, ns, parent, steps, random)
                if random is not None:
                    mark_again(entry.create, steps[-1].step_number + 1)
                return (yield from self._append(entry))
            except _TAKEN:
                # Another process has put a child of the parent.
                random = _random()
            except _MOVED:
                parent, random = None, _random()
        raise AnabranchError(
            f"thread {thread_id!r} is pruned by other processes at the same time: nothing was deleted."
        )


def _distinct(found: Iterable[Found]) -> list[Found]:
    """Returns each checkpoint once, newest first. Of one that was replaced, the newest; of one that was stored again, the
    oldest, whose trajectory can be another thread's."""
    distinct: dict[str, Found] = {}
    for each in sorted(found, key=lambda each: (-time_of(each.step), each.place.time)):
        distinct.setdefault(step_key(each.step), each)
    return list(distinct.values())


def _chains(ordered: Sequence[Found]) -> list[list[Found]]:
    """Divides checkpoints among messages. Those of one message are children of each other: they are stored together, so
    that no other call finds an ancestor as the latest checkpoint."""
    chains: list[list[Found]] = []
    room = 0
    for each in ordered:
        ns, _, parent_id = _ids(each.step)
        size = each.step.ByteSize() + sum(state.size for state in each.step.states if state.size < DIGEST_BYTES)
        before = _ids(chains[-1][-1].step)[:2] if chains else None
        if before == (ns, parent_id) and size <= room and len(chains[-1]) < _MOST_ENTRIES:
            chains[-1].append(each)
        else:
            chains.append([each])
            room = _STEP_BYTES
        room -= size
    return chains


def _ids(step: Step) -> tuple[str, str, str | None]:
    """Returns the namespace of a checkpoint, its id, and that of its parent."""
    about = about_of(step)
    parent_id = about.get("parent_checkpoint_id")
    return str(about["checkpoint_ns"]), str(about["checkpoint_id"]), None if parent_id is None else str(parent_id)


def _place(owned: OwnedStep) -> Place:
    step = owned.step
    return Place(owned.trajectory_id, step.step_number, owned.heir_id, step.commit_time.ToNanoseconds())


def _joined(messages: Iterable[ReadStatesResponse]) -> dict[str, bytes]:
    """Returns the states whose pieces are complete, by digest."""
    pieces: dict[str, list[StatePiece]] = {}
    for message in messages:
        for piece in message.pieces:
            if piece.offset == 0:
                pieces[piece.digest] = []
            pieces[piece.digest].append(piece)
    joined = {digest: b"".join(piece.data for piece in some) for digest, some in pieces.items()}
    return {digest: data for digest, data in joined.items() if len(data) == pieces[digest][0].size}


def _random() -> str:
    return str(uuid.uuid4())
