"""What a store says of reading, and tools that only distract."""

from components.environments.agent import ToolEnvironment
from components.environments.tools.distractors import translate, weather
from components.environments.tools.keyvalue import KeyValue
from components.types import Task


def task(**meta):
    return Task("t", (), None, "exact", meta=meta)


def test_a_store_that_records_reads_counts_what_was_read_and_nothing_else():
    session = KeyValue(reads=True).open(task(store={"a": 1, "pin": 7}))
    session.get("a")
    session.get("a")
    session.put("b", "2")
    session.delete("a")
    assert session.state() == {"entries": {"pin": "7", "b": "2"}, "read": {"a": 2}}


def test_a_key_that_there_is_not_was_not_read():
    environment = ToolEnvironment(tools=[KeyValue(reads=True)], format="tags")
    episode = environment.reset(task(store={}))
    step = episode.step("<tool>get pin</tool>")
    assert step.info["tool_invalid"] == 1
    assert episode.state() == {"store": {"entries": {}, "read": {}}}


def test_without_reads_the_state_is_the_store():
    session = KeyValue().open(task(store={"a": 1}))
    session.get("a")
    assert session.state() == {"a": "1"}


def test_distractors_say_the_same_every_time_and_leave_no_state():
    assert weather("paris") == weather("paris")
    assert len({weather(f"city{i}") for i in range(40)}) == 4
    assert translate("pen") == "nep"
    environment = ToolEnvironment(tools=[weather, translate], format="tags")
    assert environment.reset(task()).state() == {}


def test_a_tool_that_is_not_on_offer_is_an_invalid_call():
    environment = ToolEnvironment(tools=[weather, translate], format="tags")
    step = environment.reset(task(tools=["weather"])).step("<tool>translate pen</tool>")
    assert step.observation == ("error: no tool 'translate'",)
    assert step.info["tool_invalid"] == 1
