"""Writes the arguments of `step()` that are not values of the environment: numbers, flags, tokens, names.

As with other values, what cannot be stored is replaced or left out, and counted; with `strict`, TypeError is raised. A
reward that is None in hour 15 does not end a run.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from anabranch._recording.context import Context, listed, new_context
from anabranch._recording.fitting import text_of
from anabranch._recording.rpc import varint
from anabranch._wire.kinds import is_a, type_name
from anabranch._wire.tensors import UnsupportedValue

if TYPE_CHECKING:
    from anabranch._wire.values import ValueEncoder
    from anabranch.v1.rollout_service_pb2 import CompleteRolloutRequest
    from anabranch.v1.trajectory_pb2 import Action, Step


def number_of(values: ValueEncoder, value: Any, root: str, path: tuple[object, ...] = ()) -> float | None:
    """Returns a number, or the only number of an array or a tensor. None if the value is something else."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except Exception:  # noqa: BLE001 - the value's own code fails
        return _unstored(values, value, root, path)


def flag_of(values: ValueEncoder, value: Any, root: str) -> bool:
    try:
        return bool(value)
    except Exception:  # noqa: BLE001 - the value's own code fails
        return bool(_unstored(values, value, root))


def mapping_of(values: ValueEncoder, value: Any, root: str) -> Mapping[str, Any]:
    """Returns a dict whose keys are text. Empty if the value is something else."""
    try:
        members = dict(cast("Mapping[Any, Any]", value) if value is not None else {})
        return {text_of(key): member for key, member in members.items()}
    except Exception:  # noqa: BLE001 - the value's own code fails
        _unstored(values, value, root)
        return {}


def names_of(values: ValueEncoder, value: Any, root: str) -> list[str]:
    """Returns names. Text alone is one name."""
    try:
        return [text_of(name) for name in ([value] if is_a(value, str) else cast("Iterable[Any]", value or ()))]
    except Exception:  # noqa: BLE001 - the value's own code fails
        _unstored(values, value, root)
        return []


def write_metrics(values: ValueEncoder, to: Step | CompleteRolloutRequest, metrics: Any) -> None:
    for key, value in mapping_of(values, metrics, "metrics").items():
        number = number_of(values, value, "metrics", (key,))
        if number is not None:
            to.metrics[key] = number


def write_tokens(values: ValueEncoder, action: Action, token_ids: Any, logprobs: Any) -> bool:
    """Writes the tokens of an action. Returns False if they are no tokens: then the action has none."""
    try:
        action.token_ids.extend(listed(token_ids))
    except Exception:  # noqa: BLE001 - the value's own code fails
        action.ClearField("token_ids")
        _unstored(values, token_ids, "token_ids")
        return False
    try:
        write_logprobs(action, listed(logprobs))
    except Exception:  # noqa: BLE001 - the value's own code fails
        action.ClearField("logprobs")
        _unstored(values, logprobs, "logprobs")
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
        _unstored(values, prompt, "prompt_token_ids")
        return None


def _unstored(values: ValueEncoder, value: Any, root: str, path: tuple[object, ...] = ()) -> None:
    values.marker(UnsupportedValue(type_name(value)), root, path)
