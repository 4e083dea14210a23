"""A stand-in for the optimizer's model: it knows two rules and proposes those that the skill does
not have.
"""

from __future__ import annotations

import json

from skillfit import Request

RULES = ("Raise ValueError when the input is empty.", "Give every function a return type.")


def optimizer(request: Request) -> str:
    prompt = "\n".join(message.content for message in request.messages)
    if request.stage != "reflect.corpus":
        return "{}"
    edits = [
        {"op": "append", "target": "", "content": f"- {rule}"}
        for rule in RULES
        if rule not in prompt
    ]
    return json.dumps({"reasoning": "house rules", "failures": [], "edits": edits})
