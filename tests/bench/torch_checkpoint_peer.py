#!/usr/bin/env python3
"""torch.save and torch.load of given tensors, measured as the checkpoint benchmark measures Muster.

Takes a JSON file, a list of [name, dtype as in safetensors, shape], and the file to save to. Fills
the tensors with random bits, saves them (file and directory synced), makes the page cache forget the
file and loads it. The only line of output is {"save_s": seconds, "load_s": seconds}.
"""

import json
import math
import os
import sys
import time

import torch

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64}


def random_tensor(dtype, shape):
    count = math.prod(shape)
    size = torch.empty(0, dtype=dtype).element_size()
    words = torch.empty(-(-count * size // 8), dtype=torch.int64).random_()
    return words.view(torch.uint8)[: count * size].view(dtype).reshape(shape)


def save(tensors, path):
    begun = time.monotonic()
    with open(path, "xb") as file:
        torch.save(tensors, file)
        file.flush()
        os.fsync(file.fileno())
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    return time.monotonic() - begun


def load(path):
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    begun = time.monotonic()
    torch.load(path)
    return time.monotonic() - begun


def main():
    with open(sys.argv[1], encoding="utf-8") as spec:
        tensors = {name: random_tensor(DTYPES[dtype], shape) for name, dtype, shape in json.load(spec)}
    path = sys.argv[2]
    result = {"save_s": save(tensors, path)}
    tensors.clear()
    result["load_s"] = load(path)
    os.unlink(path)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
