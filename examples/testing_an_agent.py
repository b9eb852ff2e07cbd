"""How to test an agent: a mock plays the model, everything else is real. Works with pytest, or as a program."""

from __future__ import annotations

import kernai
from kernai import Agent, MockProvider, ProviderError, Recorder

ORDERS = {"A-7": "shipped"}


@kernai.skill(register=False)
def find_order(number: str) -> str:
    """Find an order by its number."""
    if number not in ORDERS:
        raise ValueError(f"there is no order {number}")  # written for the model, which reads it
    return ORDERS[number]


agent = Agent(instructions="You help customers with their orders.", skills=[find_order], max_steps=4)


def test_the_agent_looks_the_order_up_before_it_answers() -> None:
    model = MockProvider('<command name="find_order">A-7</command>', "<final>It is on its way.</final>")
    recorder = Recorder()
    assert kernai.run(agent, "Where is order A-7?", provider=model, recorder=recorder) == "It is on its way."
    assert [event.data["params"] for event in recorder.for_event("skill_execute")] == [{"number": "A-7"}]
    assert model.messages_at(1)[-1].text == '<block type="result" name="find_order">shipped</block>'


def test_the_model_learns_that_an_order_does_not_exist() -> None:
    model = MockProvider('<command name="find_order">B-1</command>', "<final>There is no such order.</final>")
    result = kernai.execute(agent, "Where is order B-1?", provider=model)
    assert result.messages[2].text == '<block type="error" name="find_order">there is no order B-1</block>'


def test_a_vendor_that_is_down_ends_the_run_with_an_error() -> None:
    model = MockProvider().fail_on_step(0, ProviderError("overloaded", status=529, retryable=True))
    result = kernai.execute(agent, "Where is order A-7?", provider=model)
    assert result.stop_reason == "error"
    assert str(result.error) == "overloaded"


def test_the_model_learns_what_is_wrong_with_its_parameters() -> None:
    model = MockProvider('<command name="find_order">{"number": 7}</command>', "<final>Which order?</final>")
    result = kernai.execute(agent, "Where is my order?", provider=model)
    assert "number: expected string, received integer 7" in result.messages[2].text


def test_the_skill_can_be_called_without_any_agent() -> None:
    assert find_order("A-7") == "shipped"  # the plain function
    assert find_order.call({"number": "A-7"}) == "shipped"  # as a model calls it: validated


if __name__ == "__main__":
    tests = [value for name, value in dict(globals()).items() if name.startswith("test_")]
    for test in tests:
        test()
        print(f"passed: {test.__name__}")
