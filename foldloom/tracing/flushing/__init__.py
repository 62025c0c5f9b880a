"""When recorded nodes are computed: because Python demands a value, or because the batch ends."""
