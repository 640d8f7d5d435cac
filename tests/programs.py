"""Programs of other packages that tests run; ``tests/install-tools`` installs them."""

import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parent.parent / ".tools" / "usr" / "bin"


def program(name: str) -> str:
    """A program: the one that a Python package brought, the system's, or an unpacked one."""
    for path in (Path(sys.executable).parent, None, TOOLS):
        found = shutil.which(name, path=path)
        if found is not None:
            return found
    raise AssertionError(f"{name} is missing: run tests/install-tools")


def promtool() -> str:
    """Prometheus' own checker."""
    return program("promtool")


def prometheus_server() -> str:
    """Prometheus itself."""
    return program("prometheus")


def output(name: str, *arguments: str | Path) -> str:
    """Run a program that must succeed.

    Returns:
        What it wrote, errors included.
    """
    done = subprocess.run(
        [program(name), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    text = done.stdout.decode()
    assert done.returncode == 0, f"{name} ended with {done.returncode}:\n{text}"
    return text


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
    return program("prometheus-alertmanager")


def amtool() -> str:
    """Alertmanager's own checker."""
    return program("amtool")
