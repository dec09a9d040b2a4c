"""Ends with 0 if this process can compute on a GPU, or where there is none."""

import sys

import torch

if __name__ == "__main__":
    sys.exit(int(torch.cuda.is_available() and float(torch.ones(2, device="cuda").sum()) != 2))
