"""Speed of decoding photographs, by library and number of threads: `python -m benchmarks.image_decode`.

The photographs are coloured noise with the spectrum of natural images, 500 x 375 pixels, JPEG quality 90, about 110 KB
each, as ImageNet's. Rates of one core use CPU time, so that other processes matter less. OpenCV, which is not a
dependency, is measured if it is installed.
"""

import argparse
import io
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from src.datamodules.images.decode import NUM_DRAWS, centre_box, decode
from src.datamodules.images.loader import DecodingLoader, ImageFiles
from src.system.workers import cpu_count

SIZE = 224


def photograph(seed: int, height: int = 375, width: int = 500) -> bytes:
    """Returns a JPEG of noise whose amplitudes fall with frequency and whose colours are correlated."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    amplitude = 1 / np.maximum(frequency, 1 / width) ** 1.1

    def noise() -> np.ndarray:
        return np.fft.irfft2(amplitude * np.exp(2j * np.pi * rng.random(amplitude.shape)), s=(height, width))

    grey = noise()
    colours = np.stack([grey + 0.35 * noise() for _ in range(3)], -1)
    pixels = (colours - colours.mean()) / colours.std() * 55 + 120
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    """Returns the centre crop with Pillow alone."""
    with Image.open(io.BytesIO(data)) as image:
        left, top, width, height = centre_box(*image.size)
        box = (left, top, left + width, top + height)
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR, box))


def decoders() -> dict[str, Callable[[bytes], Any]]:
    """Returns the functions to time, which take one file's bytes."""
    draws = np.random.default_rng(0).random(NUM_DRAWS)
    functions: dict[str, Callable[[bytes], Any]] = {
        "decoded whole, simplejpeg": lambda data: simplejpeg.decode_jpeg(data, "RGB"),
        "decoded whole, Pillow": lambda data: np.asarray(Image.open(io.BytesIO(data))),
        "224 x 224 of the centre, Reprise": lambda data: decode(data, SIZE),
        "224 x 224 of the centre, Pillow": by_pillow,
        "224 x 224 of a random part, Reprise": lambda data: decode(data, SIZE, draws),
    }
    if find_spec("cv2"):
        cv2: Any = import_module("cv2")
        cv2.setNumThreads(0)
        functions["decoded whole, OpenCV"] = lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return functions


def rate(decoder: Callable[[bytes], Any], files: list[bytes], repeats: int = 3) -> float:
    """Images per second of CPU time, the best of `repeats` passes."""
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        for data in files:
            decoder(data)
        seconds.append(time.process_time() - begin)
    return len(files) / min(seconds)


def loaded(images: ImageFiles, threads: int) -> tuple[float, float]:
    """Images per second of the training loader's second epoch, and the mean number of busy cores."""
    loader = DecodingLoader(images, 32, size=SIZE, train=True, threads=threads, prefetch=2 * threads)
    list(loader)
    begin, begin_work = time.perf_counter(), time.process_time()
    count = sum(len(batch.labels) for batch in loader)
    seconds, work = time.perf_counter() - begin, time.process_time() - begin_work
    return count / seconds, work / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=128)
    options = parser.parse_args()
    files = [photograph(seed) for seed in range(options.images)]
    rates = {name: (rate(decoder, files), 1.0) for name, decoder in decoders().items()}
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{number}.jpg" for number in range(4 * len(files))]
        for number, name in enumerate(names):
            (Path(folder) / name).write_bytes(files[number % len(files)])
        images = ImageFiles(Path(folder), names, np.zeros(len(names), np.int64))
        for threads in sorted({1, 2, 4, 8, cpu_count()}):
            rates[f"training loader, {threads} threads"] = loaded(images, threads)
    size = sum(map(len, files)) / len(files)
    print(f"{len(files)} JPEGs of 500 x 375 pixels, {size / 1e3:.0f} KB each, {cpu_count()} cores\n")
    print("| work | images/s | busy cores | images/s and core |\n|---|---:|---:|---:|")
    for work, (value, cores) in rates.items():
        print(f"| {work} | {value:,.0f} | {cores:.2f} | {value / cores:,.0f} |")


if __name__ == "__main__":
    main()
