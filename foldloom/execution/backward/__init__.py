"""What backward does between steps: which gradients there are, which are zero, None or left out, and those of weights."""
