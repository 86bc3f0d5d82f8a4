"""Whatever is uploaded becomes an RGB picture or one plain sentence."""

import io
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

from trainer.pictures import MAX_BYTES, SIZE, PictureError, read_picture, to_input


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(width: int = 40, height: int = 30, mode: str = "RGB") -> Image.Image:
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "JPEG", "WEBP", "AVIF"])
def test_usual_formats_give_rgb_of_the_same_size(kind):
    plain = Image.new("RGB", (40, 30), (200, 100, 50))
    picture = read_picture(encoded(plain, kind))
    assert (picture.mode, picture.size) == ("RGB", (40, 30))
    assert np.abs(np.asarray(picture, int) - (200, 100, 50)).max() <= 6


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "LAB"])
def test_every_colour_mode_becomes_rgb(mode):
    kind = {"CMYK": "JPEG", "YCbCr": "JPEG", "LAB": "TIFF"}.get(mode, "PNG")
    image = Image.new("LAB", (8, 8), (128, 128, 128)) if mode == "LAB" else noise().convert(mode)
    try:
        assert read_picture(encoded(image, kind)).mode == "RGB"
    except PictureError:
        assert mode == "LAB"


def test_16_bit_grey_is_scaled_and_not_clipped(tmp_path):
    deep = Image.fromarray(np.full((32, 32), 54 * 257, np.uint16))
    for kind in ("PNG", "TIFF"):
        path = tmp_path / f"deep.{kind.lower()}"
        deep.save(path, kind)
        assert np.unique(np.asarray(read_picture(path))).tolist() == [54]
    ramp = np.array([[0, 257, 65_535]], np.uint16)
    assert np.asarray(read_picture(encoded(Image.fromarray(ramp), "PNG")))[0, :, 0].tolist() == [0, 1, 255]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_is_white_and_hides_no_colour(mode):
    hidden = noise().convert(mode)
    hidden.putalpha(0)
    assert np.asarray(read_picture(encoded(hidden, "PNG"))).min() == 255


def test_half_transparent_black_is_grey():
    assert read_picture(encoded(Image.new("RGBA", (4, 4), (0, 0, 0, 128)), "PNG")).getpixel((0, 0)) == (127, 127, 127)


def test_a_transparent_palette_colour_is_white():
    image = Image.new("P", (4, 4), 0)
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((0, 0), 1)
    picture = read_picture(encoded(image, "PNG", transparency=0))
    assert picture.getpixel((0, 0)) == (0, 255, 0)
    assert picture.getpixel((3, 3)) == (255, 255, 255)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_gives_its_first_frame_in_rgb(kind):
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    picture = read_picture(encoded(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True))
    assert picture.mode == "RGB"
    assert picture.getpixel((10, 10)) == (255, 0, 0)


def test_exif_orientation_is_followed():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_picture(encoded(noise(60, 40), "JPEG", exif=exif)).size == (40, 60)


@pytest.mark.filterwarnings("ignore:.*EXIF:UserWarning")
def test_a_broken_exif_block_does_not_matter():
    data = encoded(noise(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x09\x01\x12\0\x03\xff\xff")
    assert read_picture(data).size == (40, 30)


JPEG, PNG = encoded(noise(200, 200), "JPEG"), encoded(noise(200, 200), "PNG")


def zip_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", "words")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "empty"),
        (b"these are words", "not a picture"),
        (b"\x89PNG\r\n\x1a\n", "picture"),
        (b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"\0\0\0\x18ftypheic" + bytes(200), "HEIC"),
        (zip_bytes(), "not a picture"),
        (JPEG[: len(JPEG) // 2], "damaged"),
        (PNG[: len(PNG) // 2], "damaged"),
        (bytes(MAX_BYTES + 1), "10 MB"),
        (encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), "floating-point"),
        (encoded(Image.fromarray(np.full((4, 4), 1 << 20, np.int32)), "TIFF"), "32 bits"),
        (encoded(Image.new("1", (5000, 4000)), "PNG"), "5000 x 4000"),
        (encoded(Image.new("1", (12_000, 12_000)), "PNG"), "million pixels"),
        (encoded(Image.new("1", (20_000, 20_000)), "PNG"), "million pixels"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_everything_else_is_refused_in_one_sentence(data, word):
    with pytest.raises(PictureError, match=word) as caught:
        read_picture(data)
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert len(text) < 130


def test_missing_files_and_folders_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.png"):
        with pytest.raises(PictureError, match="cannot be read"):
            read_picture(path)


def test_any_damage_gives_a_picture_or_a_picture_error():
    rng = np.random.default_rng(1)
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
        good = np.frombuffer(encoded(noise(), kind), np.uint8)
        for _ in range(60):
            bad = good[: rng.integers(1, len(good) + 1)].copy()
            bad[rng.integers(0, len(bad), 4)] = rng.integers(0, 256, 4)
            try:
                assert read_picture(bad.tobytes()).mode == "RGB"
            except PictureError:
                continue


def test_a_huge_picture_is_refused_before_its_memory_is_taken(tmp_path):
    path = tmp_path / "huge.png"
    Image.new("1", (9000, 9000)).save(path)
    program = (
        "import resource, sys; from pathlib import Path; from trainer.pictures import read_picture\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: read_picture(Path(sys.argv[1]))\n"
        "except ValueError: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    grown = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60)
    assert int(grown.stdout) < 30_000  # kB


def test_32_by_32_passes_untouched():
    image = noise(SIZE, SIZE)
    assert np.array_equal(to_input(read_picture(encoded(image, "PNG"))), np.asarray(image))


@pytest.mark.parametrize("size", [(1, 1), (30_000, 1), (31, 33), (1000, 200), (200, 1000)])
def test_any_size_becomes_32_by_32(size):
    result = to_input(read_picture(encoded(Image.new("RGB", size, (9, 8, 7)), "PNG")))
    assert (result.shape, result.dtype) == ((SIZE, SIZE, 3), np.uint8)
    assert np.unique(result.reshape(-1, 3), axis=0).tolist() == [[9, 8, 7]]


def test_the_central_square_is_what_is_seen():
    image = Image.new("RGB", (96, 32), "red")
    image.paste("blue", (32, 0, 64, 32))
    assert np.unique(to_input(image).reshape(-1, 3), axis=0).tolist() == [[0, 0, 255]]


def test_shrinking_averages_instead_of_dropping_pixels():
    checker = (np.indices((512, 512)).sum(0) % 2 * 255).astype(np.uint8)
    assert np.abs(to_input(Image.fromarray(checker).convert("RGB")).astype(int) - 127).max() < 8
