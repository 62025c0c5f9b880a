"""The same models in Foldloom and in its peers: same weights, same data, same machine, one run.

Every peer is a process of its own, in a virtual environment of its own where it needs one (`environments`), that answers
requests in lines of JSON (`protocol`). `tasks` writes data and weights to files that every peer reads; `measuring` gives all of them their
turns, one at a time, and compares their first losses; `goals` says what Foldloom should reach; `report`, `plots` and `readme` show it.
The programs themselves, one module for each environment, are in `workers`.
"""
