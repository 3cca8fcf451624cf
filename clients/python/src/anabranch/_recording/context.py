"""The context so far: the tokens that a model was given and that it returned. A prompt is recorded as what it adds to the
context and how many tokens of it are kept, so that exact prompts cost only their new tokens."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from anabranch._wire.decode import LOGPROBS_TYPE

if TYPE_CHECKING:
    from anabranch.v1.trajectory_pb2 import Action, Step

Context: TypeAlias = "array[int]"


def new_context(tokens: Sequence[int] = ()) -> Context:
    """Returns the tokens as a context. Those of a message are given as a slice, which takes less time than each alone."""
    return array("i", tokens)


def listed(values: Any) -> Sequence[Any]:
    """Returns the items of a list, an array or a tensor."""
    return values.tolist() if hasattr(values, "tolist") else values


def move_logprobs(step: Step, digest: str) -> None:
    """Replaces the logprobs of the first action by a state that has them."""
    count = len(step.actions[0].logprobs)
    step.actions[0].ClearField("logprobs")
    moved = step.actions.add()
    moved.type = LOGPROBS_TYPE
    tensor = moved.content.tensor
    tensor.dtype, tensor.state_digest = "<f4", digest
    tensor.shape.append(count)


def write_prompt(action: Action, context: Context | None, prompt: Sequence[int] | None) -> Context | None:
    """Writes the full prompt of an action that has its tokens already. Returns the context after it.

    A context of None is unknown: the next prompt is written whole. Without a prompt, it is not known what the model saw.
    """
    if prompt is None:
        return context if not action.token_ids else None
    full = new_context(prompt)
    if context is None:
        context, kept = new_context(), 0
        action.kept_tokens = 0
    else:
        kept = _shared(context, full)
    # An action without any of the fields would not be part of the context.
    if kept < len(context) or kept == len(full):
        action.kept_tokens = kept
    action.prompt_token_ids.extend(full[kept:])
    return full + new_context(action.token_ids[:])


def context_after(context: Context | None, step: Step, fetch: Callable[[str], bytes]) -> Context | None:
    """Returns the context after a stored step. None if it is unknown."""
    for action in step.actions:
        prompt = _tokens(action.prompt_token_ids, action.prompt_token_ids_state, fetch)
        reply = _tokens(action.token_ids, action.token_ids_state, fetch)
        if not prompt and not action.HasField("kept_tokens"):
            context = None if reply else context
            continue
        kept = action.kept_tokens if action.HasField("kept_tokens") else None
        if kept == 0:
            context = prompt + reply
        elif context is not None:
            context = context[:kept] + prompt + reply if kept is None or kept <= len(context) else None
    return context


def _tokens(tokens: Sequence[int], digest: str, fetch: Callable[[str], bytes]) -> Context:
    if not digest:
        return new_context(tokens[:])
    import sys

    found = new_context()
    found.frombytes(fetch(digest))
    if sys.byteorder == "big":
        found.byteswap()
    return found


def _shared(one: Context, other: Context) -> int:
    """Returns how many tokens at the beginning are the same."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
