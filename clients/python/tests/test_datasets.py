"""Steps as tables and datasets."""

from __future__ import annotations

import datetime
import io
import json
import uuid
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import Server
from PIL import Image
from recorded import append, episode_steps, new_step, record

from anabranch import connect
from anabranch._reading.read import Selection
from anabranch._wire.connection import Connection
from anabranch._wire.decode import Undecodable
from anabranch.client import Client
from anabranch.episodes import Episodes
from anabranch.gym import Record, resume
from anabranch.v1.trajectory_pb2 import Action, Content, Observation, Step


@pytest.fixture(scope="module")
def connection(server: Server) -> Connection:
    return Connection(server.address)


def observe(number: int) -> np.ndarray:
    return np.array([number, -number], np.float32)


def act(number: int) -> np.int64:
    return np.int64(number % 2)


@pytest.fixture(scope="module")
def episodes(connection: Connection) -> Episodes:
    """Two episodes of 3 and 4 steps."""
    task = f"task {uuid.uuid4()}"
    for length in (4, 3):
        record(connection, episode_steps(length, observe, act), task_id=task)
    return Episodes(connection, Selection(task=task))


def of_steps(connection: Connection, *steps: list) -> Episodes:
    return Episodes(connection, Selection(ids=tuple(record(connection, own) for own in steps)))


def test_arrow_has_a_row_per_step_with_fixed_shape_tensors(episodes: Episodes) -> None:
    table = episodes.to_arrow().read_all()
    assert table.schema.field("observation").type == pa.fixed_shape_tensor(pa.float32(), (2,))
    assert table.schema.field("action").type == pa.int64()
    assert table["step"].to_pylist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert table["is_first"].to_pylist() == [True, *[False] * 3, True, *[False] * 4]
    assert table["is_last"].to_pylist() == [*[False] * 3, True, *[False] * 4, True]
    assert table["is_terminal"].to_pylist() == table["is_last"].to_pylist()
    assert table["action"].to_pylist() == [None, 1, 0, 1, None, 1, 0, 1, 0]
    assert table["reward"].to_pylist() == [None, 1.0, 2.0, 3.0, None, 1.0, 2.0, 3.0, 4.0]
    assert table["info"].to_pylist()[:2] == ["{}", '{"number":1}']
    tensors = table["observation"].combine_chunks().to_numpy_ndarray()
    assert np.array_equal(tensors[:4], np.stack([observe(number) for number in range(4)]))


def test_arrow_has_a_column_for_each_leaf(connection: Connection) -> None:
    def space(number: int) -> dict[str, object]:
        return {"arm": (observe(number), np.int8(number)), "goal": f"goal {number}"}

    table = of_steps(connection, episode_steps(2, space, lambda number: number)).to_arrow().read_all()
    assert table["observation.goal"].to_pylist() == ["goal 0", "goal 1", "goal 2"]
    assert table["observation.arm[1]"].to_pylist() == [0, 1, 2]
    assert table.schema.field("observation.arm[0]").type == pa.fixed_shape_tensor(pa.float32(), (2,))


@pytest.mark.parametrize(
    ("value", "arrow_type", "cell"),
    [
        ("text", pa.string(), "text"),
        (7, pa.int64(), 7),
        (0.5, pa.float64(), 0.5),
        (True, pa.bool_(), True),
        (b"ab", pa.binary(), b"ab"),
        ({"a": [1, None]}, pa.string(), "[1,null]"),
        (np.array(["a"]), pa.string(), None),
    ],
)
def test_types_of_columns(connection: Connection, value: object, arrow_type: pa.DataType, cell: object) -> None:
    table = of_steps(connection, [new_step(0, observation=value)]).to_arrow().read_all()
    name = "observation.a" if isinstance(value, dict) else "observation"
    assert table.schema.field(name).type == arrow_type
    if cell is not None:
        assert table[name].to_pylist() == [cell]


def test_images_are_their_files(connection: Connection) -> None:
    table = of_steps(connection, [new_step(0, observation=Image.new("RGB", (2, 2)))]).to_arrow().read_all()
    assert table["observation"][0].as_py().startswith(b"\x89PNG")


F32, F64 = np.zeros(2, np.float32), np.zeros(2)
MIXED = [
    (F32, np.ones(2), pa.fixed_shape_tensor(pa.float64(), (2,)), [[0, 0], [1, 1]]),
    (F64, np.zeros(3), pa.string(), ["[0.0,0.0]", "[0.0,0.0,0.0]"]),
    (1, 0.5, pa.float64(), [1, 0.5]),
    (1, np.int8(3), pa.int64(), [1, 3]),
    (1, True, pa.string(), ["1", "true"]),
    (1, 2**70, pa.string(), ["1", str(2**70)]),
    ("text", [1], pa.string(), ["text", "[1]"]),
    (b"a", "text", pa.string(), ['"data:application/octet-stream;base64,YQ=="', "text"]),
    (float("nan"), "text", pa.string(), ['"NaN"', "text"]),
]


@pytest.mark.parametrize(("one", "other", "arrow_type", "cells"), MIXED)
def test_a_column_has_a_type_for_all_values_whichever_comes_first(
    connection: Connection, one: Any, other: Any, arrow_type: pa.DataType, cells: list[Any]
) -> None:
    ids = [record(connection, [new_step(0, observation=value)]) for value in (one, other)]
    for selected, expected in ((ids, cells), (ids[::-1], cells[::-1])):
        table = Episodes(connection, Selection(ids=tuple(selected))).to_arrow().read_all()
        assert table.schema.field("observation").type == arrow_type
        assert table["observation"].to_pylist() == expected


def test_mixed_episodes_have_one_set_of_columns(connection: Connection) -> None:
    ids = tuple(record(connection, [new_step(0, observation=value)]) for value in ({"a": F32}, "text", {"b": {"c": 1}}))
    for selected in (ids, ids[::-1]):
        episodes = Episodes(connection, Selection(ids=selected))
        names = episodes.to_arrow().schema.names
        assert set(names[6:-2]) == {"action", "observation.a", "observation", "observation.b.c"}
        assert list(episodes.to_pandas().columns) == names
        assert [list(row) for row in episodes.to_hf()] == [names] * 3


def test_values_whose_keys_are_data_have_one_column(connection: Connection) -> None:
    steps = [new_step(number, observation={f"player {number}": number}) for number in range(1001)]
    table = of_steps(connection, steps).to_arrow().read_all()
    assert table.schema.names[6:-2] == ["action", "observation"]
    assert table["observation"].to_pylist()[999:] == ['{"player 999":999}', '{"player 1000":1000}']


def test_large_contents_have_the_columns_of_small_ones(connection: Connection) -> None:
    large = {"seen": "x" * 600_000, "at": 1}
    client = connect(connection.address)
    t = client.trajectory()
    t.reset(observation={"image": np.zeros((200, 200), np.uint8), "at": 0})
    t.step(observation=large)
    t.flush(60)
    assert [item.content.media_type for item in t.episode().steps[1].message.observations] == ["application/json"]
    table = client.episodes(ids=[t.id]).to_arrow().read_all()
    assert table.schema.field("observation.image").type == pa.fixed_shape_tensor(pa.uint8(), (200, 200))
    assert table["observation"].to_pylist() == [None, json.dumps(large, separators=(",", ":"))]
    assert client.episodes(ids=[t.id]).to_pandas()["observation"][1] == large


def reply(calls: int) -> dict[str, Any]:
    function = {"name": "run", "arguments": '{"$bytes": 5}'}
    made = [{"id": f"c{number}", "type": "function", "function": function} for number in range(calls)]
    return {"choices": [{"message": {"role": "assistant", "content": "hi", "tool_calls": made}}]}


def test_turns_have_one_shape_and_fixed_columns(connection: Connection) -> None:
    client, task = connect(connection.address), f"task {uuid.uuid4()}"
    ids = []
    for calls in (0, 1, 2):
        t = client.trajectory(task=task)
        t.reset(messages=[{"role": "user", "content": "go"}])
        with t.turn(reply(calls)) as turn:
            for call in turn.tool_calls:
                turn.result(call, {"ok": True})
        t.flush(60)
        ids.append(t.id)
        first, step = t.episode().steps
        called = [{"id": f"c{number}", "name": "run", "arguments": '{"$bytes": 5}'} for number in range(calls)]
        results = [{"id": f"c{number}", "is_error": False, "content": {"ok": True}} for number in range(calls)]
        assert first.observation == {"messages": [{"role": "user", "content": "go"}], "tool_results": []}
        assert (step.action["text"], step.action["tool_calls"]) == ("hi", called)
        assert step.action["messages"][0]["role"] == "assistant"
        assert step.observation == {"messages": [], "tool_results": results}
    played = record(connection, episode_steps(1, observe, act))
    for selected in (ids, ids[::-1], [played, *ids]):
        episodes = client.episodes(ids=selected)
        table = episodes.to_arrow().read_all()
        text = pa.string()
        call = pa.struct([("id", text), ("name", text), ("arguments", text)])
        result = pa.struct([("id", text), ("is_error", pa.bool_()), ("content", text)])
        assert table.schema.field("action.text").type == text
        assert table.schema.field("action.tool_calls").type == pa.list_(call)
        assert table.schema.field("observation.tool_results").type == pa.list_(result)
        turns = [row for row in table.to_pylist() if row["action.text"]]
        assert sorted(len(row["action.tool_calls"]) for row in turns) == [0, 1, 2]
        for row in turns:
            assert all(call["arguments"] == '{"$bytes": 5}' for call in row["action.tool_calls"])
            assert all(each["content"] == '{"ok":true}' for each in row["observation.tool_results"])
            assert json.loads(row["action.messages"])[0]["content"] == "hi"
        assert list(episodes.to_pandas().columns) == table.schema.names
        assert {tuple(row) for row in episodes.to_hf()} == {tuple(table.schema.names)}


def test_calls_of_other_clients_have_the_shape_of_turns(connection: Connection) -> None:
    for calls in (1, 2):
        step = Step(step_number=0, actions=[Action(type="text", content=Content(text="hi"))])
        for number in range(calls):
            step.actions.add(type="tool_call", name="run", call_id=f"c{number}").content.json = "{}"
            step.observations.add(type="tool_result", call_id=f"c{number}").content.text = "ok"
        (read,) = (episode.steps[0] for episode in of_steps(connection, [step]))
        assert (read.action["text"], len(read.action["tool_calls"])) == ("hi", calls)
        assert [result["content"] for result in read.observation["tool_results"]] == ["ok"] * calls


@pytest.mark.parametrize("name", ["message", "tool_call", "tool_result"])
def test_leaves_that_are_named_like_parts_of_turns_are_leaves(connection: Connection, name: str) -> None:
    value = {name: "hi", "at": np.float32(1)}
    episodes = of_steps(connection, [new_step(0, action=value, observation=value)])
    (step,) = (episode.steps[0] for episode in episodes)
    assert step.action == step.observation == value
    names = episodes.to_arrow().schema.names
    assert names[6:-2] == [f"action.{name}", "action.at", f"observation.{name}", "observation.at"]


class Played(gym.Env):
    """An environment that plays samples of its spaces."""

    def __init__(self, space: gym.Space, action_space: gym.Space | None = None) -> None:
        self.observation_space, self.action_space = space, action_space or gym.spaces.Discrete(3)
        self.seen: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.seen = [self.observation_space.sample()]
        return self.seen[0], {}

    def step(self, action: Any) -> Any:
        self.seen.append(self.observation_space.sample())
        return self.seen[-1], 1.0, len(self.seen) == 4, False, {}


def play(client: Client, env: gym.Env, actions: list[Any], **fields: Any) -> Record:
    recorded = Record(env, client, **fields)
    recorded.reset(seed=1)
    for action in actions:
        recorded.step(action)
    recorded.trajectory.flush(60)
    return recorded


BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
SPACES = {
    "Discrete": (gym.spaces.Discrete(5), {"": pa.int64()}),
    "Box without dimension": (gym.spaces.Box(-1, 1, (), np.float32), {"": pa.float32()}),
    "MultiBinary": (gym.spaces.MultiBinary(3), {"": pa.fixed_shape_tensor(pa.int8(), (3,))}),
    "Text": (gym.spaces.Text(9), {"": pa.string()}),
    "Tuple of numbers": (
        gym.spaces.Tuple((gym.spaces.Discrete(32), gym.spaces.Discrete(2))),
        {"[0]": pa.int64(), "[1]": pa.int64()},
    ),
    "Dict": (
        gym.spaces.Dict({"at": BOX, "hand": gym.spaces.Tuple((gym.spaces.Discrete(9),)), "goal": gym.spaces.Text(4)}),
        {".at": pa.fixed_shape_tensor(pa.float32(), (2,)), ".hand[0]": pa.int64(), ".goal": pa.string()},
    ),
    "Sequence": (gym.spaces.Sequence(BOX), {"": pa.string()}),
    "Graph": (gym.spaces.Graph(BOX, None), {"": pa.string()}),
    "OneOf": (gym.spaces.OneOf([gym.spaces.Discrete(3), BOX]), {"": pa.string()}),
}


@pytest.mark.parametrize("name", SPACES)
def test_spaces_decide_the_columns_even_without_a_value(connection: Connection, name: str) -> None:
    space, types = SPACES[name]
    client = connect(connection.address)
    env = play(client, Played(space, space), [])
    schema = client.episodes(ids=[env.trajectory.id]).to_arrow().schema
    expected = {f"{root}{path}": kind for root in ("action", "observation") for path, kind in types.items()}
    assert {field.name: field.type for field in schema if field.name.startswith(("action", "obs"))} == expected
    space.seed(1)
    branch, _ = resume(Played(space, space), env.trajectory)
    branch.step(space.sample())
    branch.trajectory.flush(60)
    table = client.episodes(ids=[branch.trajectory.id, env.trajectory.id]).to_arrow().read_all()
    assert table.schema.equals(schema)


def test_metadata_of_other_programs_is_data(connection: Connection) -> None:
    for spaces in (5, [], {"observation": 5}, {"observation": {"": 5}}, {"observation": {"": ["no dtype", [2]]}}):
        metadata = json.dumps({"spaces": spaces})
        id = record(connection, [new_step(0, observation=1)], metadata_json=metadata)
        assert Episodes(connection, Selection(ids=(id,))).to_arrow().read_all()["observation"].to_pylist() == [1]


UNDECODABLE = [
    Content(json="[" * 5000 + "]" * 5000),
    Content(json="9" * 5000),
    Content(json='{"$tensor": {}}', media_type="application/vnd.anabranch.value+json"),
    Content(data=b"\xff", media_type="text/plain; charset=utf-8"),
    Content(data=b"AAA", media_type="application/vnd.anabranch.tensor"),
]


@pytest.mark.parametrize("content", UNDECODABLE, ids=range(len(UNDECODABLE)))
def test_a_value_that_cannot_be_decoded_stops_no_read(
    connection: Connection, content: Content, caplog: pytest.LogCaptureFixture
) -> None:
    good = record(connection, [new_step(0, observation=1), new_step(1, action=1, observation=2)], seal="")
    bad = record(connection, [Step(step_number=0, observations=[Observation(content=content)])])
    for selected in ((good, bad), (bad, good)):
        episodes = Episodes(connection, Selection(ids=selected))
        by_id = {episode.id: episode for episode in episodes}
        (value,) = by_id[bad].observations
        assert isinstance(value, Undecodable)
        assert value.bytes == (content.data or content.json.encode())
        table = episodes.to_arrow().read_all()
        assert table.schema.field("observation").type == pa.int64()
        assert sorted(table["observation"].to_pylist(), key=str) == [1, 2, None]
        assert f"step 0 of trajectory {bad}" in caplog.text
        assert value in list(episodes.to_pandas()["observation"])
        assert value in [row["observation"] for row in episodes.to_hf()]
    played = record(connection, [new_step(0, observation=1), new_step(1, action=1)], seal="")
    append(connection, played, [Step(step_number=2, actions=[Action(content=content)])])
    with pytest.raises(ValueError, match=f"step 2 of trajectory {played} has a value that Minari cannot hold"):
        Episodes(connection, Selection(ids=(played,))).to_minari("x/y-v0")


def test_an_image_that_is_none_is_its_bytes(connection: Connection) -> None:
    broken = Content(data=b"\x89PNG", media_type="image/png")
    steps = [Step(step_number=0, observations=[Observation(content=broken)])]
    episodes = of_steps(connection, steps, [new_step(0, observation=Image.new("RGB", (2, 2)))])
    cells = episodes.to_arrow().read_all()["observation"].to_pylist()
    assert cells[0] == b"\x89PNG"
    assert Image.open(io.BytesIO(cells[1])).size == (2, 2)
    assert isinstance(episodes.to_pandas()["observation"][0], Undecodable)


def test_lone_surrogates_break_no_table(connection: Connection) -> None:
    values = ["a\ud83d", {"\ud83d": "\ud83d"}, ["\ud83d"], {"b": np.zeros(1), "s": "\ud83d"}]
    steps = [new_step(number, observation=value) for number, value in enumerate(values)]
    steps.append(Step(step_number=4, observations=[Observation(content=Content(json='"\\ud83d"'))]))
    episodes = of_steps(connection, steps)
    table = episodes.to_arrow().read_all()
    assert table["observation"].to_pylist() == ["a\ufffd", None, '["\ufffd"]', None, "\ufffd"]
    assert table["observation.s"].to_pylist()[3] == "\ufffd"
    frame = episodes.to_pandas()
    assert (frame["observation"][0], frame["observation.s"][3]) == ("a\ud83d", "\ud83d")
    assert [row["observation"] for row in episodes.to_hf()][4] == "\ud83d"


def test_arrow_of_no_episode_has_the_fixed_columns(connection: Connection) -> None:
    table = Episodes(connection, Selection(task=f"none {uuid.uuid4()}")).to_arrow().read_all()
    assert (table.num_rows, "trajectory_id" in table.column_names) == (0, True)


def test_pandas_keeps_arrays(episodes: Episodes) -> None:
    frame = episodes.steps().to_pandas()
    assert list(frame["step"]) == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert np.array_equal(frame["observation"][2], observe(2))


def test_hugging_face_has_a_row_per_step(episodes: Episodes) -> None:
    rows = list(episodes.to_hf())
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert np.array_equal(rows[2]["observation"], observe(2))


def test_minari_reads_back_equal_data(connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gym.make("CartPole-v1")
    task = f"task {uuid.uuid4()}"
    played = []
    for seed in range(2):
        observation, info = env.reset(seed=seed)
        steps, observations = [new_step(0, observation=observation, info=info)], [observation]
        for number in range(1, 10):
            action = np.int64(number % 2)
            observation, reward, terminated, truncated, info = env.step(action)
            fields = {"reward": reward, "terminated": terminated, "truncated": truncated}
            steps.append(new_step(number, action=action, observation=observation, info=info, **fields))
            observations.append(observation)
            if terminated:
                break
        record(connection, steps, task_id=task)
        played.append(observations)
    episodes = Episodes(connection, Selection(task=task))
    episodes.to_minari("cartpole/test-v0", env="CartPole-v1", algorithm_name="alternating")
    dataset = minari.load_dataset("cartpole/test-v0")
    assert dataset.total_episodes == 2
    for read, observations in zip(dataset.iterate_episodes(), reversed(played), strict=True):
        assert np.array_equal(read.observations, np.stack(observations))
        assert np.array_equal(read.rewards, np.ones(len(observations) - 1))
        assert np.array_equal(read.actions, [number % 2 for number in range(1, len(observations))])


def test_minari_reads_back_how_episodes_ended(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    ends = [{"terminated": True}, {"truncated": True}, {"terminated": True, "truncated": True}, {}]
    ids = []
    for end in ends:
        steps = [new_step(0, observation=observe(0))]
        for number in (1, 2):
            fields = end if number == 2 else {}
            steps.append(
                new_step(number, action=act(number), observation=observe(number), reward=0.5 * number, **fields)
            )
        ids.append(record(connection, steps))
    spaces = {
        "observation_space": gym.spaces.Box(-9, 9, (2,), np.float32),
        "action_space": gym.spaces.Discrete(2),
        "algorithm_name": "fixed",
    }
    Episodes(connection, Selection(ids=tuple(ids))).to_minari("ends/test-v0", **spaces)
    read = list(minari.load_dataset("ends/test-v0").iterate_episodes())
    assert [episode.terminations.tolist() for episode in read] == [[False, "terminated" in end] for end in ends]
    assert [episode.truncations.tolist() for episode in read] == [[False, "truncated" in end] for end in ends]
    assert [episode.rewards.tolist() for episode in read] == [[0.5, 1.0]] * len(ends)
    assert all(np.array_equal(episode.observations, np.stack([observe(n) for n in range(3)])) for episode in read)


def member_at(value: Any, index: int) -> Any:
    """Returns a member of a batch that Minari has read."""
    if isinstance(value, dict):
        return {key: member_at(member, index) for key, member in value.items()}
    return tuple(member_at(part, index) for part in value) if isinstance(value, tuple) else value[index]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(equal, one, other))
    return np.array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize(
    "name", ["Discrete", "Box without dimension", "MultiBinary", "Text", "Tuple of numbers", "Dict"]
)
def test_minari_reads_back_the_values_of_each_of_its_spaces(
    connection: Connection, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    space, _ = SPACES[name]
    client = connect(connection.address)
    actions = [space.sample() for _ in range(3)]
    env = play(client, Played(space, space), actions)
    spaces = {"observation_space": space, "action_space": space, "algorithm_name": "samples"}
    client.episodes(ids=[env.trajectory.id]).to_minari("spaces/test-v0", **spaces)
    (read,) = minari.load_dataset("spaces/test-v0").iterate_episodes()
    seen = env.env.seen
    assert all(equal(value, member_at(read.observations, index)) for index, value in enumerate(seen))
    assert all(equal(value, member_at(read.actions, index)) for index, value in enumerate(actions))


def test_minari_reads_back_a_tuple_of_numbers(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    client, task = connect(connection.address), f"task {uuid.uuid4()}"
    env = Record(gym.make("Blackjack-v1"), client, task=task)
    seen = [env.reset(seed=3)[0]]
    while not env.done:
        seen.append(env.step(0)[0])
    env.trajectory.flush(60)
    episode = env.trajectory.episode()
    assert [step.observation for step in episode.steps] == seen
    assert isinstance(episode.observations, tuple)
    assert [part.tolist() for part in episode.observations] == [list(part) for part in zip(*seen, strict=True)]
    client.episodes(task=task).to_minari("blackjack/test-v0", env="Blackjack-v1", algorithm_name="stick")
    (read,) = minari.load_dataset("blackjack/test-v0").iterate_episodes()
    assert [member_at(read.observations, index) for index in range(len(seen))] == seen


def test_minari_needs_a_reset_and_an_episode(connection: Connection) -> None:
    with pytest.raises(ValueError, match="no episode"):
        of_steps(connection, [new_step(0, observation=1)]).to_minari("x/y-v0")
    with pytest.raises(ValueError, match="does not begin with a reset"):
        of_steps(connection, [new_step(0, observation=1, action=1)]).to_minari("x/y-v0")


def test_minari_names_episodes_of_another_environment(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    other = [new_step(0, observation="text"), new_step(1, observation="text", action={"push": np.zeros(1)})]
    with pytest.raises(ValueError, match=r"select episodes of one environment, and name it \(`env` is 'CartPole-v1'\)"):
        of_steps(connection, episode_steps(2, observe, act), other).to_minari("other/test-v0", env="CartPole-v1")


def test_torch_sees_each_episode_once(episodes: Episodes) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: to_torch is not tested")
    loader = torch.utils.data.DataLoader(episodes.to_torch(shuffle=10), num_workers=2)
    assert sorted(len(batch["rewards"][0]) for batch in loader) == [3, 4]


TIME = datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.timezone.utc)
TABLE = pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "at": [pd.Timestamp(TIME), pd.NaT]})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (TABLE, [{"a": 1, "b": "x", "at": TIME.isoformat()}, {"a": 2, "b": "y", "at": None}]),
        (TABLE["a"], [1, 2]),
        (TABLE.index, [0, 1]),
        (pd.NA, None),
        (pa.table({"a": [1, 2]}), [{"a": 1}, {"a": 2}]),
        (pa.record_batch({"a": [TIME]}), [{"a": TIME.isoformat()}]),
        (pa.array(["x", None]), ["x", None]),
        (pa.chunked_array([[1], [2]]), [1, 2]),
    ],
)
def test_tables_are_stored_as_lists_of_their_rows(connection: Connection, value: object, expected: object) -> None:
    (episode,) = of_steps(connection, [new_step(0, observation=value, info={"table": [value]})])
    assert (episode.steps[0].observation, episode.steps[0].info) == (expected, {"table": [expected]})
