"""Statements that may raise, and statements that catch what they raise: templates as in `statements`."""

from __future__ import annotations

RISKY = """
{new:M} = torch.linalg.cholesky(torch.outer({V}, {V}) - {N} * torch.eye(3))
---
{new:V} = net.table({I} * 3)
---
{new:V} = net.table(torch.tensor({i}))
---
{new:M} = {S}.view(2, -1)
---
{new:f} = {f} / {i}
---
{new:f} = 1 / ({i} - 1)
---
{new:N} = {S}.max()
---
{new:N} = {S}[{i}]
---
{new:N} = {V}[{i}]
---
{new:N} = {V} @ {S}
---
{new:V} = net.linear({S})
---
{new:V} = {V} + {S}
---
{new:M} = torch.stack({L})
---
{new:i} = int({S})
---
{new:f} = {S}.item()
---
{new:M} = torch.linalg.inv(torch.outer({V}, {V}))
---
{new:N} = F.cross_entropy({V}, {I} * 2)
---
{new:V} = {V}[{I} * 2] * {V}
---
{new:V} = {M}[{i}]
---
{new:N} = {L}[{i}].sum()
---
if {b}:
    raise ValueError("own")
---
if {b}:
    raise Stop({V})
---
{new:f} = dict(a=1.0)[str({i})]
---
assert {b}, "not so"
---
for row in {M}:
    row += {N}
---
{new:V} = net.weight.view(5)
---
{new:V} = torch.cat([{M}, {V}])[0]
---
{new:V} = {V}.long() @ {V}
"""

CATCHING = """
try:
    {risky}
    {new:V} = {V}
except {error}:
    {it} = {V}
---
try:
    {risky}
    {new:V} = {V}
except Exception as error:
    {it} = {V} * len(type(error).__name__)
---
try:
    {risky}
    {new:f} = 1.0
except {error} as error:
    {it} = 2.0
except Exception:
    {it} = 3.0
---
{new:f} = 0.0
try:
    {risky}
    {it} += 1.0
except Exception:
    {it} += 0.5
else:
    {block}
finally:
    {it} *= 2
---
try:
    {risky}
except Exception as error:
    return type(error).__name__
---
try:
    {block}
    {risky}
except {error}:
    pass
---
with contextlib.suppress({error}):
    {risky}
    {block}
"""

ERRORS = [
    "RuntimeError",
    "IndexError",
    "(ValueError, TypeError)",
    "ZeroDivisionError",
    "torch.linalg.LinAlgError",
    "Stop",
]
