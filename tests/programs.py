"""Programs of other packages that tests run; ``tests/install-tools`` installs them."""

import shutil
import subprocess
from pathlib import Path

TOOLS = Path(__file__).parent.parent / ".tools" / "usr" / "bin"


def promtool() -> str:
    """Prometheus' own checker."""
    return _program("promtool")


def prometheus_server() -> str:
    """Prometheus itself."""
    return _program("prometheus")


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=TOOLS)
    assert found, f"{name} is missing: run tests/install-tools"
    return found


def metrics_complaints(text: str) -> str:
    """What ``promtool check metrics`` has to say against an exposition; empty if nothing."""
    done = subprocess.run(
        [promtool(), "check", "metrics"],
        input=text.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.stdout.decode() or ("" if done.returncode == 0 else f"exit {done.returncode}")


def alertmanager_server() -> str:
    """Alertmanager, by the name that Debian gives it."""
    return _program("prometheus-alertmanager")


def amtool() -> str:
    """Alertmanager's own checker."""
    return _program("amtool")
