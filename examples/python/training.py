"""A trainer, and workers that play its rollouts on devices.

`python training.py` runs a trainer and two workers, `python training.py trainer` and `python training.py worker` one of
them: any number of workers may run, on any machine, and all of them may be killed and started again. The device, the
model and the learner are small fakes.
"""

import asyncio
import sys

from PIL import Image

import anabranch as ab

CONFIG = {"lr": 1e-6}
TASKS = [{"id": f"settings/{number}", "description": f"Set it to {number}.", "max_turns": 3} for number in range(4)]


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


learner = Learner()


async def trainer():
    async with ab.aio.connect() as client:
        plan = ab.Plan(train_steps=2, groups=2, group_size=4, max_turns=3)
        run = await client.run("qwen3-vl-cua", config=CONFIG, plan=plan)
        await client.tasks.put(TASKS, validators={"state": {}, "screenshot": {"advisory": True}})
        async for stage in run.train_steps():  # resumes after the latest checkpointed stage
            await stage.rollouts([(group, number, task) for group, task in enumerate(batch()) for number in range(4)])
            async for group in stage.groups(complete=True):  # as they finish, whichever worker plays them
                learner.add(group.tokens(), group.rewards)
            stage.log(loss=learner.step(), kl=learner.kl)
            stage.checkpoint(learner.save())


async def worker():
    async with ab.aio.connect() as client:
        # Claims rollouts and renews their leases. Returns when the run has ended.
        await client.work(play, run="qwen3-vl-cua", concurrency=32)


async def play(rollout):
    async with rollout:  # an exception fails it, the end completes it, and a lost lease ends it
        device = await make_device(rollout.task)
        rollout.reset(screenshot=await device.screenshot())
        for _ in range(rollout.max_turns):
            action, tokens, logprobs = await sample(rollout.messages)
            rollout.step(action=action, token_ids=tokens, logprobs=logprobs, screenshot=await device.do(action))
        rollout.validate("state", success=await device.check(rollout.task))


PARTS = {"all": [trainer, worker, worker], "trainer": [trainer], "worker": [worker]}


async def main(part):
    await asyncio.gather(*(each() for each in PARTS[part]))
    if part != "worker":
        print(f"trained on {learner.groups} groups with {learner.rows} rows, saved {learner.saved} checkpoints")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "all"))
