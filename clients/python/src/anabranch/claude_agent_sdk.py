"""A session store of the Claude Agent SDK that keeps sessions in Anabranch.

    store = AnabranchSessionStore("sqlite:runs.db")
    options = ClaudeAgentOptions(session_store=store, resume=session_id)

A session is a trajectory, a transcript of a subagent another one, and an entry is a step. The store mirrors the files
of the SDK: entries read back with their keys in order and their numbers as they were.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar, cast

from anabranch._reading.blobs import Blobs
from anabranch._reading.read import Selection, read_steps, read_trajectories
from anabranch._recording.replies import ANTHROPIC
from anabranch._sessions import (
    CALL,
    append,
    call_tools,
    client_of,
    creation_of,
    find,
    json_of,
    json_text,
    reply,
    say,
    text_within,
)
from anabranch._wire.kinds import is_a, type_name
from anabranch._wire.outage import call, pages
from anabranch._wire.scope import Scope, current
from anabranch._wire.tensors import optional
from anabranch.compat._strict import messages_of, store_large_parts
from anabranch.errors import StepConflict, StepGap, TrajectoryNotFound
from anabranch.v1.trajectory_pb2 import VIEW_BASIC, Step
from anabranch.v1.trajectory_service_pb2 import (
    ON_BRANCHES_KEEP_SHARED,
    AppendEntry,
    DeleteTrajectoryRequest,
    ListTrajectoriesRequest,
)

if TYPE_CHECKING:
    from claude_agent_sdk import SessionKey, SessionStoreEntry, SessionStoreListEntry, SessionSummaryEntry
    from claude_agent_sdk.types import SessionListSubkeysKey

    from anabranch._reading.read import OwnedStep
    from anabranch._recording.creation import Creation
    from anabranch._wire.decode import Fetch
    from anabranch.client import Client
    from anabranch.v1.trajectory_pb2 import Trajectory

__all__ = ["AnabranchSessionStore"]

R = TypeVar("R")

_sdk: Any = optional("claude_agent_sdk", "for anabranch.claude_agent_sdk")
_anyio: Any = optional("anyio", "for anabranch.claude_agent_sdk")

_IDS = uuid.UUID("8055fc2d-686e-4e19-9501-b9be58256f79")
_INTEGRATION = "claude-agent-sdk"
#: The label of a step that has the uuid of its entry, and that of a trajectory of a subagent.
_UUID, _SUBPATH = "uuid", "subpath"
_UUID_BYTES = 256
#: Types of observations: an entry without its message, and the place where a fork begins.
_ENTRY, _FORK = "entry", "fork"
#: Entries that the SDK takes over into a fork, and keys that it leaves out of them.
_TRANSCRIPT = frozenset({"user", "assistant", "attachment", "system", "progress"})
_NOT_FORKED = ("teamName", "agentName", "slug", "sourceToolAssistantUUID")
#: Sessions whose uuids a store remembers.
_REMEMBERED = 64


@dataclass
class _Known:
    """What a store knows of a trajectory that it appends to."""

    uid: str = ""
    end: int = 0
    uuids: set[str] = field(default_factory=set[str])
    #: The owner of the last step that was read.
    owner: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


class AnabranchSessionStore:
    """A `SessionStore`. Any number of processes and threads can share its sessions: no entry is lost, and one with a
    `uuid` is stored once.

    `client` is a client or an address as in `anabranch.connect`, by default ANABRANCH_ADDRESS. Keys have a `project_key`
    of 1 to 239 bytes, and a `session_id` and a `subpath` of at most 256 bytes. Deleting needs the role WRITE, everything
    else WORK.

    Calls return when their data is durable. They wait for a server that is away, as those of a client do, and raise
    AnabranchError; the SDK reports that as a `MirrorErrorMessage`.
    """

    def __init__(self, client: Client | str | None = None) -> None:
        self._connection = client_of(client).connection
        self._known: OrderedDict[str, _Known] = OrderedDict()
        #: Summaries of the project that was listed last, by the uids and ends of sessions.
        self._summaries: dict[tuple[str, int], SessionSummaryEntry] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"AnabranchSessionStore({self._connection.address!r})"

    def trajectory_id(self, key: SessionKey) -> str:
        """Returns the id of the trajectory of a session, or of a transcript of a subagent."""
        return _id_of(key)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Adds entries at the end, without those whose `uuid` the session has. At most 1,000 entries that fit into a
        message of 1 MiB are stored together or not at all. Raises TypeError and ValueError for an entry that JSON cannot
        hold; nothing is stored then."""
        creation = _creation_of(key)
        own = str(uuid.uuid4())
        steps = [_step_of(entry, index, own) for index, entry in enumerate(entries)]
        if steps:
            await _run(lambda: self._append(_id_of(key), creation, steps))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Returns the entries in order; None if there is no such session."""
        _creation_of(key)
        return await _run(lambda: self._load(_id_of(key)))

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Returns the sessions of a project, without subagents, with the time of the last write in milliseconds."""
        found = await _run(lambda: self._sessions(project_key))
        return [{"session_id": each.labels["session"], "mtime": each.update_time.ToMilliseconds()} for each in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Returns what the SDK shows of the sessions of a project, without subagents. Reads the sessions that have changed
        since the last call."""
        return await _run(lambda: self._summarized(project_key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Returns the paths of the transcripts of subagents of a session."""
        found = await _run(lambda: self._listed(key["project_key"], session=key["session_id"]))
        return [each.labels[_SUBPATH] for each in found if _SUBPATH in each.labels]

    async def delete(self, key: SessionKey) -> None:
        """Deletes a session with the transcripts of its subagents, or with a `subpath` only that one. Forks stay. No
        effect if there is none."""
        _creation_of(key)
        await _run(lambda: self._delete(key))

    async def fork(
        self, key: SessionKey, at: str | None = None, *, session_id: str | None = None, title: str | None = None
    ) -> SessionKey:
        """Creates a session that begins with the messages of another one up to the one with the uuid `at`, by default
        with all. Returns its key. Nothing is copied: the new session is a branch.

        Its entries are those that `claude_agent_sdk.fork_session` writes: with other uuids, with the new session id and
        with `forkedFrom`. `session_id` is by default a random UUID. `title` is that of the fork, by default the title of
        the session with " (fork)". Raises ValueError if the session has no messages or none with this uuid,
        TrajectoryNotFound if there is no such session, and TrajectoryExists if `session_id` is in use.
        """
        name = str(uuid.uuid4()) if session_id is None else session_id
        forked: SessionKey = {"project_key": key["project_key"], "session_id": name}
        creation = _creation_of(forked)
        await _run(lambda: self._fork(key, forked, creation, at, title))
        return forked

    # Blocking forms, each in a thread of its own.

    def _append(self, trajectory_id: str, creation: Creation, steps: Sequence[Step]) -> None:
        for step in steps:
            store_large_parts(self._connection, step)
        known = self._knowledge_of(trajectory_id)
        with known.lock:
            named = (step.labels.get(_UUID) for step in steps)
            if known.uid == "" or not known.uuids.isdisjoint(filter(None, named)):
                # What is known may have been deleted since.
                self._refresh(trajectory_id, known)
            for message in messages_of(steps):
                while not self._store(trajectory_id, creation, message, known):
                    self._refresh(trajectory_id, known)

    def _store(self, trajectory_id: str, creation: Creation, steps: Sequence[Step], known: _Known) -> bool:
        """Stores steps at the known end. Returns whether that was the end."""
        end, uuids = max(known.end, 1), set[str]()
        entry = AppendEntry(trajectory_id=trajectory_id, uid=known.uid)
        for step in steps:
            own = step.labels.get(_UUID)
            if own is None or not (own in known.uuids or own in uuids):
                step.step_number = end + len(entry.steps)
                entry.steps.append(step)
                uuids.update([own] if own else [])
        if not entry.steps:
            return True
        if known.uid == "":
            created = entry.create.trajectory
            created.trajectory_id, created.request_id = trajectory_id, str(uuid.uuid4())
            created.task_id, created.name = creation.task, creation.name
            created.labels.update(creation.labels)
            created.root.SetInParent()
        try:
            known.uid = append(self._connection, entry).uid
        except (StepConflict, StepGap, TrajectoryNotFound):
            return False
        known.end, known.owner = end + len(entry.steps), trajectory_id
        known.uuids |= uuids
        return True

    def _knowledge_of(self, trajectory_id: str) -> _Known:
        with self._lock:
            known = self._known.pop(trajectory_id, None) or _Known()
            self._known[trajectory_id] = known
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            return known

    def _refresh(self, trajectory_id: str, known: _Known) -> None:
        """Reads the uuids of what was appended since the known end."""
        found = find(self._connection, trajectory_id)
        if found is None or found.uid != known.uid:
            known.uid, known.end, known.owner, known.uuids = "" if found is None else found.uid, 0, "", set()
        if found is None or found.next_step_number <= known.end:
            return
        for steps in read_steps(self._connection, trajectory_id, known.end, view=VIEW_BASIC, inline_bytes=0):
            for step in steps:
                if known.owner not in ("", step.owner_id):
                    known.uuids = {_forked(each, step.owner_id) for each in known.uuids}
                known.owner, known.end = step.owner_id, step.message.step_number + 1
                if own := step.message.labels.get(_UUID):
                    known.uuids.add(own)

    def _load(self, trajectory_id: str) -> list[SessionStoreEntry] | None:
        try:
            return cast("list[SessionStoreEntry]", [each.entry for each in self._read(trajectory_id)])
        except TrajectoryNotFound:
            return None

    def _read(self, trajectory_id: str) -> list[_Stored]:
        """Returns the entries of a session. Those before a fork are as the fork has them."""
        found: list[_Stored] = []
        for steps in read_steps(self._connection, trajectory_id):
            found = self._entries(steps, found)
        return found

    def _entries(self, steps: Sequence[OwnedStep], found: list[_Stored]) -> list[_Stored]:
        """Returns the entries that were found before, and those of more steps."""
        blobs = Blobs(self._connection, steps)
        for step in steps:
            value = _value_of(step.message, blobs.get)
            if value is None:
                continue
            if step.message.observations[-1].type == _FORK:
                found = _as_forked(found, step.owner_id, value)
            else:
                found.append(_Stored(step.message.step_number, value))
        return found

    def _summarized(self, project_key: str) -> list[SessionSummaryEntry]:
        sessions = self._sessions(project_key)
        known = {(each.uid, each.next_step_number): each for each in sessions}
        with self._lock:
            summaries = {key: self._summaries[key] for key in known.keys() & self._summaries.keys()}
        changed = tuple(each.id for key, each in known.items() if key not in summaries)
        for each, steps in read_trajectories(self._connection, Selection(ids=changed)):
            key: SessionKey = {"project_key": project_key, "session_id": each.labels["session"]}
            entries = cast("list[SessionStoreEntry]", [stored.entry for stored in self._entries(steps, [])])
            summaries[(each.uid, each.next_step_number)] = _sdk.fold_session_summary(None, key, entries)
            known[(each.uid, each.next_step_number)] = each
        with self._lock:
            # Those of other projects are forgotten.
            self._summaries = summaries
        return [{**summary, "mtime": known[key].update_time.ToMilliseconds()} for key, summary in summaries.items()]

    def _sessions(self, project_key: str) -> list[Trajectory]:
        return [each for each in self._listed(project_key) if _SUBPATH not in each.labels]

    def _listed(self, project_key: str, **labels: str) -> Iterable[Trajectory]:
        creation = creation_of(_INTEGRATION, project_key, name="", **labels)
        request = ListTrajectoriesRequest(page_size=1000, task_id=creation.task, labels=creation.labels)
        listed = pages(self._connection, lambda stubs: stubs.trajectories.ListTrajectories, request)
        return [each for page in listed for each in page.trajectories]

    def _delete(self, key: SessionKey) -> None:
        ids = [_id_of(key)]
        if not key.get("subpath"):
            # The session comes last: if the call ends before, it is still listed, and can be deleted again.
            found = self._listed(key["project_key"], session=key["session_id"])
            ids = [each.id for each in found if _SUBPATH in each.labels] + ids
        for each in ids:
            request = DeleteTrajectoryRequest(trajectory_id=each, on_branches=ON_BRANCHES_KEEP_SHARED)
            with suppress(TrajectoryNotFound):
                call(self._connection, lambda stubs: stubs.trajectories.DeleteTrajectory, request)
            with self._lock:
                self._known.pop(each, None)

    def _fork(self, key: SessionKey, forked: SessionKey, creation: Creation, at: str | None, title: str | None) -> None:
        source, entries = key["session_id"], self._read(_id_of(key))
        messages = [each for each in entries if _is_message(each.entry) and not each.entry.get("isSidechain")]
        chosen = [each for each in messages if at in (None, each.entry["uuid"])]
        if not chosen:
            text = "has no messages" if at is None else f"has no message with the uuid {at!r}"
            raise ValueError(f"session {source!r} {text}")
        now = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
        own = str(uuid.uuid4())
        entry = AppendEntry(trajectory_id=_id_of(forked))
        branch = entry.create.branch
        branch.trajectory_id, branch.branch_id, branch.request_id = _id_of(key), entry.trajectory_id, own
        branch.step_number = (chosen[-1] if at is None else chosen[0]).number
        branch.name = creation.name
        branch.labels.update(creation.labels)
        first = _marker({"sessionId": forked["session_id"], "from": source, "timestamp": now}, _FORK, own)
        added = _added(entries, source, forked["session_id"], now, title)
        steps = [first, *(_step_of(each, index, own) for index, each in enumerate(added))]
        for number, step in enumerate(steps, branch.step_number + 1):
            step.step_number = number
            store_large_parts(self._connection, step)
        entry.steps.extend(steps)
        append(self._connection, entry)


async def _run(blocking: Callable[[], R]) -> R:
    """Returns the result of a blocking call. If the task is cancelled, the call ends at its next wait."""
    scope = Scope()

    def work() -> R:
        current.set(scope)
        return blocking()

    try:
        return await _anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except _anyio.get_cancelled_exc_class():
        scope.cancel()
        raise


def _id_of(key: SessionKey) -> str:
    names = (key["project_key"], key["session_id"], key.get("subpath") or "")
    found = _IDS
    for name in filter(None, names):
        found = uuid.uuid5(found, name)
    return str(found)


def _creation_of(key: SessionKey) -> Creation:
    """Raises TypeError and ValueError for a key that cannot be stored."""
    labels = {"session": key["session_id"]} | ({_SUBPATH: path} if (path := key.get("subpath")) else {})
    name = "/".join(labels.values()).encode()[:256].decode(errors="ignore")
    return creation_of(_INTEGRATION, key["project_key"], name=name, **labels)


def _step_of(entry: Any, index: int, own: str) -> Step:
    name = f"entries[{index}]"
    if not is_a(entry, dict):
        raise TypeError(f"{name} is of type {type_name(entry)}: expected a dict")
    message, role = entry.get("message"), entry.get("type")
    if not is_a(message, dict) or message.get("role") != role or role not in ("user", "assistant"):
        return _marker(entry, _ENTRY, own, name)
    text, step = json_of(message, name), Step()
    content: Any = message.get("content")
    blocks: list[Any] = [each for each in content if is_a(each, dict)] if is_a(content, list) else []
    if role == "assistant":
        reply(step, ANTHROPIC, text)
        uses = (each for each in blocks if each.get("type") == "tool_use")
        call_tools(step, ((each.get("name"), each.get("id"), each.get("input")) for each in uses))
    else:
        results = [each for each in blocks if each.get("type") == "tool_result"]
        result: dict[str, Any] = results[0] if results else {}
        say(step, text, result.get("tool_use_id"), is_error=result.get("is_error") is True)
    # The message is in the place of null again when the entry is read.
    return _marker({**entry, "message": None}, _ENTRY, own, name, step)


def _marker(value: Mapping[str, Any], kind: str, own: str, name: str = "", step: Step | None = None) -> Step:
    """Adds a value as JSON to a step, by default to a new one, and labels it."""
    step = Step() if step is None else step
    item = step.observations.add()
    item.type, item.content.json = kind, json_of(value, name)
    known = text_within(value.get("uuid"), _UUID_BYTES)
    step.labels[_UUID if known else CALL] = known or own
    return step


def _value_of(step: Step, fetch: Fetch) -> dict[str, Any] | None:
    """Returns the entry of a step, or what is known of a fork. None for a step that has neither."""
    if not step.observations or step.observations[-1].type not in (_ENTRY, _FORK):
        return None
    value = json.loads(json_text(step.observations[-1].content, fetch))
    message = step.actions[0] if step.actions else step.observations[0] if len(step.observations) > 1 else None
    if message is not None:
        value["message"] = json.loads(json_text(message.content, fetch))
    return value


# Forks, as the SDK writes them


@dataclass(frozen=True)
class _Stored:
    """An entry, and the number of the step that has it."""

    number: int
    entry: dict[str, Any]


def _is_message(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") in _TRANSCRIPT and is_a(entry.get("uuid"), str)


def _forked(own: str, fork_id: str) -> str:
    """Returns the uuid that an entry has in a fork."""
    # Entries can have any text as uuid, also text that UTF-8 cannot hold.
    return str(uuid.uuid5(uuid.UUID(fork_id), own.encode(errors="backslashreplace").decode()))


def _as_forked(stored: Sequence[_Stored], fork_id: str, fork: Mapping[str, Any]) -> list[_Stored]:
    """Returns the entries before a fork as the fork has them."""
    messages = [each for each in stored if _is_message(each.entry) and not each.entry.get("isSidechain")]
    by_uuid = {each.entry["uuid"]: each.entry for each in messages}

    def renamed(known: Any) -> str | None:
        return _forked(known, fork_id) if known in by_uuid else None

    def parent_of(entry: Mapping[str, Any]) -> str | None:
        parent = entry.get("parentUuid")
        while parent and parent in by_uuid:
            if by_uuid[parent].get("type") != "progress":
                return renamed(parent)
            parent = by_uuid[parent].get("parentUuid")
        return None

    def made(entry: dict[str, Any], is_last: bool) -> dict[str, Any]:
        logical = entry.get("logicalParentUuid")
        copy = {
            **entry,
            "uuid": renamed(entry["uuid"]),
            "parentUuid": parent_of(entry),
            "logicalParentUuid": renamed(logical) if logical else logical,
            "sessionId": fork["sessionId"],
            "timestamp": fork["timestamp"] if is_last else entry.get("timestamp", fork["timestamp"]),
            "isSidechain": False,
            "forkedFrom": {"sessionId": fork["from"], "messageUuid": entry["uuid"]},
        }
        return {key: value for key, value in copy.items() if key not in _NOT_FORKED}

    kept = [each for each in messages if each.entry.get("type") != "progress"]
    return [_Stored(each.number, made(each.entry, each is kept[-1])) for each in kept]


def _added(
    stored: Sequence[_Stored], source: str, session_id: str, now: str, title: str | None
) -> Iterator[dict[str, Any]]:
    """Yields the entries that a fork has after its messages."""
    entries = [each.entry for each in stored]
    own: dict[str, Any] = {"sessionId": session_id}
    replacements = [
        part
        for each in entries
        if each.get("type") == "content-replacement" and each.get("sessionId") == source
        for part in each.get("replacements") or ()
    ]
    if replacements:
        identity = {"uuid": str(uuid.uuid4()), "timestamp": now}
        yield {"type": "content-replacement", **own, "replacements": replacements, **identity}
    titles = [each[key] for key in ("aiTitle", "customTitle") for each in entries if each.get(key)]
    if title or titles:
        text = title or f"{titles[-1]} (fork)"
        yield {"type": "custom-title", **own, "customTitle": text, "uuid": str(uuid.uuid4()), "timestamp": now}
