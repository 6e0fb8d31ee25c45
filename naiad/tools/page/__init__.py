"""Builds a report as a single HTML file without external scripts or styles.

Charts are inline SVG. The page has a light and a dark theme.
"""
