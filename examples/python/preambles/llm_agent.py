"""Defines what llm_agent.py leaves undefined: a model that counts by calling a tool, and a judge."""

from types import SimpleNamespace

import anabranch as ab

MODEL, SYSTEM, TASK, TOOLS = "counting-model", "Count with the tool.", "Count to 5.", [{"type": "function"}]


def tokens_of(turn):
    return [turn, turn + 1]


def prompt_of(turn):
    """The prompt before it, the reply to that, and the tokens of its tool's result."""
    return [100] * 10 if turn == 1 else prompt_of(turn - 1) + tokens_of(turn - 1) + [200, 201]


def create(*, messages, **_):
    turn = sum(message["role"] == "assistant" for message in messages) + 1
    call = {"id": f"call-{turn}", "type": "function", "function": {"name": "count", "arguments": f'{{"to": {turn}}}'}}
    return {
        "model": MODEL,
        "prompt_token_ids": prompt_of(turn),
        "choices": [
            {
                "message": {"role": "assistant", "content": f"Now {turn}.", "tool_calls": [call]},
                "token_ids": tokens_of(turn),
                "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]},
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 10 + 4 * turn, "completion_tokens": 2},
    }


llm = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


def run_tool(call):
    return str(call.input["to"])


def judge(messages):
    done = messages[-1]["content"] == "5"
    return float(done), done
