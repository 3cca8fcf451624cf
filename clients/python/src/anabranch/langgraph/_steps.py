"""Checkpoints and pending writes as steps, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    writes_sort_key,
)

from anabranch.langgraph._messages import MESSAGES, add_messages, prints_of
from anabranch.langgraph._names import channel_state, fitting, head_of, key_of
from anabranch.v1.trajectory_pb2 import Step, StepState, Trajectory

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.serde.base import SerializerProtocol

CHECKPOINT, WRITES = "checkpoint", "writes"
#: Channel values with more bytes are states of their own.
_LARGE_BYTES = 64 * 1024
#: A step has at most 256 states, two of which are the checkpoint and its metadata.
_MOST_LARGE = 250
#: States with fewer bytes are stored in their step, where no digest finds them.
DIGEST_BYTES = 4096
#: Values of these types are small.
_SMALL = (int, float, bool, type(None))
_MEDIA_TYPE = "application/vnd.langgraph+"
#: In the metadata of a step that was stored again: when it was committed first, in nanoseconds.
_COMMITTED = "committed"

#: Type and bytes of a serialized value.
Typed = tuple[str, bytes]
#: The bytes of each state of a step, and its type, by name.
States = Mapping[str, Typed]


@dataclass
class Layout:
    """What is known of the newest checkpoint of a namespace, so that the next one is laid out and sent with less work.
    If it is out of date, what is stored is correct all the same."""

    #: The version of each channel whose size was measured, and the channels whose values were large.
    measured: dict[str, object] = field(default_factory=dict[str, object])
    large: set[str] = field(default_factory=set[str])
    #: Digests of states that are stored.
    stored: set[str] = field(default_factory=set[str])
    #: Numbers of the messages of the channel `messages`, by id.
    messages: dict[str, int] = field(default_factory=dict[str, int])


class Serialized(NamedTuple):
    """A checkpoint in bytes."""

    ns: str
    id: str
    parent_id: str | None
    head: Typed
    #: Large values by channel.
    channels: Mapping[str, Typed]
    metadata: Typed
    labels: Mapping[str, str]


def serialize(
    serde: SerializerProtocol,
    layout: Layout,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
) -> Serialized:
    """Serializes a checkpoint. Raises TypeError if the serializer refuses a value."""
    values = checkpoint["channel_values"]
    large = {channel: typed for channel, typed in _measured(serde, layout, checkpoint) if len(typed[1]) > _LARGE_BYTES}
    for channel in sorted(large, key=lambda name: -len(large[name][1]))[_MOST_LARGE:]:
        del large[channel]
    layout.large = (layout.large - values.keys()) | large.keys()
    return _serialized(serde, config, checkpoint, metadata, large)


def serialize_as(
    serde: SerializerProtocol,
    stored: Step,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
) -> Serialized:
    """Serializes a checkpoint with the large values of a stored one."""
    values, what = checkpoint["channel_values"], f"checkpoint {checkpoint['id']}"
    channels = about_of(stored).get("channels", {}).keys() & values.keys()
    large = {channel: _dumps(serde, values[channel], what) for channel in channels}
    return _serialized(serde, config, checkpoint, metadata, large)


def _serialized(
    serde: SerializerProtocol,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    large: Mapping[str, Typed],
) -> Serialized:
    ns, parent_id, values = namespace_of(config), checkpoint_id_of(config), checkpoint["channel_values"]
    small = {name: value for name, value in values.items() if name not in large} if large else values
    head = _dumps(serde, {**checkpoint, "channel_values": small}, f"checkpoint {checkpoint['id']}")
    labels = {name: metadata.get(key) for name, key in FILTERS.items()}
    return Serialized(
        ns,
        checkpoint["id"],
        parent_id,
        head,
        large,
        _dumps(serde, metadata, f"the metadata of checkpoint {checkpoint['id']}"),
        {name: label_of(value) for name, value in labels.items() if value is not None},
    )


#: The label for each key of the metadata by which the server filters.
FILTERS = {"source": "source", "step": "step", "run": "run_id"}


def label_of(value: object) -> str:
    """Returns the value of a label."""
    return fitting(str(value))


def _measured(serde: SerializerProtocol, layout: Layout, checkpoint: Checkpoint) -> Iterable[tuple[str, Typed]]:
    """Yields the values that are large or may be."""
    values, versions, measured = checkpoint["channel_values"], checkpoint["channel_versions"], layout.measured
    changed = {channel for channel, _ in versions.items() - measured.items()}
    for channel in sorted(values.keys() & (changed | layout.large | (values.keys() - versions.keys()))):
        value, measured[channel] = values[channel], versions.get(channel)
        # A character has at most four bytes.
        if isinstance(value, _SMALL) or (isinstance(value, (str, bytes)) and 4 * len(value) <= _LARGE_BYTES):
            continue
        yield channel, _dumps(serde, value, f"channel {channel!r} of checkpoint {checkpoint['id']}")


def _dumps(serde: SerializerProtocol, value: object, what: str) -> Typed:
    try:
        return serde.dumps_typed(value)
    except Exception as error:
        raise TypeError(f"{what} cannot be serialized, so nothing was stored: {error}") from error


def checkpoint_step(serialized: Serialized, layout: Layout, messages: object = None) -> Step:
    """Returns a step, without its number. Large values that are stored are named by digest."""
    ns, channels = serialized.ns, {name: channel_state(name) for name in serialized.channels}
    about: dict[str, object] = {"checkpoint_id": serialized.id, "checkpoint_ns": ns}
    if serialized.parent_id is not None:
        about["parent_checkpoint_id"] = serialized.parent_id
    if channels:
        about["channels"] = channels
    step = Step(metadata_json=json.dumps(about))
    step.labels.update({"kind": CHECKPOINT, "ns": fitting(ns), **serialized.labels})
    _add_state(step, head_of(ns), serialized.head, None)
    _add_state(step, key_of(ns, serialized.id), serialized.metadata, None)
    for channel, typed in serialized.channels.items():
        _add_state(step, channels[channel], typed, layout.stored)
    if messages is not None:
        add_messages(step, messages, layout.messages)
    return step


def _add_state(step: Step, name: str, typed: Typed, stored: set[str] | None) -> None:
    state = step.states.add()
    type, data = typed
    state.name, state.media_type = name, f"{_MEDIA_TYPE}{type}"
    if stored is not None:
        state.digest = sha256(data).hexdigest()
        if state.digest in stored:
            return
    state.data = data


def note_stored(layout: Layout, step: Step, checkpoint: Checkpoint | None) -> None:
    """Records what is known of a checkpoint that is stored."""
    large = [state.digest for state in step.states if state.name.startswith("channel/") and state.digest]
    layout.stored = set(large)
    if checkpoint is not None:
        layout.messages = prints_of(checkpoint["channel_values"].get(MESSAGES))


def writes_step(
    serde: SerializerProtocol, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> Step:
    """Returns the step of a call of put_writes, without its number. Raises TypeError if the serializer refuses a value."""
    ns, checkpoint_id = namespace_of(config), checkpoint_id_of(config)
    if checkpoint_id is None:
        raise ValueError("config has no checkpoint_id: expected the config that put returned")
    indexes = [(WRITES_IDX_MAP.get(channel, index), channel) for index, (channel, _) in enumerate(writes)]
    values = _dumps(serde, [value for _, value in writes], f"a write of task {task_id}")
    return typed_writes_step(ns, checkpoint_id, indexes, values, task_id, task_path)


def typed_writes_step(
    ns: str, checkpoint_id: str, indexes: Sequence[tuple[int, str]], values: Typed, task_id: str, task_path: str
) -> Step:
    """Returns the step of serialized writes. `indexes` has the index and the channel of each."""
    about = {"checkpoint_id": checkpoint_id, "checkpoint_ns": ns, "task_id": task_id, "task_path": task_path}
    step = Step(metadata_json=json.dumps({**about, "writes": indexes}))
    step.labels.update({"kind": WRITES, "ns": fitting(ns)})
    _add_state(step, key_of(ns, checkpoint_id), values, None)
    return step


def packed_list(values: Sequence[bytes]) -> Typed:
    """Returns a list of values that are MessagePack."""
    return "msgpack", b"\xdd" + len(values).to_bytes(4, "big") + b"".join(values)


def about_of(step: Step | Trajectory) -> dict[str, Any]:
    """Returns what a step says of its checkpoint, or a trajectory of its thread."""
    return cast("dict[str, Any]", json.loads(step.metadata_json or "{}"))


def typed_states(step: Step, data: Mapping[str, bytes]) -> States:
    """Returns the states of a step with their types. `data` has their bytes by digest."""
    return {
        state.name: (state.media_type.removeprefix(_MEDIA_TYPE), data[state.digest])
        for state in step.states
        if state.media_type.startswith(_MEDIA_TYPE)
    }


def checkpoint_of(serde: SerializerProtocol, step: Step, states: States) -> tuple[Checkpoint, CheckpointMetadata]:
    """Returns the checkpoint of a step, and its metadata."""
    about = about_of(step)
    ns = about["checkpoint_ns"]
    checkpoint = serde.loads_typed(states[head_of(ns)])
    for channel, name in about.get("channels", {}).items():
        checkpoint["channel_values"][channel] = serde.loads_typed(states[name])
    return checkpoint, serde.loads_typed(states[key_of(ns, about["checkpoint_id"])])


class Write(NamedTuple):
    """A stored write, with its index among the writes of its task."""

    task_path: str
    task_id: str
    place: int
    channel: str
    value: Any


def writes_of(serde: SerializerProtocol, steps: Sequence[tuple[Step, States]]) -> list[PendingWrite]:
    """Returns the pending writes of one checkpoint, whose steps are in order of commit."""
    found: list[Write] = []
    for number, places in _counting([step for step, _ in steps]).items():
        step, states = steps[number]
        about = about_of(step)
        values = serde.loads_typed(states[step_key(step)])
        for place in places:
            index, channel = about["writes"][place]
            found.append(Write(about["task_path"], about["task_id"], index, channel, values[place]))
    found.sort(key=lambda each: writes_sort_key(each.task_path, each.task_id, each.place))
    return [(each.task_id, each.channel, each.value) for each in found]


def writes_again(steps: Sequence[tuple[Step, States]]) -> list[Step]:
    """Returns the steps of which at least one write counts, to store them once more. The steps are in order of commit."""
    return [again(*steps[number]) for number in sorted(_counting([step for step, _ in steps]))]


def _counting(steps: Sequence[Step]) -> dict[int, list[int]]:
    """Returns which writes of which steps count. For one checkpoint, task and index, the first write counts, except in
    special channels, where the last one does."""
    found: dict[tuple[str, str, int], tuple[int, int]] = {}
    for number in sorted(range(len(steps)), key=lambda each: time_of(steps[each])):
        about = about_of(steps[number])
        for place, (index, _) in enumerate(about["writes"]):
            key = (step_key(steps[number]), about["task_id"], index)
            if index < 0 or key not in found:
                found[key] = (number, place)
    counting: dict[int, list[int]] = {}
    for number, place in found.values():
        counting.setdefault(number, []).append(place)
    return counting


def step_key(step: Step) -> str:
    """Returns the name of the states by which the checkpoint of a step is found."""
    about = about_of(step)
    return key_of(str(about["checkpoint_ns"]), str(about["checkpoint_id"]))


def time_of(step: Step) -> int:
    """Returns when a step was committed, in nanoseconds. If the step was stored again, the first time counts."""
    return int(about_of(step).get(_COMMITTED) or step.commit_time.ToNanoseconds())


def again(step: Step, states: States) -> Step:
    """Returns a step to store it once more. Its small states are stored with it."""
    copied = Step()
    copied.CopyFrom(step)
    copied.metadata_json = json.dumps({**about_of(step), _COMMITTED: time_of(step)})
    for state in copied.states:
        if state.size < DIGEST_BYTES:
            state.data = states[state.name][1]
    return copied


def is_same(one: Step, other: Step) -> bool:
    """Returns whether two steps have the same checkpoint, or the same writes. What they show of messages can differ."""
    first, second = (
        ({**about_of(step), _COMMITTED: None}, sorted(map(_identity, step.states))) for step in (one, other)
    )
    return first == second


def _identity(state: StepState) -> tuple[str, str, str]:
    return state.name, state.media_type, digest_of(state)


def digest_of(state: StepState) -> str:
    return state.digest or sha256(state.data).hexdigest()


def tuple_of(
    thread_id: str, step: Step, checkpoint: Checkpoint, metadata: CheckpointMetadata, writes: list[PendingWrite]
) -> CheckpointTuple:
    about = about_of(step)
    ns, parent_id = about["checkpoint_ns"], about.get("parent_checkpoint_id")
    parent = None if parent_id is None else config_of(thread_id, ns, parent_id)
    return CheckpointTuple(config_of(thread_id, ns, about["checkpoint_id"]), checkpoint, metadata, parent, writes)


def config_of(thread_id: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def thread_of(config: RunnableConfig) -> str:
    """Returns the thread that a config names. Raises ValueError if it names none."""
    thread_id = config.get("configurable", {}).get("thread_id")
    if thread_id is None:
        raise ValueError("config has no thread_id: expected {'configurable': {'thread_id': …}}")
    return str(thread_id)


def namespace_of(config: RunnableConfig) -> str:
    return str(config.get("configurable", {}).get("checkpoint_ns") or "")


def checkpoint_id_of(config: RunnableConfig) -> str | None:
    id = config.get("configurable", {}).get("checkpoint_id")
    return str(id) if id else None


def missing_states(step: Step, data: Mapping[str, bytes]) -> list[StepState]:
    """Returns the states whose bytes are not there."""
    return [state for state in step.states if state.digest not in data]
