"""What tests of the real server share."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

from mtpmon.demo.model import ModelSpec, cached_model

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs us in the background has it ignored, and so would what we start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# What `make test` says must not depend on luck, the coverage gate least of all; whoever looks
# for more has the other profile.
settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("same")


@pytest.fixture(scope="session")
def model() -> Path:
    """The demo's model file."""
    return cached_model(ModelSpec())
