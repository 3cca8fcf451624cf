"""Databases as CUA RL and simulator-state-db create them, on both engines. Each has the columns of their models."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

_PROGRESS = """status VARCHAR, progress_percent FLOAT, current_phase VARCHAR, status_message TEXT, error_message TEXT,
  start_time TIMESTAMP, end_time TIMESTAMP"""
_TIMES = """avg_turn_time FLOAT, estimated_total_time FLOAT, estimated_remaining_time FLOAT, created_at TIMESTAMP,
  updated_at TIMESTAMP"""
_EVALUATION = f"""training_id INTEGER NOT NULL, model_path TEXT NOT NULL, {_PROGRESS}, current_task_index INTEGER,
  total_tasks INTEGER, completed_tasks INTEGER, eval_time TIMESTAMP, success_rate FLOAT, avg_reward FLOAT,
  avg_turns FLOAT, successful_tasks INTEGER, metrics_json TEXT, {_TIMES}"""
CUA = {
    "training": f"""run_name VARCHAR NOT NULL UNIQUE, log_path TEXT NOT NULL, model_name VARCHAR NOT NULL,
      lora_rank INTEGER, learning_rate FLOAT, batch_size INTEGER, group_size INTEGER, groups_per_batch INTEGER,
      max_tokens INTEGER, temperature FLOAT, kl_penalty_coef FLOAT, num_substeps INTEGER, max_turns INTEGER,
      seed INTEGER, box_type VARCHAR, renderer_name VARCHAR, wandb_project VARCHAR, wandb_name VARCHAR, {_PROGRESS},
      current_step INTEGER, total_steps INTEGER, last_heartbeat TIMESTAMP, config_json TEXT, {_TIMES}""",
    "baseline": _EVALUATION,
    "eval": f"step INTEGER NOT NULL, {_EVALUATION}",
    "task": """task_id VARCHAR NOT NULL UNIQUE, name VARCHAR NOT NULL, description TEXT NOT NULL, difficulty VARCHAR,
      category VARCHAR, max_steps INTEGER, validation_type VARCHAR, validation_query TEXT, expected_result TEXT,
      tags TEXT, prerequisites TEXT, app_name VARCHAR, source_type VARCHAR, created_at TIMESTAMP, updated_at TIMESTAMP""",
    "validator": """task_id INTEGER NOT NULL, validator_type VARCHAR NOT NULL, validation_query TEXT,
      validation_method VARCHAR, config_json TEXT, created_at TIMESTAMP""",
    "step": f"""training_id INTEGER NOT NULL, step INTEGER NOT NULL, batch INTEGER, {_PROGRESS}, rollout_progress TEXT,
      training_progress TEXT, rollout_start_time TIMESTAMP, rollout_end_time TIMESTAMP, training_start_time TIMESTAMP,
      training_end_time TIMESTAMP, learning_rate FLOAT, model_path TEXT, checkpoint_path TEXT, loss FLOAT,
      kl_divergence FLOAT, policy_gradient_norm FLOAT, reward_mean FLOAT, reward_std FLOAT, num_trajectories INTEGER,
      num_tokens INTEGER, metrics_json TEXT, {_TIMES}""",
    "group": f"""step_id INTEGER, eval_id INTEGER, baseline_id INTEGER, group_num INTEGER NOT NULL, batch INTEGER,
      source_type VARCHAR NOT NULL, {_PROGRESS}, num_rollouts INTEGER, completed_rollouts INTEGER, reward_mean FLOAT,
      reward_std FLOAT, success_count INTEGER, metrics_json TEXT, {_TIMES}""",
    "rollout": f"""source_type VARCHAR NOT NULL, step_id INTEGER, eval_id INTEGER, baseline_id INTEGER, group_id INTEGER,
      env_id INTEGER NOT NULL, rollout_id VARCHAR NOT NULL UNIQUE, batch INTEGER, group_num INTEGER, env_index INTEGER,
      task_id INTEGER NOT NULL, model_path TEXT NOT NULL, is_eval BOOLEAN, {_PROGRESS}, current_turn INTEGER,
      env_creation_time TIMESTAMP, agent_init_time TIMESTAMP, task_start_time TIMESTAMP, task_end_time TIMESTAMP,
      validation_time TIMESTAMP, rollout_time FLOAT, task_completed BOOLEAN, task_success BOOLEAN,
      agent_reported_success BOOLEAN, validation_passed BOOLEAN, num_turns INTEGER, max_turns INTEGER, reward FLOAT,
      temperature FLOAT, num_total_actions INTEGER, consecutive_repeated_actions INTEGER, parse_errors INTEGER,
      tool_name_errors INTEGER, tool_arg_errors INTEGER, runtime_errors INTEGER, ran_out_of_turns BOOLEAN,
      attempted_completion BOOLEAN, turn_first_success INTEGER, turn_task_completed INTEGER, errors TEXT,
      summary_json TEXT, trajectory_path TEXT, trajectory_data_json TEXT, created_at TIMESTAMP, updated_at TIMESTAMP""",
    "turn": """rollout_id INTEGER NOT NULL, turn INTEGER NOT NULL, start_time TIMESTAMP, end_time TIMESTAMP,
      turn_time FLOAT, reward FLOAT, episode_done BOOLEAN, metrics_json TEXT, model_response TEXT,
      created_at TIMESTAMP""",
    "action": """turn_id INTEGER NOT NULL, action_type VARCHAR, tool_name VARCHAR, tool_args TEXT, tokens TEXT,
      logprobs TEXT, num_tokens INTEGER, created_at TIMESTAMP""",
    "obs": """turn_id INTEGER NOT NULL, obs_type VARCHAR, screenshot_uri TEXT, text_content TEXT, model_input_json TEXT,
      created_at TIMESTAMP""",
    "validation": """rollout_id INTEGER NOT NULL, validator_id INTEGER, validation_time TIMESTAMP, validation_query TEXT,
      expected_result TEXT, actual_result TEXT, success BOOLEAN NOT NULL, execution_time FLOAT, error_message TEXT,
      details_json TEXT, created_at TIMESTAMP""",
    "environment": """env_type VARCHAR NOT NULL, status VARCHAR, gbox_id VARCHAR, box_type VARCHAR,
      creation_time TIMESTAMP, termination_time TIMESTAMP, status_message TEXT, error_message TEXT, config_json TEXT,
      created_at TIMESTAMP, updated_at TIMESTAMP""",
    "status_history": """entity_type VARCHAR NOT NULL, entity_id INTEGER NOT NULL, old_status VARCHAR,
      new_status VARCHAR NOT NULL, progress_percent FLOAT, status_message TEXT, metadata_json TEXT,
      changed_at TIMESTAMP, created_at TIMESTAMP""",
}
SSDB = {
    "simulations": """name VARCHAR NOT NULL, description TEXT, environment_name VARCHAR NOT NULL, environment_config JSON,
      agent_type VARCHAR NOT NULL, agent_config JSON NOT NULL, max_steps JSON, seed JSON, tags JSON,
      created_at TIMESTAMP, updated_at TIMESTAMP""",
    "simulation_runs": """simulation_id VARCHAR NOT NULL, name VARCHAR NOT NULL, description TEXT,
      root_state_id VARCHAR NOT NULL, current_state_id VARCHAR, parent_run_id VARCHAR, branch_point_state_id VARCHAR,
      config_overrides JSON, status VARCHAR NOT NULL, total_steps INTEGER NOT NULL, total_reward JSON,
      created_at TIMESTAMP, started_at TIMESTAMP, completed_at TIMESTAMP, extra_metadata JSON""",
    "states": """parent_state_id VARCHAR, observation JSON NOT NULL, action JSON, reward FLOAT, done BOOLEAN NOT NULL,
      truncated BOOLEAN NOT NULL, step_number INTEGER NOT NULL, info JSON, extra_metadata JSON, created_at TIMESTAMP""",
    "run_state_sequence": """run_id VARCHAR NOT NULL, state_id VARCHAR NOT NULL, sequence_order INTEGER NOT NULL,
      created_at TIMESTAMP""",
}


class Database:
    """A database of one of the systems. `source` is the argument of the import; on Postgres its role has only SELECT."""

    def __init__(self, source: str, database: Any, mark: str) -> None:
        self.source = source
        self._database = database
        self._mark = mark

    def insert(self, table: str, **values: object) -> None:
        columns = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join([self._mark] * len(values))
        self._database.execute(f'INSERT INTO "{table}" ({columns}) VALUES ({marks})', list(values.values()))

    def update(self, table: str, id: object, **values: object) -> None:
        changes = ", ".join(f'"{name}" = {self._mark}' for name in values)
        self._database.execute(f'UPDATE "{table}" SET {changes} WHERE id = {self._mark}', [*values.values(), id])


def sqlite(folder: Path, tables: Mapping[str, str]) -> Database:
    file = folder / f"{uuid.uuid4()}.db"
    database = sqlite3.connect(file, isolation_level=None)
    _create(database, tables)
    return Database(str(file), database, "?")


def postgres(server: str, tables: Mapping[str, str]) -> Database:
    name = f"old_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'".encode())
    database = psycopg.connect(server, dbname=name, autocommit=True)
    _create(database, tables)
    database.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}".encode())
    info = database.info
    return Database(f"postgresql://{name}:secret@/{name}?host={info.host}&port={info.port}", database, "%s")


def _create(database: Any, tables: Mapping[str, str]) -> None:
    for table, columns in tables.items():
        key = "VARCHAR" if tables is SSDB else "INTEGER"
        database.execute(f'CREATE TABLE "{table}" (id {key} PRIMARY KEY, {columns})')
