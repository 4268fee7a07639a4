"""All of it: transcripts in, environments and refusals out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from components.environments.from_trajectories.duplicates import without_duplicates
from components.environments.from_trajectories.plays import play
from components.environments.from_trajectories.rows import Kept, Refusal
from components.environments.from_trajectories.transcript import OFFERED, Rejected, Transcript
from components.environments.from_trajectories.validate import Environment, Judge, acting, passes, validate
from components.environments.tools.host import Broken
from components.environments.tools.shell import Shell, shell_check
from components.environments.tools.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Built:
    """What became of the transcripts; together they are all of them."""

    environments: list[Environment]
    refused: list[Refusal]


def working_shell(shell: Shell) -> Shell:
    """The shell, after it ran a command in its sandbox.

    Raises:
        Broken: it does not work here; names the remedy.
    """
    problems = shell_check({})
    try:
        if not problems:
            shell.run(Workspace.of({}), "true")
    except (Broken, OSError, TimeoutError) as error:
        problems = [str(error)]
    if problems:
        why, _, fix = problems[0].partition(" Fix: ")
        fix = fix or (
            "install bubblewrap, allow user namespaces (sysctl kernel.unprivileged_userns_clone=1), or build on a "
            "machine that has them"
        )
        raise Broken(f"recorded commands run in a sandbox only, and none works here: {why.rstrip('.')}. Fix: {fix}")
    return shell


def needs_shell(transcripts: Sequence[Transcript]) -> bool:
    """Whether any of them, as far as it can be read, has commands."""
    return any(action.tool == "shell" for t in transcripts if not t.problem for action in t.actions)


def build(
    transcripts: Sequence[Transcript],
    *,
    judge: Judge,
    shell: Shell | None,
    replays: int = 3,
    jobs: int = 2,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Built:
    """Validate every transcript, and leave out what there is already.

    Args:
        jobs: transcripts that are replayed side by side.
        progress: is told how many are done.

    Raises:
        Broken: the sandbox stopped working.
    """

    def one(transcript: Transcript) -> Environment | Refusal:
        try:
            return validate(transcript, judge=judge, shell=shell, replays=replays)
        except Rejected as problem:
            return Refusal(transcript.id, transcript.where, problem.reason, problem.detail)
        except Broken as problem:  # of the sandbox, or of what this one left in it?
            if shell is not None:
                working_shell(shell)
            return Refusal(transcript.id, transcript.where, "unverifiable", str(problem)[:200])
        except Exception as problem:  # whatever it is, it is this one's, and the others are not to suffer from it
            detail = f"the replay failed with {type(problem).__name__}: {str(problem)[:160]}"
            return Refusal(transcript.id, transcript.where, "unverifiable", detail)

    with ThreadPoolExecutor(jobs) as pool:
        replayed = [pool.submit(one, transcript) for transcript in transcripts]
        try:
            for done, _ in enumerate(as_completed(replayed), 1):
                progress(done, len(transcripts))
        except BaseException:  # interrupted: what has not begun shall not
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    results = [future.result() for future in replayed]
    environments = [result for result in results if isinstance(result, Environment)]
    kept, again = without_duplicates(environments)
    refused = [result for result in results if isinstance(result, Refusal)]
    refused += [Refusal(environment.id, environment.where, reason, detail) for environment, reason, detail in again]
    return Built(kept, refused)


def check_kept(kept: Kept, *, judge: Judge, shell: Shell | None, replays: int = 3) -> str | None:
    """What is wrong with a task of a folder, None if nothing: its solution must pass, doing nothing must not."""
    meta = kept.row["meta"]
    tools = {tool: toolset for toolset, offered in OFFERED.items() for tool in offered}
    toolsets = tuple(dict.fromkeys(tools[name] for name in meta["tools"] if name in tools))
    try:
        for number in range(replays):
            played = play(acting(kept.actions), kept.world, toolsets, shell)
            if not number and passes(meta["check"], played.states[0], judge):
                return "doing nothing passes"
            if not passes(meta["check"], played.states[-1], judge):
                return f"its solution does not pass (replay {number + 1})"
    except (Rejected, ValueError) as problem:
        return str(problem)
    return None
