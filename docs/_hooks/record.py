"""`python docs/_hooks/record.py MODEL.gguf` runs the demo with a real model and records it.

The lines and their times are kept in docs/images/demo.json; without an argument they are only drawn
again. They become an animated terminal, docs/images/demo.svg, in which every line appears when it
was printed, in a shorter time. The last ones are put into the block after `<!-- recorded -->` of
README.md, and all of them into that of docs/complete-run.md. Readers who prefer reduced motion see
all lines at once.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "docs" / "images" / "demo.json"
PICTURE = ROOT / "docs" / "images" / "demo.svg"
README = ROOT / "README.md"
COMPLETE_RUN = ROOT / "docs" / "complete-run.md"
SECONDS, COLUMNS = 16, 100  # of the animation, of the terminal
WIDTH, LINE, TOP = 860, 19, 52
_RECORDED = re.compile(r"(<!-- recorded -->\n```text\n)(.*?)(```)", re.DOTALL)


def record(command: list[str], folder: Path) -> list[tuple[float, str]]:
    """Run a command; return its lines and when each was printed, in seconds."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "TERM": "dumb", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    start = time.monotonic()
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append((time.monotonic() - start, line.rstrip()))
    if process.returncode != 0:
        raise SystemExit(f"{command} ended with {process.returncode}.")
    return lines


def draw(command: str, lines: list[tuple[float, str]]) -> str:
    """The lines as an animated SVG. Each appears after the same share of the time as in the run."""
    whole = lines[-1][0]
    rows = [(0.0, f"$ {command}", "#8ce99a")]
    for when, line in lines:
        for part in textwrap.wrap(line, COLUMNS, subsequent_indent="  ") or [""]:
            good = line.startswith(("improved:", "ship test: improved"))
            rows.append((1 + when / whole * SECONDS, part, "#8ce99a" if good else "#dee2e6"))
    texts = "\n".join(
        f'<text x="20" y="{TOP + LINE * number}" fill="{colour}" style="animation-delay:{at:.2f}s">'
        f"{escape(text)}</text>"
        for number, (at, text, colour) in enumerate(rows)
    )
    height = TOP + LINE * len(rows)
    title = f"{command}, recorded: {whole / 60:.0f} minutes in {SECONDS} seconds"
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" \
aria-label="{escape(title)}">
<style>
text {{ font: 13px ui-monospace, monospace; white-space: pre; }}
.lines text {{ animation: appear .2s both; }}
@keyframes appear {{ from {{ opacity: 0; }} }}
@media (prefers-reduced-motion: reduce) {{ .lines text {{ animation: none; }} }}
</style>
<rect width="{WIDTH}" height="{height}" rx="8" fill="#1b1f23"/>
<text x="20" y="26" fill="#868e96">{escape(title)}</text>
<g class="lines">
{texts}
</g>
</svg>
"""


def recorded() -> tuple[str, list[tuple[float, str]], str]:
    """The command that was recorded, its lines without those on progress, and its result."""
    kept = json.loads(RECORDING.read_text(encoding="utf-8"))
    lines = [(when, line) for when, line in kept["lines"] if not line.startswith("... ")]
    printed = "".join(f"{line}\n" for _, line in lines)
    result = printed[printed.index("ship test:") : printed.index("Next:\n")]
    return kept["command"], lines, result


def main() -> None:
    if len(sys.argv) > 1:
        model = Path(sys.argv[1]).resolve()
        command = ["skillfit", "demo", "--model", f"local/{model.name}"]
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (folder / model.name).symlink_to(model)
            printed = record([*command, "--plain"], folder)
        # The model is named in the config by its whole path.
        lines = [(when, line.replace(f"{model.parent}/", "")) for when, line in printed]
        data = json.dumps({"command": " ".join(command), "lines": lines}, indent=0)
        RECORDING.write_text(f"{data}\n", encoding="utf-8")
    shown, lines, result = recorded()
    PICTURE.write_text(draw(shown, lines), encoding="utf-8")
    whole = "".join(f"{line}\n" for _, line in lines)
    for page, quoted in ((README, result), (COMPLETE_RUN, whole)):
        text = page.read_text(encoding="utf-8")
        filled = _RECORDED.sub(lambda found, quoted=quoted: found[1] + quoted + found[3], text)
        page.write_text(filled, encoding="utf-8")


if __name__ == "__main__":
    main()
