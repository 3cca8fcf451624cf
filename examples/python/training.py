def trainer():
    run = client.run("qwen3-vl-cua", config=CONFIG, plan=ab.Plan(train_steps=3, groups=2, group_size=4, max_turns=20))
    client.tasks.put(TASKS, validators={"state": {}, "screenshot": {"advisory": True}})
    for stage in run.train_steps():                                       # resumes after the latest checkpointed stage
        stage.rollouts([(group, sibling, task) for group, task in enumerate(batch()) for sibling in range(4)])
        for group in stage.groups(complete=True):                         # as they finish, whichever worker plays them
            learner.add(group.tokens(), group.rewards)
        stage.log(loss=learner.step(), kl=learner.kl)
        stage.checkpoint(learner.save())

def worker():
    client.work(play, run="qwen3-vl-cua", concurrency=4)                  # claims, renews leases, returns when the run has ended

def play(rollout):
    with rollout:                                                         # exit: completed; exception: failed; LeaseLost ends it
        device = make_device(rollout.task)
        rollout.reset(screenshot=device.screenshot())
        for _ in range(rollout.max_turns):
            action, tokens, logprobs = sample(rollout.messages)
            rollout.step(action=action, token_ids=tokens, logprobs=logprobs, screenshot=device.do(action))
        rollout.validate("state", success=device.check(rollout.task))

threads = [threading.Thread(target=program) for program in (worker, worker, trainer)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(learner)
