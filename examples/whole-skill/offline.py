"""A stand-in for the optimizer's model. It proposes what a person would after reading the failures:
missing rows of a table, a script with a line that names it, and long text that belongs in a
reference. One script that it writes does not work.
"""

from __future__ import annotations

import json

from skillfit import Request

ZONES = {"Italy": "A", "Poland": "A", "Serbia": "B", "Chile": "C", "Kenya": "C", "Peru": "C"}
SCRIPT = '''"""Print the price of a parcel in EUR: price.py KG ZONE."""

import sys

RATES = {"A": (4, 1), "B": (8, 2), "C": (15, 5)}


def price(weight: int, zone: str) -> int:
    base, per_kilogram = RATES[zone]
    return base + per_kilogram * weight


if sys.argv[1:] == ["--self-check"]:
    assert (price(3, "A"), price(2, "C")) == (7, 25)
else:
    print(price(int(sys.argv[1]), sys.argv[2]))
'''
CUSTOMS = [
    "- Parcels to zone A need no customs form.",
    "- Parcels to zone B need form CN22.",
    "- Parcels to zone C need form CN23 and an invoice.",
    "- Gifts under 45 EUR need no invoice.",
    "- Batteries are refused in zone C.",
    "- Declare plants with their Latin names.",
]


def optimizer(request: Request) -> str:
    prompt = "\n".join(message.content for message in request.messages)
    if request.stage != "reflect.corpus":
        return "{}"
    edits = [
        *(
            {"op": "append", "content": f"- {country}: {zone}", "file": "references/zones.md"}
            for country, zone in ZONES.items()
        ),
        {"op": "write", "content": SCRIPT, "file": "scripts/price.py"},
        {"op": "append", "content": "- Price: run scripts/price.py KG ZONE and print the result."},
        {"op": "write", "content": "print(price(", "file": "scripts/weights.py"},
        {
            "op": "move",
            "target": "\n".join(CUSTOMS),
            "content": "- Customs forms: see references/customs.md.",
            "file": "references/customs.md",
        },
        {"op": "append", "content": "- Be careful with addresses."},
    ]
    new = [edit for edit in edits if edit["content"].strip() not in prompt]
    return json.dumps({"reasoning": "zones and prices fail", "failures": [], "edits": new})
