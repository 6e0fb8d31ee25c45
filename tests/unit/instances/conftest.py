from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from naiad.instances.template_process import Templates


@pytest.fixture
async def templates() -> AsyncIterator[Templates]:
    templates = Templates(asyncio.get_running_loop())
    yield templates
    templates.close()
