"""What all tests share."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, so that the workers end together."""
    items.sort(key=lambda item: "test_killed" not in item.name and "federate/test_real" not in item.nodeid)
