"""A LangGraph agent whose thread is kept in Anabranch: it crashes, resumes, and is forked.

The model is a function, so that the program needs no key. A thread is a trajectory, a checkpoint is a step, and a fork
is a branch, which copies nothing. The page at http://127.0.0.1:50051/ shows the conversation and its tree.

    pip install anabranch langgraph && anabranch serve
    python examples/python/langgraph_fork.py
"""

from __future__ import annotations

import uuid

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph

import anabranch as ab
from anabranch.langgraph import AnabranchSaver

CAPITALS = {"France": "Paris", "Peru": "Lima"}
is_tool_broken = True


def model(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Calls the tool for a question, and answers with its result."""
    last = state["messages"][-1]
    if isinstance(last, ToolMessage):
        return {"messages": [AIMessage(f"It is {last.content}.")]}
    country = str(last.content).rstrip("?").split()[-1]
    call = {"id": f"call-{len(state['messages'])}", "name": "capital", "args": {"country": country}}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def tool(state: MessagesState) -> dict[str, list[ToolMessage]]:
    """Looks up a capital. The first time it fails."""
    global is_tool_broken
    if is_tool_broken:
        is_tool_broken = False
        raise TimeoutError("the tool did not answer")
    call = state["messages"][-1].tool_calls[0]
    return {"messages": [ToolMessage(CAPITALS[call["args"]["country"]], tool_call_id=call["id"])]}


def route(state: MessagesState) -> str:
    return "tool" if state["messages"][-1].tool_calls else END


builder = StateGraph(MessagesState)
builder.add_node("model", model)
builder.add_node("tool", tool)
builder.add_edge(START, "model")
builder.add_conditional_edges("model", route, ["tool", END])
builder.add_edge("tool", "model")

thread = f"capitals-{uuid.uuid4().hex[:8]}"
config = {"configurable": {"thread_id": thread}}

with AnabranchSaver() as saver:
    graph = builder.compile(checkpointer=saver)
    try:
        graph.invoke({"messages": [HumanMessage("What is the capital of France?")]}, config)
    except TimeoutError as error:
        print(f"crashed: {error}")

with AnabranchSaver() as saver:  # as another process would: all that it needs is the id of the thread
    graph = builder.compile(checkpointer=saver)
    print("resumed:", graph.invoke(None, config)["messages"][-1].content)

    # Fork before the question: history is listed newest first, and each state names its checkpoint.
    first = [state for state in graph.get_state_history(config) if state.next == (START,)][-1]
    forked = graph.update_state(
        first.config, {"messages": [HumanMessage("What is the capital of Peru?")]}, as_node=START
    )
    print("forked:", graph.invoke(None, forked)["messages"][-1].content)

    saver.copy_thread(thread, f"{thread}-copy")  # two calls, whatever the length of the thread
    copy = {"configurable": {"thread_id": f"{thread}-copy"}}
    print("copied:", len(list(graph.get_state_history(copy))), "states")

client = ab.connect()
for each in client.trajectories(task=f"langgraph/{thread}"):
    if each.labels["kind"] == "checkpoints":
        where = f"branch after step {each.branch_point}" if each.parent_id else "thread"
        print(f"{where}: {each.next_step_number} steps")
