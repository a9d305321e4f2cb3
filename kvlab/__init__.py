"""A workbench for one question: which memory does this KV-cache id name?

An id of the KV cache lives in one of two spaces. The allocator hands out *widened slots*; one
rank's buffer is indexed by *physical rows*. With c ranks, rank ``v % c`` keeps slot ``v`` in its
row ``v // c``. Worked example, c=2, page of 2 rows, so page 1 holds the slots 4 to 7:

    slot  4  5  6  7
    rank  0  1  0  1
    row   2  2  3  3

The sub-packages are layers, and imports go down only: ``index`` and ``attn`` at the bottom, then
``ops``, ``ranks``, ``memory``, ``engine``, ``lab``, ``viz``, and the application on top.
"""

__version__ = "0.1.0"
