"""What tests of the real server share."""

import signal
from pathlib import Path

import pytest

from mtpmon.demo.model import ModelSpec, cached_model

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs us in the background has it ignored, and so would what we start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def model() -> Path:
    """The demo's model file."""
    return cached_model(ModelSpec())
