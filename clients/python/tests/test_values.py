"""Every accepted value reads back equal; every other value is replaced by a marker, or rejected with `strict`."""

from __future__ import annotations

import argparse
import array
import base64
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import ipaddress
import json
import math
import pathlib
import socket
import types
import uuid
from typing import Any

import numpy as np
import pydantic
import pytest
from conftest import IS_LARGE_DOSE, Server, dose
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

import anabranch as ab
from anabranch._wire import values as _values
from anabranch._wire.decode import (
    Undecodable,
    Unstored,
    decode_content,
    decode_items,
    decode_json,
    digests_of,
    no_states,
    parse_json,
)
from anabranch._wire.kinds import type_name
from anabranch._wire.tensors import png_of
from anabranch._wire.values import ValueEncoder
from anabranch.errors import StateNotFound
from anabranch.v1.trajectory_pb2 import Content, Observation, Step, Tensor


def observed(value: object, *, strict: bool = True) -> tuple[Step, Any]:
    """Returns the step with the observation, and what reads back after a round trip over the wire."""
    step = Step()
    ValueEncoder(strict=strict).add_observation(step, value)
    read = Step.FromString(step.SerializeToString())
    return step, decode_items(read.observations, fetch=lambda _: pytest.fail("nothing is stored as a state"))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        # Only lists with arrays, bytes or images are read as tuples.
        same = isinstance(other, list) == isinstance(one, list) or (isinstance(one, list) and has_binary(one))
        return same and len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(map(str, one)) == list(map(str, other)) and all(map(equal, one.values(), other.values()))
    if isinstance(one, (np.ndarray, np.generic)) and isinstance(other, (np.ndarray, np.generic)):
        one = np.asarray(one)[()]  # scalars have the native order of bytes, and no padding
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, Image.Image) and isinstance(other, Image.Image):
        return one.mode == other.mode and one.tobytes() == other.tobytes()
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def has_binary(value: Any) -> bool:
    """Returns whether a value contains an array, bytes or an image."""
    if isinstance(value, dict):
        return any(map(has_binary, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(has_binary, value))
    return isinstance(value, (np.ndarray, np.generic, bytes, Image.Image))


numbers = st.none() | st.booleans() | st.integers() | st.floats()
texts = st.text() | st.text(st.characters(codec=None, categories=["Cs", "Lu", "Cc"]))
dtypes = hnp.scalar_dtypes() | hnp.unicode_string_dtypes(max_len=4) | hnp.byte_string_dtypes(max_len=4)
arrays = hnp.arrays(dtypes.filter(lambda dtype: dtype.kind in "biufcUSMm"), hnp.array_shapes(min_dims=0, min_side=0))
images = st.sampled_from(["1", "L", "LA", "RGB", "RGBA"]).map(lambda mode: Image.new(mode, (3, 2), 1))
leaves = numbers | texts | st.binary() | arrays | images
keys = texts | st.sampled_from(["a", "b.c", "[0]", "$tensor", "$items", ""])
any_keys = keys | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), texts)
nested = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(any_keys, inner, max_size=4)
    ),
    max_leaves=12,
)
small_dose = settings(
    max_examples=500 if IS_LARGE_DOSE else 100,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
large_dose = settings(small_dose, max_examples=dose(250, 10_000), derandomize=False)


@small_dose
@given(nested)
def test_nested_values_read_back_equal(value: object) -> None:
    step, read = observed(value)
    assert equal(value, read)
    # What a program stores is data, whatever it looks like: only our media type makes tags of it.
    assert all(
        "$" not in item.content.json or item.content.media_type or "$" in str(value) for item in step.observations
    )
    assert len(step.observations) <= 1024
    assert all(len(item.type.encode()) <= 128 for item in step.observations)


@small_dose
@given(nested)
def test_info_is_plain_json(value: object) -> None:
    assert decode_json(ValueEncoder(strict=True).info_json(value)) == as_info(value)


@small_dose
@given(nested, st.booleans())
def test_values_that_json_has_as_they_are_are_written_as_all_others(value: object, is_info: bool) -> None:
    encoder = ValueEncoder()
    tree = _values._Tree(encoder, "value", is_info=is_info)
    text, media_type = encoder._tree_json(tree, value, ())
    others = _values._to_json(tree.plain(value)), _values.VALUE_TYPE if tree.has_tags else ""
    assert equal(parse_json(text, media_type), parse_json(*others))
    assert media_type != "" or not tree.has_tags or "$" in str(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], True),
        ({"a": [1, "é", 0.5, None, True]}, True),
        ({"$a": 1, "b": 2}, True),
        ({"$a": 1}, True),
        ([(2,)], False),
        ({1: "a"}, False),
        (["\ud800"], False),
        ({"\udfff": 1}, False),
        ([math.nan], False),
        ([1 << 63], False),
        ([b""], False),
        ([np.float64(1)], False),
    ],
)
def test_json_has_plain_values_as_they_are(value: object, expected: bool) -> None:
    assert _values._is_json(value, _values.MAX_DEPTH) == expected


def test_values_that_contain_themselves_or_are_nested_too_deep_are_not_written_as_they_are() -> None:
    itself: list[object] = []
    itself.append(itself)
    deep: object = []
    for _ in range(_values.MAX_DEPTH):
        deep = [deep]
    assert not _values._is_json(itself, _values.MAX_DEPTH)
    assert not _values._is_json(deep, _values.MAX_DEPTH)
    assert _values._is_json(deep[0], _values.MAX_DEPTH)


def as_info(value: Any) -> Any:
    """Returns a value as info has it: JSON that any program reads."""
    if any(value is each for each in UNSUPPORTED):
        return {"$unstored": type_name(value)}
    if isinstance(value, (list, tuple)):
        return [as_info(member) for member in value]
    if isinstance(value, dict):
        members = [(as_info(key), as_info(member)) for key, member in value.items()]
        named = {key if isinstance(key, str) else _values._to_json(key): member for key, member in members}
        return named if len(named) == len(members) else [list(member) for member in members]
    if isinstance(value, (np.ndarray, np.generic)):
        return as_info((value.astype(str) if value.dtype.kind in "cmM" else value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return f"data:application/octet-stream;base64,{base64.b64encode(value).decode()}"
    if isinstance(value, Image.Image):
        return f"data:image/png;base64,{base64.b64encode(png_of(value)).decode()}"
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


class Hostile:
    """A value whose own code fails."""

    def __getattr__(self, name: str) -> object:
        raise AttributeError if name.startswith("_") else OSError(name)


class HostileDict(dict[str, int]):
    def items(self) -> Any:
        raise OSError

    def keys(self) -> Any:
        raise OSError

    def __iter__(self) -> Any:
        raise OSError


UNSUPPORTED = [
    iter([1, 2]),
    object(),
    Hostile(),
    3 + 4j,
    print,
    Hostile,
    Image.new("CMYK", (1, 1)),
    10**5000,
    HostileDict(a=1),
]
unsupported = st.integers(0, len(UNSUPPORTED) - 1).map(lambda index: UNSUPPORTED[index])
with_unsupported = st.recursive(
    leaves | unsupported, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_keys, inner, max_size=4)
)


@small_dose
@given(with_unsupported)
def test_unsupported_values_become_markers_or_are_rejected(value: object) -> None:
    observed(value, strict=False)
    decode_json(ValueEncoder().info_json(value))
    encoder = ValueEncoder(strict=True)
    for write in (lambda: encoder.info_json(value), lambda: encoder.add_observation(Step(), value)):
        try:
            write()
        except TypeError as error:
            assert "which cannot be stored" in str(error)


def marked(value: Any, kind: type) -> Any:
    """Returns a value as it is read back: a marker replaces what is not supported."""
    if any(value is each for each in UNSUPPORTED):
        return Unstored(type_name(value))
    if isinstance(value, (list, tuple)):
        return kind(marked(member, kind) for member in value)
    if isinstance(value, dict):
        return {key: marked(member, kind) for key, member in value.items()}
    return value


def same_type(one: Any, other: Any) -> bool:
    """Compares, and takes each marker for any other: their texts say more than the name of a type."""
    if isinstance(one, Unstored) or isinstance(other, Unstored):
        return isinstance(one, Unstored) and isinstance(other, Unstored)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_type, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(map(str, one)) == list(map(str, other)) and all(map(same_type, one.values(), other.values()))
    return equal(one, other)


def shapes(info: Any) -> Any:
    """Returns info without the texts of its markers, which say more than the name of a type."""
    if isinstance(info, list):
        return [shapes(member) for member in info]
    if isinstance(info, dict):
        return "marker" if list(info) == ["$unstored"] else {key: shapes(member) for key, member in info.items()}
    return info


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.faults
def test_step_accepts_any_values_and_they_read_back_equal(server: Server, strict: bool) -> None:
    client = ab.connect(server.address, strict=strict)
    t = client.trajectory()
    t.reset()
    recorded: list[tuple[Any, Any]] = []

    @large_dose
    @given(with_unsupported, with_unsupported, st.none() | leaves | unsupported)
    def record(value: Any, other: Any, argument: Any) -> None:
        arguments: dict[str, Any] = {"reward": argument, "metrics": {"a": argument}, "tags": None}
        try:
            t.step(action=other, observation=value, info=value, **(arguments if not strict else {}))
        except TypeError as error:
            assert strict and "which cannot be stored" in str(error)
        else:
            recorded.append((value, other))

    record()
    t.flush(100)
    steps = t.steps(1)
    for (value, other), step in zip(recorded, steps, strict=True):
        assert same_type(marked(value, list), step.observation)
        assert same_type(marked(other, list), step.action)
        assert shapes(as_info(value)) == shapes(step.info)
    assert len(recorded) > 100


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"reward": np.array([3], "i4")}, Step(reward=3)),
        ({"reward": np.float32(0.5), "terminated": np.bool_(True)}, Step(reward=0.5, terminated=True)),
        ({"reward": "high", "truncated": np.array([True, False])}, Step()),
        ({"metrics": {"loss": np.array(0.25), "kl": None, 1: True, "\ud800": 2}}, {"loss": 0.25, "1": 1}),
        ({"metrics": [1]}, Step()),
        ({"action": 1, "token_ids": ["a"], "logprobs": [0.5]}, Step()),
        ({"action": 1, "token_ids": [1, 2], "logprobs": [None, 1]}, [1, 2]),
        ({"action": 1, "token_ids": [1, 2**40]}, Step()),
        ({"action": 1, "token_ids": np.array([1, 2]), "prompt_token_ids": [[1]]}, [1, 2]),
        ({"tags": 5, "states": 5}, Step()),
    ],
)
def test_unexpected_arguments_end_no_run(server: Server, arguments: dict[str, Any], expected: Any) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset()
    t.step(**arguments)
    # Later prompts are recorded whole, because the context is not known.
    t.step(action="next", token_ids=[5], logprobs=[-0.5], prompt_token_ids=[1, 2, 3])
    t.flush(30)
    _, step, following = (each.message for each in t.steps())
    assert list(following.actions[0].token_ids) == [5]
    if isinstance(expected, dict):
        assert dict(step.metrics) == expected
    elif isinstance(expected, list):
        assert list(step.actions[0].token_ids) == expected
        assert not step.actions[0].logprobs or len(step.actions[0].logprobs) == len(expected)
    else:
        assert (step.reward, step.terminated, step.truncated) == (expected.reward, expected.terminated, False)
        assert not (step.metrics or step.states or any(action.token_ids for action in step.actions))
    numbers = arguments.keys() == {"reward"} or "terminated" in arguments
    assert bool(client.stats.unstored) != numbers


def test_markers_name_the_type_and_are_counted_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    encoder = ValueEncoder()
    with socket.socket() as renderer:
        infos = [decode_json(encoder.info_json({"renderer": renderer, "lives": 3})) for _ in range(3)]
        observation = observed([renderer], strict=False)[1]
    assert infos == [{"renderer": {"$unstored": "socket.socket"}, "lives": 3}] * 3
    assert observation == [Unstored("socket.socket")]
    assert encoder.unstored == {"socket.socket": 3}
    assert [record.getMessage() for record in caplog.records[:1]] == [
        'info["renderer"] is a socket.socket, which cannot be stored. A marker replaces it.'
    ]


@pytest.mark.parametrize(
    ("value", "subject"),
    [
        ({"renderer": 1j}, 'info["renderer"] is a complex'),
        ({"a": [0, {"b": (1, object())}]}, 'info["a"][1]["b"][1] is a object'),
        ({1: 2j}, "info[1] is a complex"),
        (object(), "info is a object"),
        ([10**5000], "info[0] is a int of too many digits"),
    ],
)
def test_strict_names_path_and_type(value: object, subject: str) -> None:
    with pytest.raises(TypeError) as raised:
        ValueEncoder(strict=True).info_json(value)
    assert str(raised.value) == f"{subject}, which cannot be stored"
    with pytest.raises(TypeError, match="which cannot be stored"):
        ValueEncoder(strict=True).add_observation(Step(), value)


def test_values_that_contain_themselves_are_unsupported() -> None:
    cyclic: list[Any] = [1]
    cyclic += [cyclic, cyclic]
    assert observed(cyclic, strict=False)[1][0] == 1
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert observed(deep, strict=False)
    box = np.empty((), dtype=object)
    box[()] = box
    assert isinstance(observed(box, strict=False)[1], Unstored)


def test_failing_containers_are_unsupported() -> None:
    assert isinstance(observed(HostileDict(a=1), strict=False)[1], Unstored)


def test_a_value_of_a_dict_space_has_one_observation_for_each_leaf() -> None:
    arm = (np.zeros(2, np.float32), np.int64(3))
    value = {"robot": {"arm": arm, "na me": np.uint8([1])}, "goal": "red", "none": {}}
    step, read = observed(value)
    assert [item.type for item in step.observations] == [
        "robot.arm[0]",
        "robot.arm[1]",
        'robot["na me"]',
        "goal",
        "none",
    ]
    assert equal(read, value)


@pytest.mark.parametrize(
    ("value", "text", "media_type"),
    [
        ({"score": 3, "path": ["a", [1, 2.5]]}, '{"score":3,"path":["a",[1,2.5]]}', ""),
        ({"$bytes": 5}, '{"$bytes":5}', ""),
        ((14, 10, 0), "[14,10,0]", _values.TUPLES_TYPE),
        ({"at": (1, 2), "seen": ((0, 0), ())}, '{"at":[1,2],"seen":[[0,0],[]]}', _values.TUPLES_TYPE),
        ([(1, 2)], '[{"$tuple":[1,2]}]', _values.VALUE_TYPE),
        (({"$tuple": 1},), '{"$tuple":[{"$items":[["$tuple",1]]}]}', _values.VALUE_TYPE),
        ([math.inf], '[{"$float":"Infinity"}]', _values.VALUE_TYPE),
    ],
)
def test_a_value_without_arrays_is_one_json_and_its_media_type_tells_how_to_read_it(
    value: object, text: str, media_type: str
) -> None:
    step, read = observed(value)
    (content,) = (item.content for item in step.observations)
    assert (content.json, content.media_type) == (text, media_type)
    assert repr(read) == repr(value)
    data, state_type = ValueEncoder().state(value, "state")
    assert repr(decode_content(Content(data=data, media_type=state_type), bytes)) == repr(value)


@pytest.mark.parametrize("text", ['{"$bytes":5}', '[{"$tensor":"x"}]', '{"q":{"$items":[1,2]}}', '{"$float":"abc"}'])
@pytest.mark.parametrize("media_type", ["", "application/json", "application/geo+json"])
def test_stored_text_is_data(text: str, media_type: str) -> None:
    assert decode_content(Content(json=text, media_type=media_type), bytes) == json.loads(text)
    assert decode_json(text) == json.loads(text)
    if media_type == "application/json":
        assert decode_content(Content(data=text.encode(), media_type=media_type), bytes) == json.loads(text)


DEEP = "[" * 100_000 + "]" * 100_000
BEYOND = '{"a":[' * 250 + "[1]" + "]}" * 250
OURS = _values.VALUE_TYPE
PNG = png_of(Image.new("RGB", (9, 9)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (Content(json=DEEP), "RecursionError"),
        (Content(json=BEYOND), "nested deeper than 500 levels"),
        (Content(json="9" * 5000), "ValueError"),
        (Content(json='{"$bytes": 5}', media_type=OURS), "TypeError"),
        (Content(json='{"$bytes": "a"}', media_type=OURS), "Error"),
        (Content(json='{"$tensor": {}}', media_type=OURS), "KeyError"),
        (Content(json='{"$float": "abc"}', media_type=OURS), "ValueError"),
        (Content(json='{"$items": [1]}', media_type=OURS), "TypeError"),
        (Content(json='{"$tuple": 1}', media_type=OURS), "TypeError"),
        (Content(json='{"$png": "AAAA"}', media_type=OURS), "ValueError"),
        (Content(data=b"\0\0\0", media_type="image/png"), "Pillow knows no image of this form"),
        (Content(data=b"\0\0\0", media_type=_values.TENSOR_TYPE), "KeyError"),
        (Content(data=b"\0\0\0", media_type=f"{_values.TENSOR_TYPE};dtype=<f4;shape=2"), "cannot have dtype"),
        (Content(data=PNG[:-20], media_type="image/png"), "Error"),
        (Content(tensor=Tensor(dtype="|O8", data=bytes(8))), "Error"),
        (Content(tensor=Tensor(dtype="|S0", shape=[2**31 - 1, 2])), "too many items"),
        (Content(tensor=Tensor(dtype="<U1", shape=[1], data=b"\xff" * 4)), "no character"),
        (Content(tensor=Tensor(dtype=">U1", shape=[1], data=b"\xff" * 4)), "no character"),
        (Content(data=b"\xff\xfe", media_type=_values.TEXT_TYPE), "UnicodeDecodeError"),
        (Content(data=b"\xed\xa0\x80", media_type=_values.TEXT_TYPE), "UnicodeDecodeError"),
        (Content(data=b"\xff", media_type=_values.JSON_TYPE), "UnicodeDecodeError"),
        (Content(data=b"{", media_type=_values.JSON_TYPE), "JSONDecodeError"),
    ],
)
def test_what_cannot_be_decoded_is_a_value(content: Content, reason: str) -> None:
    read = decode_content(content, bytes)
    assert isinstance(read, Undecodable)
    assert reason in read.reason
    assert read.bytes == (content.data or content.json.encode() or content.tensor.data)


def test_json_of_many_values_that_is_not_deep_is_decoded() -> None:
    for text in ("[" + "[[]]," * 1000 + "[]]", '{"a":[' * 249 + "[1]" + "]}" * 249):
        assert decode_json(text) == json.loads(text)


def test_contents_that_are_gone_are_values() -> None:
    def fetch(digest: str) -> bytes:
        raise StateNotFound(f"no state {digest} is stored")

    pruned = Content(state_digest="a" * 64, media_type="image/png", pruned_time=Timestamp(seconds=1))
    assert decode_content(pruned, bytes) == Undecodable("the content was pruned at 1970-01-01T00:00:01Z", b"")
    assert decode_content(Content(state_digest="b"), fetch) == Undecodable("no state b is stored", b"")
    assert digests_of(Step(observations=[Observation(content=pruned)])) == []


@pytest.mark.parametrize("kind", ['["\\x"]', "[01]", "a..b", "a[", '["a"'])
def test_types_of_other_clients_that_are_no_paths_are_no_leaves(kind: str) -> None:
    items = [Observation(type=kind, content=Content(json="1")), Observation(type="a", content=Content(json="2"))]
    assert decode_items(items, bytes) == [1, 2]


def test_leaves_beyond_the_limits_of_a_step_are_one_json() -> None:
    many = {f"key {index}": np.int8(index % 100) for index in range(1025)}
    long = {"x" * 129: np.zeros(2)}
    for value in (many, long):
        step, read = observed(value)
        assert len(step.observations) == 1
        assert equal(read, value)


@dataclasses.dataclass
class Position:
    x: float
    label: str


class Model(pydantic.BaseModel):
    position: Position
    lives: int


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Position(1.5, "ä"), {"x": 1.5, "label": "ä"}),
        (Model(position=Position(1, "a"), lives=2), {"position": {"x": 1.0, "label": "a"}, "lives": 2}),
        (array.array("d", [1, 2]), np.array([1.0, 2.0])),
        (array.array("H", [1, 2]), np.array([1, 2], np.uint16)),
        (memoryview(b"ab"), np.array([97, 98], np.uint8)),
        (bytearray(b"ab"), b"ab"),
        (range(3), [0, 1, 2]),
        (np.array(["a", None], dtype=object), ["a", None]),
        (np.float32(0.1), np.float32(0.1)),
        (np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(6).reshape(2, 3)),
        (np.array([1, 2], ">i4"), np.array([1, 2], ">i4")),
        (2**53 + 1, 2**53 + 1),
        ("", ""),
        (b"", b""),
        ({}, {}),
        ([], []),
        (float("nan"), float("nan")),
        ("a\0b", "a\0b"),
        ("\ud800", "\ud800"),
        ("\ud83d\ude00", "\ud83d\ude00"),
    ],
)
def test_read_back(value: object, expected: object) -> None:
    assert equal(observed(value)[1], expected)


class Color(enum.Enum):
    RED = "red"
    BLUE = 2
    BOTH = (RED, BLUE)


class Size(str, enum.Enum):
    LARGE = "large"


class Level(enum.IntEnum):
    HIGH = 3


DAY = datetime.date(2026, 1, 2)
MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc)
UUID = uuid.UUID(int=1)
PLAIN = [
    (Color.RED, "red"),
    (Color.BOTH, ("red", 2)),
    (Size.LARGE, "large"),
    (Level.HIGH, 3),
    (MOMENT, "2026-01-02T03:04:05.000006+00:00"),
    (DAY, "2026-01-02"),
    (datetime.time(3, 4), "03:04:00"),
    (datetime.timedelta(minutes=1.5), 90.0),
    (UUID, str(UUID)),
    (decimal.Decimal("0.10"), "0.10"),
    (fractions.Fraction(1, 3), "1/3"),
    (pathlib.PurePosixPath("/a/b"), "/a/b"),
    (pathlib.Path("a"), "a"),
    (ipaddress.ip_address("::1"), "::1"),
    (collections.UserString("a"), "a"),
    (ValueError("no such file"), "ValueError: no such file"),
    ({3, 1, 2}, [1, 2, 3]),
    (frozenset({"b", "a"}), ["a", "b"]),
    ({Color.RED, "a"}, ["a", "red"]),
    ({1, "a", None}, [None, 1, "a"]),
    ({frozenset({2, 1})}, [(1, 2)]),
    (set(), []),
    (collections.deque([1, "a"], maxlen=2), [1, "a"]),
    (collections.UserList([1]), [1]),
    (collections.UserDict({"a": 1}), {"a": 1}),
    (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    (types.MappingProxyType({"a": 1}), {"a": 1}),
    ({"b": 1, "a": 2}.keys(), ["b", "a"]),
    ({"b": 1}.items(), [("b", 1)]),
    (types.SimpleNamespace(a={1}), {"a": [1]}),
    (argparse.Namespace(lr=0.5, out=pathlib.PurePosixPath("x")), {"lr": 0.5, "out": "x"}),
    (collections.namedtuple("Pair", "a b")(1, DAY), (1, "2026-01-02")),
]


@pytest.mark.parametrize(("value", "expected"), PLAIN)
def test_values_with_a_plain_form_are_stored_as_it(value: object, expected: object) -> None:
    assert equal(observed(value)[1], expected)
    assert equal(observed({"value": [value]})[1], {"value": [expected]})
    info = ValueEncoder(strict=True).info_json({"value": value})
    assert decode_json(info) == json.loads(json.dumps({"value": expected}))
    step, read = observed({"image": np.zeros(2), "value": value})
    assert len(step.observations) > 1
    assert same_type(read["value"], expected)


@pytest.mark.parametrize(
    ("key", "expected"),
    [(Color.RED, "red"), (Size.LARGE, "large"), (DAY, "2026-01-02"), (UUID, str(UUID)), (frozenset({2, 1}), (1, 2))],
)
def test_keys_with_a_plain_form_are_stored_as_it(key: object, expected: object) -> None:
    assert observed({key: 1})[1] == {expected: 1}
    assert equal(observed({key: np.zeros(2)})[1], {expected: np.zeros(2)})


class Job(pydantic.BaseModel):
    at: datetime.datetime
    color: Color


def test_values_within_models_have_their_plain_form() -> None:
    assert observed(Job(at=MOMENT, color=Color.RED))[1] == {"at": MOMENT.isoformat(), "color": "red"}


def test_a_deque_that_contains_itself_ends() -> None:
    itself: collections.deque[Any] = collections.deque()
    itself.extend([itself, itself])
    assert [type(member) for member in observed(itself, strict=False)[1]] == [Unstored, Unstored]


class Broken(type):
    """The type of classes that cannot be hashed."""

    def __eq__(cls, other: object) -> bool:
        raise OSError


class Odd(metaclass=Broken):
    pass


class BrokenEnum(enum.Enum):
    ONE = 1

    @property
    def value(self) -> Any:
        raise OSError


class BrokenPath:
    def __fspath__(self) -> str:
        raise OSError


class BrokenArray(np.ndarray):
    def tobytes(self, *_: Any) -> bytes:
        raise OSError


class BrokenError(Exception):
    def __str__(self) -> str:
        raise OSError


@pytest.mark.parametrize(
    "value", [Odd(), BrokenEnum.ONE, BrokenPath(), np.zeros(2).view(BrokenArray)], ids=lambda value: str(type(value))
)
def test_values_whose_own_code_fails_become_markers(value: object) -> None:
    assert isinstance(observed(value, strict=False)[1], Unstored)
    read = observed({"value": value, "image": np.zeros(2)}, strict=False)[1]
    assert isinstance(read["value"], Unstored)
    assert list(decode_json(ValueEncoder().info_json([value]))[0]) == ["$unstored"]
    with pytest.raises((TypeError, OSError)):
        observed(value)


def test_an_exception_whose_text_fails_is_its_type() -> None:
    assert observed(BrokenError())[1] == "BrokenError"


def test_images_that_are_too_large_become_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = ValueEncoder()
    monkeypatch.setattr(encoder, "limits", {"stateBytes": 8})
    content = Step().observations.add().content
    encoder.image_content(content, b"\x89PNG\r\n\x1a\n and more")
    assert isinstance(decode_content(content, no_states), Unstored)


def test_arrays_are_copied() -> None:
    value = np.zeros(3)
    step = Step()
    ValueEncoder().add_observation(step, value)
    value[:] = 1
    assert equal(decode_items(step.observations, bytes), np.zeros(3))


def test_nan_keeps_its_payload_in_arrays() -> None:
    value = np.array([0x7FF8000000000123], np.uint64).view(np.float64)
    assert observed(value)[1].tobytes() == value.tobytes()
    (read,) = observed([value])[1]
    assert read.tobytes() == value.tobytes()


def test_files_of_images_keep_their_bytes() -> None:
    file = io.BytesIO()
    Image.new("RGB", (2, 2), (1, 2, 3)).save(file, "JPEG")
    step = Step()
    ValueEncoder().image_content(step.observations.add().content, file.getvalue())
    assert step.observations[0].content.media_type == "image/jpeg"
    assert step.observations[0].content.data == file.getvalue()


def test_masked_arrays_and_structured_arrays_are_unsupported() -> None:
    for value in (np.ma.masked_array([1, 2], [True, False]), np.zeros(2, [("a", "<i4")])):
        assert isinstance(observed(value, strict=False)[1], Unstored)


def test_a_reward_is_a_number_or_the_metrics_of_several_objectives(server: Server) -> None:
    cases: list[tuple[Any, float | None, dict[str, float]]] = [
        (True, 1.0, {}),
        (decimal.Decimal("0.5"), 0.5, {}),
        ([0.5], 0.5, {}),
        (np.array([[0.5]]), 0.5, {}),
        (np.array([1.0, -2.0]), None, {"reward/0": 1.0, "reward/1": -2.0}),
        (np.array([[1, 2], [3, 4]]), None, {f"reward/{index}": index + 1 for index in range(4)}),
        ((1, np.float32(2), None), None, {"reward/0": 1.0, "reward/1": 2.0}),
        ({"safe": 1, Color.RED: True}, None, {"reward/safe": 1.0, "reward/red": 1.0}),
        (None, None, {}),
        (np.zeros(0), None, {}),
        ({}, None, {}),
        ("high", None, {}),
        (10**5000, None, {}),
        (Hostile(), None, {}),
    ]
    t = ab.connect(server.address).trajectory()
    t.reset()
    for reward, _, _ in cases:
        t.step(reward=reward)
    t.step(reward=np.array([1.0, 2.0]), metrics={"reward/1": 5.0, "loss": 3.0})
    *steps, named = t.steps(1)
    for (_, reward, metrics), step in zip(cases, steps, strict=True):
        assert (step.reward, step.metrics) == (reward, metrics)
    assert named.metrics == {"reward/0": 1.0, "reward/1": 5.0, "loss": 3.0}


def test_an_argument_whose_own_code_fails_costs_no_other_one(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    client = ab.connect(server.address)
    t = client.trajectory()
    t.reset(observation=Odd(), info=Odd(), states={"a": Odd()})
    failing = ("action", "observation", "info", "screenshot", "metrics", "tags", "states", "reward", "truncated")
    lists = ("token_ids", "logprobs", "prompt_token_ids")
    for name in (*failing, *lists):
        for value in (Hostile(), Odd(), BrokenError(), BrokenPath()):
            t.step(**{"action": 1, "reward": 1.0, name: value})  # type: ignore[arg-type]
    t.step(metrics={Size.LARGE: 1, BrokenError(): 2}, states={Size.LARGE: b"a"})  # type: ignore[dict-item]
    t.step(action=1, token_ids=None, logprobs=None, prompt_token_ids=None)  # type: ignore[arg-type]
    *steps, named, last = t.steps(1)
    rewards = [step.reward for step in steps]
    assert rewards.count(1.0) == len(rewards) - 4
    assert [step.action for step in steps[4:]] == [1] * (len(steps) - 4)
    assert named.metrics == {"large": 1.0, "BrokenError": 2.0}
    assert (named.states, last.action) == (("large",), 1)
    assert t.dropped == ""
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == len(set(texts))
    assert "anabranch: reward is a test_values.Hostile: expected a number. It is left out." in texts


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"reward": None, "metrics": {"kl": None}}, 'metrics["kl"] is None: expected a number'),
        ({"reward": np.array([1, None])}, 'metrics["reward/1"] is None: expected a number'),
        ({"truncated": np.array([True, False])}, "truncated is a numpy.ndarray: expected true or false"),
        ({"tags": 5}, "tags is 5: expected a list of names"),
        ({"token_ids": [2**40]}, "token_ids is a list: expected a list of integers of 32 bits"),
    ],
)
def test_strict_names_the_argument_and_what_is_expected(arguments: dict[str, Any], text: str, server: Server) -> None:
    t = ab.connect(server.address, strict=True).trajectory()
    with pytest.raises(TypeError) as raised:
        t.step(**arguments)
    assert str(raised.value) == text
