"""The same requests to the genuine Triton and to us, and a comparison of what a client can see of
the answers."""
