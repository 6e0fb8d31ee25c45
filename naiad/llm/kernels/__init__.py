"""CUDA kernels written in Triton-the-language, each a kernel and the function that launches it.
Imported only where there is a GPU.

All of them may be launched as programmatic dependents: they wait for the kernel before them only
when they read what it wrote.
"""
