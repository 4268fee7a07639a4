"""From one transcript to one environment, or to the reason why not: replays, the verifier, and what must fail it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from components.environments.from_trajectories.broken import blind, corrupted, left_out
from components.environments.from_trajectories.compare import compare
from components.environments.from_trajectories.plays import EVERYTHING, PLAIN, TWISTS, Played, Twist, play
from components.environments.from_trajectories.reach import reaches_outside
from components.environments.from_trajectories.seen import seen_files, seen_tables
from components.environments.from_trajectories.transcript import OFFERED, TOOLSETS, WORLDS, Action, Rejected, Transcript
from components.environments.from_trajectories.verifier import asks_for_rights, changes, check_of, unmet
from components.environments.from_trajectories.words import depends_on_chance, of_the_time, only_reads
from components.environments.tools.shell import Shell

Judge = Callable[[Any, Any], tuple[int, int]]  # (check, state) → conditions that hold, conditions
_CORRUPTED = 3  # arguments that are tried


@dataclass(frozen=True, slots=True)
class Environment:
    """A task with its world, its verifier and the solution that it was made of.

    Attributes:
        said: what the tools answered to each action here.
        effective: actions that changed something.
        changed: files, tables and keys that the solution changed.
        broken: broken solutions that were tried, and failed.
    """

    id: str
    where: str
    instruction: str
    world: Mapping[str, Any]
    toolset: str
    tools: tuple[str, ...]
    check: Mapping[str, Any]
    actions: tuple[Action, ...]
    said: tuple[str, ...]
    effective: tuple[int, ...]
    changed: tuple[str, ...]
    broken: int
    pass_rate: float | None = None


def validate(transcript: Transcript, *, judge: Judge, shell: Shell | None, replays: int = 3) -> Environment:
    """The environment of a transcript.

    Args:
        judge: of a check on a final state (`components.rewards.state.reached`).
        shell: sandbox in which commands run; None for transcripts without any.
        replays: of the solution, each of which must reach the end.

    Raises:
        Rejected: with one of `transcript.REASONS`.
        Broken: the sandbox does not work; this says nothing of the transcript.
    """
    if transcript.problem:
        raise Rejected(*transcript.problem)
    if why := reaches_outside(action.text for action in transcript.actions if action.tool == "shell"):
        raise Rejected("outside", why)
    if why := asks_for_rights(transcript.instruction, transcript.actions):
        raise Rejected("unverifiable", why)
    toolsets = tuple(dict.fromkeys(TOOLSETS[a.tool] for a in transcript.actions if a.tool in TOOLSETS))
    if not toolsets:
        raise Rejected("no_effect", "it does nothing but compute")
    world, given = _beginning(transcript, toolsets)
    if (found := of_the_time(str(world.get("database", "")))) is not None:
        raise Rejected("unstable", f"the beginning uses {found}")
    first = play(transcript.actions, world, toolsets, shell)
    compare(transcript.actions, first, given)
    before, after = first.states[0], first.states[-1]
    effective = [i for i, (a, b) in enumerate(zip(first.states, first.states[1:], strict=False)) if changes(a, b)]
    changed = changes(before, after)
    if not changed:
        raise Rejected("no_effect", "the end is the beginning" if effective else "no action changes anything")
    check = check_of(before, after)
    trial = _Trial(transcript.actions, world, toolsets, shell, judge, check, first, effective)
    _stays(trial, replays)
    if (missing := unmet(transcript.instruction, before, after)) is not None:
        raise Rejected("unmet", f"there is no {missing}, neither at the beginning nor at the end")
    _not_blind(trial, transcript.instruction)
    broken = _broken(trial)
    return Environment(
        id=transcript.id,
        where=transcript.where,
        instruction=transcript.instruction,
        world=world,
        toolset=toolsets[0] if len(toolsets) == 1 else "tools",
        tools=tuple(_tools(transcript.actions, toolsets)),
        check=check,
        actions=transcript.actions,
        said=first.said,
        effective=tuple(effective),
        changed=tuple(changed),
        broken=broken,
    )


def _beginning(transcript: Transcript, toolsets: Sequence[str]) -> tuple[dict[str, Any], bool]:
    """(world, whether all of it was recorded)."""
    seen = {"files": seen_files, "database": seen_tables, "store": lambda _: {}}
    names = [WORLDS[toolset] for toolset in toolsets]
    world = {n: transcript.world[n] if n in transcript.world else seen[n](transcript.actions) for n in names}
    return world, all(name in transcript.world for name in names)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A solution whose end is to be told from others.

    Attributes:
        first: its first replay.
        effective: actions that changed something in it.
    """

    actions: Sequence[Action]
    world: Mapping[str, Any]
    toolsets: Sequence[str]
    shell: Shell | None
    judge: Judge
    check: Mapping[str, Any]
    first: Played
    effective: Sequence[int]

    def end(self, actions: Sequence[Action], twist: Twist = PLAIN) -> Mapping[str, Any]:
        """End of a replay from the beginning."""
        return play(actions, self.world, self.toolsets, self.shell, twist).states[-1]

    def end_from(self, place: int, solution: Sequence[Action]) -> Mapping[str, Any]:
        """End of a solution that is the recorded one up to a place; a shell goes on from there."""
        try:
            if not self.first.workspaces:
                return self.end(solution)
            start, rest = self.first.workspaces[place], acting(solution[place:])
            return play(rest, self.world, self.toolsets, self.shell, start=start).states[-1]
        except Rejected:
            return {}  # it broke, as it should

    def passes(self, end: Mapping[str, Any]) -> bool:
        return passes(self.check, end, self.judge)

    def differing(self, end: Mapping[str, Any]) -> str:
        """Names of what is otherwise than at the end of the first replay."""
        return ", ".join(changes(self.first.states[-1], end)[:3]) or "the end"


def _stays(trial: _Trial, replays: int) -> None:
    """Whether the end is the same every time, also at another time, in another order, and so on.

    Commands that only read were replayed once, for what they say; they leave nothing that could differ.
    """
    for i in trial.effective:
        if (why := depends_on_chance(trial.actions[i].tool, trial.actions[i].text)) is not None:
            raise Rejected("unstable", f"action {i + 1} uses {why}")
    actions = acting(trial.actions)
    for _ in range(replays - 1):
        again = trial.end(actions)
        if not trial.passes(again):
            raise Rejected("unstable", f"{trial.differing(again)} differ from replay to replay")
    twisted = trial.end(actions, EVERYTHING)
    if trial.passes(twisted):
        return
    for name, twist in TWISTS.items():
        end = trial.end(actions, twist)
        if not trial.passes(end):
            raise Rejected("unstable", f"{trial.differing(end)} depends on {name}")
    raise Rejected("unstable", f"{trial.differing(twisted)} depends on more than one thing")


def _not_blind(trial: _Trial, instruction: str) -> None:
    for name, end in blind(trial.first.states[0], instruction).items():
        if trial.passes(end):
            raise Rejected("trivial", f"{name} solves it")
    told = " ".join(instruction.split())
    if len(trial.effective) == 1:
        command = " ".join(trial.actions[trial.effective[0]].text.split())
        if len(command) > 5 and command in told:
            raise Rejected("trivial", f"the instruction spells out the solution, {command[:60]!r}")


def _broken(trial: _Trial) -> int:
    """Broken solutions that fail. Raises Rejected: one passes, or no argument matters."""
    failed = 0
    last = trial.effective[-1]
    for place, solution in left_out(trial.actions, trial.effective):
        if not trial.passes(trial.end_from(place, solution)):
            failed += 1
        elif place == last:
            raise Rejected("weak", f"without action {place + 1} the check passes")
    others = islice(corrupted(trial.actions, trial.effective), _CORRUPTED)
    mattered = sum(not trial.passes(trial.end_from(place, solution)) for place, solution in others)
    if not mattered:
        raise Rejected("weak", f"with other arguments of action {last + 1} the check passes")
    return failed + mattered


def acting(actions: Sequence[Action]) -> list[Action]:
    """Actions without the commands that only read and stay where they are."""
    return [a for a in actions if a.tool != "shell" or not only_reads(a.text) or "cd" in a.text.split()]


def passes(check: Mapping[str, Any], state: Mapping[str, Any], judge: Judge) -> bool:
    """Whether all conditions hold."""
    met, count = judge(check, state)
    return met == count


def _tools(actions: Sequence[Action], toolsets: Sequence[str]) -> Iterator[str]:
    for toolset in toolsets:
        yield from OFFERED[toolset]
    if any(action.tool == "calculator" for action in actions):
        yield "calculator"
