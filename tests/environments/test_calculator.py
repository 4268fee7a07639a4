import pytest

from components.environments.calculator import Calculator, calculate
from components.environments.protocol import Step
from components.environments.single_turn import SingleTurn
from components.environments.tool_loop import ToolError, ToolLoop


@pytest.mark.parametrize(
    ("text", "value"),
    [("12*3", "36"), ("-5+7", "2"), ("3-10", "-7"), ("0*0", "0"), ("007+1", "8"), (" 4 * 5 ", "20"), ("1 -2", "-1")],
)
def test_one_operation_on_integers(text, value):
    assert calculate(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "12", "1+2+3", "2**3", "9/3", "1.5+1", "2*-3", "--1+2", "a+b", "1+", "__import__('os')", "１+1", "٣+1", 
     "1_0+1", "1+1\n", "1  +1", "9" * 10 + "+1", "1+" + "9" * 10, "9" * 10_000_000, "1" + " " * 1_000_000 + "+1"],
)  # fmt: skip
def test_anything_else_is_an_error(text):
    with pytest.raises(ToolError, match=r"^error$"):
        calculate(text)


def test_operands_are_bounded():
    assert calculate("99*99", max_digits=2) == "9801"
    with pytest.raises(ToolError):
        calculate("100*1", max_digits=2)


def test_a_call_is_answered_and_counted():
    episode = Calculator().reset(None)
    assert episode.step("first <tool>12*3</tool>") == Step("36", info={"tool_calls": 1.0, "tool_invalid": 0.0})
    assert episode.step(" then <tool>12*x</tool>") == Step("error", info={"tool_calls": 1.0, "tool_invalid": 1.0})


@pytest.mark.parametrize("text", ["12*3</tool>", "<tool>12*3", "<tool>1+<tool>1</tool>", ""])
def test_a_malformed_call_is_invalid(text):
    assert Calculator().reset(None).step(text) == Step("error", info={"tool_calls": 1.0, "tool_invalid": 1.0})


def test_the_call_after_the_last_allowed_one_ends_the_episode():
    episode = Calculator(max_calls=1).reset(None)
    assert not episode.step("<tool>1+1</tool>").done
    assert episode.step("<tool>1+1</tool>") == Step(done=True, info={"tool_refused": 1.0})


def test_episodes_count_apart():
    environment = Calculator(max_calls=1)
    for _ in range(2):
        assert environment.reset(None).step("<tool>1+1</tool>").observation == "2"


def test_long_output_is_cut():
    loop = ToolLoop(tool=lambda text: text * 1000, max_chars=10)
    assert loop.reset(None).step("<tool>ab</tool>").observation == "ababababab"


def test_an_exception_of_the_tool_itself_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        ToolLoop(tool=lambda text: str(1 // 0)).reset(None).step("<tool>1</tool>")


def test_a_single_turn_has_no_stop():
    assert SingleTurn().stop == ()


@pytest.mark.parametrize("settings", [{"max_calls": 0}, {"max_digits": 0}])
def test_limits_below_one_are_refused(settings):
    with pytest.raises(ValueError, match="at least 1"):
        Calculator(**settings)
