"""Records what reading.py reads: four episodes of CartPole, and a run whose rollouts have tokens."""

import gymnasium as gym
import torch

import anabranch as ab

client = ab.connect()
env = ab.gym.Record(gym.make("CartPole-v1"), client, task="CartPole-v1")
for seed in range(4):
    observation, info = env.reset(seed=seed)
    while not env.done:
        observation, *_ = env.step(int(observation[2] + observation[3] > 0))
    env.trajectory.flush()


def play(rollout):
    rollout.reset(observation="start")
    rollout.step(action="a", token_ids=[1, 2, rollout.number], logprobs=[-0.1, -0.2, -0.3])
    rollout.success = rollout.number > 0


run = client.run("qwen3-vl-cua", config={})
stage = run.stage("train_step", 0)
stage.start()
stage.rollouts([{"group": 0, "number": number} for number in range(3)])
stage.close_queue()
client.work(play, stage=stage)
