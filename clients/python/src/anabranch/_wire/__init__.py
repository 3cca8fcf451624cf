"""Calls to the server, and Python values as the messages that they have."""
