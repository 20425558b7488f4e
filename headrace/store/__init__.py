"""What outlives a process: the journal with its sealed rows, large blobs by content address, and their verification.

Nothing is acknowledged before it is on disk, and nothing is handed out that does not hash to its address.
"""

from headrace.store.blobs import FileBlobs
from headrace.store.disk import Disk, UnsyncedDisk
from headrace.store.group_commit import CommitPolicy, GroupCommitJournal, InlineCommit, WriterThread
from headrace.store.inspect import EpisodeView, inspect_episode
from headrace.store.memory import MemoryJournal, MemoryStorage
from headrace.store.reader import JournalReader, open_reader
from headrace.store.sqlite import SqliteJournal
from headrace.store.verify import Problem, VerifyReport, verify_run

__all__ = [
    "CommitPolicy",
    "Disk",
    "EpisodeView",
    "FileBlobs",
    "GroupCommitJournal",
    "InlineCommit",
    "JournalReader",
    "MemoryJournal",
    "MemoryStorage",
    "Problem",
    "SqliteJournal",
    "UnsyncedDisk",
    "VerifyReport",
    "WriterThread",
    "inspect_episode",
    "open_reader",
    "verify_run",
]
