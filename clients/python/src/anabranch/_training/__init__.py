"""Runs and rollouts, and the environments that are played."""
