async def trainer():
    async with ab.aio.connect() as client:
        run = await client.run("qwen3-vl-cua", config=CONFIG, plan=ab.Plan(train_steps=100, groups=8, group_size=4, max_turns=20))
        await client.tasks.put(TASKS, validators={"state": {}, "screenshot": {"advisory": True}})
        async for stage in run.train_steps():                             # resumes after the latest checkpointed stage
            await stage.rollouts([(group, sibling, task) for group, task in enumerate(batch()) for sibling in range(4)])
            async for group in stage.groups(complete=True):               # as they finish, whichever worker plays them
                learner.add(group.tokens(), group.rewards)
            stage.log(loss=learner.step(), kl=learner.kl)
            stage.checkpoint(learner.save())

async def worker():
    async with ab.aio.connect() as client:
        await client.work(play, run="qwen3-vl-cua", concurrency=32)       # claims, renews leases, returns when the run has ended

async def play(rollout):
    async with rollout:                                                   # exit: completed; exception: failed; LeaseLost ends it
        device = await make_device(rollout.task)
        rollout.reset(screenshot=await device.screenshot())
        for _ in range(rollout.max_turns):
            action, tokens, logprobs = await sample(rollout.messages)
            rollout.step(action=action, token_ids=tokens, logprobs=logprobs, screenshot=await device.do(action))
        rollout.validate("state", success=await device.check(rollout.task))
