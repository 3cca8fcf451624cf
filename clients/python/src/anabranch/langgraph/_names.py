"""How threads, namespaces and checkpoints are named in the store. Threads of LangGraph.js are others: what the serializer
of one language writes, that of the other cannot read."""

from __future__ import annotations

import json
import re
import uuid
from hashlib import sha256

#: Values of labels, names and tasks have at most this many bytes.
_LABEL_BYTES = 256
#: Names of states have at most this many bytes.
_STATE_NAME_BYTES = 64
_IDS = uuid.UUID("f3c9d9ae-59c6-5c67-8d4f-6a4b2a3f1c57")
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

#: The state that has a checkpoint of the root namespace.
HEAD = "checkpoint"
INTEGRATION = "langgraph"


def task_of(thread_id: str) -> str:
    """Returns the task of the trajectories of a thread."""
    return fitting(f"{INTEGRATION}/{thread_id}", f"{INTEGRATION}/sha256:{_digest(thread_id)}")


def fitting(text: str, otherwise: str | None = None) -> str:
    """Returns a text, or its digest if no label can have the text."""
    if len(text.encode("utf-8", "surrogatepass")) <= _LABEL_BYTES and _UNSTORABLE.search(text) is None:
        return text
    return f"sha256:{_digest(text)}" if otherwise is None else otherwise


def name_of(thread_id: str, ns: str) -> str:
    """Returns the name of a trajectory."""
    text = _UNSTORABLE.sub("\ufffd", f"{thread_id} · {ns}" if ns else thread_id)
    return text.encode()[:_LABEL_BYTES].decode(errors="ignore")


def head_of(ns: str) -> str:
    """Returns the name of the state that has a checkpoint of a namespace."""
    return f"{HEAD}/{_digest(ns)[:32]}" if ns else HEAD


def key_of(ns: str, checkpoint_id: str) -> str:
    """Returns the name of the states by which a checkpoint and its writes are found."""
    return checkpoint_id if ns == "" and _UUID.fullmatch(checkpoint_id) else _digest(f"{ns}\0{checkpoint_id}")


def channel_state(channel: str) -> str:
    """Returns the name of the state that has a large value of a channel."""
    name = f"channel/{channel}"
    fits = len(name.encode("utf-8", "surrogatepass")) <= _STATE_NAME_BYTES and _UNSTORABLE.search(name) is None
    return name if fits else f"channel/{_digest(channel)[:32]}"


def writes_id(thread_id: str, generation: int) -> str:
    """Returns the id of the trajectory with the pending writes of a thread. Another generation follows when it was
    deleted or sealed."""
    return content_id(thread_id, generation)


def content_id(*parts: str | int) -> str:
    """Returns the id of what is named by these parts, so that a repetition creates nothing else."""
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    # UTF-8 cannot hold half of a surrogate pair.
    return str(uuid.uuid5(_IDS, _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)))


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
