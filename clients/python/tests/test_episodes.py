"""Recorded trajectories read back as arrays, rows and datasets."""

from __future__ import annotations

import random
import threading
import uuid

import numpy as np
import pytest
from conftest import Server
from PIL import Image
from recorded import append, branch, end, episode_steps, new_step, record

from anabranch._reading import read as _read
from anabranch._reading.read import Selection, fetch_states, fetch_stored
from anabranch._reading.shuffle import shuffled
from anabranch._wire.connection import Connection
from anabranch._wire.decode import Undecodable, digests_of
from anabranch.episodes import Episodes, episode_of, steps_of
from anabranch.errors import RangeBeyondEnd, StateNotFound, TrajectoryNotFound
from anabranch.v1.retention_service_pb2 import ApplyRetentionRequest, RetentionPolicy, StatePolicy
from anabranch.v1.retention_service_pb2_grpc import RetentionServiceStub
from anabranch.v1.trajectory_pb2 import Step, StepState


@pytest.fixture(scope="module")
def connection(server: Server) -> Connection:
    return Connection(server.address)


def observe(number: int) -> np.ndarray:
    return np.array([number, -number], np.float32)


def act(number: int) -> np.int64:
    return np.int64(number % 2)


def select(connection: Connection, **filters: object) -> Episodes:
    return Episodes(connection, Selection(**filters))


@pytest.fixture(scope="module")
def task(connection: Connection) -> str:
    """A task with completed episodes of 3, 4 and 5 steps, and one that is running."""
    name = f"task {uuid.uuid4()}"
    for length in (3, 4, 5):
        record(connection, episode_steps(length, observe, act), task_id=name, name=str(length), labels={"a": "b"})
    record(connection, episode_steps(2, observe, act), task_id=name, name="running", seal="")
    return name


def test_arrays_have_the_lengths_t_plus_1_t_t(connection: Connection, task: str) -> None:
    episode = next(iter(select(connection, task=task, name="4")))
    assert np.array_equal(episode.observations, np.stack([observe(number) for number in range(5)]))
    assert episode.observations.dtype == np.float32
    assert np.array_equal(episode.actions, np.array([1, 0, 1, 0]))
    assert np.array_equal(episode.rewards, [1.0, 2.0, 3.0, 4.0])
    assert episode.infos == [{}, *({"number": number} for number in range(1, 5))]
    assert (len(episode), episode.terminated, episode.truncated, episode.status) == (4, True, False, "completed")
    assert {name: len(array) for name, array in episode.to_numpy().items()} == {
        "observations": 5,
        "actions": 4,
        "rewards": 4,
        "terminated": 4,
        "truncated": 4,
    }


def test_selections_match_all_filters(connection: Connection, task: str) -> None:
    def names(**filters: object) -> set[str]:
        return {episode.name for episode in select(connection, task=task, **filters)}

    assert names() == {"3", "4", "5", "running"}
    assert names(statuses=("completed",)) == {"3", "4", "5"}
    assert names(min_reward=10) == {"4", "5"}
    assert names(max_reward=10, statuses=("completed",)) == {"3", "4"}
    assert names(labels={"a": "b"}, min_reward=15) == {"5"}
    assert names(labels={"a": "c"}) == set()


def test_ids_are_read_in_their_order_and_unknown_ones_left_out(connection: Connection, task: str) -> None:
    ids = [episode.id for episode in select(connection, task=task)]
    wanted = [ids[2], str(uuid.uuid4()), ids[0], ids[3]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anabranch._reading.read._IDS", 2)
        assert [episode.id for episode in select(connection, ids=tuple(wanted))] == [ids[2], ids[0], ids[3]]
    assert [episode.id for episode in select(connection, ids=tuple(wanted))] == [ids[2], ids[0], ids[3]]
    assert [episode.id for episode in select(connection, ids=(ids[0], ids[1]), min_reward=1e9)] == []


def test_each_episode_is_in_one_shard(connection: Connection, task: str) -> None:
    episodes = select(connection, task=task)
    shards = [[episode.name for episode in episodes.shard(index, 3)] for index in range(3)]
    assert sorted(name for shard in shards for name in shard) == ["3", "4", "5", "running"]


def test_values_of_dict_and_tuple_spaces_are_dicts_and_tuples_of_arrays(connection: Connection) -> None:
    def space(number: int) -> dict[str, object]:
        return {"arm": (observe(number), np.int8(number)), "goal": f"goal {number}"}

    trajectory_id = record(connection, episode_steps(2, space, lambda number: {"move": np.float64(number)}))
    episode = episode_of(connection, trajectory_id)
    assert np.array_equal(episode.observations["arm"][0], np.stack([observe(number) for number in range(3)]))
    assert np.array_equal(episode.observations["arm"][1], np.arange(3, dtype=np.int8))
    assert episode.observations["goal"].tolist() == ["goal 0", "goal 1", "goal 2"]
    assert np.array_equal(episode.actions["move"], [1.0, 2.0])


def test_large_arrays_and_images_are_fetched_as_states(connection: Connection) -> None:
    screen = Image.effect_noise((200, 200), 50)
    large = np.random.default_rng(1).random((100, 100))
    steps = [new_step(0, observation=screen), new_step(1, observation=large, action="look")]
    episode = episode_of(connection, record(connection, steps))
    contents = [step.message.observations[0].content for step in episode.steps]
    assert contents[0].HasField("state_digest")
    assert contents[1].tensor.HasField("state_digest")
    read_screen, read_large = episode.observations
    assert (read_screen.mode, read_screen.tobytes()) == (screen.mode, screen.tobytes())
    assert np.array_equal(read_large, large)


DTYPES = "?bBhHiIlLqQefdgFDG"
OTHERS = ("S3", "U5", "M8", "M8[ns]", "M8[25s]", "m8", "m8[D]", "m8[as]")


def test_arrays_of_every_dtype_that_the_server_has_are_tensors(connection: Connection) -> None:
    dtypes = [np.dtype(name).newbyteorder(order) for name in (*DTYPES, *OTHERS) for order in "<>"]
    arrays = [np.array([0, 1, 0], "i8").astype(dtype) for dtype in dtypes]
    steps = [new_step(number, observation=array) for number, array in enumerate(arrays)]
    assert all(step.observations[0].content.HasField("tensor") for step in steps)
    read = [step.observation for step in steps_of(connection, record(connection, steps))]
    assert [array.dtype.str for array in read] == [array.dtype.str for array in arrays]
    assert [array.tobytes() for array in read] == [array.tobytes() for array in arrays]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of states of each call that reads states by their digests."""
    numbers: list[int] = []
    read = _read._read_states

    def counted(connection: Connection, digests: list[str]) -> dict[str, bytes]:
        numbers.append(len(digests))
        return read(connection, digests)

    monkeypatch.setattr(_read, "_read_states", counted)
    return numbers


def filled(number: int, size: int) -> np.ndarray:
    return np.full(size, number % 50, np.uint8)


def test_small_states_come_with_their_steps_in_no_call_of_their_own(connection: Connection, calls: list[int]) -> None:
    task = f"task {uuid.uuid4()}"
    steps = episode_steps(20, lambda number: filled(number, 20_000), act)
    for step in steps:
        step.states.add(name="env", data=b"state %d" % step.step_number)
    ids = [record(connection, steps, task_id=task) for _ in range(3)]
    # The server does not send again what it sent with an earlier episode.
    for episode in select(connection, task=task):
        assert [each[0] for each in episode.observations] == list(range(21))
        assert [step.state("env") for step in episode.steps] == [b"state %d" % number for number in range(21)]
    assert [step.observation[0] for step in steps_of(connection, ids[0])] == list(range(21))
    assert calls == []
    with pytest.raises(StateNotFound, match="step 3 of trajectory .* has no state 'agent'"):
        next(steps_of(connection, ids[0], 3)).state("agent")


def test_large_states_are_read_in_batches(connection: Connection, calls: list[int]) -> None:
    trajectory_id = record(connection, episode_steps(49, lambda number: filled(number, 50_000), act))
    assert [step.observation[0] for step in steps_of(connection, trajectory_id)] == list(range(50))
    # The steps came in one or more messages, and 32 states are fetched at a time.
    assert sum(calls) == 50
    assert len(calls) <= 4
    calls.clear()
    assert [step.observation[0] for step in episode_of(connection, trajectory_id).steps] == list(range(50))
    assert calls == [32, 18]
    calls.clear()
    assert len(episode_of(connection, trajectory_id).observations) == 50
    assert calls == [50]
    calls.clear()
    assert len(episode_of(connection, trajectory_id).tokens()) == 0
    assert calls == []


def test_without_a_reset_there_are_as_many_observations_as_actions(connection: Connection) -> None:
    steps = [new_step(number, action="go", observation=number, reward=1.0) for number in range(2)]
    episode = episode_of(connection, record(connection, steps))
    assert not episode.has_reset
    assert [len(episode), len(episode.observations), len(episode.actions), len(episode.rewards)] == [2, 2, 2, 2]


def test_missing_values(connection: Connection) -> None:
    steps = [new_step(0, observation=1), new_step(1), new_step(2, action=1, observation=2, reward=float("nan"))]
    episode = episode_of(connection, record(connection, steps))
    assert episode.observations.tolist() == [1, None, 2]
    assert episode.actions.tolist() == [None, 1]
    assert np.isnan(episode.rewards).all()
    assert episode.infos == [None, None, None]


def test_an_empty_trajectory_is_an_episode_without_steps(connection: Connection) -> None:
    episode = episode_of(connection, record(connection, [], seal=""))
    assert [len(episode), len(episode.observations), len(episode.actions), len(episode.rewards)] == [0, 0, 0, 0]


def test_branches_read_inherited_steps(connection: Connection) -> None:
    trunk = record(connection, episode_steps(3, observe, act))
    leaf = branch(connection, trunk, 2, [new_step(3, action=act(3), observation=observe(9), reward=7.0)])
    episode = episode_of(connection, leaf)
    assert np.array_equal(episode.rewards, [1.0, 2.0, 7.0])
    assert [step.owner_id for step in episode.steps] == [trunk, trunk, trunk, leaf]


def test_steps_follow_a_live_trajectory_until_its_seal(connection: Connection) -> None:
    trajectory_id = record(connection, [new_step(0, observation=0)], seal="")
    following = steps_of(connection, trajectory_id, follow=True)
    assert next(following).number == 0

    def write() -> None:
        append(connection, trajectory_id, [new_step(1, action=1), new_step(2, action=2)])
        end(connection, trajectory_id, "completed")

    writer = threading.Thread(target=write)
    writer.start()
    assert [step.action for step in following] == [1, 2]
    writer.join()


def test_reads_continue_after_the_server_was_restarted(own_server: Server) -> None:
    own_server.start()
    connection = Connection(own_server.address)
    trajectory_id = record(connection, [new_step(0, observation=0)], seal="")
    following = steps_of(connection, trajectory_id, follow=True)
    assert next(following).number == 0
    own_server.restart()
    append(Connection(own_server.address), trajectory_id, [new_step(1, action=1)])
    assert next(following).number == 1


def test_more_states_than_one_call_returns_are_fetched_in_several(connection: Connection) -> None:
    large = np.arange(2048, dtype=np.int64)
    steps = [new_step(number, observation=large + number) for number in range(12)]
    episode = episode_of(connection, record(connection, steps))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anabranch._reading.read._DIGESTS", 5)
        assert np.array_equal(episode.observations, np.stack([large + number for number in range(12)]))


def test_episodes_continue_after_the_server_was_restarted(own_server: Server) -> None:
    own_server.start()
    connection = Connection(own_server.address)
    text = "x" * 80_000
    for length in (30, 31, 32):  # more than the transport buffers
        record(connection, [new_step(number, observation=text) for number in range(length)], seal="")
    episodes = iter(select(connection))
    assert len(next(episodes).steps) == 32
    own_server.restart()
    assert [len(episode.steps) for episode in episodes] == [31, 30]


def test_pruned_contents_stop_no_read(own_server: Server) -> None:
    own_server.start()
    connection = Connection(own_server.address)
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 255, (300, 300), np.uint8))
    steps = [new_step(0, observation=noise), new_step(1, action=1, observation=noise.rotate(90), reward=1.0)]
    trajectory_id = record(connection, steps)
    episode = episode_of(connection, trajectory_id)
    first = next(iter(episode.steps))
    policy = RetentionPolicy(states=StatePolicy(content_media_types=["image/png"], include_terminal=True))
    retention = RetentionServiceStub(connection.stubs.channel)
    assert list(retention.ApplyRetention(ApplyRetentionRequest(policy=policy), timeout=60))
    assert fetch_stored(connection, digests_of(first.message)) == {}
    # The steps of this episode were read before their contents were pruned.
    place = f"step 0 of trajectory {trajectory_id}: no state"
    assert first.observation.reason.startswith(place)
    assert [type(value) for value in episode.observations] == [Undecodable, Undecodable]
    again = select(connection, ids=(trajectory_id,))
    assert all("the content was pruned at" in value.reason for value in next(iter(again)).observations)
    assert again.to_arrow().read_all()["observation"].to_pylist() == [None, None]
    assert list(again.to_pandas()["reward"])[1:] == [1.0]


def test_states_of_other_clients_that_are_named_info_are_states(connection: Connection) -> None:
    state = StepState(name="info", data=b"\xff", media_type="application/octet-stream")
    (step,) = episode_of(connection, record(connection, [Step(states=[state])])).steps
    assert (step.info, step.states, step.state("info")) == (None, ("info",), b"\xff")


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, "9" * 5000])
def test_info_that_cannot_be_decoded_is_a_value(connection: Connection, text: str) -> None:
    (step,) = episode_of(connection, record(connection, [Step(info_json=text)])).steps
    assert isinstance(step.info, Undecodable)
    assert (step.info.bytes, step.info_text) == (text.encode(), text)


def test_errors_of_reads(connection: Connection) -> None:
    with pytest.raises(TrajectoryNotFound):
        episode_of(connection, str(uuid.uuid4()))
    trajectory_id = record(connection, [])
    with pytest.raises(RangeBeyondEnd):
        list(steps_of(connection, trajectory_id, 1))
    with pytest.raises(StateNotFound):
        fetch_states(connection, ["0" * 64])


def test_a_buffer_shuffles_and_loses_nothing() -> None:
    items = list(shuffled(range(100), 10, random.Random(1)))
    assert items != list(range(100))
    assert sorted(items) == list(range(100))
