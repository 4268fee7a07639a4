"""What a lift consists of, by hand."""

import random

import pytest

from components.evaluation.attribution import (
    Evaluated,
    against_control,
    attribute,
    shares,
    sharpening,
    style_and_skill,
)
from components.evaluation.attribution_text import attribution_lines
from components.evaluation.lineage import ancestors, depth, incumbent
from components.evaluation.styles import brief_below, style_of

FULL = "<think> first 1+1=2 so 2+1=3</think><answer>3</answer>"
BRIEF = "<think> easy</think><answer>3</answer>"


def row(task, sample, right, *, response=FULL, family="sum", level=1, **more):
    return {
        "task_id": task,
        "sample": sample,
        "family": family,
        "level": level,
        "kind": "reasoning",
        "correct": float(right),
        "format_ok": 1.0,
        "language": 1.0,
        "length": 20,
        "finish": "stop",
        "response": response,
        **more,
    }


def prompts(table, **more):
    """Rows from task → string of 1 and 0, a character a sample."""
    return [row(task, i, int(c), **more) for task, text in table.items() for i, c in enumerate(text)]


# --- sharpening against new ability ----------------------------------------------------------------------------------


def test_what_was_sometimes_right_and_is_always_right_was_sharpened():
    found = sharpening(prompts({f"t{i}": "1010" for i in range(8)}), prompts({f"t{i}": "1111" for i in range(8)}))
    assert found["pass@1"]["effect"] == 0.5
    assert found["pass@4"]["effect"] == 0.0
    assert found["known"]["effect"] == 0.5
    assert found["new"]["effect"] == 0.0
    assert (found["unsolved"], found["new_share"]) == (0.0, 0.0)


def test_what_was_never_right_and_is_right_now_is_new():
    found = sharpening(prompts({f"t{i}": "0000" for i in range(8)}), prompts({f"t{i}": "1100" for i in range(8)}))
    assert found["new"]["effect"] == 0.5
    assert found["known"]["effect"] == 0.0
    assert found["pass@4"]["effect"] == 1.0
    assert (found["unsolved"], found["new_share"]) == (1.0, 1.0)


def test_the_two_parts_by_hand_where_halves_disagree():
    # "1100": the first half solves it (known, measured on the second: 0), the second does not (new, measured on the
    # first: 1). After: all right. known = (1 - 0)/2, new = (1 - 1)/2.
    found = sharpening(prompts({"t": "1100"}), prompts({"t": "1111"}))
    assert found["known"]["effect"] == 0.5
    assert found["new"]["effect"] == 0.0
    assert found["unsolved"] == 0.5


def test_the_same_model_sampled_again_has_learned_nothing_new_although_luck_would_say_so():
    """Right a quarter of the time, before and after; sorted and measured on the same half, new would be +0.14."""
    luck = random.Random(0)
    before, after = (
        prompts({f"t{i}": "".join(luck.choices("10", (1, 3), k=4)) for i in range(2000)}) for _ in range(2)
    )
    found = sharpening(before, after)
    assert abs(found["new"]["effect"]) < 0.02  # five standard errors
    assert found["unsolved"] == pytest.approx(0.75**2, abs=0.05)


def test_parts_add_up_to_the_change_and_greedy_answers_and_other_tasks_do_not_count():
    before = prompts({"a": "1000", "b": "0000", "c": "1101", "d": "0110"})
    after = prompts({"a": "1110", "b": "0100", "c": "1111", "d": "0010"})
    extra = [row("a", -1, 1), row("u", 0, 1, kind="general"), row("u", 1, 1, kind="general")]
    found = sharpening(before, after + extra)
    assert found["known"]["effect"] + found["new"]["effect"] == pytest.approx((2 + 1 + 1 - 1) / 16)
    assert found["pass@1"]["n"] == 4


def test_one_sample_says_nothing_of_ability():
    assert sharpening(prompts({"t": "1"}), prompts({"t": "1"})) is None
    assert sharpening([], []) is None


def test_no_more_than_sixteen_tries_are_shown():
    assert sharpening(prompts({"t": "01" * 20}), prompts({"t": "11" * 20}))["k"] == 16


# --- style against skill ---------------------------------------------------------------------------------------------


def test_styles_are_told_from_the_last_to_the_first():
    short = brief_below([row("a", 0, 1), row("b", 0, 1), row("c", 0, 0, response=BRIEF)])
    assert short == {"sum/1": len("first 1+1=2 so 2+1=3") / 2}
    assert style_of(row("t", 0, 1), short) == "full"
    assert style_of(row("t", 0, 1, response=BRIEF), short) == "brief"
    assert style_of(row("t", 0, 1, language=0.5), short) == "mixed language"
    assert style_of(row("t", 0, 1, language=None), short) == "full"
    assert style_of(row("t", 0, 1, language=0.5, format_ok=0.0), short) == "malformed"
    assert style_of(row("t", 0, 1, format_ok=0.0, finish="length"), short) == "cut off"
    assert style_of(row("t", 0, 1, response=BRIEF, level=2), short) == "full"  # no right answer there to compare with


def test_a_model_that_only_stops_being_brief_changed_its_style():
    """Full answers are right, brief ones wrong, before and after; their shares go from 1/2 to 1."""
    before = [row(f"t{i}", s, s % 2, response=(BRIEF, FULL)[s % 2]) for i in range(6) for s in range(4)]
    after = prompts({f"t{i}": "1111" for i in range(6)})
    found = style_and_skill(before, after)
    assert found["change"]["value"] == pytest.approx(0.5)
    assert found["style"]["value"] == pytest.approx(0.5)
    assert found["skill"]["value"] == pytest.approx(0)
    assert found["styles"] == {
        "full": {"share": [0.5, pytest.approx(1.0)], "accuracy": [1.0, 1.0]},
        "brief": {"share": [0.5, 0.0], "accuracy": [0.0, None]},
    }


def test_a_model_that_answers_alike_and_better_gained_skill():
    found = style_and_skill(prompts({"a": "1000", "b": "1000"}), prompts({"a": "1110", "b": "1110"}))
    assert found["skill"]["value"] == pytest.approx(0.5)
    assert found["style"]["value"] == pytest.approx(0)


def test_kitagawa_by_hand():
    # before: full 2 of 4 (1 right), brief 2 of 4 (0 right); after: full 4 of 4, 3 right.
    before = [row("t", s, r, response=x) for s, (r, x) in enumerate([(1, FULL), (0, FULL), (0, BRIEF), (0, BRIEF)])]
    found = style_and_skill(before, prompts({"t": "1110"}))
    # style: full +1/2 · (1/2 + 3/4)/2 and brief -1/2 · 0; skill: (1/2 + 1)/2 · (3/4 - 1/2)
    assert found["style"]["value"] == pytest.approx(0.3125)
    assert found["skill"]["value"] == pytest.approx(0.1875)
    assert found["change"]["value"] == pytest.approx(0.5)


def test_hard_tasks_answered_at_length_do_not_make_a_style():
    """Levels differ in accuracy and style, and neither changes within a level: nothing to attribute."""
    easy = prompts({f"e{i}": "1111" for i in range(3)}, level=1, response=BRIEF)
    hard = prompts({f"h{i}": "1000" for i in range(3)}, level=2)
    found = style_and_skill(easy + hard, easy + hard)
    assert found["style"]["value"] == found["skill"]["value"] == 0


def test_the_jackknife_of_a_plain_mean_is_its_standard_error():
    after = prompts({"a": "1111", "b": "0000", "c": "1100", "d": "1110"})
    found = style_and_skill(prompts(dict.fromkeys("abcd", "0000")), after)
    values = [1, 0, 0.5, 0.75]
    mean = sum(values) / 4
    error = (sum((v - mean) ** 2 for v in values) / 3 / 4) ** 0.5
    assert found["change"]["value"] == pytest.approx(mean)
    assert found["change"]["high"] - mean == pytest.approx(3.182 * error, rel=2e-3)


# --- who owns it -----------------------------------------------------------------------------------------------------


def test_shares_of_a_chain_add_up_to_one_and_a_loss_is_negative():
    tasks = [f"t{i}" for i in range(8)]
    chain = [
        (stage, prompts(dict.fromkeys(tasks, text)))
        for stage, text in (("base", "0000"), ("cold_start", "1100"), ("rl_1", "1111"), ("sft_2", "1110"))
    ]
    found = shares(chain)
    assert [(s["stage"], s["share"]) for s in found] == [
        ("cold_start", pytest.approx(2 / 3)),
        ("rl_1", pytest.approx(2 / 3)),
        ("sft_2", pytest.approx(-1 / 3)),
    ]
    assert shares(chain[:1]) == []


def test_no_share_is_told_of_a_lift_that_is_not_there():
    rows = prompts({"a": "1000", "b": "0110"})
    assert shares([("base", rows), ("rl", rows)])[0]["share"] is None


def test_a_control_that_gains_half_as_much_leaves_half_to_the_treatment():
    tasks = [f"t{i}" for i in range(8)]
    start, rl, sft = (prompts(dict.fromkeys(tasks, text)) for text in ("0000", "1111", "1100"))
    found = against_control(start, rl, sft)
    assert found["treatment"]["effect"] == 1.0
    assert found["control_change"]["effect"] == found["difference"]["effect"] == found["owned"] == 0.5
    assert found["difference"]["p"] == 2 / 2**8


def test_a_run_is_attributed_along_its_longest_line_and_siblings_are_controls():
    tasks = [f"t{i}" for i in range(8)]

    def evaluated(stage, parent, text):
        return Evaluated(stage, parent, prompts(dict.fromkeys(tasks, text)))

    found = attribute(
        [
            evaluated("base", None, "0000"),
            evaluated("cold_start", "base", "1000"),
            evaluated("rl_1", "cold_start", "1111"),
            evaluated("sft_more", "cold_start", "1100"),
            evaluated("rl_2", "rl_1", "1111"),
        ]
    )
    assert [s["stage"] for s in found["chain"]] == ["cold_start", "rl_1", "rl_2"]
    assert [(c["start"], c["stage"], c["control"], c["owned"]) for c in found["controls"]] == [
        ("cold_start", "rl_1", "sft_more", pytest.approx(2 / 3)),
        ("cold_start", "rl_2", "sft_more", pytest.approx(2 / 3)),
    ]
    assert [(s["stage"], s["parent"]) for s in found["stages"]] == [
        ("cold_start", "base"),
        ("rl_1", "cold_start"),
        ("sft_more", "cold_start"),
        ("rl_2", "rl_1"),
    ]
    assert attribute([]) == {"stages": [], "chain": [], "controls": []}


def test_the_lines_say_it_with_the_figures():
    tasks = [f"t{i}" for i in range(64)]

    def evaluated(stage, parent, text, **more):
        return Evaluated(stage, parent, prompts(dict.fromkeys(tasks, text), **more))

    found = attribute(
        [
            evaluated("base", None, "0000", response=BRIEF),
            evaluated("cold_start", "base", "1000", response=BRIEF),
            evaluated("rl_1", "cold_start", "1110"),
            evaluated("sft_more", "cold_start", "1100", format_ok=0.5),
        ]
    )
    found["controls"][0]["cpu_s"] = {"rl_1": 91.2, "sft_more": 88.0}
    cold, rl, more, chain, control = attribution_lines(found)
    assert cold.startswith("cold_start against base: pass@1 +25.0")
    assert "100 % of the lift on prompts not solved in 2 tries before" in cold
    assert "100 % of it is style (brief answers 100 % → 0 %), the rest skill" in rl
    assert more.startswith("sft_more against cold_start: pass@1 +25.0")
    assert chain == "of the +75.0 points of pass@1 in all: cold_start 33 %, rl_1 67 %"
    assert "rl_1 +50.0 [+45.3, +54.7], sft_more +25.0 [+20.3, +29.7], both from cold_start: +25.0" in control
    assert control.endswith(
        "; 50 % of the lift of rl_1 is its own; beside it format_rate +50.0 points; 91 and 88 CPU seconds"
    )
    assert attribution_lines({}) == []


def test_rl_from_the_base_is_held_against_the_cold_start_and_against_what_came_of_it():
    tasks = [f"t{i}" for i in range(8)]
    table = {"base": (None, "0000"), "cold": ("base", "1000"), "rl_1": ("cold", "1111"), "rl_zero": ("base", "1100")}
    found = attribute([Evaluated(s, p, prompts(dict.fromkeys(tasks, t))) for s, (p, t) in table.items()])
    assert [(c["stage"], c["control"], c["difference"]["effect"]) for c in found["controls"]] == [
        ("cold", "rl_zero", -0.25),
        ("rl_1", "rl_zero", 0.5),
    ]


# --- lineage ---------------------------------------------------------------------------------------------------------

R1 = {
    "base": {"data": "curate"},
    "cold_start": {"model": "base", "data": "curate"},
    "profile": {"model": "cold_start"},
    "rl_1": {"model": "cold_start", "profile": "profile"},
    "rejection": {"model": "rl_1"},
    "sft_2": {"model": "base", "rejection": "rejection"},
    "sft_more": {"model": "cold_start", "budget": "rl_1"},
}
EVALUATED = {"base", "cold_start", "rl_1", "sft_2", "sft_more"}


def test_a_restart_from_the_base_has_to_beat_the_round_it_learned_from():
    assert incumbent("sft_2", R1, EVALUATED) == "rl_1"
    assert incumbent("rl_1", R1, EVALUATED) == "cold_start"
    assert incumbent("base", R1, EVALUATED) is None


def test_a_budget_is_no_ancestor():
    assert incumbent("sft_more", R1, EVALUATED) == "cold_start"
    assert ancestors("sft_more", R1) == {"cold_start", "base", "curate"}
    assert depth("sft_2", R1) == 6


def test_a_cycle_is_named():
    with pytest.raises(ValueError, match="cycle"):
        depth("a", {"a": {"x": "b"}, "b": {"x": "a"}})
