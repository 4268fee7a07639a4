"""Environments of Gymnasium and verifiers as ours, and what they pay as a term of the reward."""

import importlib.util
import sys
import threading
from pathlib import Path

import pytest

from components.data.corpus import DataError
from components.data.environments import EnvironmentTasks
from components.environments.adapters.gym import GymEnvironment
from components.environments.adapters.text import spoken, tagged
from components.environments.adapters.verifiers import VerifiersEnvironment
from components.environments.remote.client import RemoteEnvironment
from components.environments.remote.hosting import Hosting
from components.environments.remote.server import EnvironmentServer
from components.environments.single_turn import SingleTurn
from components.rewards.environment import environment_reward
from components.rewards.mix import Mix
from components.types import Message, Rollout, Task

END = "<|im_end|>"


# --- Gymnasium ------------------------------------------------------------------------------------------------------


@pytest.fixture
def lake():
    pytest.importorskip("gymnasium", reason="gymnasium is not installed (extra dev)")
    return GymEnvironment(
        name="FrozenLake-v1",
        arguments={"render_mode": "ansi", "is_slippery": False},
        instruction="Go.",
        actions=["left", "down", "right", "up"],
        observe="render",
        max_turns=8,
    )


@pytest.fixture
def words():
    """A game in text: say the words that the seed chose; every right one pays 0.5."""
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed (extra dev)")

    class Words(gymnasium.Env):
        observation_space = gymnasium.spaces.Text(100)
        action_space = gymnasium.spaces.Text(100)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.left = [str(n) for n in self.np_random.integers(10, 99, (options or {}).get("count", 2))]
            self.tries = 0
            return f"say {self.left[0]}", {}

        def step(self, action):
            self.tries += 1
            if action == "crash":
                raise RuntimeError("as asked")
            right = action == self.left[0]
            if right:
                self.left.pop(0)
            observation = f"say {self.left[0]}" if self.left else "over"
            return observation, 0.5 * right, not self.left, self.tries == 4, {"tries": self.tries}

    if "r1flow-words-v0" not in gymnasium.registry:
        gymnasium.register("r1flow-words-v0", entry_point=Words)
    return GymEnvironment(name="r1flow-words-v0", tag="action", max_turns=6)


def test_a_frozen_lake_is_crossed_in_words(lake):
    (task,) = lake.tasks({"train": 1}, held_out=(), seed=0)["train"]
    assert task.messages[0].content.startswith("Go.\n\n") and "[S]FFF\nFHFH" in task.messages[0].content
    episode = lake.reset(task)
    where = []
    for move in ("down", "down", "right", "Right", "<think>left?</think>\ndown" + END):
        step = episode.step(move)
        assert not step.done
        where.append(step.observation.split("\n").index(next(x for x in step.observation.split("\n") if "[" in x)))
    assert where == [2, 3, 3, 3, 4]
    assert episode.step("sideways").info["tool_invalid"] == 1
    last = episode.step("right")
    assert (last.done, last.cut, last.reward, last.observation) == (True, False, 1.0, None)
    state = episode.state()
    assert (state["reward"], state["terminated"], state["turns"]) == (1.0, True, 7)
    episode.close()


def test_a_game_is_its_seed_and_nothing_else(words):
    def play(seed):
        episode = words.reset(Task("t", (Message("user", "go"),), None, "environment", meta={"seed": seed}))
        said = [episode.first]
        for _ in range(2):
            said.append(episode.step(f"<action>{said[-1][4:]}</action>"))
            said.append(said[-1].observation or "")
        return said, episode.state()

    assert play(3) == play(3)
    assert play(3)[0][0] != play(4)[0][0]
    assert play(3)[1]["reward"] == 1.0


def test_tasks_are_seeds_whose_first_observations_differ_and_those_held_out_stay(words):
    counts = {"train": 5, "test": 4}
    one, two = (words.tasks(counts, held_out=("test", "dev"), seed=seed) for seed in (0, 1))
    assert one["test"] == two["test"] and one["train"] != two["train"]
    shown = [task.messages[0].content for tasks in one.values() for task in tasks]
    assert len(set(shown)) == 9
    for task in one["train"]:
        assert words.reset(task).first == task.messages[0].content


def test_actions_that_cannot_be_read_are_answered_and_limits_end_as_length(words):
    episode = words.reset(None)
    step = episode.step("no tag")
    assert step.observation == "error: no action. Write <action>…</action>" and not step.done
    for _ in range(3):
        assert not episode.step("<action>x</action>").done
    cut = episode.step("<action>x</action>")  # its own limit, of four tries
    assert (cut.done, cut.cut) == (True, True)
    lazy = words.reset(None)
    for _ in range(6):
        assert not lazy.step("nothing").done
    assert (lazy.step("nothing").done, lazy.state()["turns"]) == (True, 6)
    with pytest.raises(RuntimeError, match="as asked"):
        words.reset(None).step("<action>crash</action>")


def test_turns_are_read_without_thinking_and_marks():
    assert spoken("<think>a</think>\n go <|im_end|>") == "go"
    assert spoken("go</s>") == "go" and spoken("a |> b") == "a |> b"
    assert tagged("<a>1</a> or <a> 2 </a>.", "a") == "2"
    assert tagged("<a>1", "a") is None and tagged("1</a>", "a") is None


# --- verifiers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def verifiers(monkeypatch):
    """The package, or a stand-in with its interface where it is not installed."""
    here = Path(__file__).parent
    if importlib.util.find_spec("verifiers") is None:
        monkeypatch.syspath_prepend(str(here / "stand_in"))
    yield
    for name in [
        name
        for name in sys.modules
        if name.split(".")[0] == "verifiers" and "stand_in" in str(getattr(sys.modules[name], "__file__", ""))
    ]:
        del sys.modules[name]


def made(game, **settings):
    return VerifiersEnvironment(name="verifiers_cases", arguments={"game": game}, seconds=60.0, **settings)


def one_task(environment, question):
    tasks = environment.tasks({"train": 8}, held_out=(), seed=0)["train"]
    return next(task for task in tasks if task.messages[-1].content == question)


def call(name, x):
    return f'<tool_call>{{"name": "{name}", "arguments": {{"x": {x}}}}}</tool_call>'


def test_an_environment_of_verifiers_with_tools_answers_calls_and_its_rubric_pays(verifiers):
    environment = made("tools")
    assert environment.speaker == "tool" and environment.schemas()[0]["function"]["name"] == "double"
    assert '"double"' in environment.manual()
    task = one_task(environment, "Double 12.")
    assert task.answer == "24"
    episode = environment.reset(task)
    step = episode.step(call("double", 12) + call("double", 3) + END)
    assert (step.observation, step.done, step.info["tool_calls"]) == (("24", "6"), False, 2)
    wrong = episode.step(call("halve", 12))
    assert "halve" in wrong.observation[0] and wrong.info["tool_invalid"] == 1
    broken = episode.step("<tool_call>{</tool_call>")
    assert broken.observation.startswith("error: not JSON") and broken.info["tool_malformed"] == 1
    assert episode.step("It is 24." + END).done
    state = episode.state()
    assert (state["reward"], state["stop"]) == (1.0, "no_tools_called")
    assert state["metrics"]["right"] == 1.0 and state["metrics"]["num_turns"] == 3
    assert environment_reward(task, _left(task, state), key="metrics.right") == 1.0
    episode.close()


def test_a_game_of_verifiers_speaks_as_the_user_and_ends_by_itself(verifiers):
    environment = made("guess")
    assert (environment.speaker, environment.schemas()) == ("user", [])
    task = one_task(environment, "Guess, game 3.")
    episode = environment.reset(task)
    assert [episode.step(text).observation for text in ("1", "<think>hm</think> 5" + END)] == [("higher",), ("lower",)]
    last = episode.step("3")
    assert (last.done, last.observation) == (True, None)
    assert episode.state()["reward"] == pytest.approx(1 / 3)


def test_an_episode_of_verifiers_that_was_cut_off_is_scored_and_one_that_broke_fails(verifiers):
    environment = made("guess")
    task = one_task(environment, "Guess, game 3.")
    unfinished, untouched, broken = (environment.reset(task) for _ in range(3))
    unfinished.step("1")
    assert (unfinished.state()["reward"], unfinished.state()["stop"]) == (0.0, "prompt_too_long")
    assert untouched.state()["metrics"]["num_turns"] == 0
    with pytest.raises(RuntimeError, match="not a number at all"):
        broken.step("xx")
    broken.close()
    with pytest.raises(ValueError, match="has no meta"):
        environment.reset(None)


def test_rows_of_a_data_set_are_in_one_split_each(verifiers):
    one, two = (made("guess").tasks({"train": 9, "test": 3}, held_out=("test",), seed=seed) for seed in (0, 1))
    assert one["test"] == two["test"] and len(one["test"]) == 3
    assert len(one["train"]) == 5 and set(one["train"][0].meta["verifiers"]) >= {"prompt", "answer"}
    ids = [task.id for tasks in one.values() for task in tasks]
    assert len(set(ids)) == 8
    assert {t.id for t in one["train"]} == {t.id for t in two["train"]}


def test_an_adapted_environment_can_be_served(verifiers, monkeypatch):
    monkeypatch.setenv("R1FLOW_ENVS_TOKEN", "a-token-of-tests")
    environment = made("guess")
    server = EnvironmentServer(Hosting(environment), token="a-token-of-tests")
    thread = threading.Thread(target=server.serve)
    thread.start()
    remote = RemoteEnvironment(url=server.url)
    task = one_task(environment, "Guess, game 2.")
    assert (remote.speaker, remote.schemas(task), remote.chat) == ("user", [], True)
    episode = remote.reset(task)
    assert episode.step("0").observation == ("higher",)
    assert episode.step("2").done
    assert environment_reward(task, _left(task, episode.state())) == 0.5
    episode.close()
    server.close()
    thread.join()


# --- rewards and tasks ----------------------------------------------------------------------------------------------


def _left(task, state):
    return Rollout(task.id, (), (), (), (), "", "stop", state=state)


def test_what_an_environment_pays_is_a_term_of_the_mix():
    task = Task("t", (Message("user", "go"),), None, "environment")
    mix = Mix(terms={"environment": environment_reward}, weights={"environment": 2.0}, isolate=False)
    good, none, text = mix.score([(task, _left(task, s)) for s in ({"reward": 0.25}, {}, {"reward": "1.0"})])
    assert (good.total, good.terms) == (0.5, {"environment": 0.25})
    assert none.outcome == text.outcome == "failed" and "left no number 'reward'" in none.reason
    assert environment_reward(task, _left(task, {"reward": 0.9}), solved=0.8) == 1.0
    assert environment_reward(task, _left(task, {"reward": 0.7}), solved=0.8) == 0.0


def test_tasks_of_an_environment_are_a_source_of_data(words):
    corpus = EnvironmentTasks(environment=words, train=4, fresh=2, profile=1, dev=2, test=3).load(0)
    assert {split: len(tasks) for split, tasks in corpus.tasks.items()} == {
        "train": 4, "fresh": 2, "profile": 1, "dev": 2, "test": 3,
    }  # fmt: skip
    with pytest.raises(DataError, match="SingleTurn makes no tasks"):
        EnvironmentTasks(environment=SingleTurn()).load(0)
