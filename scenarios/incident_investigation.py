#!/usr/bin/env python3
"""An agent finds out why orders fail: in logs, metrics and deployments of a realistic size, with two false trails.

The files are in fixtures/incident_investigation, made by fixtures/make_incident.py from a model of the load. The cause
is computed here from the metrics and the deployments; it is not written down anywhere.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from datetime import datetime, time
from itertools import takewhile
from typing import Annotated, Any, Literal

from harness import Outcome, Scenario, require

from kit.answers import line_of
from kit.sources import rows_of, text_of

NAME = "incident_investigation"
ALARM_SHARE = 0.05
MOST_LINES = 50
Row = dict[str, Any]

Service = Literal["gateway", "checkout", "inventory", "payments", "search"]
Level = Literal["INFO", "WARN", "ERROR"]
TOTALS = ("requests", "errors")


@functools.cache
def deployments() -> list[Row]:
    """Every deployment, the oldest first."""
    read: list[Row] = json.loads(text_of(NAME, "deployments.json"))
    return read


@functools.cache
def metrics() -> list[Row]:
    """A row for each minute and service."""
    return [{**row, **{name: int(row[name]) for name in TOTALS}} for row in rows_of(NAME, "metrics")]


def metrics_of(service: str, first: str, last: str) -> list[Row]:
    """The rows of one service, both minutes included."""
    return [row for row in metrics() if row["service"] == service and first <= row["minute"] <= last]


def error_share(rows: Sequence[Row]) -> float:
    """The share of failed requests in all requests."""
    requests, errors = (sum(row[name] for row in rows) for name in TOTALS)
    return float(errors / max(1, requests))


# ---------------------------------------------------------------------------------------------------- scenario

scenario = Scenario(
    NAME,
    description="an agent finds the cause of failing orders in logs, metrics and deployments",
    real="skills, log files, loop and recording",
)
scenario.max_steps(16)
scenario.instructions(
    "You are on call for a web shop on 2026-11-18; all times are UTC. Find the one deployment that made orders fail, "
    "by evidence and not by nearness in time: a service that only passes an error on is not its cause, and a warning "
    "that was there before explains nothing. Then request the rollback of that one service to the version it had "
    "before, once. End your answer with four lines:\n"
    "Started: HH:MM, the first minute in which more than 5 % of the gateway's requests failed\n"
    "Cause: SERVICE VERSION, as deployed\n"
    "Setting: NAME, the setting in which the deployment differs from the one before it\n"
    "Rollback: SERVICE VERSION"
)
scenario.input("We had an alarm around two: customers cannot place orders. What broke, since when, and what do we do?")


@scenario.skill
def deployment_history(service: Service | None = None) -> list[Row]:
    """List deployments with version and configuration, the oldest first; of one service or of all."""
    return [one for one in deployments() if service in (None, one["service"])]


@scenario.skill
def read_metrics(
    service: Service, first: time, last: time, minutes: Annotated[int, "how many to put into a row, 1 to 60"] = 10
) -> list[Row]:
    """Read a service's requests, errors, slowest 95th percentile and, where it has one, its connection pool."""
    if not 1 <= minutes <= 60:
        raise ValueError("minutes must be from 1 to 60")
    rows = metrics_of(service, f"{first:%H:%M}", f"{last:%H:%M}")
    return [_summed(rows[start : start + minutes]) for start in range(0, len(rows), minutes)]


def _summed(rows: Sequence[Row]) -> Row:
    claims = {
        "from": rows[0]["minute"],
        "requests": sum(row["requests"] for row in rows),
        "errors": sum(row["errors"] for row in rows),
        "error_percent": round(100 * error_share(rows), 1),
        "p95_ms": max(int(row["p95_ms"]) for row in rows),
    }
    pools = [f"{row['pool_in_use']} of {row['pool_size']}" for row in rows if row["pool_size"]]
    return claims | ({"pool_at_the_end": pools[-1]} if pools else {})


@scenario.skill
def search_logs(
    service: Service,
    text: Annotated[str, "what a line must contain; any line without it"] = "",
    level: Level | None = None,
    first: time = time(0, 0),
    last: time = time(23, 59, 59),
    limit: Annotated[int, "lines to show, 0 to only count, 50 at most"] = 10,
) -> Row:
    """Search a service's log, the oldest line first. The log is a sample: compare counts with counts."""
    lines = text_of(NAME, f"{service}.log").splitlines()
    # "2026-11-18T14:03:15.719Z ERROR text": the time of day begins at 11, the level at 25
    within = [line for line in lines if f"{first:%H:%M:%S}" <= line[11:19] <= f"{last:%H:%M:%S}"]
    found = [line for line in within if text.casefold() in line.casefold() and level in (None, line[25:30].strip())]
    return {"found": len(found), "shown": found[: max(0, min(limit, MOST_LINES))]}


@scenario.skill
def request_rollback(service: Service, version: str, reason: str) -> str:
    """Ask the service's owner to go back to a version that was deployed before."""
    versions = [one["version"] for one in deployments() if one["service"] == service]
    if version not in versions[:-1]:
        raise ValueError(f"{service} can go back to {' or '.join(versions[:-1]) or 'nothing'}, not to {version!r}")
    if not reason.strip():
        raise ValueError("reason must say why")
    return f"rollback of {service} to {version} requested"


# ------------------------------------------------------------------------------------------- what a good run shows


def alarm() -> str:
    """The minute in which the gateway's error share first passed the alarm's bound."""
    rows = metrics_of("gateway", "00:00", "23:59")
    return next(str(row["minute"]) for row in rows if error_share([row]) > ALARM_SHARE)


def cause() -> tuple[Row, Row]:
    """The deployment whose service has failed most since the alarm, compared to before it; and the previous deployment.

    A service that only passes errors on fails less often than the one that causes them: it has other requests too.
    """
    started = alarm()
    until = datetime.fromisoformat(f"2026-11-18T{started}:00Z")
    candidates = [one for one in deployments() if "2026-11-18" in one["at"] and _moment(one) <= until]

    def rise(one: Row) -> float:
        service = one["service"]
        before = metrics_of(service, "00:00", f"{_moment(one):%H:%M}")
        return error_share(metrics_of(service, started, "23:59")) - error_share(before)

    worst = max(candidates, key=rise)
    earlier = [one for one in deployments() if one["service"] == worst["service"] and one["at"] < worst["at"]]
    return worst, earlier[-1]


def _moment(deployment: Row) -> datetime:
    return datetime.fromisoformat(deployment["at"])


def require_answered(outcome: Outcome, label: str, due: str) -> bool:
    """Requires that the last line with this label begins with what is due; the rest does not matter."""
    answered = line_of(outcome, label)
    return require(answered.startswith(due), f"answered {answered!r}, due {due!r}")


@scenario.expect
def it_is_known_since_when_orders_fail(outcome: Outcome) -> bool:
    return require_answered(outcome, "Started", alarm())


@scenario.expect
def the_deployment_that_broke_it_is_named(outcome: Outcome) -> bool:
    deployed, _ = cause()
    return require_answered(outcome, "Cause", f"{deployed['service']} {deployed['version']}")


@scenario.expect
def the_setting_that_changed_is_named(outcome: Outcome) -> bool:
    deployed, before = cause()
    changed = [name for name, value in deployed["config"].items() if before["config"].get(name) != value]
    return require_answered(outcome, "Setting", " ".join(changed))


@scenario.expect
def that_service_alone_is_to_be_rolled_back(outcome: Outcome) -> bool:
    _, before = cause()
    due = f"{before['service']} to {before['version']}"
    requested = outcome.results_of("request_rollback")
    is_due = requested == [f"rollback of {due} requested"]
    require(is_due, f"requested: {'; '.join(requested) or 'nothing'}; due: {due}")
    return require_answered(outcome, "Rollback", due.replace(" to ", " "))


@scenario.expect
def the_cause_was_looked_at_before_it_was_named(outcome: Outcome) -> bool:
    """A guess may be right, but the task asks for evidence: the service's own log or metrics."""
    service = cause()[0]["service"]
    calls = [event.data for event in outcome.of("skill_execute")]
    asked = [call["skill"] for call in calls if call["params"].get("service") == service]
    return not {"read_metrics", "search_logs"}.isdisjoint(takewhile(lambda skill: skill != "request_rollback", asked))


if __name__ == "__main__":
    scenario.main()
