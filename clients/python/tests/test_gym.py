"""Environments of Gymnasium are recorded, branched and resumed exactly."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from conftest import Server
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from recorded import new_step, record

from anabranch import connect
from anabranch._recording.rpc import APPEND_BATCH
from anabranch._wire.decode import decode_json
from anabranch.client import Client
from anabranch.errors import Diverged
from anabranch.gym import Record, RecordVector, resume
from anabranch.v1.trajectory_pb2 import Action, Content, Step


@pytest.fixture
def client(server: Server) -> Client:
    return connect(server.address, strict=True)


@pytest.fixture
def task() -> str:
    return f"task {uuid.uuid4()}"


def cartpole(limit: int = 500) -> gym.Env:
    return gym.make("CartPole-v1", max_episode_steps=limit)


def save(env: Any) -> Any:
    return {"state": np.array(env.state), "beyond": env.steps_beyond_terminated}


def load(env: Any, state: Any) -> None:
    env.state, env.steps_beyond_terminated = tuple(state["state"]), state["beyond"]


def balance(observation: np.ndarray) -> int:
    return int(observation[2] + observation[3] > 0)


def play(env: Record, observation: np.ndarray, steps: int) -> list[np.ndarray]:
    observations = []
    for _ in range(steps):
        observation, *_ = env.step(balance(observation))
        observations.append(observation)
        if env.done:
            break
    return observations


def test_an_episode_is_a_trajectory(client: Client, task: str) -> None:
    env = Record(cartpole(limit=20), client, task=task, name="main", labels={"a": "b"})
    first, _ = env.reset(seed=7, options={"low": -0.01, "high": 0.01})
    observations = [first, *play(env, first, 100)]
    env.trajectory.flush(20)
    (episode,) = client.episodes(task=task)
    assert np.array_equal(episode.observations, np.stack(observations))
    assert (len(episode), episode.truncated, episode.terminated, episode.status) == (20, True, False, "completed")
    assert np.array_equal(episode.rewards, np.ones(20))
    assert (episode.name, dict(episode.labels)) == ("main", {"a": "b"})


def test_resets_and_close_cancel_an_episode_that_has_not_ended(client: Client, task: str) -> None:
    env = Record(cartpole(), client, task=task)
    first, _ = env.reset(seed=1)
    play(env, first, 2)
    trajectories = [env.trajectory]
    env.reset()
    trajectories.append(env.trajectory)
    env.close()
    for trajectory in trajectories:
        trajectory.flush(20)
    found = sorted((len(episode), episode.status) for episode in client.episodes(task=task))
    assert found == [(0, "cancelled"), (2, "cancelled")]


@pytest.mark.parametrize("snapshots", [{}, {"snapshot": save, "restore": load, "snapshot_every": 6}])
def test_a_resumed_environment_continues_exactly(client: Client, task: str, snapshots: dict[str, Any]) -> None:
    env = Record(cartpole(limit=20), client, task=task, **snapshots)
    first, _ = env.reset(seed=7)
    observations = [first, *play(env, first, 100)]
    resumed, observation = resume(cartpole(limit=20), env.trajectory, at=15, name="again", **snapshots)
    assert np.array_equal(observation, observations[15])
    # The time limit is part of the state: it ends the branch at the same step.
    assert np.array_equal(np.stack(play(resumed, observation, 100)), np.stack(observations[16:]))
    comparison = resumed.trajectory.compare(env.trajectory)
    assert (comparison.shared_steps, comparison.first_difference) == (16, None)
    episode = resumed.trajectory.episode()
    assert (len(episode), episode.truncated, episode.name) == (20, True, "again")
    assert [step.number for step in episode.steps if step.states] == ([0, 6, 12, 18] if snapshots else [])


def test_a_branch_differs_where_its_actions_do(client: Client, task: str) -> None:
    env = Record(cartpole(), client, task=task, name="main")
    first, _ = env.reset(seed=7)
    play(env, first, 10)
    branch, _ = resume(cartpole(), env.trajectory, at=5, name="other")
    branch.step(1 - env.trajectory.episode().actions[5])
    text = str(branch.trajectory.compare(env.trajectory))
    assert text == "6 shared steps, first difference at 6 in actions[0], reward -4"
    assert "└─@5 other" in branch.trajectory.tree()


def test_an_environment_that_does_not_repeat_its_recording_has_diverged(client: Client, task: str) -> None:
    env = Record(cartpole(), client, task=task)
    first, _ = env.reset(seed=7)
    play(env, first, 10)
    other = cartpole()
    other.unwrapped.gravity = 12.0
    with pytest.raises(Diverged) as raised:
        resume(other, env.trajectory, at=8)
    # Gravity changes the velocities first.
    assert (raised.value.step, raised.value.path) == (1, "[1]")
    assert raised.value.stored != raised.value.got


def test_without_seed_and_snapshot_there_is_no_resume(client: Client, task: str) -> None:
    # Recorded without `Record`.
    t = client.trajectory(task=task)
    t.reset(observation=np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="neither a seed, nor a state of random numbers, nor a snapshot"):
        resume(cartpole(), t)
    with pytest.raises(ValueError, match="`at` is 5"):
        resume(cartpole(), t, at=5)


class Walk(gym.Env):
    """A random walk that offers its state."""

    observation_space = gym.spaces.Dict({"at": gym.spaces.Box(-np.inf, np.inf, (1,)), "count": gym.spaces.Discrete(99)})
    action_space = gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,))))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at, self.count = np.zeros(1, np.float32), 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.at = self.at + np.float32(self.np_random.random()) + action[1].sum()
        self.count += 1
        return self.observe(), 0.0, False, False, {"mask": np.array([self.count % 2, 1], np.int8)}

    def observe(self) -> dict[str, Any]:
        return {"at": self.at, "count": np.int64(self.count)}

    def get_state(self) -> Any:
        return {"at": self.at, "count": self.count}

    def set_state(self, state: Any) -> None:
        self.at, self.count = state["at"], state["count"]


class Moves(gym.Env):
    """Returns the action that it got, and checks its type."""

    observation_space = gym.spaces.Discrete(1)

    def __init__(self, action: Any, *, space: gym.Space | None = None) -> None:
        self.action_space = space or gym.spaces.Discrete(9)
        self.action = action

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.options = options
        return 0, {}

    def step(self, action: Any) -> Any:
        assert type_of(action) == type_of(self.action)
        return 0, 0.0, False, False, {}


def type_of(value: Any) -> Any:
    """Returns the type of a value and those of its members."""
    if isinstance(value, dict):
        return dict, {key: type_of(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [type_of(member) for member in value]
    return type(value), getattr(value, "dtype", None)


GRAPH = gym.spaces.Graph(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(3), seed=1)
ACTIONS = [
    3,
    True,
    0.5,
    "left",
    None,
    np.int64(3),
    np.float32(0.5),
    np.array([1, 2], np.uint8),
    (1, 2),
    (),
    ("move", (1, 2.5)),
    [1, 2],
    [(1, 2), [3]],
    (np.int64(1), np.zeros(2, np.float32)),
    {"kind": "move", "by": (1, 2), "path": [1, 2]},
    {"at": np.zeros(2), "by": (1, 2), "path": ["a", ("b",)]},
    {1: "a", (2, 3): "b"},
]


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_resume_replays_actions_of_the_type_that_was_recorded(client: Client, task: str, action: Any) -> None:
    env = Record(Moves(action), client, task=task)
    env.reset(seed=1)
    env.step(action)
    resumed, _ = resume(Moves(action), env.trajectory)
    # A branch has the beginning of its parent, so it is resumed too.
    resumed.step(action)
    resume(Moves(action), resumed.trajectory)


@pytest.mark.parametrize(
    "space", [GRAPH, gym.spaces.Dict({"g": gym.spaces.Tuple((GRAPH,))}, seed=1)], ids=["", "nested"]
)
def test_resume_replays_graphs(client: Client, task: str, space: gym.Space) -> None:
    action = space.sample()
    env = Record(Moves(action, space=space), client, task=task)
    env.reset(seed=1)
    env.step(action)
    resume(Moves(action, space=space), env.trajectory)


@pytest.mark.parametrize(
    "options", [{"low": (0, 1)}, {"at": np.zeros(2), "path": [1]}, {"$bytes": 5}, {"x": np.int64(3)}]
)
def test_resume_resets_with_the_options_that_were_recorded(client: Client, task: str, options: dict[str, Any]) -> None:
    env = Record(Moves(0), client, task=task)
    env.reset(seed=7, options=options)
    replayed = Moves(0)
    resume(replayed, env.trajectory)
    assert type_of(replayed.options) == type_of(options)
    assert str(replayed.options) == str(options)


def test_an_action_that_cannot_be_decoded_is_named(client: Client) -> None:
    step = Step(step_number=1, actions=[Action(content=Content(json="9" * 5000))])
    trajectory_id = record(client.connection, [new_step(0, observation=0), step], metadata_json='{"seed":1}')
    problem = f"step 1 of trajectory {trajectory_id} has an action that cannot be replayed: ValueError"
    with pytest.raises(ValueError, match=problem):
        resume(Moves(0), trajectory_id, client=client)


@pytest.mark.parametrize(("package", "name"), [("ale_py", "ALE/Pong-v5"), ("mujoco", "HalfCheetah-v5")])
def test_environments_of_ale_and_mujoco_continue_exactly(client: Client, task: str, package: str, name: str) -> None:
    imported = pytest.importorskip(package)
    if package == "ale_py":
        gym.register_envs(imported)
    env = Record(gym.make(name), client, task=task, snapshot_every=10)
    env.action_space.seed(3)
    env.reset(seed=5)
    actions = [env.action_space.sample() for _ in range(40)]
    observed = [env.step(action) for action in actions]
    resumed, observation = resume(gym.make(name), env.trajectory, at=25, name="again")
    assert [step.number for step in env.trajectory.steps(0, 41) if step.states] == [0, 10, 20, 30, 40]
    assert np.array_equal(observation, observed[24][0])
    for action, (expected, reward, *_) in zip(actions[25:], observed[25:], strict=True):
        observation, got, *_ = resumed.step(action)
        assert (np.array_equal(observation, expected), got) == (True, reward)


def test_snapshots_that_an_environment_offers_have_its_random_numbers(client: Client, task: str) -> None:
    env = Record(Walk(), client, task=task, snapshot_every=4)
    env.reset()
    action = (np.int64(1), np.array([0.5, -0.25], np.float32))
    observations = [env.step(action)[0] for _ in range(10)]
    resumed, observation = resume(Walk(), env.trajectory, at=7)
    assert np.array_equal(observation["at"], observations[6]["at"])
    assert np.array_equal(resumed.step(action)[0]["at"], observations[7]["at"])
    read = resumed.trajectory.episode()
    assert np.array_equal(read.actions[1], np.stack([action[1]] * 8))
    assert np.array_equal(read.infos[1]["mask"], np.array([1, 1], np.int8))


class Counter(gym.Env):
    """Counts its steps, and ends after `length` of them."""

    observation_space = gym.spaces.Box(0, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length = length
        self.episode = 0

    def observe(self) -> np.ndarray:
        return np.array([self.episode * 10 + self.count], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count, self.episode = 0, self.episode + 1
        return self.observe(), {"begin": self.episode}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.observe(), float(self.count), self.count == self.length, False, {"count": self.count}


def factory(length: int) -> Callable[[], gym.Env]:
    return lambda: Counter(length)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_each_episode_of_each_sub_environment_is_a_trajectory(client: Client, task: str, mode: AutoresetMode) -> None:
    env = RecordVector(SyncVectorEnv([factory(2), factory(3)], autoreset_mode=mode), client, task=task)
    env.reset(seed=5)
    dones = np.zeros(2, bool)
    for _ in range(7):
        if mode is AutoresetMode.DISABLED and dones.any():
            env.reset(options={"reset_mask": dones})
        _, _, terminations, truncations, _ = env.step(np.array([0, 1]))
        dones = terminations | truncations
    env.close()
    for trajectory in env.trajectories:
        assert trajectory is not None
        trajectory.flush(20)
    episodes = sorted(client.episodes(task=task), key=lambda one: (one.labels["env_index"], one.observations[0][0]))
    for index, length in enumerate((2, 3)):
        own = [episode for episode in episodes if episode.labels["env_index"] == str(index)]
        assert len(own) >= 2
        for number, episode in enumerate(own, 1):
            count = len(episode)
            assert episode.observations[:, 0].tolist() == [number * 10 + step for step in range(count + 1)]
            assert episode.rewards.tolist() == [float(step) for step in range(1, count + 1)]
            assert episode.actions.tolist() == [index] * count
            assert episode.infos == [{"begin": number}, *({"count": step} for step in range(1, count + 1))]
            assert episode.status == ("completed" if count == length else "cancelled")
        assert all(len(episode) == length for episode in own[:-1])


@pytest.fixture
def calls(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that the recorder of this test begins, without that for the version: methods, and streams."""
    begun: list[str] = []
    own = client.recorder.sender.connections
    call, open_stream = own.call, own.open_stream

    def counted(method: str, *rest: Any) -> None:
        if method != "ServerService/GetServerInfo":
            begun.append(method)
        call(method, *rest)

    def opened(*rest: Any) -> Any:
        begun.append("stream")
        return open_stream(*rest)

    monkeypatch.setattr(own, "call", counted)
    monkeypatch.setattr(own, "open_stream", opened)
    return begun


@pytest.mark.parametrize("count", [4, 64])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_each_vector_step_is_one_append_batch(
    client: Client, task: str, calls: list[str], count: int, mode: AutoresetMode
) -> None:
    lengths = [2 + index % 3 for index in range(count)]
    env = RecordVector(SyncVectorEnv([factory(length) for length in lengths], autoreset_mode=mode), client, task=task)
    known: dict[str, Any] = {}

    def note() -> None:
        known.update({trajectory.id: trajectory for trajectory in env.trajectories if trajectory is not None})

    def durable() -> None:
        note()
        for trajectory in known.values():
            trajectory.flush(60)

    env.reset(seed=5)
    durable()
    for step in range(1, 9):
        env.step(np.zeros(count, np.int64))
        durable()
        # Creations, steps, and seals too.
        assert calls == [APPEND_BATCH] * (1 + step)
    for _ in range(20):
        env.step(np.zeros(count, np.int64))
        note()
    env.close()
    durable()
    # Steps that wait for an answer share the next message.
    assert set(calls) == {APPEND_BATCH}
    assert len(calls) <= 9 + 20 + 1
    episodes = list(client.episodes(task=task))
    assert len(episodes) == len(known)
    assert {episode.status for episode in episodes} == {"completed", "cancelled"}
    for episode in episodes:
        length = lengths[int(episode.labels["env_index"])]
        assert episode.status == ("completed" if len(episode) == length else "cancelled")
        assert episode.rewards.tolist() == [float(number) for number in range(1, len(episode) + 1)]


def test_metadata_has_seed_and_options(client: Client, task: str) -> None:
    env = Record(cartpole(), client, task=task)
    options = {"low": -0.01, "high": 0.01}
    env.reset(seed=7, options=options)
    env.reset()
    env.trajectory.flush(60)
    vector = RecordVector(SyncVectorEnv([cartpole, cartpole, cartpole]), client, task=f"{task} vector")
    vector.reset(seed=1)
    vector.reset(seed=[3, None, 5], options={**options, "reset_mask": np.array([True, True, False])})
    flush(vector)
    # Both may have been created at the same time.
    both = [metadata_of(episode) for episode in client.episodes(task=task)]
    unseeded, seeded = sorted(both, key=lambda each: each["seed"] is not None)
    spaces = {"observation": {"": ["<f4", [4]]}, "action": {"": ["<i8", []]}}
    assert seeded == {"env": "CartPole-v1", "seed": 7, "options": options, "random": None, "spaces": spaces}
    assert (unseeded["seed"], unseeded["random"]["bit_generator"]) == (None, "PCG64")
    found = [metadata_of(each.episode()) for each in vector.trajectories if each is not None]
    assert [each["seed"] for each in found] == [3, None, 3]
    assert [each["options"] for each in found] == [options, options, None]
    assert [each["random"] and each["random"]["bit_generator"] for each in found] == [None, "PCG64", None]


def test_an_episode_without_a_seed_begins_with_its_random_numbers(client: Client, task: str) -> None:
    env = Record(cartpole(limit=20), client, task=task)
    env.reset()
    first, _ = env.reset()
    observations = [first, *play(env, first, 100)]
    resumed, observation = resume(cartpole(limit=20), env.trajectory, at=10)
    assert np.array_equal(observation, observations[10])
    assert np.array_equal(np.stack(play(resumed, observation, 100)), np.stack(observations[11:]))


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("snapshots", [{}, {"snapshot": save, "restore": load, "snapshot_every": 3}])
def test_episodes_after_an_automatic_reset_are_resumed_exactly(
    client: Client, task: str, mode: AutoresetMode, snapshots: dict[str, Any]
) -> None:
    vector = SyncVectorEnv([lambda: cartpole(limit=8), lambda: cartpole(limit=11)], autoreset_mode=mode)
    env = RecordVector(vector, client, task=task, **snapshots)
    observations, _ = env.reset(seed=7)
    dones = np.zeros(2, bool)
    for _ in range(40):
        if mode is AutoresetMode.DISABLED and dones.any():
            observations, _ = env.reset(options={"reset_mask": dones})
        actions = np.array([balance(observation) for observation in observations])
        observations, _, terminations, truncations, _ = env.step(actions)
        dones = terminations | truncations
    env.close()
    flush(env)
    own = [each for each in client.episodes(task=task) if len(each) == (8, 11)[int(each.labels["env_index"])]]
    later = [each for each in own if metadata_of(each)["seed"] is None]
    assert (len(own) - len(later), {each.labels["env_index"] for each in later}) == (2, {"0", "1"})
    for episode in later:
        limit = len(episode)
        taken = [0, 3, 6, 9][: 1 + (limit - 1) // 3]
        assert [step.number for step in episode.steps if step.states] == (taken if snapshots else [])
        resumed, observation = resume(cartpole(limit), episode.id, client=client, at=5, **snapshots)
        assert np.array_equal(observation, episode.observations[5])
        assert np.array_equal(np.stack(play(resumed, observation, 100)), episode.observations[6:])
        assert resumed.trajectory.episode().truncated


def test_snapshots_that_sub_environments_offer_are_taken(client: Client, task: str) -> None:
    env = RecordVector(SyncVectorEnv([Walk, Walk]), client, task=task, snapshot_every=4)
    env.reset()
    action = (np.array([1, 0]), np.array([[0.5, -0.25], [0.0, 0.25]], np.float32))
    observed = [env.step(action)[0]["at"].copy() for _ in range(10)]
    env.close()
    flush(env)
    for trajectory in env.trajectories:
        assert trajectory is not None
        episode = trajectory.episode()
        index = int(episode.labels["env_index"])
        assert [step.number for step in episode.steps if step.states] == [0, 4, 8]
        resumed, observation = resume(Walk(), trajectory, at=6)
        assert np.array_equal(observation["at"], observed[5][index])
        assert np.array_equal(resumed.step((action[0][index], action[1][index]))[0]["at"], observed[6][index])


def test_sub_environments_of_other_processes_have_neither_snapshots_nor_random_numbers(
    client: Client, task: str
) -> None:
    vector = AsyncVectorEnv([factory(2), factory(3)], context="spawn")
    with pytest.raises(ValueError, match="`snapshot` needs sub-environments in this process"):
        RecordVector(vector, client, snapshot=save, restore=load)
    env = RecordVector(vector, client, task=task, snapshot_every=1)
    env.reset(seed=5)
    for _ in range(5):
        env.step(np.array([0, 1]))
    env.close()
    flush(env)
    episodes = sorted(client.episodes(task=task), key=lambda each: (each.labels["env_index"], each.observations[0][0]))
    assert [metadata_of(each)["seed"] for each in episodes] == [5, None, 6, None]
    assert [metadata_of(each)["random"] for each in episodes] == [None] * 4
    assert not any(step.states for each in episodes for step in each.steps)
    with pytest.raises(ValueError, match="nor a state of random numbers"):
        resume(Counter(2), episodes[1].id, client=client)
    resumed, observation = resume(Counter(2), episodes[0].id, client=client, at=1)
    assert (observation.tolist(), resumed.trajectory.next_step) == ([11.0], 2)


def flush(env: RecordVector) -> None:
    for trajectory in env.trajectories:
        if trajectory is not None:
            trajectory.flush(60)


def metadata_of(episode: Any) -> dict[str, Any]:
    return decode_json(episode.trajectory.metadata_json)


class Given(gym.Env):
    """Returns what it is given: results of `step()`, over and over."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, *results: Any) -> None:
        self.results = results

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.results[(self.count - 1) % len(self.results)]


class GivenVector(gym.vector.VectorEnv):
    """The same for a vector environment of two, whose sub-environments are none of this process."""

    num_envs = 2
    single_observation_space = Given.observation_space
    single_action_space = Given.action_space
    observation_space = gym.vector.utils.batch_space(single_observation_space, 2)
    action_space = gym.vector.utils.batch_space(single_action_space, 2)

    def __init__(self, *results: Any, mode: AutoresetMode = AutoresetMode.NEXT_STEP, infos: Any = None) -> None:
        self.results, self.infos = results, {} if infos is None else infos
        self.metadata = {"autoreset_mode": mode}
        self.count = 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros((2, 2), np.float32), self.infos

    def step(self, actions: Any) -> Any:
        self.count += 1
        return self.results[(self.count - 1) % len(self.results)]


class Hostile:
    """A value whose own code fails."""

    def __float__(self) -> float:
        raise OSError

    def __bool__(self) -> bool:
        raise OSError

    def __getattr__(self, name: str) -> object:
        raise OSError


SEEN = np.zeros(2, np.float32)
REWARDS: list[tuple[Any, float | None, dict[str, float]]] = [
    (np.array([0.5]), 0.5, {}),
    (np.float32(1), 1.0, {}),
    (np.array([1.0, -2.0]), None, {"reward/0": 1.0, "reward/1": -2.0}),
    ({"red": 1, "blue": np.float32(2)}, None, {"reward/red": 1.0, "reward/blue": 2.0}),
    (None, None, {}),
    ("high", None, {}),
    (Hostile(), None, {}),
]


@pytest.fixture
def lenient(server: Server) -> Client:
    return connect(server.address)


def test_rewards_of_any_kind_end_no_loop(lenient: Client, task: str) -> None:
    env = Record(Given(*((SEEN, reward, False, False, {}) for reward, _, _ in REWARDS)), lenient, task=task)
    env.reset(seed=1)
    for reward, _, _ in REWARDS:
        assert env.step(0)[1] is reward
    steps = list(env.trajectory.steps(1))
    assert [(step.reward, step.metrics) for step in steps] == [each[1:] for each in REWARDS]


def test_rewards_of_any_kind_end_no_vector_loop(lenient: Client, task: str) -> None:
    flags = np.zeros(2, bool)
    batches: list[tuple[Any, list[Any]]] = [
        (np.array([[0.5], [1.5]]), [(0.5, {}), (1.5, {})]),
        (
            np.array([[1.0, 2.0], [3.0, 4.0]]),
            [(None, {"reward/0": 1.0, "reward/1": 2.0}), (None, {"reward/0": 3.0, "reward/1": 4.0})],
        ),
        ([1, None], [(1.0, {}), (None, {})]),
        ({"a": [1, 2], "b": [3, 4]}, [(None, {"reward/a": 1, "reward/b": 3}), (None, {"reward/a": 2, "reward/b": 4})]),
        (None, [(None, {}), (None, {})]),
        (2.0, [(2.0, {}), (2.0, {})]),
        (Hostile(), [(None, {}), (None, {})]),
        ([Hostile(), 1.0], [(None, {}), (1.0, {})]),
    ]
    vector = GivenVector(*((np.zeros((2, 2)), rewards, flags, flags, {}) for rewards, _ in batches))
    env = RecordVector(vector, lenient, task=task)
    env.reset()
    for rewards, _ in batches:
        assert env.step(np.array([0, 1]))[1] is rewards
    for index, trajectory in enumerate(env.trajectories):
        assert trajectory is not None
        stored = [(step.reward, step.metrics) for step in trajectory.steps(1)]
        assert stored == [expected[index] for _, expected in batches]


@pytest.mark.parametrize(
    ("scalarize", "expected"),
    [(lambda reward: reward @ np.array([1.0, 0.5]), 0.0), (lambda reward: reward.missing, None)],
)
def test_scalarize_returns_the_reward_of_several_objectives(
    lenient: Client, task: str, scalarize: Any, expected: float | None
) -> None:
    reward = np.array([1.0, -2.0])
    result = (SEEN, reward, False, False, {})
    env = Record(Given(result, (SEEN, 3.0, True, False, {})), lenient, task=task, scalarize=scalarize)
    env.reset(seed=1)
    env.step(0)
    env.step(0)
    batch = (np.zeros((2, 2)), np.stack([reward, reward]), np.zeros(2, bool), np.zeros(2, bool), {})
    vector = RecordVector(GivenVector(batch), lenient, task=task, scalarize=scalarize)
    vector.reset()
    vector.step(np.array([0, 1]))
    for trajectory in (env.trajectory, *vector.trajectories):
        assert trajectory is not None
        first, *rest = trajectory.steps(1)
        assert first.metrics == {"reward/0": 1.0, "reward/1": -2.0}
        assert first.reward == expected
        assert [step.reward for step in rest] in ([3.0], [])
    resumed, _ = resume(Given(result), env.trajectory, at=1, scalarize=scalarize)
    resumed.step(0)
    (again,) = resumed.trajectory.steps(2)
    assert (again.reward, again.metrics) == (first.reward, first.metrics)


def test_a_resume_compares_all_objectives(lenient: Client, task: str) -> None:
    env = Record(Given((SEEN, np.array([1.0, 2.0]), False, False, {})), lenient, task=task)
    env.reset(seed=1)
    env.step(0)
    with pytest.raises(Diverged) as raised:
        resume(Given((SEEN, np.array([1.0, 3.0]), False, False, {})), env.trajectory)
    assert (raised.value.path, raised.value.stored, raised.value.got) == ("reward/1", 2.0, 3.0)


RESULTS = [
    (SEEN, 1.0, False, False),
    (SEEN, 1.0, False, False, {}, "more"),
    None,
    (SEEN, 1.0, None, Hostile(), {}),
    (SEEN, 1.0, np.array([False]), np.array([False, True]), None),
    (Hostile(), Hostile(), False, False, Hostile()),
    (None, None, None, None, None),
]


def test_nothing_raises_after_the_step_of_an_environment(
    lenient: Client, task: str, caplog: pytest.LogCaptureFixture
) -> None:
    env = Record(Given(*RESULTS, (SEEN, 5.0, True, False, {})), lenient, task=task)
    env.reset(seed=1)
    for result in RESULTS:
        assert env.step(Hostile()) is result
    assert not env.done
    env.step(0)
    assert env.done
    assert [step.reward for step in env.trajectory.steps(1)] == [1.0, 1.0, None, None, 5.0]
    assert env.trajectory.episode().status == "completed"
    text = "anabranch: Record.step recorded only a part: ValueError: not enough values to unpack (expected 5, got 4)."
    assert text in [record.getMessage() for record in caplog.records]


def test_a_reset_that_cannot_be_recorded_ends_no_loop(lenient: Client) -> None:
    class Other(Given):
        def reset(self, **_: Any) -> Any:
            self.count = 0

    env = Record(Other((SEEN, 1.0, False, False, {})), lenient)
    assert env.reset() is None
    env.step(0)
    assert lenient.stats.unstored == {"Record.reset": 1, "Record.step": 1}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_nothing_raises_after_the_step_of_a_vector_environment(lenient: Client, task: str, mode: AutoresetMode) -> None:
    seen, none, ends = np.zeros((2, 2)), np.zeros(2, bool), np.array([True, False])
    results = [
        # The fifth would end the second sub-environment.
        *RESULTS[:4],
        *RESULTS[5:],
        (seen, [1.0, 1.0], none, none, None),
        (seen, [1.0, 1.0], none, none, [{"a": 1}, {"a": 2}]),
        (seen, [1.0, 1.0], None, None, {"a": Hostile()}),
        (seen, [1.0, 1.0], [Hostile(), False], none, {}),
        ((), [1.0, 1.0], none, none, {}),
        (seen[:1], [1.0, 1.0], none, none, {}),
        (seen, [9.0, 1.0], ends, none, {}),
        (seen, [1.0, 1.0], none, none, None),
    ]
    env = RecordVector(GivenVector(*results, mode=mode), lenient, task=task)
    env.reset(seed=np.int64(3))
    for result in results:
        assert env.step(iter([0, 1])) is result
    env.close()
    flush(env)
    episodes = list(lenient.episodes(task=task))
    (ended,) = (episode for episode in episodes if episode.status == "completed")
    assert (ended.labels["env_index"], ended.rewards[-1]) == ("0", 9.0)
    assert {metadata_of(episode)["seed"] for episode in episodes} >= {3, 4}
    assert sum(len(episode) for episode in episodes if episode.labels["env_index"] == "1") >= 10


def test_a_snapshot_that_fails_ends_no_loop(lenient: Client, task: str, caplog: pytest.LogCaptureFixture) -> None:
    def failing(_: Any) -> Any:
        raise OSError("the device is away")

    for env in (
        Record(cartpole(), lenient, task=task, snapshot=failing, restore=load, snapshot_every=1),
        RecordVector(SyncVectorEnv([cartpole]), lenient, task=task, snapshot=failing, restore=load, snapshot_every=1),
    ):
        env.reset(seed=1)
        env.step(np.array([0]) if isinstance(env, RecordVector) else 0)
    text = "The environment has no snapshots: the device is away. It resumes by replaying its actions."
    assert [record.getMessage() for record in caplog.records] == [text, text]
    for make in (Record, RecordVector):
        with pytest.raises(ValueError, match="`snapshot_every` is 0: expected a number of steps, 1 or above"):
            make(cartpole() if make is Record else SyncVectorEnv([cartpole]), lenient, snapshot_every=0)


def test_an_environment_with_other_random_numbers_is_recorded(client: Client, task: str) -> None:
    class Other(Given):
        np_random = "of another library"  # type: ignore[assignment]

        def reset(self, **_: Any) -> Any:
            self.count = 0
            return SEEN, {}

    env = Record(Other((SEEN, 1.0, False, False, {})), client, task=task)
    env.reset()
    env.step(0)
    assert metadata_of(env.trajectory.episode())["random"] is None


class Infos(Given):
    """Has infos whose names begin with an underscore, as the masks of vector environments."""

    def __init__(self, number: int) -> None:
        infos = [{"_x": 1.5, "__y": "a", 5: 1, "d": {"_z": 2}}, {"x": 3, "d": {"z": 1, "_z": True}}]
        super().__init__((SEEN, 1.0, False, False, infos[number]))


def test_infos_whose_names_begin_with_an_underscore_are_kept(client: Client, task: str) -> None:
    env = RecordVector(SyncVectorEnv([lambda: Infos(0), lambda: Infos(0)]), client, task=task)
    env.reset()
    env.step(np.array([0, 1]))
    flush(env)
    for episode in client.episodes(task=task):
        assert episode.infos[1] == {"_x": 1.5, "__y": "a", "5": 1, "d": {"_z": 2}}


@pytest.mark.parametrize(
    ("infos", "expected"),
    [
        # Without masks, as some vector environments have them.
        ({"x": [1, 2], "_x": np.array([3.0, 4.0])}, [{"x": 1, "_x": 3.0}, {"x": 2, "_x": 4.0}]),
        # Gymnasium writes an info into the mask of another one: it has a mask itself.
        (
            {"x": [1, 2], "_x": np.array([True, False]), "__x": np.array([True, True])},
            [{"x": 1, "_x": True}, {"x": 2, "_x": False}],
        ),
        ({"x": [1, 2], "_x": np.array([True, False])}, [{"x": 1}, {}]),
        ({5: [1, 2], "_5": np.array([False, True])}, [{}, {"5": 2}]),
        # What is of all sub-environments.
        ({"lr": 0.5, "name": "ab", "log": {"loss": 1.0}}, [{"lr": 0.5, "name": "ab", "log": {"loss": 1.0}}] * 2),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
    ],
)
def test_each_sub_environment_has_its_infos(client: Client, task: str, infos: Any, expected: list[Any]) -> None:
    env = RecordVector(GivenVector(infos=infos), client, task=task)
    env.reset()
    flush(env)
    found = sorted(client.episodes(task=task), key=lambda episode: episode.labels["env_index"])
    assert [episode.steps[0].info for episode in found] == expected
