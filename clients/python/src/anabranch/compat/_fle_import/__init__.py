"""Imports the table `programs` of databases of the Factorio Learning Environment (FLE)."""
