"""Environments from transcripts: what becomes one, what does not, and what its verifier asks for."""

import json
from collections import Counter

import pytest

from components.data import jobs_database, jobs_shell
from components.data.jobs import RECORDED, jobs, record
from components.environments.from_trajectories.build import build, working_shell
from components.environments.from_trajectories.importing import read_transcripts
from components.environments.tools.database import Database
from components.environments.tools.host import Broken
from components.environments.tools.shell import Shell
from components.rewards.state import reached
from components.types import Message, Task
from tests.environments.planted import PLANTED


@pytest.fixture(scope="module")
def sandbox():
    try:
        return working_shell(Shell(seconds=120.0))
    except Broken as error:
        pytest.skip(str(error)[:200])


def recorded(job, i, form, tool, world):
    session = tool.open(Task(f"j{i}", (Message("user", "-"),), None, "state", meta=job.world))
    return record(job, getattr(session, job.tool), form, name=f"{job.tool}-{i:02d}", world=world)


def write(path, rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def built(path, rows, shell=None):
    return build(read_transcripts(write(path, rows)), judge=reached, shell=shell, jobs=2)


def test_every_database_job_becomes_an_environment_in_every_form_with_its_world_recorded_or_not(tmp_path):
    rows = [
        recorded(job, i, RECORDED[i % 4], Database(), world=i % 2 == 0)
        for i, job in enumerate(jobs(jobs_database.FAMILIES, 5, 36))
    ]
    found = built(tmp_path / "all.jsonl", rows)
    assert found.refused == []
    assert len(found.environments) == 36


def test_the_planted_transcripts_without_commands_are_refused_with_their_reasons(tmp_path):
    rows = [(row, reason) for row, reason in PLANTED if "database" in row]
    found = built(tmp_path / "planted.jsonl", [row for row, _ in rows])
    assert {r.id: r.reason for r in found.refused} == {row["id"]: reason for row, reason in rows}


@pytest.mark.slow
def test_of_sixty_experts_and_twenty_planted_the_experts_become_environments_and_the_planted_do_not(tmp_path, sandbox):
    experts = []
    for families, tool in ((jobs_shell.FAMILIES, sandbox), (jobs_database.FAMILIES, Database())):
        for i, job in enumerate(jobs(families, 7, 30)):
            experts.append(recorded(job, i, RECORDED[i % 4], tool, world=i % 8 < 4))
    mixed = [*experts, *(row for row, _ in PLANTED)]
    found = built(tmp_path / "mixed.jsonl", mixed, sandbox)
    reasons = {r.id: r.reason for r in found.refused}
    print(Counter(reasons.values()), [(r.id, r.reason, r.detail) for r in found.refused if r.id[-2:].isdigit()])
    assert len(PLANTED) == 20
    assert {row["id"]: reasons.get(row["id"]) for row, _ in PLANTED} == {row["id"]: reason for row, reason in PLANTED}
    assert len(found.environments) >= 50
    assert len(found.environments) + len(found.refused) == 80
