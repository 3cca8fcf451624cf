"""The spool: records survive, torn tails and damage are recognised, segments are reused, and bounds hold."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from anabranch._recording import abandoned as _abandoned
from anabranch._recording import segment as _segment
from anabranch._recording import spool as _spool
from anabranch._recording.abandoned import Owner, abandoned
from anabranch._recording.segment import Entry, Kind, Marks, read_segment
from anabranch._recording.spool import Identity, MemorySpool, Spool, SpooledTrajectory, SpoolFullError

SIZE = 64 * 1024


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spool, "SEGMENT_BYTES", SIZE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "root/address/owner"
    made.mkdir(parents=True)
    return made


def contents(folder: Path, kind: Kind = Kind.STEP) -> list[bytes]:
    found: list[bytes] = []
    for path in sorted(folder.glob("*.seg")):
        records, damaged = read_segment(path)
        assert not damaged
        found += [record.segment.read(record.offset, record.length) for record in records if record.kind == kind]
    return found


def test_records_are_read_back_in_order(folder: Path) -> None:
    spool = Spool(folder, 1 << 30)
    both = [spool.add(b"one"), spool.add(b"two")]
    written = [os.urandom(number % 3000) for number in range(300)]
    entries = [spool.append(both[number % 2], Kind.STEP, number, data) for number, data in enumerate(written)]
    assert [entry.position for entry in entries] == [number // 2 for number in range(300)]
    assert [spool.load(entry) for entry in entries] == written
    assert contents(folder) == written
    assert set(contents(folder, Kind.TRAJECTORY)) == {b"one", b"two"}


def test_a_record_larger_than_a_segment_has_a_segment_of_its_own(folder: Path) -> None:
    spool = Spool(folder, 1 << 30)
    data = os.urandom(3 * SIZE)
    spooled = spool.add(b"")
    entries = [spool.append(spooled, Kind.UPLOAD, 0, data), spool.append(spooled, Kind.STEP, 0, b"x")]
    assert [spool.load(entry) for entry in entries] == [data, b"x"]
    assert contents(folder, Kind.UPLOAD) == [data]


def test_acked_segments_are_reused_and_the_folder_stays_small(folder: Path) -> None:
    spool = Spool(folder, 1 << 30)
    spooled = spool.add(b"t")
    for number in range(2000):
        spool.release(spool.append(spooled, Kind.STEP, number, bytes(1000)))
        spool.maintain()
    last = spool.append(spooled, Kind.STEP, 2000, b"last")
    assert len(list(folder.glob("*.seg"))) <= 5
    assert contents(folder)[-1] == b"last"
    assert spool.load(last) == b"last"


def test_every_prefix_of_a_write_is_a_torn_tail(folder: Path) -> None:
    spool = Spool(folder, 1 << 30)
    spooled = spool.add(b"t")
    spool.append(spooled, Kind.STEP, 0, b"first")
    begin = spool.append(spooled, Kind.STEP, 1, b"second record").offset
    path = next(folder.glob("*.seg"))
    whole = path.read_bytes()
    for end in range(begin - 24, begin + 13):
        path.write_bytes(whole[:end] + bytes(len(whole) - end))
        records, damaged = read_segment(path)
        assert ([record.position for record in records if record.kind == Kind.STEP], damaged) == ([0], False)


def test_a_flipped_byte_is_damage_and_the_records_after_it_are_read(folder: Path) -> None:
    spool = Spool(folder, 1 << 30)
    spooled = spool.add(b"t")
    entries = [spool.append(spooled, Kind.STEP, number, b"%03d" % number * 5) for number in range(10)]
    path = next(folder.glob("*.seg"))
    whole = path.read_bytes()
    start = entries[4].offset - 24
    for at in range(start, entries[4].offset + 15):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        records, damaged = read_segment(path)
        positions = [record.position for record in records if record.kind == Kind.STEP]
        padding = start + 17 <= at < entries[4].offset
        assert (positions, damaged) == ([*range(10)] if padding else [0, 1, 2, 3, 5, 6, 7, 8, 9], not padding)


def test_a_reused_file_has_none_of_its_earlier_records(folder: Path) -> None:
    path = folder / "00000007.seg"
    path.write_bytes(bytes(SIZE))
    segment = _segment.Segment(path, 7, SIZE)
    with path.open("r+b") as file:
        segment.map = _segment.mmap.mmap(file.fileno(), SIZE)
    segment.begin()
    for position in range(5):
        segment.write(0, Kind.STEP, position, b"old")
    segment.sequence, segment.end = 8, _segment.FIRST_RECORD
    segment.begin()
    segment.write(0, Kind.STEP, 0, b"new")
    assert read_segment(path) == ([], False)
    path = path.rename(folder / "00000008.seg")
    assert contents(folder) == [b"new"]


def test_a_full_disk_and_a_reached_limit_raise(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpoolFullError, match="ANABRANCH_SPOOL_BYTES"):
        Spool(folder, SIZE - 1)
    spool = Spool(folder, 1 << 30)
    spooled = spool.add(b"t")

    def full(file: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_spool, "allocate", full)
    recorded: list[Entry] = []
    with pytest.raises(SpoolFullError, match="No space left"):
        while True:
            recorded.append(spool.append(spooled, Kind.STEP, len(recorded), bytes(1000)))
    assert len(contents(folder)) == len(recorded) > 50


def test_five_percent_of_the_disk_stay_free(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = 1000 * SIZE
    usage = SimpleNamespace(total=total, free=total // 20 + SIZE)
    monkeypatch.setattr(_spool.shutil, "disk_usage", lambda path: usage)
    spool = Spool(folder, 1 << 30)
    usage.free -= 1
    spooled = spool.add(b"t")
    recorded = 0
    with pytest.raises(SpoolFullError, match="less than 5 % of the disk would stay free"):
        while True:
            spool.append(spooled, Kind.STEP, recorded, bytes(1000))
            recorded += 1
    assert len(contents(folder)) == recorded > 50


def test_memory_is_bounded() -> None:
    spool = MemorySpool(1000)
    spooled = spool.add(b"t")
    entries = [spool.append(spooled, Kind.STEP, number, bytes(100)) for number in range(10)]
    with pytest.raises(SpoolFullError):
        spool.append(spooled, Kind.STEP, 10, b"x")
    spool.release(entries[0])
    assert spool.append(spooled, Kind.STEP, 10, b"x").position == 10


def test_marks_survive_and_a_damaged_mark_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    marks = Marks(path)
    for trajectory in range(1000):
        marks.set(trajectory, trajectory * 3)
    marks.close()
    data = bytearray(path.read_bytes())
    data[16 * 10] ^= 1
    path.write_bytes(data)
    marks = Marks(path)
    assert [marks.get(number) for number in (0, 9, 10, 11, 999, 5000)] == [0, 27, 0, 33, 2997, 0]


#: In a process of its own, because a fork beside the threads of gRPC can crash the child. Counts the folders that
#: another process and a child of their owner could take.
FORKS = """
import os, sys
from pathlib import Path
from anabranch._recording.abandoned import Owner, abandoned
parent = Path(sys.argv[1])
found = len(list(abandoned(parent, set())))
owner = Owner.create(parent)
child = os.fork()
if child == 0:
    os._exit(len(list(abandoned(parent, set()))))
found += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
owner.delete()
sys.exit(found)
"""


def test_a_live_owner_keeps_its_folder_and_a_dead_one_loses_it(tmp_path: Path) -> None:
    parent = tmp_path / "root/address"
    parent.parent.mkdir()
    owner = Owner.create(parent)
    spool = Spool(owner.folder, 1 << 30)
    spooled = spool.add(Identity("0b7b6a54-0000-4000-8000-000000000000", "writer", "name").to_bytes())
    from anabranch.v1.trajectory_pb2 import Step

    for number in range(5):
        spool.append(spooled, Kind.STEP, number, Step(step_number=number).SerializeToString())
    assert spool.marks is not None
    spool.marks.set(0, 2)
    other = subprocess.run([sys.executable, "-c", FORKS, str(parent)], check=False)
    assert other.returncode == 0
    owner.release()
    (found,) = abandoned(parent, set())
    (left,) = found.left
    assert (left.identity.name, left.settled, [entry.number for entry in left.entries]) == ("name", 2, [2, 3, 4])
    found.finish()
    assert list(parent.iterdir()) == []
    assert parent.stat().st_mode & 0o777 == 0o700


def test_a_process_does_not_take_over_its_own_folders(tmp_path: Path) -> None:
    parent = tmp_path / "root/address"
    owner = Owner.create(parent)
    (tmp_path / "link").symlink_to(parent)
    assert list(abandoned(tmp_path / "link", set())) == []
    # The attempt must not end the lock: a process loses it when it closes any descriptor of the file.
    other = subprocess.run([sys.executable, "-c", FORKS, str(parent)], check=False)
    assert other.returncode == 0
    owner.release()
    assert len(list(abandoned(parent, set()))) == 1


def test_segments_that_were_unmapped_while_they_waited_are_not_reused(tmp_path: Path) -> None:
    log = Spool(tmp_path, 1 << 30)
    spooled = log.add(b"t")
    entries = [log.append(spooled, Kind.STEP, number, bytes(SIZE // 8)) for number in range(80)]
    log.maintain()
    for entry in entries:
        log.release(entry)
    log.maintain()
    for number in range(80, 160):
        log.append(spooled, Kind.STEP, number, bytes(SIZE // 8))
        log.maintain()
    assert log.steps == 160


def test_a_folder_that_is_being_deleted_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = tmp_path / "root/address"
    owner = Owner.create(parent)
    Spool(owner.folder, 1 << 30).append(SpooledTrajectory(0, b"t"), Kind.STEP, 0, b"")
    rmtree = _abandoned.shutil.rmtree
    found: list[int] = []

    def slow(path: Path, ignore_errors: bool = False) -> None:
        # The lock file goes first: at this point another process could lock a new one.
        (path / "lock").unlink()
        count = "import sys; from pathlib import Path; from anabranch._recording.abandoned import abandoned\n"
        count += "sys.exit(len(list(abandoned(Path(sys.argv[1]), set()))))"
        found.append(subprocess.run([sys.executable, "-c", count, str(parent)], check=False).returncode)
        rmtree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(_abandoned.shutil, "rmtree", slow)
    owner.delete()
    assert (found, list(parent.iterdir())) == ([0], [])


def test_what_a_dead_process_was_deleting_is_deleted(tmp_path: Path) -> None:
    parent = tmp_path / "root/address"
    owner = Owner.create(parent)
    owner.folder.rename(parent / f".deleted-{owner.folder.name}")
    assert list(abandoned(parent, set())) == []
    assert list(parent.iterdir()) == []


def test_folders_that_vanish_while_they_are_counted_are_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = folder.parent / "other"
    other.mkdir()
    (other / "1.seg").write_bytes(bytes(100))
    (folder / "1.seg").write_bytes(bytes(7))
    scandir = os.scandir

    def vanishing(path: object) -> object:
        if os.fspath(path).endswith("other"):  # pyright: ignore
            (other / "1.seg").unlink(missing_ok=True)
            if other.exists():
                other.rmdir()
        return scandir(path)  # pyright: ignore

    monkeypatch.setattr(os, "scandir", vanishing)
    assert _spool.size_of(folder.parent.parent, "*/*/*.seg") == 7


def test_a_user_without_a_folder_for_spools_has_a_client(tmp_path: Path) -> None:
    program = """
import sys
import anabranch as ab
assert ab.connect("127.0.0.1:1").recorder.adopt(60)
"""
    environment = {**os.environ, "HOME": str(tmp_path / "home")}
    for variable in "ANABRANCH_SPOOL", "XDG_STATE_HOME":
        environment.pop(variable, None)
    (tmp_path / "home").write_text("not a folder")
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
