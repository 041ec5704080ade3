import io
import json
import os
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast.files import (
    TEMPORARY_MARK,
    digest_values,
    is_intact,
    read_json,
    remove_leftovers,
    seal,
    seal_into,
    write_atomically,
    write_json,
)

# replaces one file as often as it can, until it is killed
WRITER = """
import itertools, sys
from pathlib import Path
from outlast.files import write_atomically
path, previous = Path(sys.argv[1]), Path(sys.argv[2])
for number in itertools.count():
    write_atomically(path, b"%09d" % number * 100_000, previous=previous)
    if number == 2:
        print("writing", flush=True)
"""


def archive() -> bytes:
    """What torch.save writes for a tensor of 0 to 9."""
    buffer = io.BytesIO()
    torch.save({"value": torch.arange(10)}, buffer)
    return buffer.getvalue()


def test_the_old_content_is_kept_as_previous(tmp_path: Path) -> None:
    """A write leaves the new bytes, the generation before, and nothing else."""
    path, previous = tmp_path / "state", tmp_path / "state.prev"
    for content in (b"one", b"two", b"three"):
        write_atomically(path, content, previous=previous)
    assert (path.read_bytes(), previous.read_bytes()) == (b"three", b"two")
    assert sorted(tmp_path.iterdir()) == [path, previous]


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_leaves_whole_files(tmp_path: Path, seed: int) -> None:
    """SIGKILL at any instant of a write leaves a whole file and a whole one before (story 1)."""
    path, previous = tmp_path / "state", tmp_path / "state.prev"
    process = subprocess.Popen([sys.executable, "-c", WRITER, path, previous], stdout=-1)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05 + 0.013 * seed)
    process.kill()
    process.communicate()
    new, old = path.read_bytes(), previous.read_bytes()
    for content in (new, old):
        assert content == content[:9] * 100_000
    # killed between the two renames, the second name leads to one still older
    assert int(new[:9]) - int(old[:9]) in (1, 2)
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == [path, previous]


def test_a_reader_always_finds_a_file(tmp_path: Path) -> None:
    """While a file is replaced hundreds of times, there is no instant without one."""
    path, previous = tmp_path / "state", tmp_path / "state.prev"
    process = subprocess.Popen([sys.executable, "-c", WRITER, path, previous], stdout=-1)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        for _ in range(20_000):
            path.stat()
            previous.stat()
    finally:
        process.kill()
        process.communicate()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """A file larger than the process may write: OSError, old bytes intact, no leftovers."""
    path = tmp_path / "state"
    path.write_bytes(b"old")
    script = (
        "import resource, signal, sys; from pathlib import Path;"
        "from outlast.files import write_atomically;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "write_atomically(Path(sys.argv[1]), bytes(5000), Path(sys.argv[1] + '.prev'))"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert "OSError: [Errno 27] File too large" in done.stderr
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    """Temporary files go, whoever made them; other files stay."""
    left = tmp_path / f"model.pt{TEMPORARY_MARK}4711"
    left.touch()
    (tmp_path / "model.pt").touch()
    assert remove_leftovers(tmp_path) == [left]
    assert list(tmp_path.iterdir()) == [tmp_path / "model.pt"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_nan(tmp_path: Path, value: float) -> None:
    """NaN and infinity are refused, and the file of before stays."""
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": value})
    assert json.loads(path.read_text()) == {"a": 1}


def test_the_digest_of_values_ignores_the_order_of_keys() -> None:
    """Equal mappings have equal digests; another value, another digest."""
    assert digest_values({"a": 1, "b": [2]}) == digest_values({"b": [2], "a": 1})
    assert digest_values({"a": 1}) != digest_values({"a": 2})


def test_a_sealed_file_is_still_a_torch_file(tmp_path: Path) -> None:
    """torch.load and zip readers read a sealed archive as before."""
    path = tmp_path / "sealed.pt"
    path.write_bytes(seal(archive()))
    assert torch.equal(torch.load(path, weights_only=True)["value"], torch.arange(10))
    assert zipfile.ZipFile(path).testzip() is None


def test_every_flipped_bit_breaks_the_seal() -> None:
    """No bit of a sealed file can change unnoticed, those of the seal itself included."""
    sealed = seal(archive())
    assert is_intact(sealed)
    for position in range(len(sealed)):
        changed = bytearray(sealed)
        changed[position] ^= 1 << (position % 8)
        assert not is_intact(bytes(changed)), position


def test_every_truncation_breaks_the_seal() -> None:
    """No proper prefix of a sealed file is intact; nor is an unsealed or a longer file."""
    sealed = seal(archive())
    assert not any(is_intact(sealed[:length]) for length in range(len(sealed)))
    assert not is_intact(archive())
    assert not is_intact(sealed + b"\0")


class Full(io.BytesIO):
    """A file on a disk that has room for so many bytes."""

    room = 0

    def write(self, content: Any) -> int:
        """Take all or nothing."""
        if self.tell() + len(content) > self.room:
            raise OSError(28, "No space left on device")
        return super().write(content)


@pytest.mark.parametrize("numbers", [0, 10, 3_000_000])
def test_a_stream_is_sealed_as_the_whole(numbers: int) -> None:
    """Byte for byte, be the archive a part of a piece or a dozen of them."""
    values = {"value": torch.arange(numbers), "rest": [torch.ones(3), "text"]}
    whole, stream = io.BytesIO(), io.BytesIO()
    torch.save(values, whole)
    seal_into(stream, partial(torch.save, values))
    assert stream.getvalue() == seal(whole.getvalue())
    assert is_intact(stream.getvalue())
    assert stream.tell() == len(stream.getvalue())


@pytest.mark.parametrize("room", [0, 1 << 20, 5_000_000, 24_000_900])
def test_a_stream_tells_of_a_full_disk(room: int) -> None:
    """By the OSError itself, whatever torch.save makes of a file that fails."""
    file = Full()
    file.room = room
    with pytest.raises(OSError, match=r"\[Errno 28\] No space left on device"):
        seal_into(file, partial(torch.save, {"value": torch.arange(3_000_000)}))


def test_writers_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    """The temporary name holds the process id."""
    path = tmp_path / "state"
    seen: list[str] = []
    real = os.fsync

    def look(descriptor: int) -> None:
        seen.extend(item.name for item in tmp_path.iterdir())
        real(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", look)
        write_atomically(path, b"new")
    assert f"state{TEMPORARY_MARK}{os.getpid()}" in seen


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b'{"a": [1, 2.5, "x", null]}', {"a": [1, 2.5, "x", None]}),
        (b"5", 5),
        (b"", None),
        (b'{"a": ', None),
        (b'"\xff\xfe"', None),
        (b"NaN", None),
        (b"[-Infinity]", None),
        (b"[1e999]", None),
        (b"9" * 5000, None),
        (b"[" * 100_000, None),
        (b'{"a":' * 100_000, None),
    ],
)
def test_json_that_may_be_anything(tmp_path: Path, content: bytes, value: Any) -> None:
    """Read where it is JSON, else nothing; never an error."""
    (tmp_path / "file").write_bytes(content)
    assert read_json(tmp_path / "file") == value


def test_what_is_no_file_holds_no_json(tmp_path: Path) -> None:
    """Absent, a folder, a pipe that nobody writes into."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "absent", tmp_path, tmp_path / "pipe", tmp_path / "absent" / "below"):
        assert read_json(path) is None
