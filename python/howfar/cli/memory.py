"""Lack of memory: recognises how libraries report it, and checks before importing libraries that would end the process. Has few
imports."""

from __future__ import annotations

import mmap
import os
import resource
import sys
from collections.abc import Sequence
from types import ModuleType

_OUT_OF_MEMORY_TEXTS = ("Cannot allocate memory", "failed to map segment", "can't start new thread")
"""Texts of libraries' errors that really mean a lack of memory."""
_MIB = 1024 * 1024
_NEEDED_BYTES = {"numpy": 112 * _MIB, "scipy": 112 * _MIB, "pydantic_core": 24 * _MIB}
"""Address space for packages that end the process, or retry forever, if there is too little. numpy and scipy each have a copy of
OpenBLAS: the value is what it reserves with one thread, plus a fifth."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or an error that caused it, is a lack of memory."""
    while error is not None:
        if isinstance(error, MemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


class _MemoryCheck:
    """A module finder that finds no module, but raises MemoryError if there is too little memory for a package."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> None:
        if name in _NEEDED_BYTES:
            try:
                mmap.mmap(-1, _NEEDED_BYTES[name]).close()
            except OSError as error:
                raise MemoryError from error


def check_room_for_libraries() -> None:
    """If `ulimit -v` limits this process, let OpenBLAS use one thread, and check before such imports that there is enough memory."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY and _MemoryCheck not in sys.meta_path:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        sys.meta_path.insert(0, _MemoryCheck)
