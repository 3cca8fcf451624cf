"""What is read: trajectories, steps, states, series, comparisons."""
