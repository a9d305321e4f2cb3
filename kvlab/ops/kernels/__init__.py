"""The Triton twins, one module a subject. Imported lazily: Triton may be absent.

Rules of every kernel here: offsets are 64-bit, since a pool passes 2**31 elements; what a kernel
does not own it neither reads nor writes; only language that Triton has had since 3.0.
"""
