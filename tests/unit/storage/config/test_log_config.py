"""KIP-1241: what remote.copy.lag.* may be, and what it means."""

from __future__ import annotations

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import InvalidConfig

TIERED = {"remote.storage.enable": "true"}


def lags(**properties: str) -> tuple[int, int]:
    named = {name.replace("_", "."): text for name, text in properties.items()}
    config = LogConfig.resolve({**TIERED, **named})
    return config.effective_copy_lag_ms, config.effective_copy_lag_bytes


def test_a_closed_segment_is_copied_at_once_by_default() -> None:
    assert lags() == (0, -1)


def test_minus_one_is_as_long_as_it_is_kept_locally() -> None:
    assert lags(remote_copy_lag_ms="-1", retention_ms="50", local_retention_bytes="-2") == (50, -1)
    assert lags(
        remote_copy_lag_ms="-1",
        local_retention_ms="7",
        local_retention_bytes="9",
        retention_bytes="10",
    ) == (7, 9)


def test_minus_one_is_at_once_where_everything_is_kept_locally() -> None:
    """Else a topic that keeps everything would never be archived."""
    forever = {"retention_ms": "-1", "local_retention_ms": "-1", "remote_copy_lag_ms": "-1"}
    assert lags(**forever, local_retention_bytes="-2") == (0, -1)
    assert lags(**forever, remote_copy_lag_bytes="9") == (-1, 9)


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        (
            {"remote.copy.lag.ms": "2000", "local.retention.ms": "1000"},
            "Invalid value 2000 for configuration remote.copy.lag.ms: Value must not exceed"
            " local.retention.ms",
        ),
        (
            {"remote.copy.lag.bytes": "200", "retention.bytes": "100"},
            "Invalid value 200 for configuration remote.copy.lag.bytes: Value must not exceed"
            " local.retention.bytes",
        ),
        ({"remote.copy.lag.ms": "-2"}, "remote.copy.lag.ms"),
        ({"remote.copy.lag.bytes": "x"}, "remote.copy.lag.bytes"),
    ],
)
def test_a_lag_beyond_what_is_kept_locally_is_refused(
    properties: dict[str, str], complaint: str
) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        LogConfig.resolve_checked({**TIERED, **properties})


def test_any_lag_goes_where_everything_is_kept_locally_or_nothing_is_tiered() -> None:
    forever = {"retention.ms": "-1", "local.retention.ms": "-1"}
    LogConfig.resolve_checked({**TIERED, **forever, "remote.copy.lag.ms": "999999999999"})
    LogConfig.resolve_checked({"remote.copy.lag.ms": "2000", "retention.ms": "1000"})
