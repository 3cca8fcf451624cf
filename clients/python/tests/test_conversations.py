"""`t.messages`: the same live and read back, accepted by the service that answered, and nobody else's to change."""

from __future__ import annotations

import base64
import copy
import dataclasses
import io
import json
import os
import subprocess
import sys
import uuid
from typing import Any, cast

import numpy as np
import pytest
from conftest import IS_LARGE_DOSE, Server, stored_steps
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made_replies import ANY, CALLING, JSON, TEXT, as_sent
from PIL import Image
from pydantic import BaseModel
from request_types import problems

import anabranch as ab
from anabranch._recording.replies import ANTHROPIC, CHAT, RESPONSES

FORMATS = [CHAT, RESPONSES, ANTHROPIC]
USER = {"role": "user", "content": "Go on."}


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (255, 0, 0)).save(file, "PNG")
    return file.getvalue()


PNG = png()
DATA = base64.b64encode(PNG).decode()
URL = f"data:image/png;base64,{DATA}"


@dataclasses.dataclass
class Point:
    x: int
    y: Any


class Model(BaseModel):
    x: int
    y: Any


class TextContent(BaseModel):
    """As in the package mcp."""

    type: str = "text"
    text: str
    annotations: Any = None
    meta: Any = None


class CallToolResult(BaseModel):
    content: list[TextContent]
    structuredContent: Any = None
    isError: bool = False


PARTS: list[dict[str, Any]] = [
    {"type": "text", "text": "screen"},
    {"type": "input_text", "text": "screen"},
    {"type": "image_url", "image_url": {"url": URL}},
    {"type": "input_image", "image_url": URL, "detail": "low"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
    {"type": "image", "data": DATA, "mimeType": "image/png", "annotations": None},
    {"type": "input_image", "file_id": "f1"},
    {"type": "resource", "resource": {"uri": "file:///a", "text": "content of a"}},
    {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}},
    {"type": "file", "path": "no part of any format"},
]
FILES = CallToolResult(content=[TextContent(text="4 files")])
#: What tools return.
VALUES: list[Any] = [
    "2",
    "",
    "a\ud83db",
    None,
    True,
    7,
    {"a": 1, "b": [1.5, None]},
    (1, "a"),
    ["a", "b"],
    [],
    Point(1, [2]),
    np.arange(3),
    {"a": np.arange(3), 1: float("nan")},
    object(),
    {"v": object()},
    b"\xff\xfe",
    PNG,
    Image.open(io.BytesIO(PNG)),
    ["caption", PNG],
    {"screenshot": Image.open(io.BytesIO(PNG)), "url": "a"},
    *([part] for part in PARTS),
    PARTS[:8],
    FILES,
    CallToolResult(content=[TextContent(text="no such file")], isError=True),
    CallToolResult(content=[], structuredContent={"files": 4}),
    OSError("no such file"),
    {"stdout": "a", "stderr": "", "exit_code": 1},
    [{"stdout": "a", "stderr": "b", "outcome": {"type": "timeout"}}],
    {"approve": True, "reason": "fine"},
    [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
]
CUSTOM = {"id": "c1", "type": "custom", "custom": {"name": "run", "input": "x"}}
FUNCTION = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
ACTIONS: dict[str, dict[str, Any]] = {
    "function_call": {"name": "run", "arguments": "{}", "status": "completed"},
    "custom_tool_call": {"name": "apply_patch", "input": "*** Begin Patch"},
    "computer_call": {"action": {"type": "screenshot"}, "pending_safety_checks": [], "status": "completed"},
    "local_shell_call": {"action": {"type": "exec", "command": ["ls"], "env": {}}, "status": "completed"},
    "shell_call": {"action": {"commands": ["ls"], "max_output_length": 9}, "status": "completed"},
    "apply_patch_call": {"operation": {"type": "delete_file", "path": "a"}, "status": "completed"},
    "mcp_approval_request": {"name": "run", "arguments": "{}", "server_label": "s"},
    "tool_search_call": {"arguments": {"query": "a"}, "execution": "client", "status": "completed"},
}


def chat(*calls: dict[str, Any], **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": list(calls), **message}}]}


def item(kind: str) -> dict[str, Any]:
    ids = {"id": "c1"} if kind == "mcp_approval_request" else {"id": "i1", "call_id": "c1"}
    return {"type": kind, **ids, **ACTIONS[kind]}


def tool_use(*ids: str) -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": id, "name": "run", "input": {}} for id in ids]
    return {"role": "assistant", "content": blocks}


#: A reply with one call of each kind.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat function": (CHAT, chat(FUNCTION)),
    "chat custom": (CHAT, chat(CUSTOM)),
    "chat function_call": (CHAT, chat(function_call={"name": "run", "arguments": "{}"})),
    "anthropic": (ANTHROPIC, tool_use("c1")),
    **{kind: (RESPONSES, {"output": [item(kind)]}) for kind in ACTIONS},
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_result_of_each_call_is_accepted_and_reads_back_equal(server: Server, kind: str) -> None:
    format, reply = KINDS[kind]
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(messages=[USER])
    for value in VALUES:
        with t.turn(reply) as turn:
            (call,) = turn.tool_calls
            turn.result(call, value)
    live = t.messages
    assert {each for message in live for each in problems(format, message)} == set()
    t.flush(60)
    assert client.branch(t.id, at=len(VALUES)).messages == live


def result_of(server: Server, reply: dict[str, Any], value: Any) -> list[dict[str, Any]]:
    """Returns the messages of a result."""
    t = ab.connect(server.address).trajectory()
    with t.turn(reply) as turn:
        before = len(t.messages)
        turn.result(turn.tool_calls[0], value)
    return t.messages[before:]


TEXT_PART, CHAT_IMAGE, ANTHROPIC_IMAGE = PARTS[0], PARTS[2], PARTS[4]
RESPONSES_IMAGE = {"type": "input_image", "image_url": URL, "detail": "auto"}


@pytest.mark.parametrize("image", [PNG, Image.open(io.BytesIO(PNG))])
def test_an_image_is_an_image_in_each_format(server: Server, image: Any) -> None:
    tool, images = result_of(server, chat(FUNCTION), image)
    label = {"type": "text", "text": "[image 1 of the tool results]"}
    assert tool == {"role": "tool", "tool_call_id": "c1", "content": [label]}
    assert (images["role"], images["content"][0]) == ("user", label)
    assert images["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
    ((result,),) = (message["content"] for message in result_of(server, tool_use("c1"), image))
    assert result["content"][0]["source"]["media_type"] == "image/png"
    (output,) = result_of(server, {"output": [item("function_call")]}, image)
    assert output["output"][0]["type"] == "input_image"
    (screen,) = result_of(server, {"output": [item("computer_call")]}, image)
    assert screen["output"]["image_url"].startswith("data:image/png;base64,")


@pytest.mark.parametrize("image", [2, 3, 4, 5])
def test_lists_of_parts_stay_parts_whatever_their_format(server: Server, image: int) -> None:
    value = [TEXT_PART, PARTS[image]]
    tool, images = result_of(server, chat(FUNCTION), value)
    assert (tool["content"][0], images["content"][1]) == (TEXT_PART, CHAT_IMAGE)
    ((result,),) = (message["content"] for message in result_of(server, tool_use("c1"), value))
    assert result["content"] == [TEXT_PART, ANTHROPIC_IMAGE]
    (output,) = result_of(server, {"output": [item("function_call")]}, value)
    own = PARTS[3] if image == 3 else RESPONSES_IMAGE
    assert output["output"] == [{"type": "input_text", "text": "screen"}, own]


def test_parts_of_the_own_format_keep_all_of_their_fields(server: Server) -> None:
    part = {**ANTHROPIC_IMAGE, "cache_control": {"type": "ephemeral"}}
    ((result,),) = (message["content"] for message in result_of(server, tool_use("c1"), [part]))
    assert result["content"] == [part]


def test_the_result_of_an_mcp_tool_is_its_content(server: Server) -> None:
    for value in (FILES, {"content": [TEXT_PART | {"text": "4 files"}], "isError": False}):
        ((result,),) = (message["content"] for message in result_of(server, tool_use("c1"), value))
        assert result == {
            "type": "tool_result",
            "tool_use_id": "c1",
            "content": [{"type": "text", "text": "4 files"}],
        }
    failed = CallToolResult(content=[TextContent(text="no such file")], isError=True)
    ((result,),) = (message["content"] for message in result_of(server, tool_use("c1"), failed))
    assert result["is_error"] is True


def test_an_object_and_its_dict_are_the_same_text(server: Server) -> None:
    for value in (Point(1, [2]), {"x": 1, "y": [2]}, Model(x=1, y=[2])):
        assert result_of(server, chat(FUNCTION), value)[0]["content"] == '{"x": 1, "y": [2]}'


def test_outputs_of_responses_say_what_happened(server: Server) -> None:
    def output(kind: str, value: Any) -> dict[str, Any]:
        return result_of(server, {"output": [item(kind)]}, value)[-1]

    shell = output("shell_call", OSError("no such file"))
    outcome = {"type": "exit", "exit_code": 1}
    assert shell["output"] == [{"stdout": "", "stderr": "OSError: no such file", "outcome": outcome}]
    assert shell["max_output_length"] == 9
    assert output("apply_patch_call", OSError("no such file"))["status"] == "failed"
    assert output("apply_patch_call", "done")["status"] == "completed"
    given = {"type": "computer_call_output", "output": {"type": "computer_screenshot", "file_id": "f"}}
    assert output("computer_call", given) == {"call_id": "c1", **given}
    for value, approves in ((True, True), ({"approve": True}, True), (False, False), ("no", False), (OSError(), False)):
        assert output("mcp_approval_request", value)["approve"] is approves


def test_what_an_output_cannot_have_precedes_it(server: Server) -> None:
    said, screen = result_of(server, {"output": [item("computer_call")]}, "the screen is locked")
    assert said["content"][1] == {"type": "input_text", "text": "the screen is locked"}
    assert screen["type"] == "computer_call_output"


def test_results_of_anthropic_are_one_message_and_images_of_chat_follow_all_results(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    with t.turn(tool_use("c1", "c2")) as turn:
        turn.result("c2", "b")
        t.say("Hurry.")
        turn.result("c1", "a")
    _, results, said = t.messages
    assert [each["tool_use_id"] for each in cast("list[Any]", results["content"])] == ["c2", "c1"]
    assert said == {"role": "user", "content": "Hurry."}
    with t.turn(chat(FUNCTION, {**FUNCTION, "id": "c2"})) as turn:
        turn.result("c1", PNG)
        turn.result("c2", [PNG, "b"])
    roles = [message["role"] for message in t.messages[3:]]
    assert roles == ["assistant", "tool", "tool", "user"]


def test_the_last_of_several_results_is_in_the_messages_and_all_are_recorded(server: Server) -> None:
    t = ab.connect(server.address).trajectory()
    with t.turn(chat(FUNCTION)) as turn:
        turn.result("c1", "first")
        turn.result("c1", "second")
    assert [message["content"] for message in t.messages] == [None, "second"]
    t.flush(60)
    texts = [item.content.text for item in stored_steps(server, t.id)[1].observations]
    assert texts == ["first", "second"]


def test_two_calls_without_an_id_are_two_calls(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    one, two = ({**FUNCTION, "id": "", "function": {"name": name, "arguments": "{}"}} for name in ("one", "two"))
    with t.turn(chat(one, two)) as turn:
        while turn.tool_calls:
            call = turn.tool_calls.pop()
            turn.result(call, f"of {call.name}")
    with t.turn({"output": [{**item("function_call"), "call_id": ""}, {**item("shell_call"), "call_id": ""}]}) as turn:
        # Objects of the reply name calls too, and an id names the first call without a result.
        turn.result(turn.tool_calls[1].raw, "of the shell")
        turn.result("", "of the function")
    assert [message.get("content") for message in t.messages[1:3]] == ["of two", "of one"]
    assert [message.get("type") for message in t.messages[-2:]] == ["shell_call_output", "function_call_output"]
    t.flush(60)
    for step in stored_steps(server, t.id)[1:]:
        assert (
            sorted(item.call_id for item in step.observations) == [a.call_id for a in step.actions[1:]] == ["#0", "#1"]
        )
    assert client.branch(t.id, at=2).messages == t.messages


def test_contents_beyond_a_step_read_back_equal(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(messages=[{"role": "user", "content": "a" * 3_000_000}])
    large = {**FUNCTION, "function": {"name": "run", "arguments": "[" * 200_000}}
    with t.turn(chat(large, {**FUNCTION, "id": "c2"}, content="a" * 3_000_000)) as turn:
        turn.result("c1", "a" * 3_000_000)
        turn.result("c2", PNG + bytes(3_000_000))
        t.say("a" * 3_000_000)
    t.flush(60)
    again = client.branch(t.id, at=1).messages
    assert [message.get("role") for message in again] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert again == t.messages


# The conversation as a whole


RESULTS = st.one_of(
    TEXT, JSON, st.sampled_from(VALUES), st.lists(st.sampled_from([*PARTS, "caption", PNG]), max_size=3)
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[str, list[tuple[Any, ...]]]:
    """Returns a format, and what a program does with a trajectory."""
    format = draw(st.sampled_from(FORMATS))
    said = st.lists(st.builds(lambda content: {"role": "user", "content": content}, TEXT), max_size=2)
    replies = as_sent(format, st.one_of(CALLING[format], CALLING[format], ANY[format]))
    turn = st.tuples(st.just("turn"), replies, st.lists(RESULTS, min_size=2, max_size=4), said)
    ways = st.one_of(turn, turn, st.tuples(st.just("say"), said), st.tuples(st.just("step")))
    return format, [("reset", draw(said)), *draw(st.lists(ways, max_size=4))]


def play(t: ab.Trajectory, moves: list[tuple[Any, ...]]) -> None:
    for way, *values in moves:
        if way == "reset":
            t.reset(messages=values[0])
        elif way == "say":
            t.say(values[0])
        elif way == "step":
            t.step(action=1, observation=2)
        else:
            with t.turn(values[0]) as turn:
                for call, value in zip(turn.tool_calls, values[1], strict=False):
                    turn.result(call, value)
                t.say(values[2])
                within = t.messages
            assert t.messages == within, "the end of a turn changes the conversation"


RESUMING = """
import json, sys
import anabranch as ab
client = ab.connect(sys.argv[1])
for name in json.load(sys.stdin):
    t = client.trajectory(task="conversations", name=name, resume="must")
    print(json.dumps(t.messages))
"""


def test_messages_are_the_same_live_in_a_branch_and_in_a_new_process(server: Server, spool: Any) -> None:
    client = ab.connect(server.address)
    known: dict[str, list[Any]] = {}

    @settings(
        max_examples=300 if IS_LARGE_DOSE else 60,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(conversations())
    @example((CHAT, [("reset", []), ("say", [USER])]))
    def played(conversation: tuple[str, list[tuple[Any, ...]]]) -> None:
        format, moves = conversation
        name = str(uuid.uuid4())
        t = client.trajectory(task="conversations", name=name, resume="allow")
        play(t, moves)
        live = t.messages
        assert t.branch().messages == live
        for message in live:
            assert problems(format, message) == []
        t.seal()
        assert t.messages == live
        t.flush(60)
        assert client.branch(t.id, at=t.next_step - 1).messages == live
        known[name] = live

    played()
    program = [sys.executable, "-c", RESUMING, server.address]
    environment = {**os.environ, "ANABRANCH_SPOOL": str(spool / "other")}
    run = subprocess.run(
        program,
        check=False,
        input=json.dumps(list(known)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert [json.loads(line) for line in run.stdout.splitlines()] == list(known.values())


# Copies


def test_what_a_caller_changes_changes_nothing(server: Server) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    first, later, reply = (
        copy.deepcopy([USER]),
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        chat(FUNCTION),
    )
    t.reset(messages=first)
    t.say([later])
    expected = t.messages
    first[0]["content"] = first.append("changed")  # type: ignore[func-returns-value]
    later["content"][0]["text"] = "changed"  # type: ignore[index]
    t.messages.clear()
    t.messages[1]["content"].append("changed")  # type: ignore[attr-defined]
    assert t.messages == expected
    result = {"a": [1]}
    with t.turn(reply) as turn:
        turn.result("c1", result)
        result["a"].append(2)
        reply["choices"][0]["message"]["content"] = "changed"
        turn.tool_calls[0].raw["id"] = "changed"  # type: ignore[index]
        t.messages[2]["content"] = "changed"
    assert t.messages[2:] == [{"role": "assistant", "content": None, "tool_calls": [FUNCTION]}, t.messages[3]]
    assert t.messages[3]["content"] == '{"a": [1]}'
    t.flush(60)
    assert client.branch(t.id, at=1).messages == t.messages
