"""Sessions of agent frameworks as trajectories: what `anabranch.openai_agents` and `anabranch.claude_agent_sdk` share.

A step has one item of a session, in the form in which `turn()` and `say()` record it, with the item as JSON text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from anabranch._recording.creation import Creation
from anabranch._recording.fitting import is_plain_json
from anabranch._recording.messages import MESSAGE
from anabranch._recording.turns import CALL as CALL_OF_TOOL
from anabranch._recording.turns import REPLY
from anabranch._wire.outage import call
from anabranch._wire.values import content_bytes
from anabranch.client import Client, connect
from anabranch.compat._strict import append_entry
from anabranch.errors import TrajectoryNotFound
from anabranch.v1.trajectory_pb2 import IF_EXISTS_RETURN_EXISTING, VIEW_BASIC, Step
from anabranch.v1.trajectory_service_pb2 import AppendEntry, AppendResult, GetTrajectoryRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anabranch._wire.connection import Connection
    from anabranch._wire.decode import Fetch
    from anabranch.v1.trajectory_pb2 import Content, Trajectory

_SURROGATE = re.compile("[\ud800-\udfff]")
#: The label of a step that names the call that added it. Equal items of two calls are two items.
CALL = "call"
#: The bounds of Action.name and of `call_id`.
_NAME_BYTES, _CALL_ID_BYTES = 256, 4096
#: Most bytes of the names and ids of the calls of a step, and what each call counts besides: a step has at most 1,024
#: actions, the reply included.
_CALLS_BYTES, _CALL_BYTES = 256 * 1024, 256


def client_of(client: Client | str | None) -> Client:
    """Returns a client, or a new client of an address. None is the default address."""
    return client if isinstance(client, Client) else connect(client, strict=True, spool=False)


def creation_of(integration: str, owner: str, *, name: str, **labels: str) -> Creation:
    """Returns what all trajectories of a session have. `owner` follows the name of the integration in their task.
    Raises TypeError and ValueError for names that they cannot have."""
    for key, value in {**labels, "key": owner}.items():
        if value == "":
            raise ValueError(f"`{key}` of {integration} is empty: expected at least one character")
    Creation.checked(labels=labels)
    task = f"{integration}/{owner}"
    return Creation.checked(task=task, name=name, labels={"integration": integration, **labels})


def json_of(value: object, name: str) -> str:
    """Returns the JSON text of a value, as JSON.stringify writes it. Raises TypeError for a value that JSON cannot hold,
    and ValueError for NaN, infinities and a value that contains itself."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} cannot be stored as JSON: {error}") from None
    return text if text.isascii() else _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def json_text(content: Content, fetch: Fetch) -> str:
    """Returns the JSON text of a content. `fetch` is called if it is stored as a state."""
    data = fetch(content.state_digest) if content.HasField("state_digest") else content_bytes(content)[0]
    return data.decode()


def say(step: Step, message: str, call_id: object = None, *, is_error: bool = False) -> None:
    """Adds a message, given as JSON text, that no model wrote. `call_id` is that of the call that it answers."""
    item = step.observations.add()
    item.type, item.call_id, item.is_error = MESSAGE, id_of_call(call_id) or "", is_error
    item.content.json = message


def reply(step: Step, format: str, message: str) -> None:
    """Adds the reply of a model, given as JSON text."""
    action = step.actions.add()
    action.type, action.name = REPLY, format
    action.content.json = message


def call_tools(step: Step, calls: Iterable[tuple[object, object, object]]) -> None:
    """Adds the calls of tools that a reply has: name, id and arguments of each. Arguments that are text and not JSON stay
    text. A call without a name and an id that a step can have is in the reply only, and so are those that come after as
    many as a step can have."""
    room = _CALLS_BYTES
    for name, call_id, arguments in calls:
        name, call_id = name_of_call(name), id_of_call(call_id)
        if not name or not call_id:
            continue
        # Large arguments can be states.
        room -= _CALL_BYTES + len(name.encode()) + len(call_id.encode())
        if room < 0:
            return
        action = step.actions.add()
        action.type, action.name, action.call_id = CALL_OF_TOOL, name, call_id
        if isinstance(arguments, str) and not is_plain_json(arguments):
            if text_within(arguments, len(arguments) * 4) is not None:
                action.content.text = arguments
        elif arguments is not None:
            action.content.json = arguments if isinstance(arguments, str) else json_of(arguments, "arguments")


def name_of_call(name: object) -> str | None:
    """Returns the name of a called tool. None if an action cannot have it."""
    return text_within(name, _NAME_BYTES)


def id_of_call(call_id: object) -> str | None:
    """Returns the id of a call. None if an action cannot have it."""
    return text_within(call_id, _CALL_ID_BYTES)


def text_within(value: object, most: int) -> str | None:
    """Returns text that a field of at most so many bytes can have. None for anything else."""
    if not isinstance(value, str) or "\0" in value or _SURROGATE.search(value) or len(value.encode()) > most:
        return None
    return value


def append(connection: Connection, entry: AppendEntry) -> AppendResult:
    """Writes to one trajectory, all or nothing, and creates it if the entry says so. Raises the error of the entry."""
    try:
        return append_entry(connection, entry)
    except TrajectoryNotFound:
        if not entry.HasField("create"):
            raise
    # A trajectory with this id was deleted. Only the calls that create nothing else create it again.
    create = entry.create
    if create.HasField("trajectory"):
        create.trajectory.if_exists = IF_EXISTS_RETURN_EXISTING
        call(connection, lambda stubs: stubs.trajectories.CreateTrajectory, create.trajectory)
    else:
        call(connection, lambda stubs: stubs.trajectories.BranchTrajectory, create.branch)
    entry.ClearField("create")
    return append_entry(connection, entry)


def find(connection: Connection, trajectory_id: str) -> Trajectory | None:
    """Returns a trajectory without its metadata. None if there is none with this id."""
    request = GetTrajectoryRequest(trajectory_id=trajectory_id, view=VIEW_BASIC)
    try:
        return call(connection, lambda stubs: stubs.trajectories.GetTrajectory, request).trajectory
    except TrajectoryNotFound:
        return None
