"""Calls of torch that handles do not see by themselves: of functions of weights alone, of modules, of autograd's functions."""
