"""A stand-in for the optimizer's model: it knows two rules and proposes those that the skill does
not have.
"""

from __future__ import annotations

import json
import re

from skillfit.models.protocol import Request

RULES = ("Raise ValueError when the input is empty.", "Give every function a return type.")


def optimizer(request: Request) -> str:
    prompt = "\n".join(message.content for message in request.messages)
    if request.stage == "merge":
        proposed = [
            json.loads(text)
            for text in re.findall(r"^\[\d+\] [^{\n]*(\{.*\})$", prompt, re.MULTILINE)
        ]
        unique = {entry["content"]: {**entry, "sources": [0]} for entry in proposed}
        return json.dumps({"reasoning": "equal ones joined", "edits": list(unique.values())})
    if not request.stage.startswith("reflect.fail"):
        return json.dumps(
            {"patch": {"reasoning": "nothing to add", "edits": []}, "success_patterns": []}
        )
    edits = [
        {"op": "append", "target": "", "content": f"- {rule}"}
        for rule in RULES
        if rule not in prompt
    ]
    return json.dumps(
        {"failure_summary": [], "patch": {"reasoning": "house rules", "edits": edits}}
    )
