"""The work to be done: questions with a seeded latency and answer each, and the fastest schedule
that latencies allow.

Standard library only: the peers' interpreters read it too.
"""

import hashlib
import heapq
import json
import random
import sys
from pathlib import Path

CONTEXT = (
    "The archive keeps a code for every shelf. "
    "Codes are read from the label, not from the catalogue. " * 20
)
SKILL = (
    "# Shelf codes\n\n"
    "Read the question. Answer with the code of the shelf alone, as <answer>code</answer>.\n"
)


def draw(*names):
    """A number in 0..1 that depends on the names alone."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def question(number):
    return f"What is the code of shelf {number:05d}?"


def gold(number):
    return f"code-{hashlib.sha256(str(number).encode()).hexdigest()[:8]}"


def answer(number):
    """Three in ten are wrong, always the same ones."""
    return f"<answer>{gold(number) if draw('right', number) < 0.7 else 'code-unknown'}</answer>"


def latency(number):
    """Seconds. Log-normal: a median of 0.2, one in a hundred above 2, cut at 5."""
    return min(5.0, random.Random(f"latency/{number}").lognormvariate(-1.6, 1.0))


def ideal_seconds(count, concurrency):
    """Greedy list scheduling in planned order: each free slot takes the next item at once."""
    slots = [0.0] * concurrency
    for number in range(count):
        heapq.heapreplace(slots, slots[0] + latency(number))
    return max(slots)


def peak_megabytes():
    """`ru_maxrss` would count the process that started this one too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def report(seconds, cpu_seconds, megabytes, scores, **more):
    """What a contestant prints as its last line: how long, at what cost, and the hard score per
    item (None: no score).
    """
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "megabytes": megabytes,
                "scores": scores,
                **more,
            }
        )
    )
    sys.stdout.flush()


def trained(seconds, cpu_seconds, curve):
    """What a contestant prints after a whole run: `curve` has the best skill from each number of
    rollouts on.
    """
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "curve": curve}))
    sys.stdout.flush()


def settings():
    """What a contestant is started with: base_url, count (or seed), concurrency, scratch folder."""
    url, count, concurrency, folder = sys.argv[1:5]
    return url, int(count), int(concurrency), Path(folder)
