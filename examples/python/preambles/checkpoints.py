"""Defines what checkpoints.py leaves undefined: an environment that sums what it is told, and an agent that counts.

With CRASH_AT=N, the process dies in the middle of step N, as `kill -9` would end it.
"""

import json
import os

import anabranch as ab

client = ab.connect()
CRASH_AT = int(os.environ.get("CRASH_AT", "-1"))


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
        assert observation == f"total {env.total}"
        self.calls += 1
        return f"add {self.calls}"

    def dump(self):
        return {"calls": self.calls}

    def load(self, state):
        self.calls = state["calls"]


env, agent = Environment(), Agent()
