"""Commands of the operations guide that need a stack: tests run them as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.databases import POSTGRES_PROGRAMS

_GUIDE = Path(__file__).parents[2] / "docs" / "operations.md"


def run_documented(heading: str, directory: Path, **environment: str) -> None:
    """Do what the guide says under a heading; the service's own programs and PostgreSQL's are at hand."""
    block = rf"^### {heading}\n.*?^```bash\n(.*?)^```"
    found = re.search(block, _GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found, heading
    path = f"{Path(sys.executable).parent}:{POSTGRES_PROGRAMS}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-euc", found[1]],
        cwd=directory,
        env=os.environ | {"PATH": path} | environment,
        check=True,
        timeout=120,
    )
