"""Code that runs in a process of its own: what locks, kills and limits do, they do to a process."""

import subprocess
import sys
from pathlib import Path


def run_python(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run `code`, which knows `path`, to its end, whatever that is."""
    given = f"import sys; from pathlib import Path; path = Path(sys.argv[1])\n{code}"
    command = [sys.executable, "-c", given, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
