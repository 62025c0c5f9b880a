from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

# Two workers on two cores: threads would only get in each other's way.
torch.set_num_threads(1)

settings.register_profile("default", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)
