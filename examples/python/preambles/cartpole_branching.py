"""Defines what cartpole_branching.py leaves undefined: an agent that learns, and falls if it learns too fast."""

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


