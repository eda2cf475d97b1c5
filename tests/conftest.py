"""What all tests share."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test first, so that the workers end together."""
    items.sort(key=lambda item: "test_killed" not in item.name)
