"""A stand-in for the optimizer's model: it proposes sentences for the description, one of them too
greedy, and drafts queries.
"""

from __future__ import annotations

import json

from skillfit import Request

SENTENCES = (
    "Fills in forms: applications, questionnaires, declarations and registration papers.",
    "Use it when a signature, a checkbox or an empty field is mentioned.",
    "Reads the values that somebody has entered, also from a scan.",
    "Use it for every table, chart, letter, report, photo, meeting or call.",
)
DRAFTS = (
    ("The bank wants the blank spaces on page 2 done, my data is in me.txt", "a form, unnamed"),
    ("tick the newsletter box on all 12 camp sheets pls", "a check box in many files"),
    ("Turn this price list into a one-page PDF with our logo", ""),
    ("Sum up the amounts of the expense sheet by month", ""),
)


def optimizer(request: Request) -> str:
    prompt = "\n".join(message.content for message in request.messages)
    if request.stage == "draft_queries":
        queries = [
            {"query": text, "should_trigger": bool(why), "why": why or "another skill's work"}
            for text, why in DRAFTS
        ]
        return json.dumps({"queries": queries})
    if request.stage != "reflect.corpus":
        return "{}"
    edits = [
        {"op": "append", "target": "", "content": sentence}
        for sentence in SENTENCES
        if sentence not in prompt
    ]
    return json.dumps({"reasoning": "words of the queries", "failures": [], "edits": edits})
