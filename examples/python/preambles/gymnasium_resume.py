"""Defines what gymnasium_resume.py leaves undefined: a controller that balances the pole."""

import gymnasium as gym

import anabranch as ab


def pid(observation, gain):
    position, velocity, angle, rotation = observation
    return int(angle + gain * (0.5 * rotation + 0.05 * position + 0.1 * velocity) > 0)


