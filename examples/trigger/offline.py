"""A stand-in for the optimizer's model: sentences for the description, one of them too greedy."""

from __future__ import annotations

import json

from skillfit import Request

SENTENCES = (
    "Fills in forms: applications, questionnaires, declarations and registration papers.",
    "Use it when a signature, a checkbox or an empty field is mentioned.",
    "Reads the values that somebody has entered, also from a scan.",
    "Use it for every table, chart, letter, report, photo, meeting or call.",
)


def optimizer(request: Request) -> str:
    prompt = "\n".join(message.content for message in request.messages)
    if request.stage != "reflect.corpus":
        return "{}"
    edits = [
        {"op": "append", "target": "", "content": sentence}
        for sentence in SENTENCES
        if sentence not in prompt
    ]
    return json.dumps({"reasoning": "words of the queries", "failures": [], "edits": edits})
