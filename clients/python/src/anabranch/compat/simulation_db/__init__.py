"""The managers of simulator-state-db: `simulation_db`.

Change only the import lines:

    from anabranch.compat.simulation_db.database import SessionLocal, init_db
    from anabranch.compat.simulation_db.managers.simulation_manager import SimulationManager
    from anabranch.compat.simulation_db.managers.state_manager import StateManager

A simulation is an experiment, and a run is a run with a main trajectory: the page and `anabranch tree` show its
branches. A state that `create_state` returns is a step of a tree of states, which belong to no run; `add_state_to_run`
appends the same step to the run. Ids are text, times are in UTC without a time zone.
"""
