client = ab.connect()                                    # the example of simulator-state-db: a main run, and branches from
agent = Agent(lr=0.001)                                  # its step 200 with other learning rates
env = ab.gym.Record(gym.make("CartPole-v1"), client, task="CartPole-v1", name="main", labels={"lr": "0.001"})
observation, info = env.reset(seed=7)
for _ in range(200):
    observation, *_ = env.step(agent.act(observation))
main = env.trajectory

for lr in 0.01, 0.1:
    learner = agent.copy(lr)                             # the agent as it was at step 200
    env, observation = ab.gym.resume(gym.make("CartPole-v1"), main, at=200, name=f"lr {lr}", labels={"lr": f"{lr}"})
    while not env.done:
        observation, *_ = env.step(learner.act(observation))
    print(env.trajectory.compare(main))                  # 201 shared steps, first difference at 201, …, reward …
print(main.tree())
