"""The sample steps of test/wire/samples.ts, built by a Python program with the generated messages only."""

import hashlib
import math

from anabranch.v1.trajectory_pb2 import Action, Content, Observation, Step, StepState, Tensor
from google.protobuf.timestamp_pb2 import Timestamp


def noise(size: int, seed: int) -> bytes:
    data = bytearray(size)
    x = seed
    for i in range(size):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        data[i] = x >> 24
    return bytes(data)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


PUT_STATE = noise(600 * 1024, 3)
INLINE_STATE = noise(512 * 1024, 2)
SCREENSHOT = noise(20_000, 1)

DESCRIPTION = {
    "name": "sample – 例",
    "task_id": "wire/1",
    "labels": {"key ü": "välue", "empty": ""},
    "metadata_json": '{"a": 1, "big":9007199254740993}',
}


def sample_steps() -> list[Step]:
    reset = Content(json='{"z": 1,  "n":9007199254740993, "a":1.0}')
    text = Content(text='héllo 🌊 中文 e\u0301 \u202e\u2028 \\u0000 "\n\t')
    put = sha256(PUT_STATE)
    return [
        Step(observations=[Observation(type="reset", content=reset)]),
        Step(
            step_number=1,
            actions=[
                Action(
                    type="tool_call",
                    name="écrire",
                    call_id="c1",
                    content=text,
                    token_ids=[0, 2147483647, -1],
                    logprobs=[-0.5, -math.inf, 0],
                    prompt_token_ids=[-2147483648, 128],
                    kept_tokens=0,
                ),
                Action(type="noop"),
            ],
            observations=[
                Observation(type="tool_result", call_id="c1", is_error=True, content=Content(text="")),
                Observation(type="silent"),
            ],
            reward=0,
            states=[StepState(name="env", data="état 1".encode(), media_type="text/plain; charset=utf-8")],
        ),
        Step(
            step_number=2,
            reward=math.nan,
            metrics={
                "nan": math.nan,
                "inf": math.inf,
                "-inf": -math.inf,
                "zero": 0,
                "negative_zero": -0.0,
                "tiny": 5e-324,
                "large": 1.7976931348623157e308,
                "third": 1 / 3,
                "ключ 🔑": 9007199254740991,
            },
        ),
        Step(
            step_number=3,
            actions=[Action(type="code", content=Content(json="null"))],
            reward=math.inf,
            info_json='{"b":[1.0,1E+2,-0],"a":"\\u00e9\\ud83c\\udf0a"}',
            metadata_json="[]",
            start_time=Timestamp(seconds=-1, nanos=999_999_999),
            end_time=Timestamp(seconds=253402300799, nanos=1),
        ),
        Step(
            step_number=4,
            reward=-math.inf,
            terminated=True,
            truncated=True,
            labels={"phase": "träin", "empty": ""},
        ),
        Step(
            step_number=5,
            reward=0.1,
            states=[
                StepState(name="", data=b""),
                StepState(name="memory", data=INLINE_STATE, media_type="application/octet-stream"),
                StepState(name="put", digest=put, media_type="application/x-put"),
            ],
        ),
        Step(
            step_number=6,
            actions=[
                Action(type="upload", content=Content(data=b"\x00\xff\x00\x80", media_type="image/png")),
                Action(type="reply", token_ids_state=put, prompt_token_ids_state=put, kept_tokens=2147483647),
            ],
            observations=[
                Observation(type="empty", content=Content(data=b"", media_type="text/plain")),
                Observation(type="screenshot", content=Content(data=SCREENSHOT, media_type="image/png")),
                Observation(type="named", content=Content(state_digest=put, media_type="application/x-put")),
                Observation(type="link", content=Content(uri="https://example.org/a?b=c#é", media_type="text/html")),
                Observation(type="vector", content=tensor("<f4", [2], b"\x00\x00\xc0\x3f\x00\x00\x80\xff")),
                Observation(type="scalar", content=tensor("|b1", [], b"\x01")),
                Observation(type="pixels", content=tensor("|u1", [100, 200], SCREENSHOT)),
                Observation(
                    type="put",
                    content=Content(tensor=Tensor(dtype=">i2", shape=[300, 1024], state_digest=put)),
                ),
            ],
            reward=-2.5,
        ),
    ]


def tensor(dtype: str, shape: list[int], data: bytes) -> Content:
    return Content(tensor=Tensor(dtype=dtype, shape=shape, data=data))


def branch_steps() -> list[Step]:
    env = b"branch 4"
    return [
        Step(
            step_number=4,
            actions=[Action(type="text", content=Content(text="branch"))],
            states=[StepState(name="env", data=env, digest=sha256(env))],
        ),
        Step(step_number=5, reward=1.5, truncated=True),
    ]


def leaf_steps() -> list[Step]:
    return [Step(step_number=5, reward=2, states=[StepState(name="env", data=b"leaf 5")])]


def as_read(sent: Step) -> Step:
    """Returns a step that was sent in the form that a read returns: states by digest and size."""
    step = without_server_fields(sent)
    for state in step.states:
        data = state.data if state.HasField("data") else PUT_STATE
        state.name = state.name or "env"
        state.digest = sha256(data)
        state.size = len(data)
        state.ClearField("data")
    for holder in [*step.actions, *step.observations]:
        if not holder.HasField("content"):
            continue
        content = holder.content
        if content.HasField("state_digest"):
            content.size = len(PUT_STATE)
        if content.HasField("data") and len(content.data) >= 16 * 1024:
            content.state_digest = sha256(content.data)
            content.size = len(content.data)
            content.ClearField("data")
        if content.HasField("tensor") and len(content.tensor.data) >= 16 * 1024:
            content.tensor.state_digest = sha256(content.tensor.data)
            content.tensor.ClearField("data")
    return step


def without_server_fields(read: Step) -> Step:
    step = Step()
    step.CopyFrom(read)
    for field in ("commit_time", "writer_epoch", "reward_sum"):
        step.ClearField(field)
    # Languages differ in the bits of their NaN; here all are treated as equal.
    if math.isnan(step.reward):
        step.reward = math.nan
    for key, value in step.metrics.items():
        if math.isnan(value):
            step.metrics[key] = math.nan
    return step
