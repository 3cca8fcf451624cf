"""Defines what training.py leaves undefined: a device with a screen, a model that samples, and a learner that counts.

`asyncio.run(trainer())` in one process trains, `asyncio.run(worker())` in others plays. With KILL_AT=N, the process kills
itself when it samples for the Nth time.
"""

import asyncio
import os
import signal

from PIL import Image

import anabranch as ab

CONFIG = {"lr": 1e-6}
TASKS = [{"id": f"settings/{number}", "description": f"Set it to {number}.", "max_turns": 3} for number in range(4)]
KILL_AT = int(os.environ.get("KILL_AT", "-1"))
samples = 0


def batch():
    return TASKS[:2]


class Device:
    def __init__(self, task):
        self.task, self.pressed = task, 0

    async def screenshot(self):
        return Image.new("RGB", (64, 32), (self.pressed, 0, 0))

    async def do(self, action):
        await asyncio.sleep(0.01)
        self.pressed += action["press"] == "up"
        return await self.screenshot()

    async def check(self, task):
        return self.pressed == task.max_turns


async def make_device(task):
    return Device(task)


async def sample(messages):
    global samples
    samples += 1
    if samples == KILL_AT:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"press": "up"}, [1, 2, 3], [-0.1, -0.2, -0.3]


class Learner:
    kl = 0.01

    def __init__(self):
        self.rows = self.groups = self.saved = 0

    def add(self, tokens, rewards):
        self.groups += 1
        self.rows += len(tokens)

    def step(self):
        return 1.0 / self.groups

    def save(self):
        self.saved += 1
        return f"file:///models/{self.saved}"

    def __str__(self):
        return f"{self.groups} groups, {self.rows} rows, {self.saved} checkpoints"


learner = Learner()
