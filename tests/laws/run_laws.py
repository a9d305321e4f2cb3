"""Runs pytest on a copy of the project; a script for ``runpy``, in a process forked for it.

``runpy`` sets FOLDER, the copy; LAWS, the tests; OUT, the file for what pytest prints.
"""

import os
import sys
from typing import Any

import pytest

given: dict[str, Any] = globals()
# A source that is changed and put back within a second looks unchanged to a kept bytecode file.
sys.dont_write_bytecode = True
os.environ["HYPOTHESIS_PROFILE"] = "bug"
os.chdir(given["FOLDER"])
sys.path.insert(0, given["FOLDER"])
printed = os.open(given["OUT"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.dup2(printed, 1)
os.dup2(printed, 2)
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-n", "0", *given["LAWS"]]))
