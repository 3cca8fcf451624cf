"""Writes the arguments of `step()` and `log()` that are not values of the environment: numbers, flags, tokens, names.

An argument that is none is left out and counted, with one warning for each argument; with `strict`, TypeError is
raised. A reward that is None in hour 15 does not end a run.
"""

from __future__ import annotations

import logging
import reprlib
import struct
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from anabranch._recording.context import Context, listed, new_context
from anabranch._recording.fitting import text_of
from anabranch._recording.rpc import varint
from anabranch._wire.kinds import is_a, type_name
from anabranch._wire.paths import subject_of
from anabranch._wire.plain import text_of_error

if TYPE_CHECKING:
    from anabranch._wire.values import ValueEncoder
    from anabranch.v1.rollout_service_pb2 import CompleteRolloutRequest
    from anabranch.v1.trajectory_pb2 import Action, Step

_METRIC_STEPS = range(-(1 << 63), 1 << 63)
_log = logging.getLogger("anabranch")


def number_of(values: ValueEncoder, value: Any, root: str, path: tuple[object, ...] = ()) -> float | None:
    """Returns a number, or the only number of an array or a tensor. None if the value is something else."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except Exception:  # noqa: BLE001 - the value's own code fails
        return _left_out(values, value, subject_of(root, path), "a number", root)


def metric_step_of(values: ValueEncoder, value: Any) -> int | None:
    """Returns the step of points of metrics, also of a float such as 2.0. None if the value is none."""
    try:
        step = value.item() if hasattr(value, "item") else value
        if int(step) == step and int(step) in _METRIC_STEPS:
            return int(step)
    except Exception:  # noqa: BLE001, S110 - the value's own code fails
        pass
    remedy = "The points of the call are left out"
    return _left_out(values, value, "the step of log()", "a whole number of 64 bits", remedy=remedy)


def objectives_of(reward: Any) -> dict[str, Any]:
    """Returns the numbers of a reward of several objectives as metrics: `reward/0`, `reward/1`, …, those of a dict by
    its keys. Empty if the reward is something else, for example one number."""
    if reward is None or is_a(reward, (int, float, str)):
        return {}
    try:
        if is_a(reward, Mapping):
            members = cast("Mapping[Any, Any]", reward).items()
        else:
            flat = reward.reshape(-1) if hasattr(reward, "reshape") else reward
            parts = listed(flat)
            members = enumerate(parts) if is_a(parts, (list, tuple)) and len(parts) != 1 else ()
        return {f"reward/{text_of(key)}": member for key, member in members}
    except Exception:  # noqa: BLE001 - the value's own code fails
        return {}


def write_reward(values: ValueEncoder, step: Step, reward: Any) -> None:
    """Writes the reward of a step. One of several objectives becomes metrics: only the program knows how to sum them."""
    objectives = objectives_of(reward)
    if objectives:
        write_metrics(values, step, objectives)
        return
    number = reward_of(values, reward)
    if number is not None:
        step.reward = number


def reward_of(values: ValueEncoder, reward: Any) -> float | None:
    """Returns a reward of one objective. None if there is none."""
    if reward is None:
        return None
    only = reward[0] if is_a(reward, (list, tuple)) and len(reward) == 1 else reward
    return number_of(values, only, "reward")


def flag_of(values: ValueEncoder, value: Any, root: str) -> bool:
    try:
        return bool(value)
    except Exception:  # noqa: BLE001 - the value's own code fails
        return bool(_left_out(values, value, root, "true or false"))


def mapping_of(values: ValueEncoder, value: Any, root: str) -> dict[str, Any]:
    """Returns a dict whose keys are text. Empty if the value is something else."""
    try:
        members: dict[Any, Any] = dict(cast("Mapping[Any, Any]", value) if value is not None else {})
    except Exception:  # noqa: BLE001 - the value's own code fails
        _left_out(values, value, root, "a dict")
        return {}
    return {text_of(key): member for key, member in members.items()}


def names_of(values: ValueEncoder, value: Any, root: str) -> list[str]:
    """Returns names. Text alone is one name."""
    try:
        return [text_of(name) for name in ([value] if is_a(value, str) else cast("Iterable[Any]", value or ()))]
    except Exception:  # noqa: BLE001 - the value's own code fails
        _left_out(values, value, root, "a list of names")
        return []


def numbers_of(values: ValueEncoder, *metrics: Any) -> dict[str, float]:
    """Returns metrics by name. Of equal names, the last one counts."""
    found: dict[str, float] = {}
    for given in metrics:
        for key, value in mapping_of(values, given, "metrics").items():
            number = number_of(values, value, "metrics", (key,))
            if number is not None:
                found[key] = number
    return found


def write_metrics(values: ValueEncoder, to: Step | CompleteRolloutRequest, *metrics: Any) -> None:
    for key, number in numbers_of(values, *metrics).items():
        to.metrics[key] = number


def write_tokens(values: ValueEncoder, action: Action, token_ids: Any, logprobs: Any) -> bool:
    """Writes the tokens of an action. Returns False if they are no tokens: then the action has none."""
    try:
        action.token_ids.extend(listed(token_ids))
    except Exception:  # noqa: BLE001 - the value's own code fails
        action.ClearField("token_ids")
        _left_out(values, token_ids, "token_ids", "a list of integers of 32 bits")
        return False
    try:
        write_logprobs(action, listed(logprobs))
    except Exception:  # noqa: BLE001 - the value's own code fails
        action.ClearField("logprobs")
        _left_out(values, logprobs, "logprobs", "a list of numbers")
    return True


def write_logprobs(action: Action, logprobs: Sequence[float]) -> None:
    """Adds the logprobs of an action: all at once, as they are encoded, which takes half the time of adding each."""
    try:
        packed = packed_logprobs(logprobs)
    except (OverflowError, struct.error):
        # A value beyond the range of a float becomes an infinity.
        action.logprobs.extend(logprobs)
        return
    # Field 6, length-delimited.
    action.MergeFromString(b"\x32" + varint(len(packed)) + packed)


def packed_logprobs(logprobs: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(logprobs)}f", *logprobs)


def prompt_of(values: ValueEncoder, prompt: Any) -> Context | Sequence[int] | None:
    """Returns the tokens of a prompt. None if there are none, or they are no tokens."""
    try:
        return None if prompt is None else new_context(listed(prompt))
    except Exception:  # noqa: BLE001 - the value's own code fails
        _left_out(values, prompt, "prompt_token_ids", "a list of integers of 32 bits")
        return None


@contextmanager
def unbroken(values: ValueEncoder, call: str, but: type[Exception] | tuple[()] = ()) -> Generator[None, None, None]:
    """Reports an exception of the block and ends it, so that the program continues. With `strict`, the exception is
    raised, as is one of the class `but`. `call` names the call in the report.

    The last resort around what is recorded after an environment's step, which cannot be repeated.
    """
    try:
        yield
    except but:
        raise
    except Exception as error:
        if values.strict:
            raise
        _report(values, call, f"{call} recorded only a part: {text_of_error(error)}")


def _left_out(
    values: ValueEncoder,
    value: Any,
    subject: str,
    expected: str,
    argument: str = "",
    remedy: str = "It is left out",
) -> None:
    """Reports an argument that is left out. `expected` says what is accepted, `argument` what is counted."""
    text = f"{subject} is {_shown(value)}: expected {expected}"
    if values.strict:
        raise TypeError(text) from None
    _report(values, argument or subject, f"{text}. {remedy}")


def _report(values: ValueEncoder, argument: str, text: str) -> None:
    """Counts, and warns once for each argument."""
    if not values.unstored[argument]:
        _log.warning("anabranch: %s.", text)
    values.unstored[argument] += 1


def _shown(value: Any) -> str:
    """Returns a value for a message: numbers and texts as they are, others as their type."""
    try:
        if value is None or is_a(value, (int, float, str)):
            return reprlib.repr(value)
    except Exception:  # noqa: BLE001, S110 - an integer of too many digits, or the value's own code fails
        pass
    return f"a {type_name(value)}"
