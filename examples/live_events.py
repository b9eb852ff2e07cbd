"""A run as it happens: with a callback, and as an iterator that can be left early."""

from __future__ import annotations

import kernai


@kernai.skill(register=False)
def index_files(folder: str, ctx: kernai.SkillContext) -> str:
    """Index the files of a folder."""
    for done in (1, 2, 3):
        ctx.emit({"done": done, "of": 3})  # a progress event
    return f"indexed {folder}"


def make_agent() -> kernai.Agent:
    return kernai.Agent(
        instructions="You keep files in order.",
        provider=kernai.MockProvider(
            'One moment. <block type="command" name="index_files">{"folder": "letters"}</block>',
            '<block type="final">Your letters are indexed.</block>',
            chunk_size=8,
        ),
        skills=[index_files],
    )


def show(event: kernai.Event) -> None:
    """Called with every event, one at a time, in the order in which they happen."""
    if event.type in ("text_chunk", "block_content"):
        print(f"  {event.type}: {event.data!r}")
    elif event.type == "progress":
        print(f"  progress: {event.data['data']}")
    elif event.type in ("skill_execute", "skill_result"):
        print(f"  {event.type}: {event.data['skill']}, call {event.data['call_id']}")


if __name__ == "__main__":
    print("with a callback:")
    print(kernai.run(make_agent(), "Index my letters.", on_event=show))

    print("\nas an iterator:")
    with kernai.stream(make_agent(), "Index my letters.") as events:
        for event in events:
            if event.type == "final":
                print(f"  final: {event.data}")
    print(f"  {events.result.steps} steps")

    print("\nleft early, which cancels the run:")
    with kernai.stream(make_agent(), "Index my letters.") as events:
        for event in events:
            if event.type == "skill_execute":
                break
    print(f"  stopped: {events.result.stop_reason}")
