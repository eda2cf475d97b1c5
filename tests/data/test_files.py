"""Files on disk, and downloads from a server on the loopback interface that can be told to misbehave."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pooch
import pytest

from fedcal.data import files
from fedcal.data.sources import SOURCES, Source
from fedcal.errors import FedCalError


@dataclass
class Server:
    url: str
    served: dict[str, bytes]
    requests: list[str] = field(default_factory=list)
    cut_short: bool = False  # announce the whole length, send half, hang up


@pytest.fixture
def server(small: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            state.requests.append(name)
            if name not in state.served:
                self.send_error(404)
                return
            data = state.served[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if state.cut_short else data)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        state = Server(f"http://127.0.0.1:{httpd.server_port}/mirror/", dict(small))
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        serve_from(state.url, monkeypatch)
        yield state
        httpd.shutdown()
        thread.join()


def serve_from(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mnist", "svhn", "cifar100"):
        downloads = tuple(replace(download, url=f"{url}{download.name}") for download in SOURCES[name].downloads)
        monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], downloads=downloads))


def on_disk(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def one_line(error: pytest.ExceptionInfo[FedCalError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_folder_prefers_the_argument_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDCAL_DATA", "/from/variable")
    assert files.folder(tmp_path) == tmp_path
    assert files.folder() == Path("/from/variable")
    monkeypatch.delenv("FEDCAL_DATA")
    assert files.folder() == Path(pooch.os_cache("fedcal"))
    assert files.folder("~/x") == Path.home() / "x"


def test_status(mnist_dir):
    whole = files.status("mnist", mnist_dir)
    assert whole.present and not whole.missing
    (mnist_dir / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert files.status("mnist", mnist_dir).missing == ("t10k-labels-idx1-ubyte.gz",)
    assert files.status("digits", mnist_dir).present
    with pytest.raises(FedCalError, match="did you mean 'mnist'"):
        files.status("mnits")


def test_verify_judges_the_content_not_the_compression(mnist_dir):
    path = mnist_dir / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 1, mtime=5))
    assert all(finding.ok for finding in files.verify("mnist", mnist_dir))


def test_verify_finds_one_changed_pixel_and_names_the_file(mnist_dir):
    path = mnist_dir / "mnist" / "train-images-idx3-ubyte.gz"
    data = bytearray(gzip.decompress(path.read_bytes()))
    data[-1] ^= 1
    path.write_bytes(gzip.compress(bytes(data)))
    bad = [finding for finding in files.verify("mnist", mnist_dir) if not finding.ok]
    assert [finding.file for finding in bad] == [path.name]
    assert "md5" in bad[0].message and "\n" not in bad[0].message


def test_verify_counts_the_labels_of_svhn(small, tmp_path, monkeypatch):
    (tmp_path / "svhn").mkdir()
    for file in SOURCES["svhn"].files:
        (tmp_path / "svhn" / file.name).write_bytes(small[file.name])
    assert [finding.ok for finding in files.verify("svhn", tmp_path)] == [True, True]
    train, test = SOURCES["svhn"].downloads
    other = replace(train, files=(replace(train.files[0], counts=(6,) + (0,) * 9),))
    monkeypatch.setitem(SOURCES, "svhn", Source("svhn", (other, test)))
    assert [finding.ok for finding in files.verify("svhn", tmp_path)] == [False, True]


def test_embedded_sets_verify_and_fetch_trivially(tmp_path):
    assert [finding.ok for finding in files.verify("heart", tmp_path)] == [True]
    assert files.fetch("heart", tmp_path) == []


def test_read_says_what_is_wrong_and_what_to_do(mnist_dir):
    file = SOURCES["mnist"].files[1]
    path = mnist_dir / "mnist" / file.name
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FedCalError, match="damaged: expected a whole gzip file") as error:
        files.read("mnist", file, mnist_dir)
    assert str(path) in one_line(error) and f"fedcal data fetch mnist --data-dir {mnist_dir}" in one_line(error)
    path.unlink()
    with pytest.raises(FedCalError, match=r"missing: expected 6 samples.*fedcal data fetch mnist") as error:
        files.read("mnist", file, mnist_dir)
    path.mkdir()
    with pytest.raises(FedCalError, match="cannot be read") as error:
        files.read("mnist", file, mnist_dir)
    assert one_line(error)


@pytest.mark.parametrize("name", ["mnist", "svhn", "cifar100"])
def test_fetch_places_whole_files_and_then_rests(server, tmp_path, name):
    urls = files.fetch(name, tmp_path)
    assert urls == [f"{server.url}{download.name}" for download in SOURCES[name].downloads]
    assert all(finding.ok for finding in files.verify(name, tmp_path))
    folder = SOURCES[name].folder
    assert on_disk(tmp_path) == sorted(f"{folder}/{file.name}" for file in SOURCES[name].files)
    server.requests.clear()
    assert files.fetch(name, tmp_path) == [] and not server.requests


def test_fetch_shows_progress(server, tmp_path, capsys):
    files.fetch("cifar100", tmp_path)
    assert "cifar-100-binary.tar.gz" in capsys.readouterr().err


def test_fetch_replaces_only_what_is_damaged(server, mnist_dir):
    (mnist_dir / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"junk")
    files.fetch("mnist", mnist_dir)
    assert server.requests == ["t10k-labels-idx1-ubyte.gz"]
    assert all(finding.ok for finding in files.verify("mnist", mnist_dir))


def test_a_folder_that_cannot_be_written_is_not_called_a_broken_transfer(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FedCalError, match=r"cannot write .*mnist: Not a directory; choose another --data-dir"):
        files.fetch("mnist", tmp_path / "file")
    assert server.requests == []


def test_a_wrong_checksum_leaves_no_file(server, tmp_path):
    server.served["train-images-idx3-ubyte.gz"] += b"!"
    with pytest.raises(FedCalError, match="do not have SHA-256") as error:
        files.fetch("mnist", tmp_path)
    assert server.url in one_line(error)
    assert on_disk(tmp_path) == []


@pytest.mark.parametrize("name", ["mnist", "cifar100"])
def test_a_broken_transfer_leaves_no_file_and_the_next_run_mends_it(server, tmp_path, name):
    server.cut_short = True
    with pytest.raises(FedCalError, match="cannot fetch") as error:
        files.fetch(name, tmp_path)
    assert one_line(error) and on_disk(tmp_path) == []
    server.cut_short = False
    files.fetch(name, tmp_path)
    assert all(finding.ok for finding in files.verify(name, tmp_path))


def test_a_run_interrupted_between_files_continues_where_it_stopped(server, tmp_path, monkeypatch):
    retrieve = pooch.retrieve

    def interrupted(*args, **kwargs):
        if len(server.requests) == 2:
            raise KeyboardInterrupt
        return retrieve(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(pooch, "retrieve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            files.fetch("mnist", tmp_path)
    assert len(files.fetch("mnist", tmp_path)) == 2
    assert len(server.requests) == 4


def test_an_interrupted_unpacking_leaves_no_half_file(server, tmp_path, monkeypatch):
    def interrupted(source, target):
        target.write(source.read(10))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "copyfileobj", interrupted)
        with pytest.raises(KeyboardInterrupt):
            files.fetch("cifar100", tmp_path)
    assert on_disk(tmp_path) == ["cifar-100-binary/cifar-100-binary.tar.gz"]
    files.fetch("cifar100", tmp_path)
    assert server.requests == ["cifar-100-binary.tar.gz"], "the archive was whole: no second download"
    assert on_disk(tmp_path) == ["cifar-100-binary/test.bin", "cifar-100-binary/train.bin"]


def test_404_and_no_server_at_all_are_one_line(server, tmp_path, monkeypatch):
    server.served.clear()
    with pytest.raises(FedCalError, match="404") as error:
        files.fetch("mnist", tmp_path)
    assert server.url in one_line(error)
    serve_from("http://127.0.0.1:9/", monkeypatch)
    with pytest.raises(FedCalError, match=r"cannot fetch http://127\.0\.0\.1:9/") as error:
        files.fetch("mnist", tmp_path)
    assert "by hand" in one_line(error)
    assert on_disk(tmp_path) == []
