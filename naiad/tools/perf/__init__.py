"""`naiad perf`: a load generator with perf_analyzer's flags and report, for Triton, Naiad and OpenAI-style servers."""
