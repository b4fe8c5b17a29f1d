# SPDX-License-Identifier: Apache-2.0
"""A SQLite file is for one gateway: the second is told so."""

import os
import signal
import subprocess
import sys

import pytest

from taketurns.errors import StartError, StoreUnavailableError
from taketurns.stores.sqlite_lock import SqliteLock

HOLD = """
import sys, time
from pathlib import Path
from taketurns.stores.sqlite_lock import SqliteLock
SqliteLock(Path(sys.argv[1])).take()
print("taken", flush=True)
sys.stdin.read()
"""


def test_the_second_is_refused_and_told_who_has_it(tmp_path):
    path = tmp_path / "taketurns.db"
    first = SqliteLock(path)
    first.take()
    with pytest.raises(StartError, match=rf"process {os.getpid()}") as caught:
        SqliteLock(path).take()
    assert "postgresql://" in caught.value.hint
    first.release()
    first.release()
    second = SqliteLock(path)
    second.take()
    second.release()


def test_a_killed_process_leaves_no_lock_behind(tmp_path):
    path = tmp_path / "taketurns.db"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"taken\n"
    with pytest.raises(StartError, match=str(process.pid)):
        SqliteLock(path).take()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    lock = SqliteLock(path)
    lock.take()
    lock.release()


def test_where_no_file_can_be_made_it_says_so(tmp_path):
    with pytest.raises(StoreUnavailableError, match="can't be locked"):
        SqliteLock(tmp_path / "missing" / "taketurns.db").take()
