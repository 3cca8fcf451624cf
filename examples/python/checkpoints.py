t = client.trajectory(task="iron_plate_throughput", name="run 7", resume="allow")   # finds it by name, or creates it
if point := t.checkpoint():                                   # the latest; t.checkpoint(40), t.checkpoint("best") for others
    env.load_state(point["env"])
    agent.load(point["agent"])
else:
    t.reset(observation=env.reset())
while t.next_step < 5000:
    code = agent.act(t.last_observation)
    feedback, reward, done, truncated, info = env.step(code)
    t.step(action=code, observation=feedback, reward=reward, info=info, tags=["best"] if reward > 10 else [],
           states={"env": env.save_state(), "agent": agent.dump()})
t.flush()                                                     # returns when every step is durable
