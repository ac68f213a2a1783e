"""Pictures, as bytes: frames, film strips, movies and plots of arrays. Knows no store; pillow and Matplotlib do the drawing."""

from diskbuffer.inspect.pictures.curves import curves
from diskbuffer.inspect.pictures.film_strip import film_strip, spread
from diskbuffer.inspect.pictures.frames import PictureKind, as_picture, as_pictures, picture_columns, picture_kind
from diskbuffer.inspect.pictures.images import png
from diskbuffer.inspect.pictures.movies import gif, has_video, mp4

__all__ = [
    "PictureKind",
    "as_picture",
    "as_pictures",
    "curves",
    "film_strip",
    "gif",
    "has_video",
    "mp4",
    "picture_columns",
    "picture_kind",
    "png",
    "spread",
]
