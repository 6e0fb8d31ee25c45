"""The console: pages that Naiad serves itself at /console, and the HTTP API behind them.

static/ holds the pages: plain ES modules and style sheets without a build step.
"""
