"""A program that is killed, and continues at its latest checkpoint when it is started again.

`python checkpoints.py 150` dies within step 150, as by `kill -9`; `python checkpoints.py` continues. The environment
sums what it is told, and the agent counts.
"""

import json
import os
import sys

import anabranch as ab

CRASH_AT = int(sys.argv[1]) if len(sys.argv) > 1 else None


class Environment:
    def __init__(self):
        self.total = self.steps = 0

    def reset(self):
        return "total 0"

    def step(self, code):
        self.steps += 1
        self.total += int(code.removeprefix("add "))
        if self.steps == CRASH_AT:
            os._exit(1)
        return f"total {self.total}", float(self.steps % 12), False, False, {"steps": self.steps}

    def save_state(self):
        return json.dumps([self.total, self.steps]).encode()

    def load_state(self, state):
        self.total, self.steps = json.loads(state)


class Agent:
    def __init__(self):
        self.calls = 0

    def act(self, observation):
        assert observation == f"total {env.total}", "agent and environment are of one step"
        self.calls += 1
        return f"add {self.calls}"

    def dump(self):
        return {"calls": self.calls}

    def load(self, state):
        self.calls = state["calls"]


client, env, agent = ab.connect(), Environment(), Agent()
t = client.trajectory(
    task="iron_plate_throughput", name="run 7", resume="checkpoint"
)  # finds it by name, or creates it
if point := t.checkpoint():  # its states; t.rewind(40), t.rewind("best") for others
    env.load_state(point["env"])
    agent.load(point["agent"])
    print(f"continues after step {point.step}")
else:
    t.reset(observation=env.reset())
while t.next_step <= 500:
    code = agent.act(t.last_observation)
    feedback, reward, done, truncated, info = env.step(code)
    t.step(
        action=code,
        observation=feedback,
        reward=reward,
        info=info,
        tags=["best"] if reward > 10 else [],
        states={"env": env.save_state(), "agent": agent.dump()},
    )
t.flush()  # returns when every step is durable
print(f"{t.next_step} steps, {t.last_observation}, reward {t.reward_sum}")
