#!/usr/bin/env python3
"""An agent finds out which products are out of stock and what to order.

Its three skills query a real SQLite database, built from fixtures/products.csv for each run. The run is judged against
that database, so false claims on a tape would be noticed.
"""

from __future__ import annotations

import json
import re
import sqlite3
import unicodedata
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

from harness import Outcome, Scenario, require

from kit.sources import Database, rows_of

CLAMP = "クランプ"

# ---------------------------------------------------------------------------------------------------- database

SCHEMA = """
CREATE TABLE stock (
    sku TEXT NOT NULL, name TEXT NOT NULL, category TEXT NOT NULL, warehouse TEXT NOT NULL,
    stock INTEGER NOT NULL, reorder_point INTEGER NOT NULL, reorder_quantity INTEGER NOT NULL,
    supplier TEXT NOT NULL, unit_price TEXT NOT NULL,
    PRIMARY KEY (sku, warehouse)
)
"""

# One statement for every filter: no text of a model is ever part of the SQL.
FILTERED = """
FROM stock WHERE (:warehouse IS NULL OR warehouse = :warehouse)
    AND (:category IS NULL OR folded(category) = folded(:category))
    AND (:text IS NULL OR instr(folded(name), folded(:text)) > 0)
    AND CASE :status
        WHEN 'out_of_stock' THEN stock = 0
        WHEN 'out_of_stock_everywhere'
            THEN NOT EXISTS (SELECT 1 FROM stock AS other WHERE other.sku = stock.sku AND other.stock > 0)
        WHEN 'below_reorder_point' THEN stock < reorder_point
        ELSE 1 END
"""
FIND = f"SELECT * {FILTERED} ORDER BY sku, warehouse LIMIT :limit"
SUMMARIZE = f"""
SELECT CASE :by WHEN 'warehouse' THEN warehouse WHEN 'category' THEN category ELSE supplier END AS "group",
    count(*) AS places, count(DISTINCT sku) AS products, sum(stock) AS units
{FILTERED} GROUP BY 1 ORDER BY 1
"""
SOLD_OUT = """
SELECT sku, sum(reorder_quantity) AS quantity, unit_price FROM stock GROUP BY sku HAVING sum(stock) = 0 ORDER BY sku
"""


def fill(connection: sqlite3.Connection) -> None:
    connection.execute(SCHEMA)
    rows = [tuple(row.values()) for row in rows_of("", "products")]
    connection.executemany("INSERT INTO stock VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)


def folded(text: str) -> str:
    """Text as people compare it, ignoring letter case and the encoding of accents."""
    return unicodedata.normalize("NFKC", text).casefold()


query = Database(fill, folded).query


# ---------------------------------------------------------------------------------------------------- scenario

scenario = Scenario(
    "inventory_lookup",
    description="an agent finds out what is out of stock and what to order",
    real="skills, database, loop and recording",
)

scenario.max_steps(10)
scenario.instructions(
    "You keep the stock of a wholesaler for repair shops. Look facts up with your skills, never guess them. "
    "In your final answer put each product to order on a line of its own, `SKU x QUANTITY`, and the cost of all of "
    "it on the last line, `Total: AMOUNT`."
)
scenario.input(
    "Which products are out of stock in every warehouse that carries them? Order the usual quantity for each of those "
    f"warehouses, and tell me what it costs. A customer also asks for our {CLAMP} in Osaka: do we have any there?"
)

Status = Literal["any", "out_of_stock", "out_of_stock_everywhere", "below_reorder_point"]
Warehouse = Literal["Bergen", "Lyon", "Osaka", "Valparaíso"]


class OrderLine(TypedDict):
    """How many of one product to order."""

    sku: str
    quantity: int


@scenario.skill
def find_stock(
    status: Status = "any",
    warehouse: Warehouse | None = None,
    category: str | None = None,
    text: Annotated[str, "a part of the product's name"] | None = None,
    limit: int = 20,
) -> list[dict[str, Any]]:
    """Find what the warehouses hold: a row for each product and warehouse.

    `out_of_stock` means none in that warehouse, `out_of_stock_everywhere` none in any warehouse that carries it.
    """
    return query(FIND, status=status, warehouse=warehouse, category=category, text=text, limit=limit)


@scenario.skill
def summarize_stock(by: Literal["warehouse", "category", "supplier"], status: Status = "any") -> list[dict[str, Any]]:
    """Count places, products and units for each warehouse, category or supplier."""
    return query(SUMMARIZE, by=by, status=status, warehouse=None, category=None, text=None)


@scenario.skill
def price_order(lines: list[OrderLine]) -> dict[str, Any]:
    """Work out what an order costs."""
    prices = {row["sku"]: Decimal(row["unit_price"]) for row in query("SELECT DISTINCT sku, unit_price FROM stock")}
    unknown = sorted({line["sku"] for line in lines} - set(prices))
    if unknown:
        raise ValueError(f"there is no product {', '.join(unknown)}")
    costs = [prices[line["sku"]] * line["quantity"] for line in lines]
    return {"lines": len(lines), "total": f"{sum(costs, Decimal(0)):,}"}


# ------------------------------------------------------------------------------------------- what a good run shows


@scenario.expect
def the_order_is_what_the_database_says(outcome: Outcome) -> bool:
    """Products, quantities and cost are each looked up here."""
    ordered = {sku: int(quantity) for sku, quantity in re.findall(r"\b([A-Z]{2}-\d{4}) x (\d+)", outcome.text)}
    due = {row["sku"]: row["quantity"] for row in query(SOLD_OUT)}
    require(ordered == due, f"ordered {json.dumps(ordered)}, due {json.dumps(due)}")
    totals = [text.replace(",", "") for text in re.findall(r"Total: ([\d.,]*\d)", outcome.text)]
    return totals == [str(sum((Decimal(row["unit_price"]) * row["quantity"] for row in query(SOLD_OUT)), Decimal(0)))]


@scenario.expect
def the_customer_learns_how_many_clamps_osaka_has(outcome: Outcome) -> bool:
    """Each number is in a sentence with the product's name."""
    rows = query(FIND, status="any", warehouse="Osaka", category=None, text=CLAMP, limit=-1)
    about_clamps = " ".join(text for text in re.split(r"(?<=[.!?])\s", outcome.text) if CLAMP in text)
    return all(re.search(rf"\b{row['stock']}\b", about_clamps) for row in rows if row["stock"] > 0)


if __name__ == "__main__":
    scenario.main()
