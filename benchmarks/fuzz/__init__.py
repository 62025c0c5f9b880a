"""Random programs for one example, run one by one and batched: both must give the same in everything that can be seen.

    python -m benchmarks fuzz --seed 100 --count 60

`generating` writes the text of a program, from templates in `grammar`, `statements` and what they import; `running` runs it in one way and
keeps all that can be seen of the run; `comparing` and `judging` say what is not the same; `minimising` makes a program that
fails small; `worker` does all this in a process that may die; `command` is what is typed.
"""
