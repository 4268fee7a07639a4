"""The tree of a search: where it goes on, what it counts, and rollouts that begin in the middle of an episode."""

import math
import random

import pytest
import torch
from agents import make_policy, make_tokenizer, say

from components.environments.agent import ToolEnvironment
from components.environments.protocol import Step
from components.models.logprobs import token_logprobs
from components.rollout.replay import SAID, ReplayDiffers, Replayed
from components.rollout.sampling import Sampling
from components.rollout.spans import turns
from components.rollout.torch_engine import TorchEngine
from components.rollout.tree import Node, Turn, back_up, best_ends, contrasts, grow, select
from components.stages.shared import Policy
from components.stages.tree_rollouts import Branches
from components.types import Message, Rollout, Task


def turn(name, answer=None):
    tokens = (name,) if answer is None else (name, answer)
    return Turn((name,), tokens, (True, False)[: len(tokens)], (0.0,) * len(tokens))


def end(tokens=3):
    return Rollout("t", (), tuple(range(tokens)), (True,) * tokens, (0.0,) * tokens, "", "stop")


def tree(*rollouts):
    """A tree of (path, outcome) pairs, all begun at the root."""
    root = Node()
    for path, value in rollouts:
        back_up(grow(root, [turn(name) for name in path], end(len(path))), value)
    return root


def child(node, *names):
    for name in names:
        node = node.children[(name,)]
    return node


def test_outcomes_are_counted_at_every_turn_on_the_way():
    root = tree((("a", "b"), 1.0), (("a", "c"), 0.0), (("d",), 0.5))
    assert (root.visits, root.value, root.tries) == (3, 0.5, 3)
    assert (child(root, "a").visits, child(root, "a").value) == (2, 0.5)
    assert [len(node.path) for node in root.walk()] == [0, 1, 2, 2, 1]
    assert [t.own for t in child(root, "a", "c").path] == [("a",), ("c",)]


def test_a_turn_is_followed_when_enough_rollouts_have_begun_there_by_its_upper_bound():
    root = tree((("a", "x"), 1.0), (("a", "y"), 0.0), (("b", "z"), 0.0))
    assert select(root, width=1.8, exploration=1.0) is root  # 1.8·√3 = 3.1 rollouts may begin there, 3 have
    # a: 0.5 + c·sqrt(ln 3 / 2) = 0.5 + 0.741 c; b: 0 + c·sqrt(ln 3 / 1) = 1.048 c. Equal at c = 0.5/0.307 = 1.628.
    assert math.sqrt(math.log(3)) - math.sqrt(math.log(3) / 2) == pytest.approx(0.307, abs=1e-3)
    assert select(root, width=1, exploration=1.60) is child(root, "a")
    assert select(root, width=1, exploration=1.66) is child(root, "b")


def test_a_turn_that_ends_the_episode_is_where_the_way_down_ends():
    root = tree((("a",), 1.0))
    assert select(root, width=1, exploration=1.0) is child(root, "a")
    assert select(Node(tries=5), width=1, exploration=1.0).parent is None  # all that began here failed


def test_ends_are_ranked_by_outcome_then_turns_then_tokens():
    root = tree((("a", "b", "c"), 1.0), (("a", "d"), 1.0), (("e",), 0.4), (("f",), 0.0))
    assert [[t.own[0] for t in n.path] for n in best_ends(root, 0.3)] == [["a", "d"], ["a", "b", "c"], ["e"]]


def test_contrasts_are_the_best_and_worst_turn_after_the_same_beginning_widest_first():
    root = tree((("a", "x"), 1.0), (("a", "y"), 0.0), (("b",), 0.1), (("c",), 0.3))
    first, second = contrasts(root, 0.3)
    assert (first[0], first[1].turn.own, first[2].turn.own) == (child(root, "a"), ("x",), ("y",))
    assert (second[0], second[1].turn.own, second[2].turn.own) == (root, ("a",), ("b",))
    assert contrasts(root, 0.5) == [first]
    assert contrasts(tree((("a",), 1.0)), 0.0) == []


def test_the_same_turn_with_another_answer_leads_elsewhere_and_is_no_contrast():
    root = Node()
    for answer, value in (("yes", 1.0), ("no", 0.0)):
        back_up(grow(root, [turn("a", answer)], end()), value)
    assert len(root.children) == 2
    assert contrasts(root, 0.1) == []


GOOD = ("b", "c", "a")


def played(root, simulations, seed, exploration=0.3):
    """Searches a game of three doors out of a, b and c with a policy that draws them at random."""
    stream = random.Random(seed)
    for _ in range(simulations):
        node = select(root, width=2, exploration=exploration)
        if node.ended is not None:
            back_up(node, node.value)
            continue
        names = [t.own[0] for t in node.path]
        while len(names) < 3:
            names.append(stream.choice("abc"))
        # Partial credit for a right beginning.
        right = next((i for i, (x, y) in enumerate(zip(names, GOOD, strict=True)) if x != y), 3)
        value = (0.0, 0.2, 0.5, 1.0)[right]
        back_up(grow(node, [turn(name) for name in names[len(node.path) :]], end()), value)
    return root


@pytest.mark.parametrize("seed", range(5))
def test_a_game_whose_best_branch_is_known_is_solved_and_its_value_approaches_the_known_one(seed):
    roots = {n: played(Node(), n, seed) for n in (20, 200, 1000)}
    best = best_ends(roots[200], 1.0)
    assert [t.own[0] for t in best[0].path] == list(GOOD)
    values = [roots[n].value for n in (20, 200, 1000)]
    assert values == sorted(values)
    assert 0.8 < values[-1] < 1.0  # 1 by the best play; by chance 8/27·0.2·… = 0.15
    for node, good, _ in contrasts(roots[1000], 0.25):
        if [t.own[0] for t in node.path] == list(GOOD[: len(node.path)]):
            assert good.turn.own[0] == GOOD[len(node.path)]


# --- rollouts from the middle ----------------------------------------------------------------------------------------


class Counting:
    """Answers how often it was asked, which nobody can know who was not there before."""

    stop, wrapper = ("</tool>",), ("<result>", "</result>")
    inspects = True

    def __init__(self, drift=0):
        self.drift = drift

    def reset(self, task):
        episode = Counting(self.drift)
        episode.count = episode.drift * random.randrange(10**6)
        return episode

    def step(self, text):
        self.count += 1
        return Step(f"{self.count}", done=self.count == 9, info={"n": 1.0}, reward=0.5)

    def state(self):
        return {"count": self.count}


def test_what_was_said_before_is_said_again_and_must_be_answered_alike():
    environment = Replayed(Counting())
    task = Task("t", (Message("user", "go"),), None, "exact", meta={SAID: (("x", "1"), ("y", "2")), "more": 1})
    episode = environment.reset(task)
    assert episode.step("z").observation == "3"
    assert episode.state() == {"left": {"count": 3}, "said": [("z", "3", {"n": 1.0}, 0.5)]}
    assert environment.stop == ("</tool>",)
    with pytest.raises(ReplayDiffers, match="answered '1' instead of '7'"):
        environment.reset(Task("t", (), None, "exact", meta={SAID: (("x", "7"),)}))
    with pytest.raises(ReplayDiffers):
        Replayed(Counting(drift=1)).reset(Task("t", (), None, "exact", meta={SAID: (("x", "1"),)}))


@pytest.mark.parametrize("kind", ["qwen", "tags"])
def test_a_rollout_from_the_middle_is_one_that_the_policy_could_have_drawn(make_small_decoder, kind):
    tokenizer = make_tokenizer("qwen")
    decoder = make_policy(tokenizer, "qwen", make_small_decoder)
    if kind == "tags":
        with torch.no_grad():
            direction = decoder.model.model.embed_tokens.weight.mean(0).sign()
            decoder.head[tokenizer.convert_tokens_to_ids("</tool>")] += 0.7 * direction
    environment = ToolEnvironment(tools=[say], isolate="never", max_turns=9) if kind == "qwen" else Counting()
    policy = Policy(decoder.model, tokenizer, decoder, TorchEngine(decoder, tokenizer, max_batch=16))
    task = Task("t", (Message("user", "a"),), None, "exact")
    branches = Branches(policy, environment, Sampling(150))
    (prompt,) = branches.prompts([task])
    root, deep = Node(), []
    for rollout, new in branches.play([(task, prompt, root, seed) for seed in range(20)]):
        leaf = grow(root, new, rollout)
        assert sum(len(t.tokens) for t in new) == len(rollout.tokens)
        if len(new) > 2:
            deep.append(leaf.parent)
    assert len(deep) > 2
    again = branches.play([(task, prompt, node, 100 + i) for i, node in enumerate(deep)])
    alone = branches.play([(task, prompt, deep[0], 100)])
    for node, (rollout, new) in zip(deep, again, strict=True):
        before = tuple(token for t in node.path for token in t.tokens)
        assert rollout.tokens[: len(before)] == before and len(rollout.tokens) <= 150
        assert len(turns(rollout.action_mask)) == len(node.path) + len(new)
        ids = torch.tensor([rollout.prompt_tokens + rollout.tokens])
        states = decoder.hidden(ids)[0, len(rollout.prompt_tokens) - 1 : -1]
        logp = token_logprobs(states, decoder.head, ids[0, len(rollout.prompt_tokens) :]).detach()
        mask = torch.tensor(rollout.action_mask)
        torch.testing.assert_close(torch.tensor(rollout.logp_behavior)[mask], logp[mask], atol=1e-4, rtol=0)
        if kind == "tags":
            asked = sum(observation is not None for t in (*node.path, *new) for _, observation in t.said)
            assert rollout.state["count"] == rollout.info["n"] == asked
    assert alone[0] == again[0]
