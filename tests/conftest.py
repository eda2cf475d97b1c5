"""What all tests share."""

from collections.abc import Iterator

import pytest
import typer

from fedcal.cli import main as cli


@pytest.fixture(scope="module")
def built_once() -> Iterator[None]:
    """The command line is built once, not for every command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "app", typer.main.get_command(cli.app))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, so that the workers end together."""
    items.sort(key=lambda item: "test_killed" not in item.name and "federate/test_real" not in item.nodeid)
