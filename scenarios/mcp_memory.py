#!/usr/bin/env python3
"""An agent keeps its memory in the official MCP memory server, a knowledge graph, which really runs on a file.

A duty passes from one person to another. The run is judged by the file that the server has written: the new state is in
it, the old state is not, and everything else is unchanged.
"""

from __future__ import annotations

import json
from typing import Any

from harness import Outcome, Scenario, require

from kit.answers import line_of
from kit.node_servers import Workspace, results_since

MEMORY = "memory.jsonl"
CHANGES = ("create_entities", "create_relations", "add_observations", "delete_relations")

workspace = Workspace("mcp_memory")
scenario = Scenario(
    "mcp_memory",
    description="an agent updates its memory, a knowledge graph on an MCP server",
    real="MCP server, memory file, loop and recording",
)
scenario.prepare(workspace.open)
scenario.mcp_config("scenarios/mcp_memory.yml")
scenario.max_steps(16)
scenario.instructions(
    "You are the memory of a garden club. It is a knowledge graph, reached through the protocol `mcp`; the command "
    "/protocols explains how to use it. Look at what is there before you change it, and use the types of entities and "
    "relations that are there already. Remove what is no longer true, keep everything else, and forget nobody. Read "
    "what you have changed before you answer. Close your final answer with the line `Bees: NAME`, who keeps them now."
)
scenario.input(
    "Ben has handed the bees over to Cleo. She is new in the club and comes from Turin. Bring your memory up to date, "
    "then tell me who keeps the bees, and where and when she meets the others."
)


# ------------------------------------------------------------------------------------------- what a good run shows


Fact = tuple[str, ...]


def facts(text: str) -> set[Fact]:
    """A graph as facts: (name, type) and (name, type, observation) and, of relations, (from, relation, to, "")."""
    found: set[Fact] = set()
    for line in filter(None, text.splitlines()):
        item: dict[str, Any] = json.loads(line)
        if item["type"] == "relation":
            found.add((item["from"], item["relationType"], item["to"], ""))
        else:
            found.add((item["name"], item["entityType"]))
            found.update((item["name"], item["entityType"], one) for one in item["observations"])
    return found


def now() -> set[Fact]:
    """The contents of the file after the run."""
    return facts(workspace.read(MEMORY) or "")


@scenario.expect
def only_cleo_keeps_the_bees(outcome: Outcome) -> bool:
    keepers = sorted(fact[0] for fact in now() if fact[1:] == ("keeps", "Bees", ""))
    require(keepers == ["Cleo"], f"in {MEMORY} the bees are kept by {', '.join(keepers) or 'nobody'}")
    return line_of(outcome, "Bees").startswith("Cleo")


@scenario.expect
def cleo_is_a_person_of_the_club_from_turin(_: Outcome) -> bool:
    """With the types that the graph had before."""
    about = {fact for fact in now() if fact[0] == "Cleo"}
    missing = [fact for fact in (("Cleo", "person"), ("Cleo", "belongs to", "Garden club", "")) if fact not in about]
    require(not missing, f"{MEMORY} does not hold {missing}")
    return any("Turin" in fact[2] for fact in about if len(fact) > 2)


@scenario.expect
def everything_else_is_remembered_as_before(_: Outcome) -> bool:
    """Nobody is forgotten, in particular not Ben and his observations."""
    lost = facts(workspace.given(MEMORY)) - {("Ben", "keeps", "Bees", "")} - now()
    return require(not lost, f"{MEMORY} has lost {sorted(lost)}")


@scenario.expect
def the_memory_was_read_after_its_last_change(outcome: Outcome) -> bool:
    """The server's own answer shows Cleo with the bees."""
    return any("Cleo" in result and "keeps" in result for result in results_since(outcome, *CHANGES))


@scenario.expect
def the_answer_says_when_the_club_meets(outcome: Outcome) -> bool:
    """Only the memory has this."""
    return "18:30" in outcome.text and "Thursday" in outcome.text


if __name__ == "__main__":
    scenario.main()
