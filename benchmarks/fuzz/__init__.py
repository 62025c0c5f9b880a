"""Random programs for one example, run one by one and batched: both must give the same in everything that can be seen."""
