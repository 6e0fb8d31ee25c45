"""Attacks on a live server: `python -m tests.attacks.run [NAME...]`, or `make attack`.

A file per topic defines functions marked with `@attack`; run.py runs each against a server of its
own while another process probes it, and fails on a late probe, too much memory, or anything that
is left behind. attack.py says how to write one.
"""
