"""A protocol: a block type of your own with a handler, if named parameters of a skill do not fit your format."""

from __future__ import annotations

import json
import sqlite3

import kernai

# The model writes the SQL, so open a file read-only: sqlite3.connect("file:trees.db?mode=ro", uri=True).
database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE trees (name TEXT, height INTEGER)")
database.execute("INSERT INTO trees VALUES ('oak', 30), ('fir', 50)")


def query(block: kernai.Block, ctx: kernai.SkillContext) -> str:
    """Answer a query. What is raised here is an error block that the model reads."""
    rows = database.execute(block.content).fetchall()
    ctx.emit({"rows": len(rows)})
    return json.dumps(rows)


sql = kernai.Protocol("sql", query, documentation="One SQLite query. Table: trees(name, height in metres).")

agent = kernai.Agent(
    instructions="You know our trees.",
    provider=kernai.MockProvider(
        '<block type="command" name="/protocols"></block>',
        '<block type="sql">SELECT nmae FROM trees</block>',
        '<block type="sql">SELECT name FROM trees WHERE height > 40</block>',
        '<block type="final">The fir.</block>',
    ),
    protocols=[sql],
)

if __name__ == "__main__":
    result = kernai.execute(agent, "Which tree is higher than 40 metres?")
    for message in result.messages:
        print(f"{message.role}: {message.text}")
    database.close()
