"""Image files: every mode upright and in RGB, frames as pages, errors with a category."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pipeline.errors import RowError
from vision.page import Options, count_pages, read_page

MATERIAL = Path(__file__).parents[2] / "shared" / "material"
SCENES = MATERIAL / "pillow-images" / "Tests" / "images"
MAPS = MATERIAL / "ocrmypdf-resources" / "tests" / "resources"
needs_scenes = pytest.mark.skipif(
    not SCENES.is_dir(), reason="needs ../shared/material/pillow-images, which is not part of a clone"
)
needs_maps = pytest.mark.skipif(
    not MAPS.is_dir(), reason="needs ../shared/material/ocrmypdf-resources, which is not part of a clone"
)


def pixels(path: Path, number: int = 1, options: Options | None = None) -> NDArray[np.uint8]:
    image = read_page(str(path), number, options or Options()).image
    assert image is not None
    assert image.dtype == np.uint8
    return image


def scene() -> Image.Image:
    """A picture without symmetry: red top left, green top right, blue below."""
    image = Image.new("RGB", (40, 30), "blue")
    image.paste("red", (0, 0, 20, 15))
    image.paste("lime", (20, 0, 40, 15))
    return image


def difference(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    return float(np.abs(a.astype(int) - b.astype(int)).mean())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_tag_is_obeyed(tmp_path: Path, orientation: int) -> None:
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = scene().transpose(undo[orientation]) if orientation in undo else scene()
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("a.png", "a.webp", "a.tif"):
        stored.save(tmp_path / name, exif=exif, lossless=True)
        assert (pixels(tmp_path / name) == np.asarray(scene())).all(), name


@pytest.mark.parametrize("size", [(1, 1), (3, 500), (40, 30)])
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        *(("1", "a.png"), ("L", "a.png"), ("LA", "a.png"), ("P", "a.gif"), ("PA", "a.tif"), ("RGB", "a.bmp")),
        *(("RGBA", "a.webp"), ("CMYK", "a.jpg"), ("CMYK", "a.tif"), ("LAB", "a.tif"), ("YCbCr", "a.jpg")),
        *(("I;16", "a.png"), ("I", "a.tif"), ("F", "a.tif")),
    ],
)
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str, name: str, size: tuple[int, int]) -> None:
    Image.new("L", size, 77).convert("RGB" if mode in ("LAB", "PA", "YCbCr") else "L").save(
        tmp_path / "grey.png"
    )
    with Image.open(tmp_path / "grey.png") as grey:
        if mode == "PA":
            stored = grey.convert("P").convert("PA")
        elif mode == "LAB":
            stored = Image.new("LAB", size, (80, 128, 128))
        elif mode == "I;16":
            stored = Image.fromarray(np.full(size[::-1], 77 * 257, np.uint16))
        else:
            stored = grey.convert(mode)
        stored.save(tmp_path / name)
    image = pixels(tmp_path / name)
    assert image.shape == (size[1], size[0], 3)
    if mode not in ("1", "LAB", "PA"):  # these cannot hold the very grey
        assert np.abs(image.astype(int) - 77).max() <= 2


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    Image.new("RGBA", (2, 2), (200, 0, 0, 0)).save(tmp_path / "a.png")
    assert (pixels(tmp_path / "a.png") == 255).all()
    palette = Image.new("P", (2, 2), 0)
    palette.save(tmp_path / "b.gif", transparency=0)
    assert (pixels(tmp_path / "b.gif") == 255).all()


def test_floats_from_0_to_1_use_the_whole_range(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0.0, 0.5, 1.0, np.nan]], np.float32)).save(tmp_path / "a.tif")
    assert pixels(tmp_path / "a.tif")[0, :, 0].tolist() == [0, 128, 255, 0]


def test_frames_of_a_tiff_are_pages(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert count_pages(str(path), Options()) == 3
    assert [pixels(path, n)[0, 0].tolist() for n in (1, 2, 3)] == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]
    with pytest.raises(RowError, match="page 4 was asked for, but the image has 3 frames"):
        pixels(path, 4)


def test_an_animation_is_its_first_frame(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    Image.new("RGB", (4, 4), "red").save(
        path, save_all=True, append_images=[Image.new("RGB", (4, 4), "blue")]
    )
    assert count_pages(str(path), Options()) == 1
    assert pixels(path)[0, 0].tolist() == [255, 0, 0]


def test_large_images_are_scaled_down(tmp_path: Path) -> None:
    scene().resize((400, 300)).save(tmp_path / "a.png")
    image = pixels(tmp_path / "a.png", options=Options(max_pixels=1200))
    assert image.shape == (30, 40, 3)
    assert difference(image, np.asarray(scene())) < 12


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.webp"])
def test_a_truncated_image_is_unreadable(tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RowError, match="damaged or unknown image") as caught:
        pixels(tmp_path / name)
    assert caught.value.category == "unreadable"


@pytest.mark.parametrize("side", [13_500, 30_000])
def test_an_image_above_the_limit_is_refused_by_its_header(tmp_path: Path, side: int) -> None:
    def block(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = block(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    path = tmp_path / "a.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + header + block(b"IDAT", zlib.compress(b"\0")) + block(b"IEND", b"")
    )
    for ask in (lambda: count_pages(str(path), Options()), lambda: pixels(path)):
        with pytest.raises(RowError, match="limit of 178000000 pixels") as caught:
            ask()
        assert caught.value.category == "too long"


def test_postscript_under_an_image_name_starts_no_program(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    scene().save(buffer, "EPS")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    with pytest.raises(RowError, match="damaged or unknown image"):
        pixels(tmp_path / "a.png")


@needs_scenes
@pytest.mark.parametrize("ending", ["jpg", "webp"])
@pytest.mark.parametrize("orientation", range(2, 9))
def test_eight_encodings_show_one_scene(orientation: int, ending: str) -> None:
    upright = pixels(SCENES / f"hopper.{ending}")
    assert difference(pixels(SCENES / f"hopper_orientation_{orientation}.{ending}"), upright) < 12


@needs_scenes
@pytest.mark.parametrize(
    "name",
    [
        *(
            "hopper_bw_500.png",
            "hopper_gray.jpg",
            "uncompressed_la.png",
            "hopper.gif",
            "rdf.tif",
            "hopper.jpg",
        ),
        *("imagedraw_square.png", "pil_sample_cmyk.jpg", "hopper.Lab.tif", "10ct_32bit_128.tiff"),
    ],
)
def test_real_images_of_every_mode_are_read(name: str) -> None:
    image = pixels(SCENES / name)
    assert image.ndim == 3
    assert image.std() > 1


@needs_scenes
def test_lab_and_cmyk_have_the_colours_of_their_twins() -> None:
    assert difference(pixels(SCENES / "hopper.Lab.tif"), pixels(SCENES / "hopper.jpg")) < 12
    sample = pixels(SCENES / "pil_sample_cmyk.jpg").reshape(-1, 3).astype(int)
    assert (sample.sum(axis=1) < 120).mean() > 0.5  # mostly black
    assert (sample[:, 0] - sample[:, 1:].max(axis=1) > 100).any()  # with red letters


@needs_maps
def test_an_adobe_cmyk_jpeg_is_no_negative() -> None:
    assert difference(pixels(MAPS / "baiona_cmyk.jpg"), pixels(MAPS / "baiona_color.jpg")) < 20


@needs_scenes
@pytest.mark.parametrize("name", ["truncated_jpeg.jpg", "broken.png"])
def test_real_damaged_images_are_unreadable(name: str) -> None:
    with pytest.raises(RowError) as caught:
        pixels(SCENES / name)
    assert caught.value.category == "unreadable"
