"""Ten thousand items of 100 KB context each: what is resident stays under 500 MB."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COUNT, SIZE, LIMIT = 10_000, 100_000, 500
ON_DISK = 100  # rows that the items share; each is read again at every use

RUN = """
import asyncio, json, sys
from pathlib import Path
from skillfit.rollout import requests_for, Tally
from skillfit.tasks.item import Item, RowAt
from tests.rollout.scripted_agents import SKILL, RolloutSetup
from tests.support.peak_memory import peak_megabytes

async def main(folder, count, length, on_disk):
    async def read(item, call):
        text = item.input
        await asyncio.sleep(0.005)
        return str(len(text))

    rows = Path(folder, "rows.jsonl")
    items = [Item(f"long-{at}", RowAt(rows, at % on_disk * length, length)) for at in range(count)]
    engine = RolloutSetup(Path(folder)).engine(read)
    requests = requests_for(SKILL, items)
    outcomes = await engine.run(requests, stage="baseline", series="selection")
    scored = Tally.of(outcomes).hard * len(outcomes)
    print(json.dumps({"scored": scored, "megabytes": peak_megabytes()}))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
"""


@pytest.mark.slow
def test_ten_thousand_long_items_stay_under_500_megabytes(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    with rows.open("wb") as file:
        for at in range(ON_DISK):
            text = f"{at:08d} " + "context " * (SIZE // 8)
            file.write(json.dumps({"input": text, "answers": [str(len(text))]}).encode() + b"\n")
    try:
        length = rows.stat().st_size // ON_DISK
        command = [sys.executable, "-c", RUN, str(tmp_path), str(COUNT), str(length), str(ON_DISK)]
        done = subprocess.run(
            command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=200
        )
    finally:
        rows.unlink()
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["scored"] == COUNT
    assert seen["megabytes"] < LIMIT
