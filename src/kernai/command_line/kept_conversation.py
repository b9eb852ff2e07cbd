"""`KeptConversation`: a conversation as one run in a store, so that the next start of the program goes on with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernai.command_line.run_store import RunStore, check_id, command, going_on, new_run_id
from kernai.runs.running import replay, stream
from kernai.values.context import Context

if TYPE_CHECKING:
    from kernai.agents.agent import Agent
    from kernai.drivers.run_stream import RunStream
    from kernai.runs.run_request import UserInput
    from kernai.values.media_store import MediaStore
    from kernai.values.message import Message

#: as `RunInfo.status` has them: what ended in the middle of a turn
_UNFINISHED = ("running", "waiting")


class KeptConversation:
    """Each turn after the first goes on with the run. `words` are those of the command line that started it."""

    def __init__(self, store: RunStore, run_id: str | None, words: tuple[str, ...]) -> None:
        self.run_id = new_run_id() if run_id is None else run_id
        check_id(self.run_id)
        self._store = store
        self._words = words

    @property
    def again(self) -> str:
        """The command line that goes on with it."""
        return command("chat", *self._words, "--store", self._store.path, "--run-id", self.run_id)

    @property
    def has_begun(self) -> bool:
        """Whether anything of it is in the store."""
        return self._store.has(self.run_id)

    @property
    def is_unfinished(self) -> bool:
        """Whether its last turn was broken off, or waits for a decision."""
        return any(run.run_id == self.run_id and run.status in _UNFINISHED for run in self._store.store.runs())

    def renew(self) -> None:
        """From now on it is another conversation."""
        self.run_id = new_run_id()

    def messages(self, agent: Agent, media: MediaStore) -> tuple[Message, ...]:
        """What was said so far; `CommandError` where the agent cannot go on from there."""
        with self._going_on():
            result = replay(agent, self.run_id, store=self._store.store, context=Context(media_store=media))
        return () if result is None else result.messages

    def begin(self, agent: Agent, content: UserInput | None, options: Mapping[str, Any]) -> RunStream:
        """The next turn; without content what goes on with the one that was broken off."""
        given = {**options, "store": self._store.store}
        if not self.has_begun:
            assert content is not None
            return stream(agent, content, run_id=self.run_id, **given)
        with self._going_on():
            return stream(agent, content, run_id=self.run_id, resume=True, **given)

    def _going_on(self) -> Any:
        where = f"kernai replay AGENT --store {self._store.path} {self.run_id}"
        return going_on(None, where, another="begin another conversation, with another --run-id")
