"""Threads of LangGraph as tests make them."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint

from anabranch.langgraph import AnabranchSaver


def config_of(thread_id: str, checkpoint_id: str | None = None, ns: str = "") -> RunnableConfig:
    """Returns a config that names a thread or a checkpoint."""
    ids = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, **ids}}


def id_of(config: RunnableConfig | None) -> str:
    assert config is not None
    return config["configurable"]["checkpoint_id"]


def checkpoint_with(values: dict[str, Any], id: str | None = None) -> Checkpoint:
    """Returns a new checkpoint whose channels all have the version 1."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"], checkpoint["channel_versions"] = values, dict.fromkeys(values, 1)
    if id is not None:
        checkpoint["id"] = id
    return checkpoint


def put(
    saver: BaseCheckpointSaver[Any], config: RunnableConfig, id: str | None = None, /, **values: Any
) -> RunnableConfig:
    """Puts a checkpoint after the one that the config names. `metadata` is an own argument."""
    metadata = {"source": "loop", "step": 0, "parents": {}, **values.pop("metadata", {})}
    checkpoint = checkpoint_with(values, id)
    return saver.put(config, checkpoint, metadata, checkpoint["channel_versions"])


def chain(saver: AnabranchSaver, thread_id: str, count: int) -> list[RunnableConfig]:
    """Puts checkpoints after each other, each with a pending write."""
    configs = [config_of(thread_id)]
    for step in range(count):
        configs.append(put(saver, configs[-1], step=step, metadata={"step": step}))
        saver.put_writes(configs[-1], [("step", step + 1)], f"task-{step}")
    return configs[1:]


def values_in(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> dict[str, Any]:
    """Returns the values of a checkpoint."""
    found = saver.get_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]
