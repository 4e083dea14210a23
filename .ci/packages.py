"""Check the wheel and the sdist in a folder: names, contents, sizes, licences and versions.

`python .ci/packages.py FOLDER [--final]`; `--final` also wants a date in the changelog.
"""

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLUGIN = "src/skillfit/plugins/agentskills/plugin/.claude-plugin/plugin.json"
LARGEST = {"wheel": 2_000_000, "sdist": 4_000_000}  # bytes, packed


def read(folder: Path) -> tuple[Path, dict[str, bytes], Path, dict[str, bytes]]:
    """Return the wheel and the sdist with their files."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as packed:
        in_wheel = {name: packed.read(name) for name in packed.namelist()}
    with tarfile.open(sdist) as unpacked:
        in_sdist = {
            one.name.partition("/")[2]: unpacked.extractfile(one).read()
            for one in unpacked.getmembers()
            if one.isfile()
        }
    return wheel, in_wheel, sdist, in_sdist


def problems(folder: Path, final: bool) -> list[str]:
    wheel, in_wheel, sdist, in_sdist = read(folder)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    source = {name.removeprefix("src/") for name in tracked if name.startswith("src/")}
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/skillfit/__init__.py").read_text())[1]
    code = {name for name in in_wheel if ".dist-info/" not in name}
    found = [f"not in the wheel: {name}" for name in sorted(source - code)]
    found += [f"should not be in the wheel: {name}" for name in sorted(code - source)]
    found += [f"not in the sdist: {name}" for name in sorted(tracked - set(in_sdist))]
    more = set(in_sdist) - tracked - {"PKG-INFO"}
    found += [f"should not be in the sdist: {name}" for name in sorted(more)]
    for path, kind in ((wheel, "wheel"), (sdist, "sdist")):
        if not path.name.startswith(f"skillfit-{version}"):
            found.append(f"{path.name}: the version is {version}")
        if path.stat().st_size > LARGEST[kind]:
            found.append(f"{path.name}: {path.stat().st_size:,} bytes")
    if f"skillfit-{version}.dist-info/licenses/LICENSE" not in in_wheel:
        found.append("the wheel has no LICENSE")
    for name, content in {**in_sdist, **in_wheel}.items():
        if str(ROOT).encode() in content:
            found.append(f"{name}: names a folder of this machine")
        # Everything is made for skillfit. A file of somebody else needs its licence beside it.
        if re.search(rb"(?i)copyright (\(c\)|\xc2\xa9|\d{4})", content) and "LICENSE" not in name:
            found.append(f"{name}: is it somebody else's? Put its licence beside it")
    if json.loads(in_sdist[PLUGIN])["version"] != version:
        found.append(f"{PLUGIN}: the version is {version}")
    dated = r"\d{4}-\d\d-\d\d" if final else ".+"
    if not re.search(
        rf"^## \[{re.escape(version)}\] - {dated}$", in_sdist["CHANGELOG.md"].decode(), re.M
    ):
        found.append(f"CHANGELOG.md: no section of {version}" + (" with its date" if final else ""))
    sizes = f"{wheel.stat().st_size:,} and {sdist.stat().st_size:,} bytes"
    print(f"{len(in_wheel)} files in the wheel, {len(in_sdist)} in the sdist: {sizes}.")
    return found


if found := problems(Path(sys.argv[1]), "--final" in sys.argv):
    sys.exit("\n".join(found))
