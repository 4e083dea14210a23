"""Print a pip constraint for every dependency in pyproject.toml: the lowest version it allows.

With names of extras, those of the extras too: `python .ci/lowest.py mcp otel`.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))


def lowest(requirement: str) -> str | None:
    """Return `name==version`, or None for a requirement on skillfit's own extras."""
    name, _, rest = requirement.partition(">=")
    version, _, marker = rest.partition(";")
    name = re.sub(r"\[.*\]", "", name)
    if name == "skillfit":
        return None
    if not version:
        raise SystemExit(f"pyproject.toml: {requirement} has no lowest version.")
    return f"{name}=={version.strip()}" + (f" ;{marker}" if marker else "")


extras = PROJECT["project"]["optional-dependencies"]
requirements = [
    *PROJECT["project"]["dependencies"],
    *(r for name in sys.argv[1:] for r in extras[name]),
]
print("\n".join(pin for requirement in requirements if (pin := lowest(requirement))))
