"""One real server as its own baseline, against a second one that does not draft."""

import pytest

from mtpmon.demo.model import ModelSpec, cached_model
from tests.twins import TOKENS, distributions

pytestmark = pytest.mark.real


@pytest.mark.parametrize("blocks", [2, 6])
async def test_one_server_tells_the_distributions_of_a_target_only_one(blocks: int) -> None:
    """At every position of each answer, after speculation, to a millionth."""
    found = await distributions(cached_model(ModelSpec(trunk_blocks=blocks)), 3)
    assert found.positions == 3 * TOKENS
    assert found.probability <= 1e-6
    assert found.nats <= 1e-5
