"""Sends the same requests to the genuine Triton and to Naiad, and compares the responses as a
client sees them."""
