"""Rows whose ``meta`` has a check, and the built-in jobs that such rows are made of."""

import json
import random

import pytest

from components.data import jobs_database, jobs_shell
from components.data.corpus import DataError
from components.data.jobs import RECORDED, jobs, record
from components.data.tables import Table

CHECK = {"database": {"t": {"$absent": True}}}
TRACE = "<think> <tool>query DROP TABLE t</tool><result>ok</result></think><answer>done</answer>"


def table(tmp_path, *rows, **settings):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Table(path=str(path), test_fraction=0.0, dev_fraction=0.0, fresh_fraction=0.0, **settings)


def test_a_row_with_a_check_needs_no_answer_and_its_trace_is_a_cold_start(tmp_path):
    meta = {"database": "CREATE TABLE t (a)", "tools": ["query"], "check": CHECK}
    corpus = table(tmp_path, {"prompt": "drop t", "meta": meta, "trace": TRACE}).load(0)
    [task] = corpus.tasks["train"]
    assert (task.kind, task.verifier, task.answer, task.meta) == ("reasoning", "state", None, meta)
    assert [example.response for example in corpus.cold_start] == [TRACE]
    assert corpus.notes == []


def test_a_meta_that_is_text_may_hold_an_object_and_any_other_is_left_alone_unless_it_was_named(tmp_path):
    rows = [{"prompt": "a", "answer": "1", "meta": '{"x": 2}'}, {"prompt": "b", "answer": "1", "meta": "from a book"}]
    tasks = table(tmp_path, *rows).load(0).tasks["train"]
    assert sorted((task.prompt, task.verifier, dict(task.meta)) for task in tasks)[0] == ("a", "exact", {"x": 2})
    assert sorted((task.prompt, dict(task.meta)) for task in tasks)[1] == ("b", {})
    with pytest.raises(DataError, match="expected an object"):
        table(tmp_path, *rows, columns={"meta": "meta"}).check()


@pytest.mark.parametrize("families", [jobs_shell.FAMILIES, jobs_database.FAMILIES], ids=["shell", "database"])
def test_jobs_differ_from_each_other_and_a_longer_series_begins_with_a_shorter(families):
    many = list(jobs(families, 3, 60))
    assert len({job.instruction for job in many}) == 60
    assert {job.family for job in many} == set(families)
    assert list(jobs(families, 3, 20)) == many[:20]
    assert list(jobs(families, 4, 20)) != many[:20]


def test_more_jobs_than_there_are_is_said():
    with pytest.raises(ValueError, match="different ones only"):
        list(jobs({"remove": jobs_database.remove}, 0, 1000))


def test_a_recording_holds_what_was_called_and_answered_and_the_beginning_only_if_asked():
    job = jobs_database.set_price(random.Random(0))
    rows = [record(job, lambda command: f"said {command}", form, world=False, look=False) for form in RECORDED]
    for row in rows:
        text = json.dumps(row)
        assert job.steps[0].split("WHERE")[0] in text and "CREATE TABLE" not in text
    assert all("said" in json.dumps(row) for row in rows)
    assert "CREATE TABLE" in json.dumps(record(job, lambda _: "", "messages"))
    with pytest.raises(ValueError, match="no such form"):
        record(job, lambda _: "", "film")
