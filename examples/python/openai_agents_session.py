"""An agent of the OpenAI Agents SDK whose session is kept in Anabranch, with a scripted model in place of a real one.

    anabranch serve
    pip install openai-agents
    python examples/python/openai_agents_session.py

The session is forked before its last question, and asked another one: http://127.0.0.1:50051/ shows both conversations.
"""

import asyncio
import uuid

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from anabranch.openai_agents import AnabranchSession

set_tracing_disabled(True)  # tracing needs an account


@function_tool
def stock(item: str) -> int:
    """Returns how many pieces of an item are in stock."""
    return {"gear": 12, "belt": 0}[item]


model = ScriptedModel(
    [
        [function_call("stock", {"item": "gear"}, call_id="call-1")],
        [assistant_message("There are 12 gears.")],
        [assistant_message("I have ordered 3 of them.")],
        [function_call("stock", {"item": "belt"}, call_id="call-2")],
        [assistant_message("There are no belts.")],
    ]
)
agent = Agent(name="clerk", instructions="You know the stock.", model=model, tools=[stock])


async def main() -> None:
    session = AnabranchSession(f"order {uuid.uuid4()}")
    await Runner.run(agent, "How many gears are there?", session=session)
    known = len(await session.get_items())
    await Runner.run(agent, "Order 3.", session=session)
    fork = await session.fork(at=known)
    result = await Runner.run(agent, "And belts?", session=fork)
    print(result.final_output)
    for each in (session, fork):
        print(each.session_id, "has", len(await each.get_items()), "items")


asyncio.run(main())
