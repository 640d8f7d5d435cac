"""The real Prometheus of tests starts, answers, refuses, and is gone afterwards."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.prometheus_rig import SCRAPES_NOTHING, QueryError, prometheus, query, query_range

HISTORY = """\
# TYPE a gauge
a{b="c"} 1 1700000000
a{b="c"} 2 1700000060
a{b="c"} 4 1700000120
# EOF
"""


def test_history_is_there_at_once_and_the_server_is_gone_afterwards(tmp_path: Path) -> None:
    """Instant and range queries see loaded samples; a bad one is refused with the reason."""
    with prometheus(SCRAPES_NOTHING, tmp_path, history=HISTORY) as url:
        (found,) = query(url, "a", at=1700000130)
        assert found.labels == {"__name__": "a", "b": "c"}
        assert found.value == 4
        assert query(url, "a", at=1600000000) == []
        assert query(url, "scalar(vector(3))")[0].value == 3
        (track,) = query_range(url, "a", start=1700000000, end=1700000120, step_seconds=60)
        assert [value for _, value in track.points] == [1, 2, 4]
        with pytest.raises(QueryError, match="parse error"):
            query(url, "a{")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/-/ready", timeout=2)


def test_a_refused_configuration_is_told(tmp_path: Path) -> None:
    """The error ends with what Prometheus said."""
    with (
        pytest.raises(RuntimeError, match="nonsense"),
        prometheus("nonsense: 1\n", tmp_path),
    ):
        pass
