"""The corpus, a file per subject. Each exports CASES; suites.py says which server each list is sent
to."""
