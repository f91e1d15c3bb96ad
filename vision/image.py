"""Image files by Pillow: every mode and frame to upright RGB.

Only formats that Pillow decodes itself are allowed (some others start programs). The header is checked
before anything is decoded. Frames of a TIFF are pages; of an animation only the first frame is read.
"""

from __future__ import annotations

import math
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RowError
from vision.page import MAX_SOURCE_PIXELS, Options, Page

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""What Pillow may decode, by content, whatever the file is called."""


@dataclass(frozen=True, slots=True)
class ImageReader:
    """Pages of an image file: the frames of a TIFF, else one."""

    def count(self, path: str, options: Options) -> int:
        """Frames of a TIFF, else 1. Raises RowError: unreadable, too long."""
        with _opened(path) as image:
            return int(getattr(image, "n_frames", 1)) if image.format == "TIFF" else 1

    def read(self, path: str, number: int, options: Options) -> Page:
        """The frame as an image without text. Raises RowError: unreadable, too long."""
        with _opened(path) as image:
            last = int(getattr(image, "n_frames", 1)) if image.format == "TIFF" else 1
            if not 1 <= number <= last:
                raise RowError("unreadable", f"page {number} was asked for, but the image has {last} frames")
            if last > 1:
                image.seek(number - 1)
                _check_size(image)
            return Page(text="", source="image", image=_pixels(image, options.max_pixels))


@contextmanager
def _opened(path: str) -> Iterator[Image]:
    """The image, its pixels not yet decoded; whatever Pillow finds wrong inside the block is a RowError."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, which are checked here, and of odd metadata
            with Image.open(path, formats=FORMATS) as image:
                _check_size(image)
                yield image
    except Image.DecompressionBombError as error:
        raise _too_large("the image") from error
    except (OSError, SyntaxError, ValueError, KeyError, EOFError, TypeError, struct.error) as error:
        raise RowError("unreadable", f"a damaged or unknown image ({error}); save it again") from error


def _check_size(image: Image) -> None:
    if image.width * image.height > MAX_SOURCE_PIXELS:
        raise _too_large(f"the image of {image.width} x {image.height} pixels")


def _too_large(what: str) -> RowError:
    return RowError("too long", f"{what} is above the limit of {MAX_SOURCE_PIXELS} pixels; scale it down")


def _pixels(image: Image, max_pixels: int) -> NDArray[np.uint8]:
    """uint8 [H, W, 3] RGB, turned as its EXIF orientation says, with at most `max_pixels`."""
    from PIL import Image, ImageOps

    if image.mode == "F" or image.mode.startswith("I"):
        image.load()
        upright: Image.Image = ImageOps.exif_transpose(image)
        grey = Image.fromarray(_eight_bits(np.asarray(upright), upright.mode))
        rgb = grey.convert("RGB")
    else:
        rgb = _rgb(ImageOps.exif_transpose(image))
    scale = math.sqrt(max_pixels / (rgb.width * rgb.height))
    if scale < 1:
        size = (max(1, int(rgb.width * scale)), max(1, int(rgb.height * scale)))
        rgb = rgb.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
    return np.array(rgb, np.uint8)


def _rgb(image: Image) -> Image:
    """8-bit RGB from any 8-bit or smaller mode; what is transparent is white."""
    if image.has_transparency_data:
        from PIL import Image

        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    if image.mode == "LAB":
        return _rgb_of_lab(image)
    return image.convert("RGB")


def _rgb_of_lab(image: Image) -> Image:
    """CIE L*a*b* to sRGB by colour management; Pillow's own `convert` does not know the mode."""
    from PIL import ImageCms

    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    converted: Image = ImageCms.buildTransform(lab, srgb, "LAB", "RGB").apply(image)
    return converted


def _eight_bits(values: NDArray[np.generic], mode: str) -> NDArray[np.uint8]:
    """Grey values of 16 or 32 bits or floats as uint8.

    16-bit files use the whole range. For 32 bits and floats no range is agreed on: it is taken as 0 to 1,
    0 to 255 or 0 to 65535 where the values lie within, and else as the values' own.
    """
    grey = np.nan_to_num(values.astype(np.float32), posinf=0.0, neginf=0.0)
    low, high = float(grey.min()), float(grey.max())
    limits = {"F": (1.0, 255.0, 65535.0), "I": (255.0, 65535.0)}.get(mode, (65535.0,))
    fitting = [limit for limit in limits if low >= 0 and high <= limit]
    if fitting:
        low, high = 0.0, fitting[0]
    scaled = np.rint((grey - low) * (255.0 / max(high - low, 1e-30))).clip(0, 255)
    return np.asarray(scaled, np.uint8)
