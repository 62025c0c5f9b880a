"""Files that were changed at random, read as a user would read them.

Whatever stands in a file, reading it ends well or in one line of ours that names the file. `kinds` lists what can be changed; `worker`
watches over the process that reads.
"""
