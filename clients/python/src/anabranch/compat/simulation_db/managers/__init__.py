"""The managers of runs and of states."""
