"""The example of simulator-state-db: a main run, and branches from its step 200 with other learning rates.

The agent learns while it plays, and falls if it learns too fast.
"""

import gymnasium as gym

import anabranch as ab


class Agent:
    def __init__(self, lr, weights=(0.05, 0.1, 1.0, 0.5)):
        self.lr, self.weights = lr, list(weights)

    def act(self, observation):
        values = [float(value) for value in observation]
        action = int(sum(weight * value for weight, value in zip(self.weights, values)) > 0)
        self.weights = [weight + self.lr * values[1] * value for weight, value in zip(self.weights, values)]
        return action

    def copy(self, lr):
        return Agent(lr, self.weights)


client = ab.connect()
agent = Agent(lr=0.001)
env = ab.gym.Record(gym.make("CartPole-v1"), client, task="CartPole-v1", name="main", labels={"lr": "0.001"})
observation, info = env.reset(seed=7)
for _ in range(200):
    observation, *_ = env.step(agent.act(observation))
main = env.trajectory

for lr in 0.01, 0.1:
    learner = agent.copy(lr)  # the agent as it was at step 200
    env, observation = ab.gym.resume(gym.make("CartPole-v1"), main, at=200, name=f"lr {lr}", labels={"lr": f"{lr}"})
    while not env.done:
        observation, *_ = env.step(learner.act(observation))
    print(env.trajectory.compare(main))  # 201 shared steps, first difference at 201, …, reward …
print(main.tree())
