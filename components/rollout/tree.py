"""A tree of turns for Monte-Carlo search: where to go on, what came of it, which branch is better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log, sqrt
from typing import Any

from components.types import Rollout


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of the policy added to the sequence, the environment's answer included.

    Attributes:
        own: the policy's tokens, the first of ``tokens``.
        tokens, mask, logp: as in a rollout.
        said: (text, observation) as the environment was given and gave it; several if it first had nothing to say.
        info, reward: the environment's, of this turn.
    """

    own: tuple[int, ...]
    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    logp: tuple[float, ...]
    said: tuple[tuple[str, Any], ...] = ()
    info: Mapping[str, float] = field(default_factory=dict)
    reward: float = 0.0


@dataclass(eq=False)
class Node:
    """A point of an episode after a turn; the root is its beginning.

    Attributes:
        children: by the tokens of their turns, answers included.
        tries: rollouts that began here.
        visits, total: outcomes backed up through here, and their sum.
        ended: the rollout that ends here, where one does; it has the outcome ``value``.
    """

    parent: Node | None = None
    turn: Turn | None = None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    tries: int = 0
    visits: int = 0
    total: float = 0.0
    ended: Rollout | None = None

    @property
    def value(self) -> float:
        """Mean outcome; 0 before there is one."""
        return self.total / self.visits if self.visits else 0.0

    @property
    def path(self) -> list[Turn]:
        """Turns from the beginning to here."""
        turns: list[Turn] = []
        node: Node | None = self
        while node is not None and node.turn is not None:
            turns.append(node.turn)
            node = node.parent
        return turns[::-1]

    def walk(self) -> Iterator[Node]:
        """This node and all below, parents first."""
        yield self
        for child in self.children.values():
            yield from child.walk()


def select(root: Node, *, width: float, exploration: float) -> Node:
    """The node to go on from: down the best children while ``width``·√N rollouts have begun at a node of N visits.

    A child's upper confidence bound is Q + c·√(ln N / n), with n of the N visits of its parent (UCT, Kocsis and
    Szepesvári 2006, as in arXiv:2408.07199 eq. 2). Turns are too many to try all: a node gets new ones ever more rarely
    (progressive widening, Coulom 2007), so that the best is found in the end and the mean still tends to its value. A
    node that ends an episode is returned as it is.
    """
    node = root
    while node.ended is None and node.tries >= width * sqrt(max(node.visits, 1)) and node.children:
        visits = max(node.visits, 1)

        def bound(child: Node, visits: int = visits) -> float:
            return child.value + exploration * sqrt(log(visits) / child.visits) if child.visits else inf

        node = max(node.children.values(), key=bound)
    return node


def grow(node: Node, turns: Sequence[Turn], ended: Rollout) -> Node:
    """Add a rollout's turns below ``node``; turns that are there already are shared. The node where it ends."""
    node.tries += 1
    for turn in turns:
        child = node.children.get(turn.tokens)
        if child is None:
            child = node.children[turn.tokens] = Node(parent=node, turn=turn)
        node = child
    if node.ended is None:
        node.ended = ended
    return node


def back_up(node: Node | None, value: float) -> None:
    """Count an outcome at a node and at everything above it."""
    while node is not None:
        node.visits += 1
        node.total += value
        node = node.parent


def best_ends(root: Node, at_least: float) -> list[Node]:
    """Ends of episodes whose outcome is at least this: the best first, then those of fewer turns and tokens."""
    ends = [node for node in root.walk() if node.ended is not None and node.visits and node.value >= at_least]

    def rank(node: Node) -> tuple[float, int, int]:
        assert node.ended is not None
        return -node.value, len(node.path), len(node.ended.tokens)

    return sorted(ends, key=rank)


def contrasts(root: Node, margin: float) -> list[tuple[Node, Node, Node]]:
    """(node, its best child, its worst) where their values differ by ``margin`` or more, widest first."""
    found = []
    for node in root.walk():
        tried = [child for child in node.children.values() if child.visits]
        if len(tried) < 2:
            continue
        # Of equals, the one that more is known about.
        best = max(tried, key=lambda child: (child.value, child.visits))
        worst = min(tried, key=lambda child: (child.value, -child.visits))
        if best.value - worst.value >= margin and _own(best) != _own(worst):
            found.append((node, best, worst))
    return sorted(found, key=lambda three: three[2].value - three[1].value)


def _own(node: Node) -> tuple[int, ...]:
    return () if node.turn is None else node.turn.own
