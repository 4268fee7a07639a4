"""``r1flow envs record``: experts at work, written down."""

from __future__ import annotations

import argparse
from typing import Any

from flows.envs import bad, said


def record_experts(options: argparse.Namespace, console: Any) -> int:
    """Write transcripts of built-in experts. Raises BadInput."""
    from components.artifacts import write_jsonl
    from components.data.jobs import RECORDED, jobs, record
    from components.data.jobs_database import FAMILIES as DATABASE
    from components.data.jobs_shell import FAMILIES as SHELL
    from components.environments.from_trajectories.build import working_shell
    from components.environments.tools.database import Database
    from components.environments.tools.host import Broken
    from components.environments.tools.shell import Shell
    from components.types import Message, Task

    known = {**{f"shell/{k}": v for k, v in SHELL.items()}, **{f"database/{k}": v for k, v in DATABASE.items()}}
    wanted = (options.families or "shell,database").split(",")
    chosen = {name: make for name, make in known.items() if any(name == w or name.startswith(f"{w}/") for w in wanted)}
    form = "transcripts" if options.format == "auto" else options.format
    if options.to is None or form not in RECORDED:
        raise bad(
            "--to" if options.to is None else "--format", "is needed to record", "--to FILE, --format transcripts"
        )
    if not chosen:
        raise bad(
            "--families", f"no such jobs (got {options.families!r})", f"some of shell, database, {', '.join(known)}"
        )
    rows = []
    try:
        shell = working_shell(Shell()) if any(name.startswith("shell") for name in chosen) else None
        for i, job in enumerate(jobs(chosen, options.seed, options.n)):
            toolset = shell if job.tool == "shell" and shell else Database()
            session = toolset.open(Task(f"job-{i:04d}", (Message("user", "-"),), None, "state", meta=job.world))
            rows.append(
                record(
                    job, getattr(session, job.tool), form, name=f"job-{options.seed}-{i:04d}", look=not options.no_look
                )
            )
    except (Broken, ValueError) as error:
        raise said(error) from error
    write_jsonl(options.to, rows)
    console.print(f"{options.to}: {len(rows)} transcripts", markup=False)
    return 0
