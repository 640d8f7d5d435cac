"""Replies recorded from real servers, builds b10142, b10434 and b11434."""

from pathlib import Path

ROOT = Path(__file__).parent / "data" / "captures"
BUILDS = ("b10142", "b10434", "b11434")


def http(name: str) -> tuple[dict[str, str], bytes]:
    """Headers and body of a recorded HTTP reply."""
    head, _, body = (ROOT / name).read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")
    pairs = (line.partition(": ") for line in head.decode().splitlines()[1:])
    return {name: value for name, _, value in pairs}, body


def raw(name: str) -> bytes:
    """A recorded body."""
    return (ROOT / name).read_bytes()


def events(name: str) -> list[bytes]:
    """Payloads of a recorded event stream."""
    return [
        line.removeprefix(b"data: ")
        for line in raw(name).splitlines()
        if line.startswith(b"data: ") and line != b"data: [DONE]"
    ]
