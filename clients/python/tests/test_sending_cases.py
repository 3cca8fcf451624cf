"""The table of cases that the sender shares with the writer of the TypeScript client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import ROOT

from anabranch import _queue, _sender
from anabranch._retry import Failure, Patience, Situation, judge

CASES: dict[str, Any] = json.loads((ROOT / "test/client/sending_cases.json").read_text())


def failure_of(error: dict[str, Any]) -> Failure:
    return Failure(error["code"], "failed", error["reason"], error["metadata"], error["retry_after_ms"] / 1000)


def test_frames_and_the_window_have_the_same_bounds() -> None:
    assert CASES["defaults"] == {
        "frame_steps": _queue._FRAME_STEPS,
        "frame_bytes": _queue._FRAME_BYTES,
        "window_steps": _queue._WINDOW_STEPS,
        "window_bytes": _queue._WINDOW_BYTES,
        "silence_ms": _sender._SILENCE_SECONDS * 1000,
    }


@pytest.mark.parametrize(
    "case", CASES["retries"], ids=lambda case: f"{case['error']['code']} {case['error']['reason']}"
)
def test_errors_after_which_a_retry_can_succeed(case: dict[str, Any]) -> None:
    assert failure_of(case["error"]).transient == case["transient"]


@pytest.mark.parametrize("case", CASES["delays"], ids=lambda case: case["title"])
def test_delays(case: dict[str, Any]) -> None:
    patience = Patience(now=lambda: 0.0, chance=lambda: case["random"])
    delays: list[float | None] = []
    for error in case["failures"]:
        failure = failure_of(error)
        delays.append(None if patience.useless(failure) else round(patience.retry_at(failure) * 1000))
    assert delays == case["delays_ms"]


@pytest.mark.parametrize("case", CASES["verdicts"], ids=lambda case: case["title"])
def test_verdicts(case: dict[str, Any]) -> None:
    # The recorder has remedies where the writer fails: a branch, or a marker in place of the step.
    assert judge(failure_of(case["error"]), Situation(**case["situation"])) == case["recorder"]
