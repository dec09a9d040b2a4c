"""What tests share: tiny runs, stand-ins and contracts."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
