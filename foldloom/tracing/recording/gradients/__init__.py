"""What a program asks of autograd while it is recorded: gradients, hooks, leaves of its own. Which gradients backward gives, and which are zero or
None, is decided in `execution/backward`."""
