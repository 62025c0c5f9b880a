"""What a program asks of autograd while it is recorded: gradients, hooks, leaves of its own."""
