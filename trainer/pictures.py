"""One decoder and one size rule for every picture, in training and in prediction. Imports no torch.

`read_picture` turns a file that anybody may have sent into an RGB picture or into one sentence;
`to_input` turns an RGB picture into what the network sees.
"""

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

SIZE = 32  # the networks see 32x32 pixels
MAX_BYTES = 10_000_000
MAX_PIXELS = 16_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"))
_KNOWN = "PNG, JPEG, WebP, GIF, BMP, TIFF or AVIF"
_TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I")


class PictureError(ValueError):
    """A file that is not a usable picture; the text is one sentence for its owner."""


def read_picture(source: Path | bytes) -> Image.Image:
    """Decode a file, or its bytes, into an upright RGB picture; of an animation the first frame.

    Transparency is laid on white and 16-bit grey is scaled to 8 bits. Raises PictureError, never anything else.
    """
    data = _bytes(source)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise PictureError(f"The picture has far more than {MAX_PIXELS // 10**6} million pixels.") from None
    except Exception:  # a decoder may raise anything at all on a hostile file
        raise PictureError(_what_else(data)) from None
    width, height = image.size
    if width * height > MAX_PIXELS:  # before the decoder asks for the memory
        raise PictureError(
            f"The picture is {width} x {height}: more than {MAX_PIXELS // 10**6} million pixels; make it smaller."
        )
    try:
        image.load()
        return _to_rgb(_upright(image))
    except PictureError:
        raise
    except Exception:
        raise PictureError("The picture is damaged or incomplete: it cannot be decoded to its end.") from None


def to_input(image: Image.Image) -> np.ndarray:
    """The rule that training and prediction share: the central square, resized with antialiasing to 32x32.

    Returns (32, 32, 3) uint8. An RGB picture of 32x32 passes through untouched.
    """
    if image.mode != "RGB":
        image = _to_rgb(image)
    width, height = image.size
    if (width, height) != (SIZE, SIZE):
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        box = (left, top, left + side, top + side)
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image)


def _bytes(source: Path | bytes) -> bytes:
    if isinstance(source, bytes):
        data = source
    else:
        try:
            with source.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise PictureError(f"The file cannot be read: {error.strerror or error}.") from None
    if not data:
        raise PictureError("The file is empty.")
    if len(data) > MAX_BYTES:
        raise PictureError(f"The file has more than {MAX_BYTES // 10**6} MB; make the picture smaller.")
    return data


def _what_else(data: bytes) -> str:
    """A sentence about bytes that no decoder takes."""
    head = data[:1000].lstrip().lower()
    if b"<svg" in head:
        return "The file is an SVG drawing; save it as PNG first."
    if data[4:12] in (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc"):
        return "The file is a HEIC photo; save it as JPEG first."
    return f"The file is not a picture that can be read ({_KNOWN})."


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF orientation says; a broken EXIF block says nothing."""
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except Exception:
        return image
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _DEEP:
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.mode == "F":
        raise PictureError("The picture has floating-point pixels; save it with 8 or 16 bits a channel.")
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGB", layer.size, "white")
        white.paste(layer, mask=layer)
        return white
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(grey: np.ndarray) -> np.ndarray:
    """16-bit grey scaled, not clipped as Pillow's own conversion does: 65535 becomes 255."""
    if grey.size and (grey.min() < 0 or grey.max() > 65_535):
        raise PictureError("The picture has 32 bits a pixel; save it with 8 or 16 bits a channel.")
    return ((grey.astype(np.uint32) * 255 + 32_767) // 65_535).astype(np.uint8)
