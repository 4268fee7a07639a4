"""Each verdict of the decision guide, provoked."""

from __future__ import annotations

import pytest

from components.evaluation.advice import Evidence, advise

GOOD_VERIFIER = {"n": 200, "right": 1.0, "wrong": 1.0, "failed": 0.0, "examples": []}


def rows(*rights: str, prompts: int = 100, form: float = 1.0) -> list[dict]:
    """Answers to so many prompts, their samples in turn from ``rights`` ("1100" is two of four right)."""
    return [
        {
            "task_id": f"t{i}",
            "sample": sample,
            "family": "sum",
            "level": 1,
            "kind": "reasoning",
            "correct": float(c),
            "format_ok": form,
            "language": 1.0,
            "length": 20,
            "finish": "stop",
            "response": "<think> so</think><answer>3</answer>",
            "answer": "3",
        }
        for i in range(prompts)
        for sample, c in enumerate(rights[i % len(rights)])
    ]


def advised(**changes):
    evidence = {
        "stage": "rl_1",
        "start": "cold_start",
        "rows": rows("1000", "0000", "1111"),
        "tasks": 20_000,
        "supervised": True,
        "verifier": GOOD_VERIFIER,
    }
    return advise(Evidence(**{**evidence, **changes}))


def check(advice, name):
    [found] = [check for check in advice.checks if check.name == name]
    return found


def test_a_model_that_is_sometimes_right_gets_rl_with_the_figures_that_say_so():
    advice = advised()
    assert advice.verdict == "rl"
    assert advice.conclusion == "RL can help cold_start: pass@1 42 % [33, 50], pass@4 67 % [57, 76] on 100 prompts"
    assert {c.state for c in advice.checks} == {"good"}


def test_nothing_solved_needs_sft_or_easier_tasks():
    advice = advised(rows=rows("0000"))
    assert advice.verdict == "not rl"
    assert advice.conclusion.startswith(
        "RL is not what you need here: nothing is solved, pass@1 0 % [0, 4], pass@4 0 %"
    )
    assert "Instead: SFT on traces of such tasks, or easier levels" in advice.conclusion


def test_everything_solved_needs_nothing():
    advice = advised(rows=rows("1111"))
    assert advice.verdict == "not rl"
    assert "all is solved, pass@1 100 % [96, 100]" in advice.conclusion
    assert "Instead: harder tasks, or leave the model as it is" in advice.conclusion


def test_a_model_that_always_or_never_solves_a_task_has_no_headroom():
    advice = advised(rows=rows("1111", "0000"))
    assert advice.verdict == "not rl"
    assert "there is no headroom, pass@1 50 %" in advice.conclusion
    assert "(0.0 points apart)" in advice.conclusion


def test_too_few_tasks_need_sft_or_more_of_them():
    advice = advised(tasks=184)
    assert advice.verdict == "not rl"
    assert advice.conclusion.startswith("RL is not what you need here: 184 tasks are too few (1,000 at least)")
    assert advised(tasks=5_000).verdict == "rl"
    assert check(advised(tasks=5_000), "data").state == "warn"
    assert advised(tasks=5_000).conclusion.endswith("Mind: 5,000 tasks, 10,000 are wanted")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"right": 0.6}, "accepts 60% of 200 references"),
        ({"wrong": 0.5}, "rejects 50% of other tasks' answers"),
        ({"failed": 0.3}, "fails on 30%"),
    ],
)
def test_a_verifier_that_disagrees_with_references_comes_before_everything_else(fault, said):
    example = "t1: '4' is called wrong where the reference is '4'"
    advice = advised(verifier={**GOOD_VERIFIER, **fault, "examples": [example]}, rows=rows("0000"), tasks=10)
    assert advice.verdict == "not rl"
    assert said in advice.conclusion
    assert f"({example})" in advice.conclusion
    assert "Instead: a verifier that can be trusted" in advice.conclusion


def test_a_model_that_does_not_answer_in_form_lacks_a_cold_start():
    advice = advised(rows=rows("1000", "0000", form=0.2), supervised=False)
    assert advice.verdict == "rl"  # R1-Zero starts there
    assert check(advice, "baseline").state == "warn"
    assert "no SFT baseline: cold_start answers in form 20 %" in advice.conclusion


def test_few_groups_with_signal_are_told_with_what_helps():
    advice = advised(rows=rows("1000", *["0000"] * 8, "1111", *["1111"] * 8))
    found = check(advice, "signal")
    assert found.state == "warn"
    assert found.text.startswith("only 6 % [")
    assert "curriculum=pass_rate" in found.remedy


def test_the_chance_of_a_mixed_group_is_counted_without_replacement():
    # 1 of 4 right: pairs that hold it are 3 of 6; 2 of 4: 4 of 6. In groups of two, half of the prompts each.
    found = check(advised(rows=rows("1000", "1100"), group_size=2), "signal")
    assert found.text.startswith("58 % [")


def test_without_an_evaluation_the_profile_speaks_and_without_both_nobody_does():
    cells = {"sum/0": {"pass_rate": 0.5, "pass_at_k": 0.9, "n": 30, "k": 8}}
    cells["sum/1"] = {"pass_rate": 0.1, "pass_at_k": 0.5, "n": 10, "k": 8}
    advice = advised(rows=None, profile=cells)
    assert advice.verdict == "rl"
    assert "pass@1 40 %" in advice.conclusion
    assert "pass@8 80 %" in advice.conclusion
    nothing = advised(rows=None)
    assert nothing.verdict == "unknown"
    assert nothing.conclusion.startswith(
        "cannot tell: no evaluation or profile of cold_start yet. Fix: run the pipeline"
    )


def test_one_sample_of_each_prompt_is_no_proof_that_there_is_no_headroom():
    advice = advised(rows=rows("1", "0"))
    assert check(advice, "headroom").state == "unknown"
    assert "one sample shows no headroom" in check(advice, "headroom").text


def test_the_price_is_told_and_never_decides():
    cheap, dear = advised(seconds=(68.0, 28.0, "as last built")), advised(seconds=(600.0, 28.0, "as last built"))
    assert check(cheap, "cost").text == "RL costs 2.4 times its SFT (68 s and 28 s, as last built)"
    assert (check(cheap, "cost").state, check(dear, "cost").state) == ("good", "warn")
    assert dear.verdict == "rl"


def test_what_is_not_known_is_said_to_be_unknown():
    advice = advised(tasks=None, verifier=None, supervised=False, rows=None, profile=None)
    assert {c.state for c in advice.checks} == {"unknown"}
    untried = advised(verifier={**GOOD_VERIFIER, "right": None})
    assert check(untried, "verifier").text == "the verifier is untested (no task with a reference to try it on)"
