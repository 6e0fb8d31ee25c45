"""The threads that compress and decompress requests and responses.

They are as few as the cores, apart from the threads of asyncio, of which loads that hang may take
hundreds: each body under way holds its unpacked bytes.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

_SPARE = 4
_MOST = 32


@cache
def codec_threads() -> ThreadPoolExecutor:
    """Made when they are first used, in each process."""
    return ThreadPoolExecutor(min(_MOST, (os.cpu_count() or 1) + _SPARE), "naiad-codec")
