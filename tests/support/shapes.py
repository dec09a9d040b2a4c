"""The type checker behind the shape hints: beartype, with an int allowed where a float is asked for (PEP 484)."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
