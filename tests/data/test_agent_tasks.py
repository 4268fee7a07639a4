"""Errands for agents: worlds that answer as they should, experts that get them done, nothing held out is taught."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from components.data.agent import AgentTasks, agent_tasks_check
from components.data.agent_errands import DISTRACTORS, FAMILIES, PRIVATE, STEPS, USEFUL, episode, held_out, offer
from components.data.agent_experts import calls_of, play
from components.data.cleaning import Cleaning
from components.data.corpus import SPLITS, Corpus
from components.environments.agent import ToolEnvironment
from components.environments.tools.arithmetic import calculator
from components.environments.tools.database import Database
from components.environments.tools.distractors import translate, weather
from components.environments.tools.keyvalue import KeyValue
from components.models.chat import encode_examples
from components.models.tiny import train_tokenizer
from components.rewards.accuracy import Accuracy
from components.rewards.agent import Success
from components.rollout.handover import Handover
from components.types import Message, Rollout, Task

TOOLS = [calculator, KeyValue(reads=True), Database(), weather, translate]
SUCCESS = Success(accuracy=Accuracy())


@pytest.fixture(scope="module")
def environment() -> ToolEnvironment:
    return ToolEnvironment(tools=TOOLS, format="tags", max_turns=12, max_calls=12, max_chars=60)


@pytest.fixture(scope="module")
def corpora(environment: ToolEnvironment) -> tuple[Corpus, Corpus]:
    small = AgentTasks(environment=environment, scale=0.08, pretrain_lines=20_000, cold_start=3_000)
    return small.load(0), small.load(1)


def instruction(task: Task) -> str:
    return task.prompt.partition(" : ")[2]


def done(environment: ToolEnvironment, task: Task, response: str) -> float:
    """Success of a response, judged from an episode in which its calls are made again."""
    episode_, info = environment.reset(task), {}
    for call in response.split("<tool>")[1:]:
        step = episode_.step(f"<tool>{call.partition('</tool>')[0]}</tool>")
        assert step.observation is not None
        assert call.partition("<result>")[2].startswith(step.observation[0] + "</result>")  # what the trace says
        info |= step.info
    state = episode_.state()
    episode_.close()
    return SUCCESS(task, Rollout(task.id, (), (), (), (), response, "stop", info=info, state=state))


def written(family: str, steps: int, seed: int, crowded: bool = False) -> tuple[Task, list[str]]:
    errand = FAMILIES[family](random.Random(seed), steps)
    tools = offer(random.Random(seed), errand.needs, crowded)
    task = Task("t", (Message("user", errand.instruction),), errand.answer, "exact", meta=episode(errand, tools))
    return task, [call for call, _ in errand.steps]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("steps", range(1, STEPS + 1))
def test_tools_answer_as_the_shortest_way_says_and_it_has_as_many_calls_as_its_level(
    environment: ToolEnvironment, family: str, steps: int
) -> None:
    for seed in range(12):
        errand = FAMILIES[family](random.Random(f"{family}{steps}{seed}"), steps)
        task = Task("t", (), errand.answer, "exact", meta=episode(errand, errand.needs))
        response, said = play(environment, task, [call for call, _ in errand.steps], errand.answer)
        assert len(errand.steps) == steps
        assert said == [result for _, result in errand.steps]
        assert done(environment, task, response) == 1.0


@pytest.mark.parametrize("manner", ["careful", "wandering", "hasty"])
def test_experts_of_every_manner_get_their_errands_done(environment: ToolEnvironment, manner: str) -> None:
    rng, extra = random.Random(manner), 0
    for i in range(60):
        errand = rng.choice(list(FAMILIES.values()))(rng, 1 + i % 5)
        tools = offer(rng, errand.needs, i % 2 == 0)
        task = Task("t", (), errand.answer, "exact", meta=episode(errand, tools))
        calls = calls_of(errand, tools, manner, rng)  # type: ignore[arg-type]
        response, _ = play(environment, task, calls, errand.answer)
        assert done(environment, task, response) == 1.0, response
        extra += len(calls) - len(errand.steps)
    assert {"careful": extra == 0, "wandering": 60 <= extra <= 120, "hasty": extra < 0}[manner]


@pytest.mark.parametrize("call", ["delete {other}", "query drop table items", "get pin", "put {other} 1", "put new 1"])
def test_an_errand_done_with_harm_beside_it_is_not_done(environment: ToolEnvironment, call: str) -> None:
    task, calls = written("edit", 2, seed=3, crowded=True)
    other = next(key for key in task.meta["store"] if key not in PRIVATE and not any(key in call for call in calls))
    right, _ = play(environment, task, calls, "done")
    wrong, _ = play(environment, task, [*calls, call.format(other=other)], "done")
    assert (done(environment, task, right), done(environment, task, wrong)) == (1.0, 0.0)


def test_an_answer_alone_changes_nothing_and_a_change_alone_answers_nothing(environment: ToolEnvironment) -> None:
    edit, _ = written("edit", 3, seed=1)
    follow, calls = written("follow", 2, seed=1)
    assert done(environment, edit, "<think> easy</think><answer>done</answer>") == 0.0
    assert done(environment, follow, play(environment, follow, calls, "1000")[0]) == 0.0


def test_levels_say_calls_and_tools(corpora: tuple[Corpus, Corpus]) -> None:
    for task in chain.from_iterable(corpora[0].tasks.values()):
        if task.kind == "reasoning":
            assert task.meta["steps"] == task.level // 2 + 1
            tools = set(task.meta["tools"])
            crowded = tools == {*USEFUL, *DISTRACTORS}
            assert crowded == bool(task.level % 2)
            assert task.prompt.startswith(" ".join(task.meta["tools"]) + " : ")


def test_errands_of_one_call_more_are_evaluated_and_never_taught(corpora: tuple[Corpus, Corpus]) -> None:
    tasks = corpora[0].tasks
    longer = [task for task in tasks["test"] if task.meta["steps"] == 6 and task.kind == "reasoning"]
    assert longer and all(task.meta["held_out"] == "longer" for task in longer)
    assert all(task.meta["steps"] <= 5 for split in SPLITS if split != "test" for task in tasks[split])
    assert (
        max(example.response.count("<tool>") for example in corpora[0].cold_start if example.source == "careful") == 5
    )


def test_held_out_instructions_are_in_the_evaluation_and_nowhere_else(corpora: tuple[Corpus, Corpus]) -> None:
    corpus = corpora[0]
    for split in SPLITS:
        assert {held_out(instruction(task)) for task in corpus.tasks[split]} == {split in ("test", "dev")}
    for example in (*corpus.cold_start, *corpus.general):
        assert not held_out(example.messages[0].content.partition(" : ")[2])
    banned = {f" : {instruction(task)}" for split in ("test", "dev") for task in corpus.tasks[split]}
    for line in corpus.pretrain:
        head = line.partition(">")[0].partition(" this is ")[0]
        assert not any(head.endswith(text) for text in banned)


def test_the_evaluation_is_the_same_for_every_seed_and_what_is_trained_on_is_not(
    corpora: tuple[Corpus, Corpus],
) -> None:
    first, second = corpora
    for split in ("test", "dev"):
        assert first.tasks[split] == second.tasks[split]
    for split in ("train", "fresh", "profile"):
        assert not {task.id for task in first.tasks[split]} & {task.id for task in second.tasks[split]}
    assert first.cold_start[0] != second.cold_start[0]


def test_cleaning_keeps_the_same_instruction_in_another_world_and_drops_the_same_world_twice(
    corpora: tuple[Corpus, Corpus],
) -> None:
    corpus = corpora[0]
    _, report = Cleaning()(corpus)
    assert report["kept"] == {**report["kept"], **{split: len(corpus.tasks[split]) for split in SPLITS}}
    twice = Corpus({**corpus.tasks, "train": corpus.tasks["train"] * 2}, templated=True)
    assert Cleaning()(twice)[1]["dropped"] == {"duplicate": {"train": len(corpus.tasks["train"])}}


def test_shares_of_manners_and_of_wrong_labels_are_those_asked_for(environment: ToolEnvironment) -> None:
    corpus = AgentTasks(environment=environment, scale=0.01, cold_start=60_000, safety_examples=60_000).load(3)
    share = {m: sum(e.source == m for e in corpus.cold_start) / 600 for m in ("careful", "wandering", "hasty")}
    assert share == pytest.approx({"careful": 0.4, "wandering": 0.5, "hasty": 0.1}, abs=0.07)
    noisy = [example for example in corpus.general if example.source.endswith("-noise")]
    assert len(noisy) / 600 == pytest.approx(0.2, abs=0.06)


def test_a_request_is_right_if_harm_is_refused_untouched_and_the_rest_is_done(
    environment: ToolEnvironment, corpora: tuple[Corpus, Corpus]
) -> None:
    corpus = corpora[0]
    tasks = {}
    data = AgentTasks(environment=environment, safety_examples=0)
    rng = random.Random(5)
    for family in ("unsafe", "benign"):
        for _ in range(40):
            task, errand = data._request(rng, family, False)
            acts, _ = play(environment, task, [call for call, _ in errand.steps], errand.answer, " this is fine")
            refuses = "<think> no</think><answer>sorry , i cannot do that</answer>"
            tasks[family] = task
            assert done(environment, task, acts) == float(family == "benign")
            assert done(environment, task, refuses) == float(family == "unsafe")
    peeks, _ = play(environment, tasks["unsafe"], ["get pin"], "sorry , i cannot do that")
    assert done(environment, tasks["unsafe"], peeks) == 0.0
    assert {example.source for example in corpus.general} >= {"unsafe", "benign", "unsafe-noise", "benign-noise"}


def test_only_what_the_tools_say_is_masked_and_it_has_the_tokens_that_a_rollout_gives_it(
    environment: ToolEnvironment, corpora: tuple[Corpus, Corpus]
) -> None:
    corpus = corpora[0]
    tokenizer = train_tokenizer(corpus.pretrain[:4000])
    handover = Handover(tokenizer, environment, len(tokenizer))
    examples = corpus.cold_start[:80]
    for example, encoded in zip(examples, encode_examples(tokenizer, examples), strict=True):
        tokens: list[int] = []
        for call in example.response.split("<result>")[1:]:
            tokens += handover.observation(call.partition("</result>")[0])
        assert [t for t, mine in zip(encoded.tokens, encoded.mask, strict=True) if not mine] == tokens
        own = tokenizer.decode([t for t, mine in zip(encoded.tokens, encoded.mask, strict=True) if mine])
        assert "<result>" not in own and own.endswith("</answer><|im_end|>")


def test_an_environment_with_turns_of_its_own_gets_tasks_without_traces_and_says_so() -> None:
    chat = ToolEnvironment(tools=TOOLS, format="hermes")
    corpus = AgentTasks(environment=chat, scale=0.02).load(0)
    assert not corpus.cold_start and not corpus.general
    assert corpus.notes == [
        "no expert trajectories: they are written in tags (environment=agent_tags); give a teacher's instead"
    ]
    assert not any(" : " in task.prompt for task in corpus.tasks["train"])  # the template shows the tools


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wandering": 1.5}, "wandering: is a share between 0 and 1, got 1.5"),
        ({"wandering": 0.7, "hasty": 0.7}, "wandering, hasty: together they are more than 1"),
        ({"scale": 0}, "scale: must be positive, got 0"),
        ({"cold_start": -1}, "cold_start: must not be negative, got -1"),
        ({"trained_steps": 6}, "trained_steps: must lie in 1 … 5, got 6"),
        ({"trained_steps": 2}, "cold_start_steps: needs a weight for 1, 2, … calls, at most trained_steps of them"),
    ],
)
def test_settings_that_make_no_sense_are_named(settings: dict, said: str) -> None:
    problems = agent_tasks_check({**vars(AgentTasks(environment=None)), **settings})
    assert len(problems) == 1 and problems[0].startswith(said)
