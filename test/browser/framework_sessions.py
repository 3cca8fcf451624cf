"""Writes a thread or a session of each framework, with a fork, by the packages themselves. Prints the ids of their trees."""

from __future__ import annotations

import asyncio
import json
import operator
import uuid
from typing import Annotated, Any

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph

import anabranch as ab
from anabranch.claude_agent_sdk import AnabranchSessionStore
from anabranch.langgraph import AnabranchSaver
from anabranch.openai_agents import AnabranchSession

set_tracing_disabled(True)


class State(MessagesState):
    turns: Annotated[int, operator.add]
    notes: list[str]


def model(state: State) -> dict[str, Any]:
    last = state["messages"][-1]
    if isinstance(last, ToolMessage):
        return {"messages": [AIMessage(f"It is {last.content}.")], "turns": 1, "notes": ["answered"]}
    call = {"id": "call-1", "name": "capital", "args": {"country": "France"}}
    return {"messages": [AIMessage("I look it up.", tool_calls=[call])], "turns": 1, "notes": ["looked up"]}


def tool(state: State) -> dict[str, Any]:
    return {"messages": [ToolMessage("Paris", tool_call_id="call-1")]}


def langgraph() -> str:
    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("tool", tool)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tool" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tool", "model")
    thread = f"capitals {uuid.uuid4()}"
    config: Any = {"configurable": {"thread_id": thread}}
    with AnabranchSaver() as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"messages": [HumanMessage("What is the capital of France?")]}, config)
        (asked,) = [each for each in graph.get_state_history(config) if each.next == ("tool",)]
        other = {"messages": [ToolMessage("Lyon", tool_call_id="call-1")]}
        graph.invoke(None, graph.update_state(asked.config, other, as_node="tool"))
    return root_of(f"langgraph/{thread}", kind="checkpoints")


@function_tool
def stock(item: str) -> int:
    """Returns how many pieces of an item are in stock."""
    return 12


async def openai_agents() -> str:
    call = function_call("stock", {"item": "gear"}, call_id="call-1")
    model = ScriptedModel([[call], [assistant_message("There are 12 gears.")], [assistant_message("Which ones?")]])
    agent = Agent(name="clerk", model=model, tools=[stock])
    session = AnabranchSession(f"order {uuid.uuid4()}")
    await Runner.run(agent, "How many gears are there?", session=session)
    await session.pop_item()
    await session.add_items([{"role": "assistant", "content": "A dozen."}])
    fork = await session.fork(at=0)
    await Runner.run(agent, "How many belts are there?", session=fork)
    return root_of(f"openai-agents/{session.session_id}")


async def claude_agent_sdk() -> str:
    store = AnabranchSessionStore()
    key: Any = {"project_key": f"project {uuid.uuid4()}", "session_id": str(uuid.uuid4())}
    use = {"type": "tool_use", "id": "toolu-1", "name": "Read", "input": {"path": "a.txt"}}
    result = {"type": "tool_result", "tool_use_id": "toolu-1", "content": "hello"}
    said: list[tuple[str, Any]] = [
        ("user", "What is in a.txt?"),
        ("assistant", [{"type": "text", "text": "I read it."}, use]),
        ("user", [result]),
        ("assistant", [{"type": "text", "text": "One line: hello."}]),
    ]
    ids = [str(uuid.uuid4()) for _ in said]
    entries = [entry(key, role, content, ids, at) for at, (role, content) in enumerate(said)]
    await store.append(key, [*entries, {"type": "custom-title", "customTitle": "A file"}])  # pyright: ignore
    fork: Any = await store.fork(key, at=ids[1])
    await store.append(fork, [entry(fork, "user", "Do not read it.", [str(uuid.uuid4())], 0)])
    return store.trajectory_id(key)


def entry(key: Any, role: str, content: Any, ids: list[str], at: int) -> Any:
    names = {"uuid": ids[at], "parentUuid": ids[at - 1] if at else None, "sessionId": key["session_id"]}
    return {"type": role, **names, "isSidechain": False, "message": {"role": role, "content": content}}


def root_of(task: str, **labels: str) -> str:
    """Returns the first trajectory of a task."""
    (root,) = [each for each in ab.connect().trajectories(task=task, labels=labels) if not each.parent_id]
    return root.id


async def main() -> None:
    trees = {"langgraph": langgraph(), "openai": await openai_agents(), "claude": await claude_agent_sdk()}
    print(json.dumps(trees))


asyncio.run(main())
