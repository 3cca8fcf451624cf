"""Token ids of episodes: what the model was given and what it generated, ready for training. Nothing is tokenized again.

The context of an action is the first `kept_tokens` tokens of the context so far (unset: all of it), followed by its
`prompt_token_ids`; its `token_ids` then become part of the context. Actions with none of them are not part of it.
Each row is one context: where `kept_tokens` shortens the context, a new row begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anabranch._wire.decode import logprobs_digest_of, token_digests_of
from anabranch._wire.tensors import optional

if TYPE_CHECKING:
    from anabranch._reading.episode import RecordedEpisode, Step
    from anabranch.v1.trajectory_pb2 import Action

_PURPOSE = "to read tokens"


@dataclass
class TokenRow:
    """One context of one episode. All lists have the length of `input_ids`.

    `loss_mask` is 1 for generated tokens, 0 for prompts and for tokens that an earlier row of the episode has.
    `logprobs` is NaN for generated tokens without one, and 0 where the mask is 0. The last
    token that was generated up to a step has the reward of the step.
    """

    trajectory_id: str
    input_ids: list[int] = field(default_factory=list[int])
    loss_mask: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    rewards: list[float] = field(default_factory=list[float])

    def extend(self, token_ids: Iterable[int], logprobs: Iterable[float] | None = None) -> None:
        """Adds tokens: generated ones if `logprobs` is given, a prompt otherwise."""
        start = len(self.input_ids)
        self.input_ids.extend(token_ids)
        count = len(self.input_ids) - start
        given = [] if logprobs is None else list(logprobs)
        if len(given) != count:
            # They are of other tokens.
            given = []
        self.loss_mask += [int(logprobs is not None)] * count
        self.logprobs += ([0.0] * count) if logprobs is None else given or [float("nan")] * count
        self.rewards += [0.0] * count

    def reward(self, reward: float) -> bool:
        """Adds a reward to the last generated token. Returns false if there is none."""
        for index in range(len(self.loss_mask) - 1, -1, -1):
            if self.loss_mask[index]:
                self.rewards[index] += reward
                return True
        return False


class Tokens:
    """Rows of tokens. `input_ids`, `loss_mask`, `logprobs` and `rewards` are lists with one array per row."""

    def __init__(self, rows: list[TokenRow]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def trajectory_ids(self) -> list[str]:
        return [row.trajectory_id for row in self.rows]

    @property
    def input_ids(self) -> list[Any]:
        return self._arrays("input_ids", "int64")

    @property
    def loss_mask(self) -> list[Any]:
        return self._arrays("loss_mask", "int64")

    @property
    def logprobs(self) -> list[Any]:
        return self._arrays("logprobs", "float32")

    @property
    def rewards(self) -> list[Any]:
        return self._arrays("rewards", "float64")

    def pad(self, pad_id: int, max_length: int | None = None) -> dict[str, Any]:
        """Returns arrays of shape (rows, length): `input_ids`, `attention_mask`, `loss_mask`, `logprobs`, `rewards`.

        Rows are filled with `pad_id` on the right. Rows longer than `max_length` are cut on the right.
        """
        numpy = optional("numpy", _PURPOSE)
        longest = max((len(row.input_ids) for row in self.rows), default=0)
        width = longest if max_length is None else min(longest, max_length)
        padded = {
            "input_ids": numpy.full((len(self.rows), width), pad_id, "int64"),
            "attention_mask": numpy.zeros((len(self.rows), width), "int64"),
            "loss_mask": numpy.zeros((len(self.rows), width), "int64"),
            "logprobs": numpy.zeros((len(self.rows), width), "float32"),
            "rewards": numpy.zeros((len(self.rows), width), "float64"),
        }
        for index, row in enumerate(self.rows):
            length = min(width, len(row.input_ids))
            padded["attention_mask"][index, :length] = 1
            for name in ("input_ids", "loss_mask", "logprobs", "rewards"):
                padded[name][index, :length] = getattr(row, name)[:length]
        return padded

    def __repr__(self) -> str:
        lengths = [len(row.input_ids) for row in self.rows]
        return f"Tokens({len(self.rows)} rows, {sum(lengths)} tokens, {sum(map(self._generated, self.rows))} generated)"

    @staticmethod
    def _generated(row: TokenRow) -> int:
        return sum(row.loss_mask)

    def _arrays(self, name: str, dtype: str) -> list[Any]:
        numpy = optional("numpy", _PURPOSE)
        return [numpy.array(getattr(row, name), dtype) for row in self.rows]


@dataclass
class SharedSegment:
    """Tokens of one step, after those of the segment `parent` (-1: none). Branches share the segments of their common
    steps. The other lists are those of `TokenRow`."""

    parent: int
    row: TokenRow


@dataclass
class SharedTokens:
    """Token rows of a tree of trajectories, each common prefix once. `rows` has the last segment of each row."""

    segments: list[SharedSegment]
    rows: list[int]
    trajectory_ids: list[str]

    def row(self, index: int) -> TokenRow:
        """Returns a row with its whole prefix."""
        chain: list[TokenRow] = []
        at = self.rows[index]
        while at >= 0:
            chain.append(self.segments[at].row)
            at = self.segments[at].parent
        joined = TokenRow(self.trajectory_ids[index])
        for part in reversed(chain):
            joined.input_ids += part.input_ids
            joined.loss_mask += part.loss_mask
            joined.logprobs += part.logprobs
            joined.rewards += part.rewards
        return joined


def tokens_of(episodes: Iterable[RecordedEpisode]) -> Tokens:
    """Returns the token rows of episodes, in their order. Raises ValueError if `kept_tokens` exceeds a context."""
    return Tokens([row for episode in episodes for row in _rows_of(episode)])


def shared_tokens_of(episodes: Iterable[RecordedEpisode]) -> SharedTokens:
    """Returns the token rows of episodes with each shared prefix once. Rewards stand where they do in `tokens_of`."""
    shared = SharedTokens([], [], [])
    known: dict[tuple[int, str, int], int] = {}
    for episode in episodes:
        for row, ends in _rows_with_ends(episode):
            at, start = -1, 0
            for owner_id, number, end in ends:
                part = _slice(row, start, end)
                key = (at, owner_id, number)
                index = known.get(key)
                # A step without own tokens can change the reward of an earlier token: such a prefix is not shared.
                if index is None or shared.segments[index].row != part:
                    index = known[key] = len(shared.segments)
                    shared.segments.append(SharedSegment(at, part))
                at, start = index, end
            shared.rows.append(at)
            shared.trajectory_ids.append(episode.id)
    return shared


def _slice(row: TokenRow, start: int, end: int) -> TokenRow:
    return TokenRow(
        "", row.input_ids[start:end], row.loss_mask[start:end], row.logprobs[start:end], row.rewards[start:end]
    )


def _rows_of(episode: RecordedEpisode) -> list[TokenRow]:
    return [row for row, _ in _rows_with_ends(episode)]


Ends = list[tuple[str, int, int]]
"""Owner and number of each step with tokens, and the length of the row after it."""


def _rows_with_ends(episode: RecordedEpisode) -> list[tuple[TokenRow, Ends]]:
    rows: list[tuple[TokenRow, Ends]] = []
    pending = 0.0
    episode.prefetch_states(token_digests_of)
    for step in episode.steps:
        for action in step.message.actions:
            if _is_in_context(action):
                _add(rows, step, action)
        pending += step.reward or 0.0
        if pending and rows and rows[-1][0].reward(pending):
            pending = 0.0
    return rows


def _add(rows: list[tuple[TokenRow, Ends]], step: Step, action: Action) -> None:
    context = rows[-1][0].input_ids if rows else []
    kept = action.kept_tokens if action.HasField("kept_tokens") else None
    if kept is not None and kept > len(context):
        raise ValueError(
            f"`kept_tokens` of step {step.number} of trajectory {step.trajectory_id} is {kept}, "
            f"but the context so far has {len(context)} tokens"
        )
    if not rows or (kept is not None and kept < len(context)):
        row = TokenRow(step.trajectory_id)
        row.extend(context[:kept])
        rows.append((row, []))
    row, ends = rows[-1]
    row.extend(_prompt_of(step, action))
    if reply := _reply_of(step, action):
        row.extend(reply, action.logprobs or _moved_logprobs(step, action))
    ends.append((step.owner_id, step.number, len(row.input_ids)))


def _is_in_context(action: Action) -> bool:
    is_prompted = action.prompt_token_ids or action.HasField("prompt_token_ids_state") or action.HasField("kept_tokens")
    return bool(action.token_ids or action.HasField("token_ids_state") or is_prompted)


def _prompt_of(step: Step, action: Action) -> Sequence[int]:
    if action.HasField("prompt_token_ids_state"):
        return _unpack(step.blob(action.prompt_token_ids_state))
    return action.prompt_token_ids


def _reply_of(step: Step, action: Action) -> Sequence[int]:
    return _unpack(step.blob(action.token_ids_state)) if action.HasField("token_ids_state") else action.token_ids


def _moved_logprobs(step: Step, action: Action) -> Sequence[float]:
    """Returns the logprobs of the first action that are in a state of their own, because they exceed a step."""
    digest = logprobs_digest_of(step.message)
    if not digest or action != step.message.actions[0]:
        return ()
    data = step.blob(digest)
    return struct.unpack(f"<{len(data) // 4}f", data)


def _unpack(data: bytes) -> Sequence[int]:
    """Returns the tokens of a state: four bytes each, in the order of `<i4`."""
    return struct.unpack(f"<{len(data) // 4}i", data)
