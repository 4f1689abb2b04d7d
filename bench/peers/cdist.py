"""Local sums through torch.cdist, a block of rows at a time: python cdist.py ROWS DIMENSIONS SCALE REPEAT (prints JSON)."""

import json
import sys
import time

import torch

ROWS, DIMENSIONS, REPEAT = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4])
SCALE = float(sys.argv[3])
BLOCK = 500


def main():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(ROWS, DIMENSIONS, generator=generator)
    columns = torch.rand(ROWS, 2, generator=generator)
    found = {"threads": torch.get_num_threads()}
    for kind in (torch.float32, torch.float64):
        X, C = points.to(kind), columns.to(kind)
        times = []
        for _ in range(REPEAT):
            start = time.perf_counter()
            torch.cat([torch.exp(-SCALE * torch.cdist(X[at : at + BLOCK], X, p=1.0)) @ C for at in range(0, ROWS, BLOCK)])
            times.append(time.perf_counter() - start)
        found[str(kind).removeprefix("torch.")] = min(times)
    print(json.dumps(found))


main()
