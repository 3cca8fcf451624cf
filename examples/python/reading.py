"""Episodes as arrays, tables and data sets, and the tokens of rollouts. Records first what it reads."""

import importlib.util
import os
import tempfile
import warnings

import gymnasium as gym

import anabranch as ab

LABELS = {"program": "reading.py"}  # other programs may record the same task


def record(client):
    env = ab.gym.Record(gym.make("CartPole-v1"), client, task="CartPole-v1", labels=LABELS)
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        while not env.done:
            observation, *_ = env.step(int(observation[2] + observation[3] > 0))
        env.trajectory.flush()


def read(client):
    episodes = client.episodes(
        task="CartPole-v1", labels=LABELS, status="completed", min_reward=20
    )  # nothing is read yet
    for episode in episodes:  # one stream for any number of episodes
        print(episode.observations.shape, episode.actions.shape, episode.rewards.sum())  # of T + 1, T and T steps
    frame = episodes.to_pandas()  # a row per step; to_arrow(): RecordBatchReader (polars, duckdb)
    print(len(frame), "rows, mean reward of an episode", frame.groupby("trajectory_id").reward.sum().mean())
    hf = episodes.to_hf()  # a datasets.IterableDataset
    print(len(list(hf)), "rows, the first one:", next(iter(hf)))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        warnings.filterwarnings("ignore", module="minari")  # it asks for an author, and for other descriptions
        dataset = episodes.to_minari("cartpole/main-v0", env="CartPole-v1")
        print(dataset.total_episodes, "episodes of Minari,", dataset.total_steps, "steps")
    if importlib.util.find_spec("torch"):
        from torch.utils.data import DataLoader

        loader = DataLoader(
            episodes.to_torch(shuffle=1000), batch_size=None, num_workers=4
        )  # sharded by worker and rank
        print(sum(1 for _ in loader), "episodes")


def play(rollout):
    rollout.reset(observation="start")
    rollout.step(action="a", token_ids=[1, 2, rollout.number], logprobs=[-0.1, -0.2, -0.3])
    rollout.success = rollout.number > 0


def read_tokens(client):
    run = client.run("reading", config={})
    for stage in run.train_steps(stop=1):
        stage.rollouts([{"group": 0, "number": number} for number in range(3)])
        stage.close_queue()
        client.work(play, stage=stage)
        stage.checkpoint("file:///models/0")
    batch = run.rollouts(stage=0, success=True).tokens(pad_id=0, max_length=8192)
    print(batch["input_ids"])


if __name__ == "__main__":
    with ab.connect() as client:
        record(client)
        read(client)
        read_tokens(client)
