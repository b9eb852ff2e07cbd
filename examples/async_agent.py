"""Under asyncio: async skills, many runs of one agent at once, a stream, and a cancellation."""

from __future__ import annotations

import asyncio

import kernai

TEMPERATURES = {"Lyon": 18, "Oslo": 7, "Nairobi": 24}


@kernai.skill(register=False)
async def measure_temperature(city: str) -> str:
    """Measure the temperature in a city."""
    await asyncio.sleep(0)  # where a real skill would await a response
    return f"{TEMPERATURES[city]} °C"


def make_agent(city: str) -> kernai.Agent:
    return kernai.Agent(
        instructions="You report the weather.",
        provider=kernai.MockProvider(
            f'<block type="command" name="measure_temperature">{city}</block>',
            f'<block type="final">{TEMPERATURES[city]} °C in {city}.</block>',
        ),
        skills=[measure_temperature],
    )


async def main() -> None:
    answers = await asyncio.gather(*(kernai.arun(make_agent(city), "How warm is it?") for city in TEMPERATURES))
    print(" ".join(answers))

    async with kernai.astream(make_agent("Oslo"), "How warm is it?") as events:
        async for event in events:
            if event.type == "skill_result":
                print(f"event: {event.data['skill']} gave {event.data['result']}")
    print(f"stream: {events.result.text}")

    cancelled = asyncio.Event()
    cancelled.set()
    result = await kernai.aexecute(make_agent("Lyon"), "How warm is it?", cancel=cancelled)
    print(f"cancelled before it began: {result.stop_reason}, {result.usage.model_calls} model calls")


if __name__ == "__main__":
    asyncio.run(main())
