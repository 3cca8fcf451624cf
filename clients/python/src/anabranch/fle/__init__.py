"""Imports databases of the Factorio Learning Environment (FLE): `python -m anabranch.fle import SOURCE`."""
