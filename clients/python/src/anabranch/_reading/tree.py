"""Trees of trajectories and of runs as text, as the command `anabranch tree` draws them."""

from __future__ import annotations

import math
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from anabranch._reading.read import status_name
from anabranch._wire.outage import pages
from anabranch._wire.shown import Text
from anabranch.v1.trajectory_service_pb2 import GetTreeRequest

if TYPE_CHECKING:
    from anabranch._wire.connection import Connection
    from anabranch.v1.run_pb2 import Run
    from anabranch.v1.trajectory_pb2 import Trajectory
    from anabranch.v1.trajectory_service_pb2 import TreeNode

_PAGE_SIZE = 1000
_HEADING = ("trajectory", "id", "steps", "reward", "status")


class _Node(Protocol):
    """A trajectory or a run in its tree."""

    @property
    def id(self) -> str: ...
    @property
    def parent_id(self) -> str: ...
    @property
    def branch_point(self) -> int: ...


N = TypeVar("N", bound=_Node)


def tree_text(connection: Connection, trajectory_id: str) -> Text:
    """Returns a heading and a line for each trajectory of the tree, parents above their branches."""
    nodes = {node.trajectory.id: node for node in _read_nodes(connection, trajectory_id)}
    drawn = walk(node.trajectory for node in nodes.values())
    return table((_HEADING, *(_cells(stem, nodes[each.id]) for stem, each in drawn)))


def table(rows: Sequence[tuple[str, ...]]) -> Text:
    """Returns rows of five columns as text: the first and the last are of any width, numbers stand right."""
    widths = [max(_width(row[column]) for row in rows) for column in range(4)]
    return Text("\n".join(_line(row, widths) for row in rows))


def _read_nodes(connection: Connection, trajectory_id: str) -> list[TreeNode]:
    request = GetTreeRequest(trajectory_id=trajectory_id, page_size=_PAGE_SIZE)
    found = pages(connection, lambda stubs: stubs.trajectories.GetTree, request)
    return [node for page in found for node in page.nodes]


def walk(nodes: Iterable[N]) -> Iterator[tuple[str, N]]:
    """Yields the nodes depth first, each with the lines before its name. Branches are in the order of their branch
    points, then of their creation. Trees can be deeper than the stack."""
    nodes = list(nodes)
    known = {node.id for node in nodes}
    branches: defaultdict[str, list[N]] = defaultdict(list)
    for node in nodes:
        branches[node.parent_id if node.parent_id in known else ""].append(node)
    waiting: list[tuple[str, str, N]] = [("", "", node) for node in reversed(branches[""])]
    while waiting:
        stem, below, node = waiting.pop()
        yield stem, node
        siblings = sorted(branches[node.id], key=lambda branch: branch.branch_point)
        for index, branch in reversed(list(enumerate(siblings))):
            last = index == len(siblings) - 1
            waiting.append((below + ("└─" if last else "├─"), below + ("  " if last else "│ "), branch))


def _cells(stem: str, node: TreeNode) -> tuple[str, ...]:
    trajectory = node.trajectory
    status = "deleted" if node.deleted else status_name(trajectory.status)
    reward = "–" if node.deleted else short_number(trajectory.reward_sum)
    return (name_in_tree(stem, trajectory), trajectory.id, str(trajectory.next_step_number), reward, status)


def name_in_tree(stem: str, node: Trajectory | Run) -> str:
    point = f"@{node.branch_point} " if node.HasField("branch_point") else ""
    return f"{stem}{point}{_printable(node.name) or '–'}"


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    name, trajectory_id, steps, reward, status = row
    padding = " " * (widths[0] - _width(name))
    return f"{name}{padding} {trajectory_id:<{widths[1]}} {steps:>{widths[2]}} {reward:>{widths[3]}} {status}"


def _width(text: str) -> int:
    """Returns the columns of a terminal that a text takes."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def short_number(value: float) -> str:
    """Formats a number with at most six significant digits."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    return str(int(value)) if value == int(value) and abs(value) < 1e9 else f"{value:.6g}"
