"""An agent with an LLM and a tool, and a branch that asks again from turn 3.

The model is a small fake, which counts with the tool and returns token ids and logprobs as vLLM does. With a real one,
`llm` is `openai.OpenAI(base_url=...)`.
"""

from types import SimpleNamespace

import anabranch as ab

MODEL, SYSTEM, TASK = "counting-model", "Count with the tool.", "Count to 5."
TOOLS = [{"type": "function", "function": {"name": "count", "parameters": {"properties": {"to": {"type": "integer"}}}}}]


def complete(*, messages, **_):
    """Calls the tool with the next number: after an error with the same one."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    number = sum(result.isdigit() for result in results) + 1
    function = {"name": "count", "arguments": f'{{"to": {number}}}'}
    call = {"id": f"call-{len(results) + 1}", "type": "function", "function": function}
    return {
        "model": MODEL,
        # Of a turn: 10 tokens of the first prompt, or 2 of the result of the tool; then 2 that the model generates.
        "prompt_token_ids": [
            *range(100, 110),
            *[token for turn in range(len(results)) for token in (turn, turn, 200, 201)],
        ],
        "choices": [
            {
                "message": {"role": "assistant", "content": f"Now {number}.", "tool_calls": [call]},
                "token_ids": [len(results)] * 2,
                "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]},
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 10 + 4 * len(results), "completion_tokens": 2},
    }


llm = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=complete)))
failures = [TimeoutError("the counter did not answer")]


def run_tool(call):
    if call.input["to"] == 3 and failures:
        raise failures.pop()
    return str(call.input["to"])


def judge(messages):
    done = messages[-1]["content"] == "5"
    return float(done), done


client = ab.connect()
with client.trajectory(task="swe-42", labels={"model": MODEL}) as t:  # an exception fails it, the end completes it
    t.reset(messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}])
    while not t.done:
        reply = llm.chat.completions.create(
            model=MODEL, messages=t.messages, tools=TOOLS, logprobs=True, extra_body={"return_token_ids": True}
        )
        with t.turn(reply) as turn:  # text, tool calls, prompt and reply tokens, logprobs, usage
            for call in turn.tool_calls:
                turn.result(call, run_tool, call)  # linked by call id; what run_tool raises is stored as is_error
            turn.reward, turn.terminated = judge(t.messages)

for message in t.messages:
    print(f"{message['role']}: {message['content']}")
again = client.branch(t, at=3, name="what if it had asked")  # the same messages and tokens up to turn 3
print(again.tokens())  # input_ids, loss_mask, logprobs; nothing is tokenized again
