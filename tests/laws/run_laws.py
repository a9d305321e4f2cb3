"""Runs pytest on a copy of the project; a script for ``runpy``, in a process forked for it.

Set by the caller: FOLDER, the copy; LAWS, the tests; OUT, the file that what pytest prints goes to.
"""

import os
import sys

import pytest

FOLDER: str
LAWS: list[str]
OUT: str

# A source that is changed and put back within a second looks unchanged to a kept bytecode file.
sys.dont_write_bytecode = True
os.chdir(FOLDER)
sys.path.insert(0, FOLDER)
printed = os.open(OUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.dup2(printed, 1)
os.dup2(printed, 2)
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-n", "0", *LAWS]))
