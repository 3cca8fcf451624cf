"""CartPole with a controller: a main episode, and two branches from its step 100 with other gains."""

import gymnasium as gym

import anabranch as ab


def pid(observation, gain):
    position, velocity, angle, rotation = observation
    return int(angle + gain * (0.5 * rotation + 0.05 * position + 0.1 * velocity) > 0)


client = ab.connect()  # ANABRANCH_ADDRESS, default 127.0.0.1:50051
env = ab.gym.Record(gym.make("CartPole-v1"), client, task="CartPole-v1", name="main")
observation, info = env.reset(seed=7)  # starts a trajectory; step 0 is the result of reset()
for _ in range(200):
    observation, reward, terminated, truncated, info = env.step(pid(observation, gain=1.0))
main = env.trajectory  # no call so far waited for the server

for gain in 0.5, 2.0:  # two branches from step 100; nothing is copied
    env, observation = ab.gym.resume(gym.make("CartPole-v1"), main, at=100, name=f"gain {gain}")
    while not env.done:
        observation, *_ = env.step(pid(observation, gain))
    print(env.trajectory.compare(main))  # 101 shared steps, first difference at …, reward …
print(main.tree())  # the same picture as `anabranch tree`
