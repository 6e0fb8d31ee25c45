"""The three Python models of the four-part repository that `naiad init llm` writes.

The files are copied into the repository and never imported by Naiad.
"""
