"""CUDA kernels written in Triton-the-language, each a kernel and the function that launches it.
Imported only where there is a GPU.

All of them may be launched as programmatic dependents: a kernel waits for the one before it only
when it reads what that one wrote.
"""
