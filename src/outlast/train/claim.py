"""One writer per run folder: a claim with a heartbeat, and a fence that no late writer passes.

No lock of a file system: those do not hold everywhere on NFS. Claims are numbered files, made by a
hard link, which fails where the name exists; the highest number owns the folder. Whatever the
owner writes, he writes into a folder of his own and renames it from there. Whoever takes over
moves that folder away first: from then on the late owner's renames fail, whatever he believes.

People remove such files, one by one or with the whole folder. An owner who misses something of
his claims again under the next number, which only one can do.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from outlast.errors import LostClaimError
from outlast.faults import reach
from outlast.files import read_json
from outlast.train.owner import Watch, describe, this_process

BEAT_S = 10.0
# Without a beat for so long an owner counts as dead. An NFS client may show a file as it was a
# minute ago. OUTLAST_CLAIM_EXPIRES_S replaces it, in tests.
EXPIRES_S = 120.0
# so often an owner claims anew while somebody removes the folder
AGAIN = 20
_CLAIM = re.compile(r"\.claim-(\d{6,})\.json")
_WRITER = re.compile(r"\.writer-(\d{6,})-\w+")


class Claim:
    """The right to write into one run folder; rank 0 has it.

    Attributes:
        staging: Folder of the files that are being written; there while the claim holds.
    """

    def __init__(self, folder: Path) -> None:
        """Claim nothing yet.

        Args:
            folder: Of the run.
        """
        self.folder = folder
        self._expires_s = float(os.environ.get("OUTLAST_CLAIM_EXPIRES_S", EXPIRES_S))
        self._token = uuid.uuid4().hex
        self._number = 0
        self._beat = 0
        self._stop = threading.Event()
        self._lock = threading.RLock()  # the heartbeat writes as well
        self._watch = Watch(self._expires_s)
        self.staging = folder

    def try_acquire(self) -> str | None:
        """Take the folder if nobody alive has it.

        Returns:
            None when it is ours now; else a line that names the owner, to wait for.

        Raises:
            OSError: The folder cannot be written to.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        claims, writers = self._look()
        if (owner := _owner(claims, writers)) and (alive := self._watch.judge(_read(owner))):
            return alive
        if not self._take(max([0, *claims, *writers]) + 1):
            return "another attempt that has just started"
        threading.Thread(target=self._keep_beating, daemon=True).start()
        return None

    def _take(self, number: int) -> bool:
        """Claim a number; tell whether nobody else has."""
        contender = self.folder / f".contender-{uuid.uuid4().hex}"
        staging = self.folder / f".writer-{number:06}-{self._token}"
        path, is_linked, is_won = self._path(number), False, False
        try:
            contender.mkdir()
            _link(self._write("claim", contender), path)
            is_linked = True
            contender.rename(staging)
            claims, writers = self._look()  # anew: the first look may have been stale
            is_won = max(claims, default=number) == number
        except (FileExistsError, FileNotFoundError):
            return False  # another one was first, or has removed what came too late
        finally:
            if not is_won:
                with contextlib.suppress(OSError):
                    if is_linked:
                        path.unlink()
                for left in (contender, staging):
                    shutil.rmtree(left, ignore_errors=True)
        if not is_won:
            return False
        self._number, self.staging = number, staging
        reach("claim")
        self._fence(claims, writers)
        return True

    def _fence(self, claims: dict[int, Path], writers: dict[int, Path]) -> None:
        """Move the folders of earlier owners away, then remove what is left of them."""
        for number, writer in writers.items():
            if number < self._number:
                _move_away(writer)
        for number, old in claims.items():
            if number < self._number:
                with contextlib.suppress(OSError):
                    old.unlink()
        for pattern in (".contender-*", ".fenced-*"):  # of some who were killed there
            for left in self.folder.glob(pattern):
                shutil.rmtree(left, ignore_errors=True)

    def ensure(self) -> None:
        """Make sure that the claim still holds, before something is written or renamed.

        A folder or claim that somebody has removed is claimed again.

        Raises:
            LostClaimError: Another attempt has taken the folder over.
            OSError: The folder cannot be written to, or is just being removed.
        """
        with self._lock:
            for _ in range(AGAIN):
                if self._holds() or self._take_again():
                    return
                time.sleep(0.05)
        raise FileNotFoundError(errno.ENOENT, "somebody is removing it", str(self.folder))

    def _holds(self) -> bool:
        """Tell whether nothing is missing of the claim.

        Raises:
            LostClaimError: It is another's.
        """
        claims, _ = self._look()
        highest = max(claims, default=self._number)
        owner = _read(claims[highest]) if claims else {}
        if owner and owner.get("token") != self._token:
            raise LostClaimError(
                f"{describe(owner)} has taken this run over, since this attempt gave no sign of"
                " life (paused, or cut off from the file system) or its claim was removed; nothing"
                " more is written here"
            )
        if claims and not owner and not (highest == self._number and self.staging.is_dir()):
            raise OSError(errno.EIO, "the claim cannot be read", str(claims[highest]))
        return bool(claims) and highest == self._number and self.staging.is_dir()

    def _take_again(self) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        claims, writers = self._look()
        return self._take(max([self._number, *claims, *writers]) + 1)

    def release(self) -> None:
        """Give the folder free. The number stays, so that a late owner sees that it is over."""
        self._stop.set()
        with self._lock, contextlib.suppress(OSError):
            self._write("claim", self.staging, released=True).replace(self._path(self._number))
        shutil.rmtree(self.staging, ignore_errors=True)

    def _keep_beating(self) -> None:
        while not self._stop.wait(min(BEAT_S, self._expires_s / 6)):
            # fenced, or a full disk: ensure() tells which
            with self._lock, contextlib.suppress(OSError):
                if self._stop.is_set():
                    return
                self._beat += 1
                beat = self._write("beat", self.staging)
                reach("beat")
                beat.replace(self._path(self._number))

    def _write(self, name: str, folder: Path, released: bool = False) -> Path:
        path = folder / f"{name}.json"
        owner = {"token": self._token, "beat": self._beat, "released": released}
        path.write_text(json.dumps(owner | this_process()))
        return path

    def _look(self) -> tuple[dict[int, Path], dict[int, Path]]:
        """Return the claims and the folders of writers, by number, as one listing shows them."""
        paths = list(self.folder.glob(".*"))
        return _numbered(_CLAIM, paths), _numbered(_WRITER, paths)

    def _path(self, number: int) -> Path:
        return self.folder / f".claim-{number:06}.json"


def _owner(claims: dict[int, Path], writers: dict[int, Path]) -> Path | None:
    """Return the file that tells whose the folder is; somebody may have removed the claims."""
    if claims:
        return claims[max(claims)]
    return writers[max(writers)] / "claim.json" if writers else None


def _numbered(pattern: re.Pattern[str], paths: Iterable[Path]) -> dict[int, Path]:
    found = ((pattern.fullmatch(path.name), path) for path in paths)
    return {int(match[1]): path for match, path in found if match}


class Unclaimed:
    """For a trainer that nobody can meet in its folder, as in a test of the loop."""

    def __init__(self, folder: Path) -> None:
        """Write into the folder itself."""
        self.staging = folder

    def ensure(self) -> None:
        """Make the folder if somebody has removed it."""
        self.staging.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def writing(claim: Claim | Unclaimed) -> Iterator[None]:
    """Write, within, as the owner of the folder.

    Raises:
        LostClaimError: It is another attempt's, which may be why the write has failed.
        OSError: That of the write.
    """
    claim.ensure()
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):  # what the write has met says more
            claim.ensure()
        raise


def _read(path: Path) -> dict[str, Any]:
    owner = read_json(path)
    return owner if isinstance(owner, dict) else {}


def _link(source: Path, target: Path) -> None:
    """Give a file a second name that nobody has yet.

    Raises:
        FileExistsError: Somebody has it.
    """
    try:
        target.hardlink_to(source)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:  # a file system without hard links
        content = source.read_text()
        with target.open("x") as file:
            file.write(content)


def _move_away(writer: Path) -> None:
    fenced = writer.with_name(f".fenced-{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        writer.rename(fenced)
    shutil.rmtree(fenced, ignore_errors=True)
