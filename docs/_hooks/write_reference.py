"""`python -m docs._hooks.write_reference` writes the generated tables into the committed pages.

A table stands between `<!-- generate: NAME -->` and `<!-- end -->`, so that a code host shows it.
`--check` writes nothing and ends with exit code 1 if a page is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs._hooks.generate import ROOT, fill_generated

COMMAND = "python -m docs._hooks.write_reference"


def stale_pages() -> dict[Path, str]:
    """The pages whose tables differ from what the code says now, with their new text."""
    stale = {}
    for page in sorted((ROOT / "docs").glob("**/*.md")):
        text = page.read_text(encoding="utf-8")
        filled = fill_generated(text)
        if filled != text:
            stale[page] = filled
    return stale


def main() -> int:
    check_only = "--check" in sys.argv[1:]
    stale = stale_pages()
    for page, text in stale.items():
        print(f"{'out of date' if check_only else 'written'}: {page.relative_to(ROOT)}")
        if not check_only:
            page.write_text(text, encoding="utf-8")
    return 1 if check_only and stale else 0


if __name__ == "__main__":
    sys.exit(main())
