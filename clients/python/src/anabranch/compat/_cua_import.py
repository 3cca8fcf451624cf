"""Imports databases of CUA RL: trainings as runs, with their stages, tasks, rollouts and turns."""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

from google.protobuf.duration_pb2 import Duration

from anabranch._wire.kinds import is_a
from anabranch._wire.outage import call, pages
from anabranch._wire.values import ValueEncoder
from anabranch.client import Client
from anabranch.compat._source import Record, Source, SourceError, bounded
from anabranch.compat._strict import append_all, is_uuid, store_large_parts
from anabranch.errors import ExperimentNotFound, RunNotFound, StageNotFound
from anabranch.tasks import json_text
from anabranch.v1.rollout_pb2 import RolloutResult
from anabranch.v1.rollout_service_pb2 import (
    CancelRolloutRequest,
    ClaimRolloutsRequest,
    CompleteRolloutRequest,
    CreateRolloutsRequest,
    FailRolloutRequest,
    GetRolloutRequest,
    ListRolloutsRequest,
    NewRollout,
    NewValidation,
    StartRolloutRequest,
    TaskUpsert,
    UpsertTasksRequest,
)
from anabranch.v1.run_pb2 import Plan, Run, Stage, StageKind
from anabranch.v1.run_service_pb2 import (
    CancelRunRequest,
    CancelStageRequest,
    CompleteRunRequest,
    CompleteStageRequest,
    CreateExperimentRequest,
    CreateRunRequest,
    FailRunRequest,
    FailStageRequest,
    GetOrCreateStageRequest,
    GetRunRequest,
    GetStageRequest,
    PauseRunRequest,
    StartRunRequest,
    StartStageRequest,
    UpdateStageRequest,
)
from anabranch.v1.status_pb2 import STATUS_PENDING, STATUS_RUNNING
from anabranch.v1.trajectory_pb2 import IF_EXISTS_RETURN_EXISTING, Action, Step

_IDS = uuid.UUID("3b0f8a1c-6f2e-5d0a-8a52-0d1f6b7c9e44")
#: The key of the metadata that has the row of the source.
_ROW = "cua"
_WORKER = "python -m anabranch.compat import"
_LEASE = Duration(seconds=3600)
_ENDED = ("completed", "failed", "cancelled")
_CONFIG_COLUMNS = (
    "model_name",
    "lora_rank",
    "learning_rate",
    "batch_size",
    "group_size",
    "groups_per_batch",
    "max_tokens",
    "temperature",
    "kl_penalty_coef",
    "num_substeps",
    "max_turns",
    "seed",
    "box_type",
    "renderer_name",
)
_DATA_URI = re.compile(r"data:(?P<type>[\w/+.-]+);base64,(?P<data>.*)", re.DOTALL)
#: The kinds of stages: the table, the column that names it in rollouts, and the column with its number.
_STAGES = (("baseline", "baseline_id", None), ("step", "step_id", "step"), ("eval", "eval_id", "step"))
#: What is the same again, or computed from other columns.
_COPIES = (
    "trajectory_data_json",
    "progress_percent",
    "avg_turn_time",
    "estimated_total_time",
    "estimated_remaining_time",
)


def import_trainings(client: Client, source: Source, experiment: str, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Imports the trainings that are not stored yet into an experiment, which is created if it does not exist, with
    their stages, rollouts and turns. Returns for each training the name and the id of its run, the number of its
    rollouts and of those that this import stored. A second call continues an interrupted import, and adds what has
    ended since.

    Rollouts that have not ended there are imported once their stage or training has, as failed ones."""
    return list(_Import(client, source, experiment, dry_run=dry_run).run())


class _Import:
    def __init__(self, client: Client, source: Source, experiment: str, *, dry_run: bool) -> None:
        self._connection = client.connection
        self._values: ValueEncoder = client.values
        self._source = source
        self._experiment = experiment
        self._dry_run = dry_run
        #: Names of tasks and types of validators, by their numbers there.
        self._tasks: dict[int, str] = {}
        self._validators: dict[int, str] = {}

    def run(self) -> Iterator[dict[str, Any]]:
        trainings = list(self._rows("training"))
        if trainings and not self._dry_run:
            experiment = CreateExperimentRequest(name=self._experiment, if_exists=IF_EXISTS_RETURN_EXISTING)
            call(self._connection, lambda stubs: stubs.runs.CreateExperiment, experiment)
        self._import_tasks()
        for training in trainings:
            yield self._import_training(training)

    def _rows(self, table: str, of: tuple[str, object] | None = None) -> Iterator[Record]:
        return map(Record, self._source.rows(table, of=of))

    # Tasks

    def _import_tasks(self) -> None:
        validators: dict[int, list[Record]] = {}
        for validator in self._rows("validator"):
            validators.setdefault(_number(validator, "task_id"), []).append(validator)
            self._validators[_number(validator, "id")] = bounded(validator.text("validator_type") or "validator", 128)
        for task in self._rows("task"):
            id = self._tasks[_number(task, "id")] = bounded(task.text("task_id") or f"task {task.text('id')}")
            upsert = TaskUpsert(id=id)
            for name, most in (("name", 256), ("description", 16384), ("difficulty", 64), ("category", 64)):
                setattr(upsert, name, bounded(task.text(name), most))
            for name, most in (("app_name", 256), ("source_type", 64)):
                setattr(upsert, name, bounded(task.text(name), most))
            if (turns := task.whole("max_steps")) is not None and turns >= 0:
                upsert.max_turns = turns
            for name in ("tags", "prerequisites"):
                listed = getattr(upsert, name)
                listed.SetInParent()
                listed.values.extend(bounded(word) for word in task.words(name))
            upsert.metadata_json = json_text({_ROW: task.values("description")}, "metadata")
            for validator in validators.get(_number(task, "id"), [])[:16]:
                own = upsert.validators[self._validators[_number(validator, "id")]]
                own.query = bounded(validator.text("validation_query"), 16384)
                own.method = bounded(validator.text("validation_method"))
                own.config_json = json_text(validator.json("config_json"), "config_json")
            if not self._dry_run:
                upserts = UpsertTasksRequest(tasks=[upsert])
                call(self._connection, lambda stubs: stubs.rollouts.UpsertTasks, upserts)

    # Trainings and stages

    def _import_training(self, training: Record) -> dict[str, Any]:
        name = bounded(training.text("run_name"))
        run = self._find(name)
        rollouts = imported = 0
        if run is None and not self._dry_run:
            run = self._create(name, training)
        for table, column, number in _STAGES:
            for ordinal, row in enumerate(self._rows(table, ("training_id", training.cell("id").value))):
                found = sorted(self._rows("rollout", (column, row.cell("id").value)), key=_position)
                rollouts += len(found)
                is_over = training.text("status") in _ENDED or row.text("status") in _ENDED
                own = ordinal if number is None else max(0, row.whole(number) or 0)
                stage = None if run is None else self._stage(run, table, own, row, found)
                imported += self._import_rollouts(stage, found, is_over=is_over)
                if stage is not None:
                    self._end_stage(stage, row)
        if run is not None and not self._dry_run:
            self._end_run(run, training)
        return {"run_name": name, "run_id": run.id if run else "", "rollouts": rollouts, "imported": imported}

    def _find(self, name: str) -> Run | None:
        request = GetRunRequest(run_name=name, experiment_name=self._experiment)
        try:
            return call(self._connection, lambda stubs: stubs.runs.GetRun, request).run
        except (RunNotFound, ExperimentNotFound):
            return None

    def _create(self, name: str, training: Record) -> Run:
        config: Any = training.json("config_json")
        config = config if is_a(config, dict) else {} if config is None else {"config_json": config}
        values = training.values()
        config = {**{column: values[column] for column in _CONFIG_COLUMNS if column in values}, **config}
        id = str(uuid.uuid5(_IDS, json.dumps([self._experiment, name, training.text("created_at")])))
        request = CreateRunRequest(run_id=id, request_id=id, name=name, experiment_name=self._experiment)
        request.config_json = json_text(config, "config_json")
        metadata = {_ROW: training.values("config_json", *_COPIES), **self._history("training", training)}
        request.metadata_json = json_text(metadata, "metadata")
        request.plan.CopyFrom(_plan_of(training))
        if training.text("status") != "pending":
            request.initial_status = STATUS_RUNNING
        return call(self._connection, lambda stubs: stubs.runs.CreateRun, request).run

    def _history(self, entity: str, row: Record) -> dict[str, Any]:
        """Returns the changes of a status there, for the metadata."""
        condition = "WHERE entity_type = ? AND entity_id = ? ORDER BY changed_at, id"
        columns = ("changed_at", "old_status", "new_status", "status_message")
        if not self._source.columns("status_history"):
            return {}
        found = self._source.read("status_history", columns, condition, entity, row.whole("id"))
        return {"status_history": [Record(each).values() for each in found[-200:]]} if found else {}

    def _stage(self, run: Run, kind: str, number: int, row: Record, rollouts: list[Record]) -> Stage | None:
        """Returns the stage of a row, as it is there. Creates and starts it if it has to take rollouts."""
        if self._dry_run:
            return self._find_stage(run, kind, number)
        request = GetOrCreateStageRequest(run_id=run.id, kind=_KINDS[kind], number=number)
        stage = call(self._connection, lambda stubs: stubs.runs.GetOrCreateStage, request).stage
        update = UpdateStageRequest(stage_id=stage.id)
        update.model_uri = bounded(row.text("model_path"), 2048)
        update.model_checkpoint_uri = bounded(row.text("checkpoint_path"), 2048)
        update.phase = bounded(row.text("current_phase"))
        update.status_message = _message_of(row)
        update.metrics.update(_metrics_of(row))
        update.metadata_json = json_text({_ROW: row.values(*_COPIES), **self._history(kind, row)}, "metadata")
        paths = ("model_uri", "model_checkpoint_uri", "phase", "status_message", "metrics", "metadata_json")
        update.update_mask.paths.extend(paths)
        if (batch := row.whole("batch")) is not None:
            update.batch = batch
            update.update_mask.paths.append("batch")
        stage = call(self._connection, lambda stubs: stubs.runs.UpdateStage, update).stage
        if stage.status == STATUS_PENDING and (row.text("status") != "pending" or rollouts):
            start = StartStageRequest(stage_id=stage.id)
            stage = call(self._connection, lambda stubs: stubs.runs.StartStage, start).stage
            if run.status == STATUS_PENDING:
                begin = StartRunRequest(run_id=run.id)
                run.CopyFrom(call(self._connection, lambda stubs: stubs.runs.StartRun, begin).run)
        return stage

    def _find_stage(self, run: Run, kind: str, number: int) -> Stage | None:
        request = GetStageRequest(run_id=run.id, kind=_KINDS[kind], number=number)
        try:
            return call(self._connection, lambda stubs: stubs.runs.GetStage, request).stage
        except StageNotFound:
            return None

    def _end_stage(self, stage: Stage, row: Record) -> None:
        status, message = row.text("status"), _message_of(row)
        if stage.status != STATUS_RUNNING:
            return
        if status == "completed":
            done = CompleteStageRequest(stage_id=stage.id, message=message)
            call(self._connection, lambda stubs: stubs.runs.CompleteStage, done)
        elif status == "failed":
            failed = FailStageRequest(stage_id=stage.id, message=message)
            call(self._connection, lambda stubs: stubs.runs.FailStage, failed)
        elif status == "cancelled":
            cancelled = CancelStageRequest(stage_id=stage.id, message=message)
            call(self._connection, lambda stubs: stubs.runs.CancelStage, cancelled)

    def _end_run(self, run: Run, training: Record) -> None:
        status, id = training.text("status"), run.id
        message = _message_of(training)
        if run.status not in (STATUS_PENDING, STATUS_RUNNING):
            return
        if status == "completed":
            call(self._connection, lambda stubs: stubs.runs.CompleteRun, CompleteRunRequest(run_id=id, message=message))
        elif status == "failed":
            call(self._connection, lambda stubs: stubs.runs.FailRun, FailRunRequest(run_id=id, message=message))
        elif status == "cancelled":
            call(self._connection, lambda stubs: stubs.runs.CancelRun, CancelRunRequest(run_id=id, message=message))
        elif status == "paused":
            call(self._connection, lambda stubs: stubs.runs.PauseRun, PauseRunRequest(run_id=id, message=message))

    # Rollouts

    def _import_rollouts(self, stage: Stage | None, rows: list[Record], *, is_over: bool) -> int:
        """Imports the rollouts of a stage that have ended and are not stored yet; all of them if the stage is over.
        Returns how many."""
        stored: set[tuple[int, int]] = set()
        if stage is not None:
            listing = ListRolloutsRequest(stage_id=stage.id, page_size=1000)
            for page in pages(self._connection, lambda stubs: stubs.rollouts.ListRollouts, listing):
                stored |= {(each.group_number, each.number) for each in page.rollouts if each.HasField("end_time")}
        imported = 0
        numbers: dict[int, int] = {}
        for row in rows:
            group = max(0, row.whole("group_num") or 0)
            number = numbers[group] = numbers.get(group, -1) + 1
            if (group, number) in stored or not (is_over or row.text("status") in _ENDED):
                continue
            imported += 1
            if stage is not None and not self._dry_run:
                self._import_rollout(stage, row, group, number)
        return imported

    def _import_rollout(self, stage: Stage, row: Record, group: int, number: int) -> None:
        uid = row.text("rollout_id") or ""
        id = uid.lower() if is_uuid(uid) else str(uuid.uuid5(_IDS, f"{stage.run_id} rollout {uid}"))
        new = NewRollout(rollout_id=id, group_number=group, number=number)
        new.task_id = self._tasks.get(_number(row, "task_id"), "")
        new.model_uri = bounded(row.text("model_path"), 2048)
        if (turns := row.whole("max_turns")) is not None and turns >= 0:
            new.max_turns = turns
        kept = row.values("summary_json", "errors", *_COPIES)
        environments = [each.values() for each in self._rows("environment", ("id", row.cell("env_id").value))]
        metadata = {
            _ROW: kept,
            "environment": environments[0] if environments else None,
            **self._history("rollout", row),
        }
        new.metadata_json = json_text(metadata, "metadata")
        create = CreateRolloutsRequest(stage_id=stage.id, rollouts=[new])
        call(self._connection, lambda stubs: stubs.rollouts.CreateRollouts, create)
        attempt, trajectory_id = self._claim(id)
        start = StartRolloutRequest(rollout_id=id, attempt=attempt)
        call(self._connection, lambda stubs: stubs.rollouts.StartRollout, start)
        for _ in append_all(self._connection, trajectory_id, self._turns(row)):
            pass
        self._end_rollout(id, attempt, row)

    def _claim(self, id: str) -> tuple[int, str]:
        """Returns the attempt and the trajectory of a rollout that this import holds, or an interrupted one has left."""
        claim = ClaimRolloutsRequest(worker_id=_WORKER, rollout_ids=[id], lease_duration=_LEASE, max_rollouts=1)
        claim.request_id = str(uuid.uuid4())
        claims = call(self._connection, lambda stubs: stubs.rollouts.ClaimRollouts, claim).claims
        if claims:
            return claims[0].rollout.attempt, claims[0].rollout.trajectory_id
        found = call(
            self._connection, lambda stubs: stubs.rollouts.GetRollout, GetRolloutRequest(rollout_id=id)
        ).rollout
        if found.worker_id != _WORKER:
            raise SourceError(
                f"Rollout {id} is played by {found.worker_id or 'nobody'}: it is no longer the imported one."
            )
        return found.attempt, found.trajectory_id

    def _end_rollout(self, id: str, attempt: int, row: Record) -> None:
        message, result = _message_of(row), _result_of(row)
        if row.text("status") not in _ENDED:
            message = bounded(f"{row.text('status')} when it was imported. {message}", 4096)
        validations = [
            self._validation(each) for each in self._rows("validation", ("rollout_id", row.cell("id").value))
        ]
        named = {each.name: each for each in validations[:16]}
        common: dict[str, Any] = {"rollout_id": id, "attempt": attempt, "message": message, "result": result}
        common |= {"validations": list(named.values()), "metrics": _metrics_of(row)}
        if row.text("status") == "completed":
            done = CompleteRolloutRequest(**common)
            call(self._connection, lambda stubs: stubs.rollouts.CompleteRollout, done)
        elif row.text("status") == "cancelled":
            cancelled = CancelRolloutRequest(rollout_id=id, message=message)
            call(self._connection, lambda stubs: stubs.rollouts.CancelRollout, cancelled)
        else:
            failed = FailRolloutRequest(**common)
            call(self._connection, lambda stubs: stubs.rollouts.FailRollout, failed)

    def _validation(self, row: Record) -> NewValidation:
        name = self._validators.get(_number(row, "validator_id"), "validation")
        validation = NewValidation(name=name, success=bool(row.flag("success")))
        validation.query = bounded(row.text("validation_query"), 16384)
        validation.expected_result = bounded(row.text("expected_result"), 16384)
        validation.actual_result = bounded(row.text("actual_result"), 65536)
        validation.error_message = bounded(row.text("error_message"), 4096)
        validation.details_json = json_text(row.json("details_json"), "details_json")
        if (seconds := row.number("execution_time")) is not None and seconds >= 0:
            validation.execution_duration.FromMicroseconds(round(seconds * 1_000_000))
        return validation

    # Turns

    def _turns(self, rollout: Record) -> Iterator[Step]:
        """Yields an empty root and the turns."""
        yield Step(step_number=0)
        rows = sorted(
            self._rows("turn", ("rollout_id", rollout.cell("id").value)), key=lambda row: row.whole("turn") or 0
        )
        for number, row in enumerate(rows, 1):
            step = self._turn(row)
            step.step_number = number
            store_large_parts(self._connection, step)
            yield step

    def _turn(self, row: Record) -> Step:
        step = Step()
        if (text := row.text("model_response")) is not None:
            self._values.set_content(step.actions.add(type="model_response").content, text, "model_response")
        for each in self._rows("action", ("turn_id", row.cell("id").value)):
            self._add_action(step.actions.add(type=bounded(each.text("action_type"), 128)), each)
        for each in self._rows("obs", ("turn_id", row.cell("id").value)):
            self._add_observations(step, each)
        if (reward := row.number("reward")) is not None:
            step.reward = reward
        step.terminated = bool(row.flag("episode_done"))
        for name, time in (("start_time", row.time("start_time")), ("end_time", row.time("end_time"))):
            if time is not None:
                getattr(step, name).CopyFrom(time)
        step.metrics.update(_metrics_of(row))
        step.metadata_json = json_text({_ROW: row.values("model_response")}, "metadata")
        return step

    def _add_action(self, action: Action, row: Record) -> None:
        action.name = bounded(row.text("tool_name"))
        if (arguments := row.json("tool_args")) is not None:
            self._values.set_content(action.content, arguments, "tool_args")
        tokens, logprobs = row.json("tokens"), row.json("logprobs")
        if _all_of(tokens, int) and all(0 <= token < 2**31 for token in tokens):
            action.token_ids.extend(tokens)
            if _all_of(logprobs, (int, float)) and len(logprobs) == len(tokens):
                action.logprobs.extend(logprobs)

    def _add_observations(self, step: Step, row: Record) -> None:
        """Adds what an observation has: a screenshot, text, and the input of the model."""
        kind = bounded(row.text("obs_type"), 128)
        if uri := row.text("screenshot_uri"):
            content = step.observations.add(type=kind).content
            data = _data_of(uri)
            if data is not None:
                self._values.image_content(content, data)
            elif len(uri.encode()) <= 2048:
                content.uri = uri
            else:
                self._values.set_content(content, uri, "screenshot_uri")
        if (text := row.text("text_content")) is not None:
            self._values.set_content(step.observations.add(type=kind).content, text, "text_content")
        if (given := row.json("model_input_json")) is not None:
            self._values.set_content(step.observations.add(type="model_input").content, given, "model_input_json")


_KINDS = {
    "step": StageKind.STAGE_KIND_TRAIN_STEP,
    "eval": StageKind.STAGE_KIND_EVAL,
    "baseline": StageKind.STAGE_KIND_BASELINE,
}
#: Numbers of rows that are no measures.
_NO_METRICS = ("id", "step", "batch", "group_num", "env_index", "turn", "reward", "progress_percent", "max_turns")


def _number(row: Record, name: str) -> int:
    """Returns a number that names a row; -1 for none."""
    found = row.whole(name)
    return -1 if found is None else found


def _position(row: Record) -> tuple[int, int, int]:
    return (_number(row, "group_num"), _number(row, "env_index"), _number(row, "id"))


def _message_of(row: Record) -> str:
    return bounded(row.text("error_message") or row.text("status_message"), 4096)


def _plan_of(training: Record) -> Plan:
    counts = {name: max(0, training.whole(name) or 0) for name in _PLANNED}
    plan = Plan()
    if counts["total_steps"]:
        plan.stage_plans.add(
            kind=StageKind.STAGE_KIND_TRAIN_STEP,
            stages=counts["total_steps"],
            groups_per_stage=counts["groups_per_batch"],
            group_size=counts["group_size"],
            max_turns=counts["max_turns"],
            substeps=counts["num_substeps"],
        )
    return plan


_PLANNED = ("total_steps", "groups_per_batch", "group_size", "max_turns", "num_substeps")


def _metrics_of(row: Record) -> dict[str, float]:
    """Returns the measures of a row: its numbers, and those of `metrics_json`."""
    own = {
        name: float(cell.value)
        for name, cell in row.row.items()
        if isinstance(cell.value, (int, float)) and name not in _NO_METRICS and not name.endswith(("_id", "_time"))
    }
    given: Any = row.json("metrics_json")
    more = {
        str(name): float(value)
        for name, value in (given.items() if is_a(given, dict) else ())
        if isinstance(value, (int, float)) and 0 < len(str(name).encode()) <= 128
    }
    return dict(list({**more, **own}.items())[:256])


def _result_of(row: Record) -> RolloutResult:
    result = RolloutResult()
    if (reward := row.number("reward")) is not None:
        result.reward = reward
    for field, column in (
        ("task_completed", "task_completed"),
        ("agent_reported_success", "agent_reported_success"),
        ("success", "task_success"),
    ):
        if (flag := row.flag(column)) is not None:
            setattr(result, field, flag)
    result.errors.extend(bounded(each, 4096) for each in row.words("errors")[:1000])
    summary = json_text(row.json("summary_json"), "summary_json")
    result.summary_json = summary if len(summary.encode()) <= 128 * 1024 else ""
    return result


def _all_of(values: Any, types: type | tuple[type, ...]) -> bool:
    return is_a(values, list) and all(isinstance(each, types) and not isinstance(each, bool) for each in values)


def _data_of(uri: str) -> bytes | None:
    """Returns the bytes of a data URI; None for another one."""
    found = _DATA_URI.fullmatch(uri)
    try:
        return base64.b64decode(found["data"], validate=True) if found else None
    except binascii.Error:
        return None
