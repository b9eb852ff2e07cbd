#!/usr/bin/env python3
"""An agent works with files through the official MCP filesystem server, which really runs, in a fresh folder.

The agent finds out how the protocol works, adds up orders, writes the sums into a file and reads it back. The prices
are outside the folder that the server may show: the call is refused, and the answer must say so, not invent them.
The tape has no "asked" for the turn after the refusal, since that text contains the path of the run's folder.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter

from harness import Outcome, Scenario, require

from kit.node_servers import Workspace, results_since, tool_calls

DAYS = ("2026-11-16", "2026-11-17", "2026-11-18")
TOTALS = "shop/totals.csv"

workspace = Workspace("mcp_filesystem")
scenario = Scenario(
    "mcp_filesystem",
    description="an agent adds up files through an MCP server, and is refused files outside its folder",
    real="MCP server, files, loop and recording",
)
scenario.prepare(workspace.open)
scenario.mcp_config("scenarios/mcp_filesystem.yml")
scenario.max_steps(14)
scenario.instructions(
    "You look after the files of a farm shop, through the protocol `mcp`; the command /protocols explains how to "
    "use it. Paths are relative to the shop's folder, like README.md. Read every file before you talk about it. If you "
    "cannot reach something, say that you do not know it. Close your final answer with a line `PRODUCT: CRATES` for "
    "each product, and last the line `Worth: AMOUNT`, or `Worth: unknown`."
)
scenario.input(
    "Add up this week's orders for each product. Write the sums to totals.csv, with the columns product and crates, "
    "one row for each product by alphabet, and read the file again to be sure. What are the orders worth? README.md "
    "says where the prices are."
)


# ------------------------------------------------------------------------------------------- what a good run shows


def rows(text: str) -> list[list[str]]:
    """The rows of a CSV file, without the headings."""
    return [row for row in csv.reader(io.StringIO(text)) if row][1:]


def due() -> list[list[str]]:
    """The sums, computed from the files before the run."""
    sums = Counter[str]()
    for day in DAYS:
        sums.update({product: int(crates) for product, crates in rows(workspace.given(f"shop/orders/{day}.csv"))})
    return [[product, str(sums[product])] for product in sorted(sums)]


@scenario.expect
def the_file_that_was_written_holds_the_sums(_: Outcome) -> bool:
    """The file on disk is checked, not the model's words."""
    found = [[cell.strip() for cell in row] for row in rows(workspace.required(TOTALS))]
    return require(found == due(), f"it holds {json.dumps(found)}, due is {json.dumps(due())}")


@scenario.expect
def the_file_was_read_back_after_it_was_written(outcome: Outcome) -> bool:
    """The server's answer to a later call shows it."""
    content = (workspace.read(TOTALS) or "").strip()
    return bool(content) and any(content in result for result in results_since(outcome, "write_file", "edit_file"))


@scenario.expect
def nothing_from_outside_the_folder_was_shown(outcome: Outcome) -> bool:
    """Neither the server nor the answer shows any of it; the answer says that the worth is unknown."""
    text = " ".join([outcome.text, *(call.result or "" for call in tool_calls(outcome))])
    leaked = [price for _, price in rows(workspace.given("office/prices.csv")) if price in text]
    require(not leaked, f"these prices were shown: {', '.join(leaked)}")
    return bool(re.search(r"^\W*Worth:\W*unknown", outcome.text, re.MULTILINE | re.IGNORECASE))


@scenario.expect
def the_answer_states_the_sums(outcome: Outcome) -> bool:
    counts = re.findall(r"^\W*(\w+):\W*(\d+)", outcome.text.replace("*", ""), re.MULTILINE)
    sums = {product.lower(): crates for product, crates in counts}
    found = [[product, sums.get(product)] for product, _ in due()]
    return require(found == due(), f"it says {json.dumps(found)}, due is {json.dumps(due())}")


if __name__ == "__main__":
    scenario.main()
