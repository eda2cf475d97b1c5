"""A table of scores in a .npz, .csv or .parquet, as arrays.

Sizes are looked at before data: a small file may claim, or unfold to, more than any machine's memory.
"""

from __future__ import annotations

import csv
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from fedcal.base.store import regular_size
from fedcal.data.columns import LABELS, SITES, Kind, Plan, What, check_held, choose_scores, one_of, plan_of
from fedcal.errors import FedCalError, check_known, reason_of

SUFFIXES = (".npz", ".csv", ".parquet")
LONGEST_LINE = 1 << 24  # characters
BAD_CELL = re.compile(r"could not convert string '(.*)' to \w+ at row (\d+), column (\d+)")  # NumPy's words
AS_TEXT = 8  # how many bytes of text, at most, may stand for one of a number in memory


class Content(NamedTuple):
    """A file's arrays as they are, and the name of the one with the scores."""

    name: str
    scores: Any
    labels: Any
    sites: Any
    others: dict[str, Any]  # further columns that were asked for, by name


def read_content(path: Path, kind: What | None, most_bytes: int, others: Sequence[str]) -> Content:
    """Read a file's arrays.

    Args:
        path: a .npz, .csv or .parquet.
        kind: what arrays of other names are, or which of two to take; FEATURES: a table of features, whatever their names.
        most_bytes: that the arrays may take in memory.
        others: further columns (in .npz arrays) to read, such as subgroups. They are no scores, whatever their names. Beside
            features they may be missing.

    Raises:
        FedCalError: where the file is missing, damaged, too large, lacks a column, or does not say what its columns are.
    """
    readers: dict[str, Callable[[Path, Any, int, Sequence[str]], Content]]
    readers = dict(zip(SUFFIXES, (_npz, _csv, _parquet), strict=True))
    reader = readers.get(path.suffix.lower())
    if path.is_dir():
        raise FedCalError("this is a folder: name its files, one per site")
    if reader is None:
        raise FedCalError(f"a site's file is one of {', '.join(readers)}, not {path.suffix!r}")
    try:
        check_size(regular_size(path), AS_TEXT * most_bytes)
        return reader(path, kind, most_bytes, others)
    except FileNotFoundError:
        raise FedCalError("no such file") from None


def read_arrays(path: Path, names: Sequence[str], most_bytes: int) -> dict[str, np.ndarray]:
    """Read the arrays of a .npz.

    Args:
        path: of the file.
        names: that its arrays may have.
        most_bytes: that they may take in memory.

    Raises:
        FedCalError: where the file is missing, damaged or too large, or an array has another name.
    """
    try:
        check_size(regular_size(path), AS_TEXT * most_bytes)
        with _archive(path) as archive:
            held = [name.removesuffix(".npy") for name in archive.namelist()]
            for name in held:
                check_known("array", name, names)
            check_size(sum(_array_bytes(archive, name) for name in held), most_bytes)
            return {name: _array(archive, name) for name in held}
    except FileNotFoundError:
        raise FedCalError("no such file") from None


def check_size(n_bytes: int, most_bytes: int) -> None:
    """Refuse what would take more memory than the user allows."""
    if n_bytes > most_bytes:
        raise FedCalError(
            f"{n_bytes / 2**30:.1f} GiB of numbers, where {most_bytes / 2**30:.1f} are the most: is it the right file? "
            "If so, raise FEDCAL_MAX_BYTES (or --max-bytes, where the command has it)"
        )


def _npz(path: Path, kind: Kind | None, most_bytes: int, others: Sequence[str]) -> Content:
    with _archive(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        check_held(others, names)
        name, labels, sites = choose_scores(names, kind, others), one_of(LABELS, names), one_of(SITES, names)
        wanted = [one for one in dict.fromkeys((name, labels, sites, *others)) if one is not None]
        check_size(sum(_array_bytes(archive, one) for one in wanted), most_bytes)
        arrays = {one: _array(archive, one) for one in wanted}
        further = {one: arrays[one] for one in others}
        return Content(name, arrays[name], arrays.get(labels or ""), arrays.get(sites or ""), further)


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """An open .npz; whatever is wrong with it is one line."""
    try:
        with path.open("rb") as file:
            if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                raise FedCalError("a single array, not an .npz: np.savez(path, name=array, …)")
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                yield archive
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        MemoryError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        if isinstance(error, FedCalError | FileNotFoundError):
            raise
        raise FedCalError(f"damaged, or no .npz of plain arrays ({reason_of(error)})") from None


def _open(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    return archive.open(f"{name}.npy" if f"{name}.npy" in archive.namelist() else name)


def _array_bytes(archive: zipfile.ZipFile, name: str) -> int:
    """What an array takes in memory, as its header says; whole numbers become floating-point ones."""
    with _open(archive, name) as file:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise FedCalError(f"{name}: not an array of numbers or strings")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    if dtype.hasobject:  # as pandas gives for a column of words
        raise FedCalError(f"{name} holds Python objects: save numbers (.astype(float)) or text (.astype(str))")
    count = 1
    for length in shape:
        count *= int(length)
    return count * (8 if dtype.kind in "biu" else max(dtype.itemsize, 1))


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with _open(archive, name) as file:
        return npy.read_array(file, allow_pickle=False)


# --- tables -----------------------------------------------------------------------------------------------------------


def _csv(path: Path, kind: Kind | None, most_bytes: int, others: Sequence[str]) -> Content:
    header: list[str] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, warnings.catch_warnings():
            header = [name.strip() for name in next(csv.reader([_line(file, 1)]), [])]
            plan, start = plan_of(header, kind, others), file.tell()
            rows = _count_rows(file, len(header))
            check_size(rows * 8 * (len(plan.scores) + len(plan.besides)), most_bytes)
            warnings.simplefilter("ignore")  # of a file without rows

            def read(columns: list[int], kind: Any = float) -> np.ndarray:
                file.seek(start)
                table = np.loadtxt(file, kind, delimiter=",", quotechar='"', usecols=columns, ndmin=2, comments=None)
                return table.reshape(-1, len(columns))

            def words(column: int | None) -> Any:
                return None if column is None else _as_words(read([column], object)[:, 0].tolist(), most_bytes)

            scores, labels = _numbers(read, words, plan)
            further = {name: words(column) for name, column in plan.others.items()}
            return Content(plan.name, scores, labels, words(plan.site), further)
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, FedCalError | FileNotFoundError):
            raise
        if isinstance(error, UnicodeDecodeError):
            raise FedCalError(f"it is not text in UTF-8 (byte {error.start}): save it as CSV in UTF-8") from None
        if (found := BAD_CELL.match(str(error))) and int(found[3]) <= len(header):
            raise FedCalError(_about_cell(found[1], int(found[2]), header[int(found[3]) - 1])) from None
        reason = error.strerror if isinstance(error, OSError) and error.strerror else reason_of(error)
        raise FedCalError(f"cannot be read as CSV ({reason})") from None


def below_header(row: int) -> str:
    """A row of a table in words, as people count them."""
    return f"row {row + 1} below the header"


def _about_cell(value: str, row: int, column: str) -> str:
    where = f"{below_header(row)}, column {column}"
    if not value.strip():
        return f"{where}: the cell is empty: fill it in, or leave the row out"
    return f"{where}: {value!r} is not a number (the columns of labels and sites must be named label and site)"


def _line(file: IO[str], number: int) -> str:
    """The next line, if it is no longer than lines are."""
    line = file.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE:
        raise FedCalError(f"line {number} has over {LONGEST_LINE} characters: is it a CSV file?")
    return line


def _count_rows(file: IO[str], width: int) -> int:
    """The number of rows, all of which have as many cells as the header."""
    rows, number = 0, 1
    while line := _line(file, number := number + 1):
        if not line.strip():
            continue
        cells = len(next(csv.reader([line]))) if '"' in line else line.count(",") + 1
        if cells != width:
            raise FedCalError(f"line {number} has {cells} cells, where the header has {width}: give as many")
        rows += 1
    return rows


def _as_words(values: list[Any], most_bytes: int) -> np.ndarray:
    """Strings as an array, in which each takes as much as the longest."""
    check_size(4 * len(values) * max((len(value) for value in values if isinstance(value, str)), default=0), most_bytes)
    return np.array([value.strip() if isinstance(value, str) else value for value in values])


def _numbers(read: Callable[[list[int]], np.ndarray], words: Callable[[int], Any], plan: Plan) -> tuple[Any, Any]:
    """Scores and labels: in one go where labels are numbers, which is fast, else labels as words."""
    if plan.label is None:
        return read(plan.scores), None
    try:
        table = read([*plan.scores, plan.label])
        return table[:, :-1], table[:, -1]
    except ValueError:
        return read(plan.scores), words(plan.label)


def _parquet(path: Path, kind: Kind | None, most_bytes: int, others: Sequence[str]) -> Content:
    arrow, parquet = pyarrow()
    try:
        schema, about = parquet.read_schema(path), parquet.read_metadata(path)
        header = list(schema.names)
        plan = plan_of(header, kind, others)
        texts = [header[i] for i in plan.besides if _is_text(arrow, schema.field(i).type)]
        for i in (*plan.scores, *plan.besides):
            of = schema.field(i).type
            number = arrow.types.is_integer(of) or arrow.types.is_floating(of)
            if not number and (i in plan.scores or (not arrow.types.is_boolean(of) and header[i] not in texts)):
                raise FedCalError(
                    f"column {header[i]} holds {of}: give numbers{'' if i in plan.scores else ' or words'}"
                )
        wanted = [header[i] for i in (*plan.scores, *plan.besides)]
        check_size(8 * about.num_rows * len(wanted), most_bytes)
        table = parquet.ParquetFile(path, read_dictionary=texts).read(columns=wanted)

        def column(i: int | None) -> Any:
            if i is None or header[i] not in texts:
                return None if i is None else table.column(header[i]).to_numpy()
            held = table.column(header[i]).unify_dictionaries()
            longest = max((len(w or "") for chunk in held.chunks[:1] for w in chunk.dictionary.to_pylist()), default=0)
            check_size(4 * longest * len(held), most_bytes)
            return _as_words(held.to_pylist(), most_bytes)

        scores = np.stack([column(i) for i in plan.scores], axis=1)
        further = {name: column(i) for name, i in plan.others.items()}
        return Content(plan.name, scores, column(plan.label), column(plan.site), further)
    except (OSError, ValueError, arrow.lib.ArrowException) as error:
        if isinstance(error, FedCalError | FileNotFoundError):
            raise
        raise FedCalError(f"cannot be read as Parquet ({reason_of(error)})") from None


def _is_text(arrow: Any, of: Any) -> bool:
    held = of.value_type if arrow.types.is_dictionary(of) else of
    return arrow.types.is_string(held) or arrow.types.is_large_string(held)


def pyarrow() -> tuple[Any, Any]:
    """PyArrow and its Parquet part, which not everybody has."""
    try:
        import pyarrow  # type: ignore[import-not-found, unused-ignore]
        import pyarrow.parquet  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise FedCalError("Parquet needs pyarrow: pip install 'fedcal[parquet]'") from None
    return pyarrow, pyarrow.parquet
