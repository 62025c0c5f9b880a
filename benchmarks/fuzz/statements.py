"""What random statements are made of.

``{V}`` is an expression of a kind (see `grammar`), ``{new:V}`` a new variable that is there afterwards, ``{local:V}`` one that is there in
the blocks of this statement alone, ``{it}`` the last new one again, ``{old:V}`` a variable that there is already, ``{block}`` statements.
"""

from __future__ import annotations

from benchmarks.fuzz.statements_that_raise import CATCHING, RISKY

PLAIN = """
{new:V} = {V}
---
{new:V} = {V}
---
{new:N} = {N}
---
{new:S} = {S}
---
{new:M} = {M}
---
{new:I} = {I}
---
{new:L} = {L}
---
{new:i} = {i}
---
{new:f} = {f}
---
{old:V} = {V}
---
{old:N} = {N}
---
{old:S} = {S}
---
{old:V} = {old:V} + {V}
---
{V}.log()
---
torch.sqrt({V} * 0)
---
{new:V}, unused = {V}, {V}.log().sum()
---
{new:V}, {new:V} = net.lstm_cell({V}, ({V}, {V}))
---
{new:V}, {new:K} = {V}.sort(stable=True)
---
{new:N}, {new:I} = {V}.max(0)
---
{new:N}, {new:N}, {new:N} = {V}
---
{new:f}, *rest = {V}.tolist()
---
{new:V} = functools.reduce(torch.add, {L}, torch.zeros(3))
---
{new:V} = (lambda v, by={N}: v * by)({V})
---
{new:b} = {b}
"""

IN_PLACE = """
{new:V} = {V}.clone()
{it}[0] = {N}
---
{new:V} = {V}.clone()
{it}[:2] = {V}[1:]
---
{new:V} = {V} * 1
{it}[{V} > 0.2] = {f}
---
{new:V} = torch.zeros(3)
{it}[{i} % 3] += {N}
---
{new:V} = {V} + 1
view = {it}[1:]
view.mul_(2)
---
{new:V} = {V} + 1
{new:V} = {it}.detach()
{it}.add_(1)
---
{new:V} = {V} + 1
{it}.data.mul_({f})
---
{new:M} = torch.zeros(2, 3)
{it}[{i} % 2] = {V}
---
{new:M} = {M}.clone()
for k in range(len({it})):
    {it}[k] += {N}
---
{new:M} = {M}.clone()
{it}[:, 0] *= {f}
---
{new:S} = {S}.clone()
{it}[:{i}] = {N}
---
{new:S} = {S}.clone()
{it}.clamp_(max=0.4)
---
{new:V} = {V} * 2
{it}.view(3, 1)[0] = 5.0
---
{new:V} = {V} * 2
kept = {it} * {it}
{it}.add_(1)
{it} = {it} + kept
---
{new:M} = (net.weight * {V}).t() * 2
flat = {it}.reshape(-1)
flat[:3] = {V}
---
{new:M} = (net.weight + {V}).t().tanh()
whole = {it}.contiguous()
whole[0] += 1
{new:V} = whole.sum(0)
---
{new:V} = torch.zeros(3)
torch.add({V}, {V}, out={it})
---
{new:V} = net.weight[0] * 2
kept = {it} * {V}
{it}.add_(1)
{it} = {it} + kept
---
{old:V}.mul_(2)
---
{old:V} += {V}
---
{old:V}[0] += 1
---
{old:V}[{i} % 3] = {f}
---
{old:N}.add_({N})
---
{old:N} -= 1
---
{old:S}.zero_()
---
{old:V}.copy_({V})
---
{old:V}.masked_fill_({V} > 0.2, 0.0)
---
{old:V}.index_fill_(0, torch.tensor([{i} % 3]), {f})
---
{old:V}.requires_grad_()
---
{old:I} += 1
---
{old:K}[:1] = 0
---
torch.relu_({old:V})
---
{old:V}.clamp_(min=0.0).add_({V}, alpha=2)
"""

BLOCKS = """
if {b}:
    {block}
---
if {b}:
    {new:V} = {V}
else:
    {it} = {V}
---
if {b}:
    {block}
elif {b}:
    {block}
else:
    {block}
---
if {b}:
    return {R}
---
if {b}:
    {block}
    return {R}
---
for {local:i} in range(min({i}, 3)):
    {block}
---
{new:L} = []
for {local:V} in {M}:
    {block}
    {it}.append({V})
---
for {local:N} in {S}:
    {block}
---
for {local:i}, {local:V} in enumerate({L}):
    {block}
    if {b}:
        break
---
{new:i} = 0
while {it} < 3 and ({b}):
    {it} += 1
    {block}
---
{new:V} = {V}
for _ in range(3):
    if {it}.sum() < {f}:
        continue
    {it} = {it} * 0.5
    {block}
---
with torch.no_grad():
    {block}
    {new:V} = {V}
---
with torch.enable_grad():
    {block}
---
with torch.set_grad_enabled(bool({b})):
    {new:V} = {V}
---
with torch.no_grad():
    {new:N} = {V}[{i} % 3]
    {new:V} = {M}[-1]
---
was = net.weight.requires_grad
net.weight.requires_grad_(False)
{block}
net.weight.requires_grad_(was)
---
net.linear.requires_grad_(False)
{new:V} = {V}
net.linear.requires_grad_(True)
---
with torch.inference_mode():
    {local:V} = {V}
    {new:f} = {V}.sum().item()
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    {new:V} = net.single({V}.float()).double()
---
def inner(v, w={V}):
    return v * {N} + w
{new:V} = inner({V})
---
count = 0
def counted(v):
    nonlocal_count[0] += 1
    return v * nonlocal_count[0]
nonlocal_count = [0]
{new:V} = counted({V}) + counted({V})
---
def yielding():
    for v in {L}:
        yield v * {N}
{new:L} = list(yielding())
---
net.h = {V}
if {b}:
    {block}
{new:V} = net.h * 2
---
net.kept = {N}
{new:f} = {f}
{new:N} = net.kept + {it}
---
net.count += 1
---
{new:V} = {V} * 1
if {it}.requires_grad:
    {it}.register_hook(lambda g: g * 2)
---
{new:V} = torch.utils.checkpoint.checkpoint(helper, {V}, 1, use_reentrant=False)
"""


def _templates(text: str) -> list[str]:
    return [template.strip("\n") for template in text.split("\n---\n")]


WEIGHED = [
    (9, _templates(PLAIN)),
    (4, _templates(IN_PLACE)),
    (5, _templates(BLOCKS)),
    (3, _templates(CATCHING)),
    (0.1, _templates(RISKY)),
]
RISKS = _templates(RISKY)
