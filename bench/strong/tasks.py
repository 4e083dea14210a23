"""Three tasks with checkable answers, made for a small local model as the agent.

style: values in the house style (as in bench/local). sql: queries on a shop database with house
rules, graded by running them. triage: support tickets get a team and a priority by house rules that
the initial skill does not say. Items come from templates with a fixed seed; every split holds all
kinds in equal shares. `kinds=False` leaves the kinds out of the items.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.local import house_style

SIZES = {"train": 60, "selection": 30, "test": 60}
SEED = 2026
Made = tuple[str, str]  # the input, and the right answer
Maker = Callable[[random.Random], Made]


@dataclass(frozen=True, slots=True)
class StrongTask:
    name: str
    skill: str  # the initial one
    grader: str  # the source of grader.py
    kinds: dict[str, Maker]
    prefix: str  # of every input
    max_tokens: int


# SQL

SCHEMA = """CREATE TABLE customers (id INTEGER, name TEXT, country TEXT, tier TEXT, closed INTEGER);
CREATE TABLE products (id INTEGER, title TEXT, category TEXT, price_cents INTEGER, hidden INTEGER);
CREATE TABLE orders (id INTEGER, customer_id INTEGER, day TEXT, status TEXT, test INTEGER);
CREATE TABLE items (order_id INTEGER, product_id INTEGER, quantity INTEGER, price_cents INTEGER);"""
COUNTRIES = (
    "AT",
    "BE",
    "BR",
    "CA",
    "CH",
    "DE",
    "DK",
    "ES",
    "FI",
    "FR",
    "IT",
    "JP",
    "NO",
    "PT",
    "SE",
)
CATEGORIES = ("books", "games", "garden", "music", "tools")
STATUSES = ("open", "paid", "sent", "void")
TIERS = ("basic", "plus", "gold")

SQL_SKILL = f"""---
name: shop-sql
description: Answer questions about the shop with one SQL query.
---
# Shop SQL

Answer the question with one SQLite query on these tables.

    {SCHEMA.replace(chr(10), chr(10) + "    ")}

- Use the columns as they are named in the tables.
"""

SQL_GRADER = f'''"""Runs the query of the answer and the right one on the same database."""

import random
import sqlite3

SCHEMA = """{SCHEMA}"""


def database():
    rng, made = random.Random(7), sqlite3.connect(":memory:")
    made.executescript(SCHEMA)
    for key in range(1, 241):
        made.execute(
            "INSERT INTO customers VALUES (?, ?, ?, ?, ?)",
            (key, f"Customer {{key}}", rng.choice({COUNTRIES!r}), rng.choice({TIERS!r}),
             int(rng.random() < 0.3)),
        )
    for key in range(1, 31):
        made.execute(
            "INSERT INTO products VALUES (?, ?, ?, ?, ?)",
            (key, f"Product {{key}}", rng.choice({CATEGORIES!r}), rng.randint(100, 9900),
             int(rng.random() < 0.25)),
        )
    for key in range(1, 901):
        day = f"{{rng.choice((2024, 2025))}}-{{rng.randint(1, 12):02d}}-{{rng.randint(1, 28):02d}}"
        made.execute(
            "INSERT INTO orders VALUES (?, ?, ?, ?, ?)",
            (key, rng.randint(1, 240), day, rng.choice({STATUSES!r}), int(rng.random() < 0.25)),
        )
        for _ in range(rng.randint(1, 3)):
            made.execute(
                "INSERT INTO items VALUES (?, ?, ?, ?)",
                (key, rng.randint(1, 30), rng.randint(1, 4), rng.randint(100, 9900)),
            )
    made.commit()
    return made


def rows(query):
    made = database()
    steps = []

    def count():
        steps.append(1)
        return len(steps) > 2000  # ends queries that would run for long

    made.set_progress_handler(count, 1000)
    try:
        return [tuple(row) for row in made.execute(query).fetchmany(2000)]
    finally:
        made.close()


def grade(item, answer):
    gold = item["answers"] if isinstance(item["answers"], str) else item["answers"][0]
    try:
        found = rows(answer.strip())
    except Exception as error:
        return 0.0, f"The query failed: {{error}}. Right: {{gold}}"
    wanted = rows(gold)
    if found == wanted:
        return 1.0, ""
    shown = f"{{len(found)}} rows {{found[:2]}}, expected {{len(wanted)}} {{wanted[:2]}}"
    return 0.0, f"{{shown}}. Right: {{gold}}"
'''


def _sql_count(rng: random.Random) -> Made:
    tier, country = rng.choice(TIERS), rng.choice(COUNTRIES)
    query = (
        f"SELECT COUNT(*) FROM customers WHERE country = '{country}' AND tier = '{tier}' "
        "AND closed = 0"
    )
    return f"How many {tier} customers do we have in {country}?", query


def _sql_customers(rng: random.Random) -> Made:
    tier, country = rng.choice(TIERS), rng.choice(COUNTRIES)
    query = (
        f"SELECT name FROM customers WHERE tier = '{tier}' AND country = '{country}' "
        "AND closed = 0 ORDER BY id"
    )
    return f"Which {tier} customers are in {country}?", query


def _sql_revenue(rng: random.Random) -> Made:
    year, month, tier = rng.choice((2024, 2025)), rng.randint(1, 12), rng.choice(TIERS)
    query = (
        "SELECT SUM(i.quantity * i.price_cents) / 100.0 FROM orders o JOIN items i "
        "ON i.order_id = o.id JOIN customers c ON c.id = o.customer_id "
        f"WHERE c.tier = '{tier}' AND o.day LIKE '{year}-{month:02d}-%' "
        "AND o.status IN ('paid', 'sent') AND o.test = 0"
    )
    month_name = house_style.MONTHS[month - 1]
    return f"What was the revenue with {tier} customers in {month_name} {year}?", query


def _sql_price(rng: random.Random) -> Made:
    category, amount = rng.choice(CATEGORIES), rng.randint(40, 90)
    query = (
        f"SELECT title, price_cents / 100.0 FROM products WHERE category = '{category}' "
        f"AND price_cents < {amount * 100} AND hidden = 0 ORDER BY id"
    )
    return f"List the {category} below {amount} euros with their prices.", query


def _sql_expensive(rng: random.Random) -> Made:
    amount = rng.randint(20, 95)
    query = (
        f"SELECT title FROM products WHERE price_cents > {amount * 100} AND hidden = 0 ORDER BY id"
    )
    return f"Which products cost more than {amount} euros?", query


def _sql_orders(rng: random.Random) -> Made:
    status, year, month = rng.choice(STATUSES), rng.choice((2024, 2025)), rng.randint(1, 12)
    query = (
        f"SELECT COUNT(*) FROM orders WHERE status = '{status}' "
        f"AND day LIKE '{year}-{month:02d}-%' AND test = 0"
    )
    return f"How many orders of {house_style.MONTHS[month - 1]} {year} are {status}?", query


SQL_KINDS: dict[str, Maker] = {
    "count": _sql_count,
    "customers": _sql_customers,
    "revenue": _sql_revenue,
    "prices": _sql_price,
    "expensive": _sql_expensive,
    "orders": _sql_orders,
}

# Triage

TRIAGE_SKILL = """---
name: ticket-triage
description: Give a support ticket its team and priority.
---
# Ticket triage

Answer with the team and the priority of the ticket, as team/priority.

- Teams: billing, access, hardware, network, software. Priorities: P1 (now), P2 (today), P3 (later).
"""
NAMES = ("Anna", "Bruno", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas")
PLACES = ("the Lyon office", "the Osaka office", "the warehouse", "the front desk", "floor 3")
PROGRAMS = ("the editor", "the mail client", "the calendar", "the ledger", "the planner")


def _invoice(rng: random.Random) -> Made:
    amount = rng.randint(20, 2400)
    priority = "P2" if amount >= 1000 else "P3"
    return f"{rng.choice(NAMES)}: my invoice over {amount} euros is wrong.", f"billing/{priority}"


def _refund(rng: random.Random) -> Made:
    days = rng.randint(2, 40)
    priority = "P1" if days > 14 else "P2"
    text = f"{rng.choice(NAMES)} has waited for a refund for {days} days."
    return text, f"billing/{priority}"


def _password(rng: random.Random) -> Made:
    return f"{rng.choice(NAMES)} forgot the password of {rng.choice(PROGRAMS)}.", "access/P3"


def _locked(rng: random.Random) -> Made:
    return (
        f"{rng.choice(NAMES)} is locked out of {rng.choice(PROGRAMS)} in the "
        f"middle of a {rng.choice(('demo', 'call', 'review'))}.",
        "access/P1",
    )


def _printer(rng: random.Random) -> Made:
    return (
        f"The printer at {rng.choice(PLACES)} jams again, says {rng.choice(NAMES)}.",
        "hardware/P3",
    )


def _screen(rng: random.Random) -> Made:
    return f"The screen of {rng.choice(NAMES)} at {rng.choice(PLACES)} stays black.", "hardware/P2"


def _wifi(rng: random.Random) -> Made:
    people = rng.randint(1, 30)
    priority = "P1" if people >= 5 else "P2"
    where = rng.choice(PLACES)
    return f"No wifi for {people} people at {where}, since this morning.", f"network/{priority}"


def _vpn(rng: random.Random) -> Made:
    return (
        f"{rng.choice(NAMES)} cannot reach the VPN from home for {rng.choice(PROGRAMS)}.",
        "network/P2",
    )


def _crash(rng: random.Random) -> Made:
    program = rng.choice(PROGRAMS)
    priority = "P1" if program == "the ledger" else "P2"
    return (
        f"{rng.choice(NAMES)} reports that {program} crashes at every start.",
        f"software/{priority}",
    )


def _wish(rng: random.Random) -> Made:
    wish = rng.choice(("a dark mode", "bigger buttons", "an export", "another font"))
    return f"{rng.choice(NAMES)} would like {wish} in {rng.choice(PROGRAMS)}.", "software/P3"


TRIAGE_KINDS: dict[str, Maker] = {
    "invoice": _invoice,
    "refund": _refund,
    "password": _password,
    "locked": _locked,
    "printer": _printer,
    "screen": _screen,
    "wifi": _wifi,
    "vpn": _vpn,
    "crash": _crash,
    "wish": _wish,
}

TASKS = {
    task.name: task
    for task in (
        StrongTask(
            "style", house_style.START, house_style.GRADER, house_style.KINDS, "Value: ", 24
        ),
        StrongTask("sql", SQL_SKILL, SQL_GRADER, SQL_KINDS, "", 96),
        StrongTask("triage", TRIAGE_SKILL, house_style.GRADER, TRIAGE_KINDS, "Ticket: ", 12),
    )
}


def items(task: StrongTask, *, kinds: bool) -> list[dict[str, str]]:
    """All items; no input twice."""
    rng, seen, found = random.Random(SEED), set[str](), list[dict[str, str]]()
    for split, count in SIZES.items():
        for number in range(count):
            kind = list(task.kinds)[number % len(task.kinds)]
            text, answer = task.kinds[kind](rng)
            while text in seen:
                text, answer = task.kinds[kind](rng)
            seen.add(text)
            row = {"id": f"{split}-{number + 1:03d}", "input": task.prefix + text, "answer": answer}
            found.append(row | ({"type": kind} if kinds else {}) | {"split": split})
    return found


def write_task(folder: Path, task: StrongTask, model: Path, threads: int, *, kinds: bool) -> Path:
    """Write config, items, grader and skill into a folder. Return the path of the config."""
    skill = task.skill.split("name: ", 1)[1].split("\n", 1)[0]
    (folder / skill).mkdir(parents=True, exist_ok=True)
    (folder / skill / "SKILL.md").write_text(task.skill, encoding="utf-8")
    (folder / "grader.py").write_text(task.grader, encoding="utf-8")
    rows = [json.dumps(row) for row in items(task, kinds=kinds)]
    (folder / "tasks.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    options = f"{{slots: 1, threads: {threads}}}"
    limits = f"temperature: 0.7, max_tokens: {task.max_tokens}"
    text = [
        "model:",
        f"  agent: {{id: local/{model}, {limits}, options: {options}}}",
        "  optimizer: handoff",
        "  concurrency: 1",
        f"env: {{skill: ./{skill}, tasks: ./tasks.jsonl, grader: ./grader.py:grade}}",
    ]
    config = folder / "skillfit.yaml"
    config.write_text("\n".join(text) + "\n", encoding="utf-8")
    return config
