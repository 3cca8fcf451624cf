"""The interfaces of three earlier systems, kept in Anabranch. Their code runs with only its import lines changed:

- `anabranch.compat.fle`: the database client of the Factorio Learning Environment.
- `anabranch.compat.cua`: the queries of the CUA RL database.
- `anabranch.compat.simulation_db`: the managers of simulator-state-db.

A call returns when its data is durable. `docs/coming-from.md` says as what values come back. The modules use the server
at ANABRANCH_ADDRESS, else a local server on the database that the settings of the system name. Settings are environment
variables, else those of the file `.env` in the working directory or the nearest folder above it.

`python -m anabranch.compat import SOURCE` imports a database of any of the three.
"""
