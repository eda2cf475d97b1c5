from __future__ import annotations

import re

from fedcal.data.datasets import DATASETS
from fedcal.data.sources import SOURCES


def test_every_dataset_has_a_source_and_only_the_embedded_have_no_files():
    assert SOURCES.keys() == DATASETS.keys()
    assert {name for name, source in SOURCES.items() if not source.files} == {
        name for name, description in DATASETS.items() if description.embedded
    }


def test_the_table_is_complete():
    for source in SOURCES.values():
        for download in source.downloads:
            assert re.fullmatch("[0-9a-f]{64}", download.sha256) and download.url.startswith("https://")
            for file in download.files:
                assert bool(file.md5) != bool(file.counts), "content is checked one way or the other"
                assert not file.md5 or re.fullmatch("[0-9a-f]{32}", file.md5)
                assert not file.counts or sum(file.counts) == file.shape[0]
