"""The corpus: a file per subject, each with CASES. suites.py says which server gets which cases."""
