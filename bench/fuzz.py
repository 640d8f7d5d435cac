"""Coverage-guided fuzzing of everything that reads llama-server's bytes.

Needs atheris (``pip install -r requirements/fuzz.txt``). Runs for a stated time, starting from
recorded replies, and reports executions, coverage and the memory it took:

    python bench/fuzz.py [--seconds 600]

The only exception let through is the one the parsers declare; anything else stops the run with
the input that caused it.
"""

import argparse
import resource
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["mtpmon"]):
    from mtpmon.kld import divergence
    from mtpmon.wire import (
        WireError,
        assemble,
        classify,
        error_message,
        model_statuses,
        parse_chunk,
        parse_metrics,
        parse_prompt,
        parse_props,
        parse_tokens,
    )

CAPTURES = Path(__file__).parent.parent / "tests" / "data" / "captures"
READERS = (
    parse_metrics,
    parse_props,
    model_statuses,
    parse_prompt,
    parse_tokens,
    error_message,
    lambda body: classify(503, body, path="/metrics"),
)


def stream(body: bytes) -> None:
    """A whole completion stream, and the KLD of its lists."""
    chunks = [parse_chunk(line.removeprefix(b"data: ")) for line in body.split(b"\n\n") if line]
    whole = assemble(chunks, wall_seconds=0.0)
    if whole is None:
        return
    lists = [position.top for position in whole.positions if position.top]
    for one in lists[:3]:
        try:
            divergence(one, lists[0])
        except ValueError:
            continue


def one_input(data: bytes) -> None:
    """The first byte chooses the reader."""
    if not data:
        return
    choice, body = data[0] % (len(READERS) + 1), data[1:]
    try:
        if choice == len(READERS):
            stream(body)
        else:
            READERS[choice](body)
    except WireError:
        return


def seeds(folder: Path) -> None:
    """Recorded replies, each behind the byte that chooses its reader."""
    number = 0
    for path in sorted(CAPTURES.rglob("*")):
        if not path.is_file():
            continue
        body = path.read_bytes()
        if path.suffix == ".http":
            body = body.replace(b"\r\n", b"\n").partition(b"\n\n")[2]
        for choice in range(len(READERS) + 1):
            (folder / f"{number:04d}").write_bytes(bytes([choice]) + body[:20_000])
            number += 1


def main() -> int:
    """Fuzz for the time given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seeds(Path(folder))
        limits = [f"-max_total_time={options.seconds}", "-rss_limit_mb=1024", "-max_len=20001"]
        atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", folder], one_input)
        try:
            atheris.Fuzz()
        finally:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"peak memory {peak:.0f} MiB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
