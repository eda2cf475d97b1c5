"""Files: private where they hold samples, never over what is read, never a device."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from fedcal.base.store import check_outputs, read_bytes, read_json, read_tensors, write_bytes, write_json, write_tensors
from fedcal.errors import FedCalError, printable


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_files_are_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_bytes(tmp_path / "a/b/private", b"", private=True)
        write_bytes(tmp_path / "a/b/public", b"")
        write_bytes(tmp_path / "c/public", b"")
        write_tensors(tmp_path / "t", {}, {}, private=True)
        write_json(tmp_path / "j", {}, private=True)
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/private", "t", "j")] == [0o700, 0o700, *[0o600] * 3]
    assert [mode(tmp_path / name) for name in ("a/b/public", "c", "c/public")] == [0o666, 0o777, 0o666]


def test_an_output_is_never_an_input_nor_another_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("read").write_text("x")
    Path("hard").hardlink_to("read")
    Path("soft").symlink_to("read")
    Path("folder").mkdir()
    Path("link").symlink_to("folder")
    read = [Path("read"), None]
    for same in ("read", "hard", "soft", "./folder/../read", str(tmp_path / "read")):
        with pytest.raises(FedCalError, match="is read, which is read: choose another file"):
            check_outputs({"--out": Path(same)}, read)
    for one, other in (("x", "./x"), ("folder/x", "link/x"), ("hard", "soft")):
        with pytest.raises(FedCalError, match="are one file: choose two"):
            check_outputs({"--out": Path(one), "--state": Path(other)}, [])
    check_outputs({"--out": Path("x"), "--state": Path("y"), "--report": None}, read)


def test_devices_pipes_and_large_files_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(5 << 30)
    for name, words in (("pipe", "a device or a pipe"), ("zero", "a device or a pipe"), ("large", "5368709120 bytes")):
        for read in (read_bytes, read_json, read_tensors):
            with pytest.raises(FedCalError, match=words):
                read(tmp_path / name)


def test_a_json_file_that_was_changed_is_found(tmp_path: Path) -> None:
    write_json(tmp_path / "x", {"rounds": 30})
    assert read_json(tmp_path / "x") == {"rounds": 30}
    (tmp_path / "x").write_text((tmp_path / "x").read_text().replace("30", "38"))
    with pytest.raises(FedCalError, match="its digest is another one"):
        read_json(tmp_path / "x")


def test_errors_never_carry_what_steers_a_terminal() -> None:
    error = str(FedCalError("column \x1b[31mred\x1b[0m\r\x07 \u202eabc\x9b2J ü “日本”\nnext"))
    assert error.isprintable() and "ü “日本” next" in error and "\\x1b[31mred" in error
    assert printable("a b") == "a b" and printable("a\tb") == "a\\tb"


def test_tensors_come_back(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", {"b": torch.ones(2), "a": torch.zeros(1)}, {"x": 1})
    tensors, about = read_tensors(tmp_path / "x")
    assert list(tensors) == ["b", "a"] and about == {"x": 1}


def test_a_folder_or_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """Nor a device: as root, /dev/full would be a file from then on."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name, words in (("pipe", "a device or a pipe"), ("link", "a device or a pipe"), (".", "it is a folder")):
        with pytest.raises(FedCalError, match=words):
            write_bytes(tmp_path / name, b"x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and (tmp_path / "link").is_symlink()
