"""The task of the comparison: values are rewritten in the style of the house.

Ten kinds of values, each with its own rule. The initial skill says one of them. A grader
compares the whole answer with the right one. Items are made from templates with a fixed seed. The
folder that `write_task` makes is an ordinary skillfit task: `skillfit ablate` and `skillfit train`
run on it too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

SIZES = {"train": 60, "selection": 20, "test": 50}
SEED = 2026
START = """---
name: house-style
description: Rewrite values in the house style.
---
# House style

Rewrite the value in the house style.

- Separate the parts of a list with semicolons: pens; cups; tables
"""
GRADER = '''"""Compares the whole answer, apart from white space around it."""


def grade(item, answer):
    found, gold = answer.strip(), item["answers"]
    gold = gold if isinstance(gold, str) else gold[0]
    return float(found == gold), "" if found == gold else f"{found!r} instead of {gold!r}."
'''
FIRST = [
    "Anna",
    "Bruno",
    "Clara",
    "David",
    "Elena",
    "Felix",
    "Greta",
    "Hugo",
    "Irene",
    "Jonas",
    "Karin",
    "Lukas",
    "Maria",
    "Nils",
]
LAST = [
    "Adler",
    "Berger",
    "Costa",
    "Duval",
    "Ekman",
    "Fischer",
    "Garcia",
    "Hansen",
    "Ivanov",
    "Jansen",
    "Keller",
    "Lopez",
]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
COUNTRIES = {
    "Sweden": "SE",
    "Austria": "AT",
    "Portugal": "PT",
    "Denmark": "DK",
    "Poland": "PL",
    "Greece": "GR",
    "Turkey": "TR",
    "Mexico": "MX",
    "Chile": "CL",
    "Peru": "PE",
    "Egypt": "EG",
    "Kenya": "KE",
    "China": "CN",
    "Belgium": "BE",
    "Germany": "DE",
    "France": "FR",
    "Italy": "IT",
    "Spain": "ES",
    "Japan": "JP",
    "Canada": "CA",
    "Norway": "NO",
    "Brazil": "BR",
    "India": "IN",
    "Finland": "FI",
}
CITIES = [
    "Bergen",
    "Lyon",
    "Turin",
    "Seville",
    "Osaka",
    "Toronto",
    "Hamburg",
    "Porto",
    "Vienna",
    "Krakow",
    "Ghent",
    "Malmo",
]
THINGS = [
    "chairs",
    "desks",
    "lamps",
    "screens",
    "printers",
    "shelves",
    "phones",
    "cables",
    "boxes",
    "folders",
]
CURRENCIES = {"euros": "EUR", "dollars": "USD", "pounds": "GBP"}
UNITS = {"kilograms": "kg", "metres": "m", "litres": "l", "centimetres": "cm"}
STREETS = ["Main Street", "Lake Road", "Station Square", "Mill Lane", "Park Avenue"]
Made = tuple[str, str]  # the value as it comes, in house style


def _date(rng: random.Random) -> Made:
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2015, 2029)
    return f"{day} {MONTHS[month - 1]} {year}", f"{year}-{month:02d}-{day:02d}"


def _time(rng: random.Random) -> Made:
    hour, minute = rng.randint(1, 11), rng.randrange(0, 60, 5)
    return f"{hour}:{minute:02d} pm", f"{hour + 12}:{minute:02d}"


def _money(rng: random.Random) -> Made:
    amount, currency = rng.randint(12, 980), rng.choice(list(CURRENCIES))
    return f"{amount} {currency}", f"{amount}.00 {CURRENCIES[currency]}"


def _name(rng: random.Random) -> Made:
    first, last = rng.choice(FIRST), rng.choice(LAST)
    return f"{rng.choice(('Mr', 'Mrs', 'Dr'))} {first} {last}", f"{last}, {first}"


def _country(rng: random.Random) -> Made:
    country = rng.choice(list(COUNTRIES))
    return f"a customer in {country}", COUNTRIES[country]


def _size(rng: random.Random) -> Made:
    amount, unit = rng.randint(2, 995), rng.choice(list(UNITS))
    return f"{amount} {unit}", f"{amount} {UNITS[unit]}"


def _list(rng: random.Random) -> Made:
    one, two, three = rng.sample(THINGS, 3)
    return f"{one}, {two} and {three}", f"{one}; {two}; {three}"


def _city(rng: random.Random) -> Made:
    city = rng.choice(CITIES)
    return f"the office in {city}, {rng.choice(STREETS)} {rng.randint(2, 99)}", city.upper()


def _share(rng: random.Random) -> Made:
    share = rng.randint(11, 98)
    return f"{share} percent", f"0.{share}"


def _phone(rng: random.Random) -> Made:
    parts = [rng.randint(30, 49), rng.randint(100, 999), rng.randint(1000, 9999)]
    return "(00{}) {} {}".format(*parts), "+{}{}{}".format(*parts)


KINDS: dict[str, Callable[[random.Random], Made]] = {
    "date": _date,
    "time": _time,
    "money": _money,
    "name": _name,
    "country": _country,
    "size": _size,
    "list": _list,
    "city": _city,
    "share": _share,
    "phone": _phone,
}


def items() -> list[dict[str, str]]:
    """All items, no value twice, kinds in equal shares in every split."""
    rng, seen, found = random.Random(SEED), set[str](), list[dict[str, str]]()
    for split, count in SIZES.items():
        for number in range(count):
            kind = list(KINDS)[number % len(KINDS)]
            value, answer = KINDS[kind](rng)
            while value in seen:
                value, answer = KINDS[kind](rng)
            seen.add(value)
            found.append(
                {
                    "id": f"{split}-{number + 1:03d}",
                    "input": f"Value: {value}",
                    "answer": answer,
                    "type": kind,
                    "split": split,
                }
            )
    return found


def write_task(folder: Path, model: Path, threads: int, skill: str = START) -> Path:
    """The task as a folder with config, items, grader and skill. The config's path."""
    (folder / "house-style").mkdir(parents=True, exist_ok=True)
    (folder / "house-style" / "SKILL.md").write_text(skill, encoding="utf-8")
    (folder / "grader.py").write_text(GRADER, encoding="utf-8")
    lines = (json.dumps(item) for item in items())
    (folder / "tasks.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = folder / "skillfit.yaml"
    options = f"{{slots: 1, threads: {threads}}}"
    text = [
        "model:",
        f"  agent: {{id: local/{model}, temperature: 0, max_tokens: 20, options: {options}}}",
        "  concurrency: 1",
        "env: {skill: ./house-style, tasks: ./tasks.jsonl, grader: ./grader.py:grade}",
    ]
    config.write_text("\n".join(text) + "\n", encoding="utf-8")
    return config
