"""What tests of the real server share."""

from pathlib import Path

import pytest

from mtpmon.demo.model import ModelSpec, cached_model


@pytest.fixture(scope="session")
def model() -> Path:
    """The demo's model file."""
    return cached_model(ModelSpec())
