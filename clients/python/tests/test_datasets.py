"""Steps as tables and datasets."""

from __future__ import annotations

import datetime
import uuid
from pathlib import Path

import gymnasium as gym
import minari
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import Server
from PIL import Image
from recorded import episode_steps, new_step, record

from anabranch._reading.read import Selection
from anabranch._wire.connection import Connection
from anabranch.episodes import Episodes


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


def test_a_value_that_does_not_fit_the_schema_is_named(connection: Connection) -> None:
    first = [new_step(0, observation=np.zeros(2))]
    for other in (np.zeros(3), "text", {"a": np.zeros(2)}):
        ids = tuple(record(connection, steps) for steps in (first, [new_step(0, observation=other)]))
        reader = Episodes(connection, Selection(ids=ids)).to_arrow()
        with pytest.raises(ValueError, match=f"step 0 of trajectory {ids[1]}"):
            reader.read_all()


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
